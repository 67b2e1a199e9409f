//! Gather: a batch of records, by index, into memory.
//!
//! Called by `dense` and `ragged` with indices and a destination. It locates the records, plans
//! the reads ([`crate::plan`]), and carries the plan out on the calling thread or, if the batch
//! is large, on workers beside it. It knows bytes; what they mean is for its callers.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};

use ringloader_fallback::{BatchReader, ReadError, ReadErrorKind, ReadOp, Slots, Span, SpanMut};

use crate::backend::Backend;
use crate::codec::context::Decoder;
use crate::codec::{Codec, Dictionary};
use crate::error::{Error, Result};
use crate::executor::{Context, Shard, with_context};
use crate::format::{Frontier, Location};
use crate::plan::{Plan, Read};
use crate::runtime::{Engine, engine};
use crate::storage::{ChunkFile, Storage};

/// Batches of fewer bytes are copied on the calling thread: waking a worker costs as much.
const RAW_INLINE_BYTES: usize = 384 << 10;
/// The same for batches that are decoded, at some microseconds a kilobyte.
const DECODE_INLINE_BYTES: usize = 32 << 10;
/// Shards for each thread: enough for the threads to finish at about the same time.
const SHARDS_PER_THREAD: usize = 4;
/// The most that one read fetches. Larger runs are cut, so that reading and decoding overlap.
const READ_BYTES_MAX: usize = 1 << 20;
/// Stored bytes that are staged at a time for decoding; they stay in the second-level cache.
const STAGING_BYTES: usize = 512 << 10;

/// Records that were located and checked: each lies in its chunk and has a possible size.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) locations: Vec<Location>,
    chunks: Vec<(u32, Arc<ChunkFile>)>,
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
    let locations = storage.table.locate(indices, frontier.length)?;
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
    located.chunks.sort_unstable_by_key(|(id, _)| *id);
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
    chunks: &mut Vec<(u32, Arc<ChunkFile>)>,
) -> Result<(), Invalid> {
    location.check(storage.codec(), frontier, storage.capacity()).map_err(Invalid::Location)?;
    if let Some(bytes) = expected.filter(|bytes| *bytes != location.logic_length) {
        let found = location.logic_length;
        return Err(Invalid::Location(format!(
            "it has {found} bytes and a record here has {bytes}"
        )));
    }
    let known = chunks.iter().rposition(|(id, _)| *id == location.chunk);
    let place = if let Some(place) = known {
        place
    } else {
        let chunk = storage.chunks.get(location.chunk).map_err(Invalid::Chunk)?;
        chunks.push((location.chunk, chunk));
        chunks.len() - 1
    };
    match chunks[place].1.reaches(location.end()) {
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
    slots: Slots<'_>,
) -> Result<()> {
    let engine = engine()?;
    let plan = Plan::new(&located.locations);
    let fetcher =
        Fetcher { storage, engine, indices, located, plan: &plan, failure: Mutex::new(None) };
    let mut parts = fetcher.parts(slots);
    with_context(|context| match parts.len() {
        0 => Ok(()),
        1 => fetcher.run(context, parts.remove(0)),
        _ => {
            let fetcher = &fetcher;
            let shards: Vec<Shard<'_>> = parts
                .into_iter()
                .map(|part| -> Shard<'_> {
                    Box::new(move |context| fetcher.run_shard(context, part))
                })
                .collect();
            engine.executor.run(context, shards)?;
            fetcher.first_failure()
        }
    })
}

/// Consecutive fetches of the plan with the memory for each read or record.
struct Part<'d> {
    reads: Vec<Read>,
    /// For raw records the destination of each read, otherwise that of each fetch.
    destinations: Vec<SpanMut<'d>>,
}

/// Everything that the shards of one batch share.
struct Fetcher<'b> {
    storage: &'b Storage,
    engine: &'b Engine,
    indices: &'b [u64],
    located: &'b Located,
    plan: &'b Plan,
    failure: Mutex<Option<Error>>,
}

impl Fetcher<'_> {
    /// Cuts the plan into parts, one for each thread's turn, with their destinations.
    fn parts<'d>(&self, mut slots: Slots<'d>) -> Vec<Part<'d>> {
        let raw = self.storage.codec() == Codec::Raw;
        let bytes: usize = self.located.locations.iter().map(|l| l.logic_length as usize).sum();
        let inline = bytes <= if raw { RAW_INLINE_BYTES } else { DECODE_INLINE_BYTES };
        let threads = self.engine.executor.threads_per_batch();
        let count = if inline || threads == 1 { 1 } else { threads * SHARDS_PER_THREAD };
        let plan = self.plan;
        let part = |range: Range<usize>| {
            if raw {
                let reads = plan.reads(range, READ_BYTES_MAX, |a, b| b.slot == a.slot + 1);
                let slots_of = |read: &Read| {
                    let first = plan.fetches[read.fetches.start].slot as usize;
                    first..first + read.fetches.len()
                };
                let destinations = reads.iter().map(|read| slots.take(slots_of(read))).collect();
                Part { reads, destinations }
            } else {
                let slot = |i: usize| plan.fetches[i].slot as usize;
                let destinations =
                    range.clone().map(|i| slots.take(slot(i)..slot(i) + 1)).collect();
                Part { reads: plan.reads(range, READ_BYTES_MAX, |_, _| true), destinations }
            }
        };
        plan.shards(count).into_iter().map(part).collect()
    }

    fn run_shard(&self, context: &mut Context, part: Part<'_>) {
        if let Err(error) = self.run(context, part) {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn first_failure(&self) -> Result<()> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn run(&self, context: &mut Context, part: Part<'_>) -> Result<()> {
        match self.storage.codec() {
            Codec::Raw => self.copy(context, part),
            Codec::Zstd | Codec::ZstdDict => {
                let decoded = self.decode(context, part);
                context.shrink();
                decoded
            }
        }
    }

    /// The backend of this store, and whether a thread that cannot have it may use another.
    fn backend(&self) -> (Backend, bool) {
        match self.storage.io() {
            Some(asked) => (asked, false),
            None => (self.engine.backend(), true),
        }
    }

    /// Reads raw records straight to where they go.
    fn copy(&self, context: &mut Context, part: Part<'_>) -> Result<()> {
        let (backend, fallback) = self.backend();
        let reader = context.reader(backend, fallback)?;
        let mut ops: Vec<ReadOp<'_>> = part
            .reads
            .iter()
            .zip(part.destinations)
            .map(|(read, dst)| self.op(read, dst))
            .collect();
        let read = reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(()));
        read.map_err(|error| self.read_failed(&part.reads, &error))
    }

    /// Stages compressed records and decodes each as its read completes.
    fn decode(&self, context: &mut Context, part: Part<'_>) -> Result<()> {
        let mut destinations: Vec<Option<SpanMut<'_>>> =
            part.destinations.into_iter().map(Some).collect();
        let first = part.reads.first().map_or(0, |read| read.fetches.start);
        let (backend, fallback) = self.backend();
        let mut reads = part.reads.as_slice();
        while !reads.is_empty() {
            let (now, later) = reads.split_at(staged_together(reads));
            reads = later;
            let bytes = now.iter().map(|read| read.bytes).sum();
            let (reader, decoder, staging) = context.decoding(backend, fallback, bytes)?;
            let of_now = &mut destinations[now[0].fetches.start - first..];
            self.decode_staged(now, reader, decoder, staging, of_now)?;
        }
        Ok(())
    }

    fn decode_staged(
        &self,
        reads: &[Read],
        reader: &mut dyn BatchReader,
        decoder: &mut Decoder,
        mut staging: &mut [u8],
        destinations: &mut [Option<SpanMut<'_>>],
    ) -> Result<()> {
        let mut ops = Vec::with_capacity(reads.len());
        for read in reads {
            let (now, later) = staging.split_at_mut(read.bytes);
            staging = later;
            ops.push(self.op(read, SpanMut::from(now)));
        }
        let dictionary = self.storage.dictionary().map(Arc::as_ref);
        let first = reads[0].fetches.start;
        let mut failure = None;
        let read = reader.read(&mut ops, &mut |op, bytes| {
            let fetches = reads[op].fetches.clone();
            let of_read = &mut destinations[fetches.start - first..fetches.end - first];
            match self.decode_read(fetches, bytes, decoder, dictionary, of_read) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        read.map_err(|error| self.read_failed(reads, &error))?;
        failure.map_or(Ok(()), Err)
    }

    /// Decodes the frames of one completed read.
    fn decode_read(
        &self,
        fetches: Range<usize>,
        bytes: Span<'_>,
        decoder: &mut Decoder,
        dictionary: Option<&Dictionary>,
        destinations: &mut [Option<SpanMut<'_>>],
    ) -> Result<()> {
        let mut frames = bytes.as_slice().expect("staging memory is this thread's own");
        for (i, destination) in fetches.zip(destinations) {
            let (frame, rest) = frames.split_at(self.plan.fetches[i].phys_length as usize);
            frames = rest;
            let dst = destination.take().expect("each record is decoded once");
            decoder.decode(frame, dictionary, dst).map_err(|reason| Error::Decode {
                path: self.storage.path().to_owned(),
                record: self.record(i),
                reason,
            })?;
        }
        Ok(())
    }

    fn op<'a>(&'a self, read: &Read, dst: SpanMut<'a>) -> ReadOp<'a> {
        let fetch = &self.plan.fetches[read.fetches.start];
        ReadOp { file: self.chunk(fetch.chunk()).file.file(), offset: fetch.offset(), dst }
    }

    fn chunk(&self, id: u32) -> &ChunkFile {
        let chunks = &self.located.chunks;
        let found = chunks.binary_search_by_key(&id, |(id, _)| *id);
        &chunks[found.expect("every located record's chunk is open")].1
    }

    /// The index of the record of fetch `i`.
    fn record(&self, i: usize) -> u64 {
        self.indices[self.plan.fetches[i].slot as usize]
    }

    /// Names the record that a failed read was for.
    fn read_failed(&self, reads: &[Read], error: &ReadError) -> Error {
        let read = &reads[error.op];
        let path = self.storage.path();
        match &error.kind {
            ReadErrorKind::Eof { filled } => {
                let mut start = 0;
                let cut = read.fetches.clone().find(|i| {
                    start += self.plan.fetches[*i].phys_length as usize;
                    start > *filled
                });
                let record = self.record(cut.unwrap_or(read.fetches.start));
                let reason = "the chunk's file ends inside it".into();
                Error::BadLocation { path: path.to_owned(), record, reason }
            }
            ReadErrorKind::Io(source) => {
                let record = self.record(read.fetches.start);
                let chunk = self.chunk(self.plan.fetches[read.fetches.start].chunk());
                let source =
                    std::io::Error::new(source.kind(), format!("record {record}: {source}"));
                Error::io("read", chunk.file.path(), source)
            }
        }
    }
}

/// How many of `reads`, at least one, are staged at a time.
fn staged_together(reads: &[Read]) -> usize {
    let mut bytes = 0;
    let fit = reads.iter().take_while(|read| {
        bytes += read.bytes;
        bytes <= STAGING_BYTES
    });
    fit.count().max(1)
}
