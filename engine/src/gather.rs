//! Gather: a batch of records, by index, into memory.
//!
//! Called by `dense` and `ragged` with indices and a destination. It locates the records and
//! checks where they are; then those whose chunks are in memory are copied from mappings
//! ([`mapped`]), and the others are read ([`read`]). It knows bytes; what they mean is for its callers.

mod mapped;
mod read;

use std::sync::Arc;

use ringloader_fallback::Slots;

use crate::backend::Route;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::format::{Frontier, Location};
use crate::residency::Heat;
use crate::runtime::{Engine, engine};
use crate::storage::{ChunkFile, Storage};

/// Batches of fewer bytes are copied on the calling thread: waking a worker costs as much.
const RAW_INLINE_BYTES: usize = 384 << 10;
/// The same for batches that are decoded, at some microseconds a kilobyte.
const DECODE_INLINE_BYTES: usize = 32 << 10;

/// Records that were located and checked: each lies in its chunk and has a possible size.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) locations: Vec<Location>,
    /// The chunks that the records are in, by number.
    chunks: Vec<Touched>,
}

/// A chunk that records of a batch are in.
#[derive(Debug)]
struct Touched {
    id: u32,
    file: Arc<ChunkFile>,
    /// Where the last of the records ends.
    end: u64,
}

impl Located {
    fn chunk(&self, id: u32) -> &ChunkFile {
        let found = self.chunks.binary_search_by_key(&id, |chunk| chunk.id);
        &self.chunks[found.expect("every located record's chunk is open")].file
    }
}

/// Locates `indices`. `expected` is the size that every record must have, where there is one.
///
/// The caller holds the storage's gate until the records were fetched.
pub(crate) fn locate(storage: &Storage, indices: &[u64], expected: Option<u32>) -> Result<Located> {
    if u32::try_from(indices.len()).is_err() {
        return Err(Error::InvalidArgument("a batch has at most 2^32 - 1 records".into()));
    }
    let frontier = storage.frontier();
    if let Some(&index) = indices.iter().find(|index| **index >= frontier.length) {
        let (path, index, length) = (storage.path().to_owned(), index.into(), frontier.length);
        return Err(Error::IndexOutOfRange { path, index, length });
    }
    let locations = storage.table.locate(indices, frontier.length, storage.io())?;
    let mut located = Located { locations, chunks: Vec::new() };
    for (location, &index) in located.locations.iter().zip(indices) {
        check(storage, location, &frontier, expected, &mut located.chunks).map_err(
            |e| match e {
                Invalid::Location(reason) => {
                    Error::BadLocation { path: storage.path().to_owned(), record: index, reason }
                }
                Invalid::Chunk(Error::InvalidStore { path: chunk, reason }) => {
                    let reason = format!("{reason}: {}", chunk.display());
                    Error::BadLocation { path: storage.path().to_owned(), record: index, reason }
                }
                Invalid::Chunk(error) => error,
            },
        )?;
    }
    located.chunks.sort_unstable_by_key(|chunk| chunk.id);
    Ok(located)
}

enum Invalid {
    Location(String),
    Chunk(Error),
}

fn check(
    storage: &Storage,
    location: &Location,
    frontier: &Frontier,
    expected: Option<u32>,
    chunks: &mut Vec<Touched>,
) -> Result<(), Invalid> {
    location.check(storage.codec(), frontier, storage.capacity()).map_err(Invalid::Location)?;
    if let Some(bytes) = expected.filter(|bytes| *bytes != location.logic_length) {
        let found = location.logic_length;
        return Err(Invalid::Location(format!(
            "it has {found} bytes and a record here has {bytes}"
        )));
    }
    let known = chunks.iter().rposition(|chunk| chunk.id == location.chunk);
    let place = if let Some(place) = known {
        place
    } else {
        let file = storage.chunks.get(location.chunk).map_err(Invalid::Chunk)?;
        chunks.push(Touched { id: location.chunk, file, end: 0 });
        chunks.len() - 1
    };
    let chunk = &mut chunks[place];
    chunk.end = chunk.end.max(location.end());
    match chunk.file.reaches(location.end()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Invalid::Location(format!(
            "it ends at byte {} of chunk {}, past the end of the file",
            location.end(),
            location.chunk
        ))),
        Err(error) => Err(Invalid::Chunk(error)),
    }
}

/// Fetches located records into `slots`, one slot for each.
pub(crate) fn fetch(
    storage: &Storage,
    indices: &[u64],
    located: &Located,
    mut slots: Slots<'_>,
) -> Result<()> {
    let engine = engine()?;
    let route = engine.route(storage.io());
    let mut batch = Batch { storage, engine, indices, located, route };
    if batch.is_one_read() {
        batch.route = route.for_one_read();
    }
    let left = mapped::fetch(&batch, slots.reborrow())?;
    if left.is_empty() {
        return Ok(());
    }
    read::fetch(&batch, &left, slots)
}

/// A located batch, and what the threads that work on it share.
struct Batch<'b> {
    storage: &'b Storage,
    engine: &'b Engine,
    indices: &'b [u64],
    located: &'b Located,
    route: Route,
}

impl Batch<'_> {
    fn is_raw(&self) -> bool {
        self.storage.codec() == Codec::Raw
    }

    fn is_one_read(&self) -> bool {
        self.located.locations.len() == 1
    }

    /// How many threads are worth their while.
    fn threads(&self) -> usize {
        let bytes: usize = self.located.locations.iter().map(|l| l.logic_length as usize).sum();
        let inline = if self.is_raw() { RAW_INLINE_BYTES } else { DECODE_INLINE_BYTES };
        if bytes <= inline { 1 } else { self.engine.executor.threads_per_batch() }
    }

    /// How much of each of `chunks` is in memory, at least.
    fn heat(&self, chunks: &[&Touched]) -> Heat {
        let heat = |chunk: &&Touched| chunk.file.heat(&self.storage.chunks);
        chunks.iter().map(heat).min().unwrap_or(Heat::Unknown)
    }
}
