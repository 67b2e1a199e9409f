//! The record table: where each record is. Locations are kept in memory, so a gather makes no
//! system call for them once they were used.
//!
//! What is missing is read when it is first asked for, all that a batch misses together. The
//! `cache` says what to read and keeps it within a budget; a `block` is how it is kept.

mod block;
mod cache;
mod strays;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ringloader_fallback::{ReadOp, SpanMut};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::executor::with_context;
use crate::file::{Fs, StoreFile, numbered_files};
use crate::format::{
    Capacity, LOCATION_BYTES, Location, decode_locations, encode_locations, names,
};
use crate::runtime::engine;
use block::Block;
use cache::{BUDGET_BYTES, Cache};

/// Locations that are read together: enough reads for a disk to be busy, in memory that stays in
/// the second-level cache.
const ROUND_RECORDS: u64 = 16 << 10;
/// A read that takes longer than this, beside its bytes at [`COLD_BYTES_PER_MICROSECOND`], was not
/// in memory.
const COLD_LATENCY: Duration = Duration::from_micros(60);
/// A slow memory copy.
const COLD_BYTES_PER_MICROSECOND: u64 = 1000;

/// The record table of a store.
#[derive(Debug)]
pub(crate) struct Table {
    dir: PathBuf,
    fs: Fs,
    writable: bool,
    capacity: Capacity,
    segments: RwLock<HashMap<u64, Arc<StoreFile>>>,
    cache: RwLock<Cache>,
}

/// A record of a batch whose location is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Missing {
    index: u64,
    slot: usize,
}

/// Consecutive locations of one segment, to be read.
#[derive(Debug)]
struct Piece {
    segment: Arc<StoreFile>,
    offset: u64,
    bytes: usize,
}

impl Table {
    pub(crate) fn new(dir: &Path, fs: &Fs, writable: bool, capacity: Capacity) -> Self {
        Self {
            dir: dir.to_owned(),
            fs: fs.clone(),
            writable,
            capacity,
            segments: RwLock::default(),
            cache: RwLock::new(Cache::new(BUDGET_BYTES)),
        }
    }

    /// Checks that the last segment is as long as `length` records need.
    pub(crate) fn check_length(&self, length: u64) -> Result<()> {
        let Some(last) = length.checked_sub(1) else { return Ok(()) };
        let segment = self.segment(last / self.capacity.segment_records, false)?;
        let needed = (last % self.capacity.segment_records + 1) * LOCATION_BYTES as u64;
        let found = segment.len()?;
        if found < needed {
            return Err(Error::invalid(
                segment.path(),
                format!(
                    "it has {found} bytes and the {length} records of the header need {needed}"
                ),
            ));
        }
        Ok(())
    }

    /// The locations of `indices`, all of which are below `length`. What is not in memory is read
    /// the way that `io` names.
    pub(crate) fn locate(
        &self,
        indices: &[u64],
        length: u64,
        io: Option<Backend>,
    ) -> Result<Vec<Location>> {
        let (mut found, mut missing) = self.look_up(indices);
        if missing.is_empty() {
            return Ok(found);
        }
        missing.sort_unstable();
        let wanted = {
            let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
            cache.wanted(missing.iter().map(|missing| missing.index), length)
        };
        let mut missing = missing.as_slice();
        let mut wanted = wanted.as_slice();
        while !wanted.is_empty() {
            let (now, later) = wanted.split_at(round(wanted));
            wanted = later;
            self.load(now, io, &mut missing, &mut found)?;
        }
        assert!(missing.is_empty(), "what was missing is what was read");
        Ok(found)
    }

    /// Looks up what it can without reading; what it cannot has no meaning in the first list
    /// and is in the second.
    fn look_up(&self, indices: &[u64]) -> (Vec<Location>, Vec<Missing>) {
        const NOWHERE: Location = Location { offset: 0, phys_length: 0, logic_length: 0, chunk: 0 };
        let (mut found, mut missing) = (Vec::with_capacity(indices.len()), Vec::new());
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        for (slot, &index) in indices.iter().enumerate() {
            if let Some(location) = cache.get(index) {
                found.push(location);
            } else {
                found.push(NOWHERE);
                missing.push(Missing { index, slot });
            }
        }
        (found, missing)
    }

    /// Reads the records `wanted`, keeps them, and takes those of `missing` that are among them
    /// from its beginning to their slots in `found`.
    fn load(
        &self,
        wanted: &[Range<u64>],
        io: Option<Backend>,
        missing: &mut &[Missing],
        found: &mut [Location],
    ) -> Result<()> {
        let bytes = self.read_together(wanted, io)?;
        let mut bytes = bytes.as_slice();
        let mut blocks = Vec::with_capacity(wanted.len());
        for records in wanted {
            let (now, later) = bytes.split_at(bytes_of(records));
            bytes = later;
            let locations = decode_locations(now);
            while let Some((first, rest)) = missing.split_first()
                && records.contains(&first.index)
            {
                found[first.slot] = locations[(first.index - records.start) as usize];
                *missing = rest;
            }
            blocks.push((records.start, Block::new(&locations)));
        }
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        for (first, block) in blocks {
            cache.keep(first, block);
        }
        Ok(())
    }

    /// The bytes of the records `wanted`, one range behind the other. What is in memory is read by
    /// and by, without a ring that the thread may never need again; a disk gets all reads at once.
    fn read_together(&self, wanted: &[Range<u64>], io: Option<Backend>) -> Result<Vec<u8>> {
        let pieces = self.pieces(wanted)?;
        let mut bytes = vec![0; wanted.iter().map(bytes_of).sum()];
        let (mut rest, mut pieces) = (bytes.as_mut_slice(), pieces.as_slice());
        while let Some((piece, later)) = pieces.split_first() {
            let (now, behind) = rest.split_at_mut(piece.bytes);
            (rest, pieces) = (behind, later);
            let started = Instant::now();
            piece.segment.read_exact_at(now, piece.offset)?;
            let copy = Duration::from_micros(piece.bytes as u64 / COLD_BYTES_PER_MICROSECOND);
            let is_cold = started.elapsed() > COLD_LATENCY + copy;
            if is_cold && pieces.len() > 1 && read_batch(pieces, rest, io)? {
                break;
            }
        }
        Ok(bytes)
    }

    /// What to read for the records `wanted`, joined where they follow each other.
    fn pieces(&self, wanted: &[Range<u64>]) -> Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::with_capacity(wanted.len());
        let runs = wanted
            .iter()
            .flat_map(|records| self.runs(records.start, (records.end - records.start) as usize));
        for (number, offset, count) in runs {
            let segment = self.segment(number, false)?;
            let bytes = count * LOCATION_BYTES;
            match pieces.last_mut() {
                Some(last)
                    if Arc::ptr_eq(&last.segment, &segment)
                        && last.offset + last.bytes as u64 == offset =>
                {
                    last.bytes += bytes;
                }
                _ => pieces.push(Piece { segment, offset, bytes }),
            }
        }
        Ok(pieces)
    }

    /// Reads `count` consecutive locations past the cache.
    pub(crate) fn read(&self, first: u64, count: usize) -> Result<Vec<Location>> {
        let mut locations = Vec::with_capacity(count);
        for (segment, offset, count) in self.runs(first, count) {
            let mut bytes = vec![0; count * LOCATION_BYTES];
            self.segment(segment, false)?.read_exact_at(&mut bytes, offset)?;
            locations.append(&mut decode_locations(&bytes));
        }
        Ok(locations)
    }

    /// Writes consecutive locations from `first` on. A block in memory that they belong to is
    /// forgotten, so readers see either the old table or the new one, whole.
    pub(crate) fn write(&self, first: u64, locations: &[Location]) -> Result<()> {
        let written = self.write_segments(first, locations);
        // Also after an error: some of it may be on disk, and memory must not say otherwise.
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.forget(&(first..first + locations.len() as u64));
        written
    }

    fn write_segments(&self, first: u64, locations: &[Location]) -> Result<()> {
        let mut rest = locations;
        for (segment, offset, count) in self.runs(first, locations.len()) {
            let (now, later) = rest.split_at(count);
            self.segment(segment, true)?.write_all_at(encode_locations(now).as_slice(), offset)?;
            rest = later;
        }
        Ok(())
    }

    /// Cuts the segments to exactly `length` records and removes those past it.
    pub(crate) fn truncate(&self, length: u64) -> Result<()> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner).forget_all();
        let kept = length.div_ceil(self.capacity.segment_records);
        let mut past = numbered_files(&self.dir, ".loc")?;
        past.retain(|number| *number >= kept);
        past.sort_unstable();
        for number in past.into_iter().rev() {
            self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
            self.fs.remove_file(&self.path(number))?;
        }
        if let Some(last) = kept.checked_sub(1) {
            let records = length - last * self.capacity.segment_records;
            self.segment(last, true)?.truncate(records * LOCATION_BYTES as u64)?;
        }
        Ok(())
    }

    /// Opens every segment that there is.
    pub(crate) fn open_all(&self) -> Result<()> {
        for number in numbered_files(&self.dir, ".loc")? {
            self.segment(number, false)?;
        }
        Ok(())
    }

    /// Closes every file and forgets every location.
    pub(crate) fn forget_all(&self) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.cache.write().unwrap_or_else(PoisonError::into_inner).forget_all();
    }

    /// Makes every segment that was opened durable: what was written was opened.
    pub(crate) fn sync(&self) -> Result<()> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.values().try_for_each(|segment| segment.sync())
    }

    /// The runs of whole-segment places that `count` records from `first` on fall into:
    /// segment, byte offset, records.
    fn runs(&self, first: u64, count: usize) -> impl Iterator<Item = (u64, u64, usize)> + use<> {
        let per_segment = self.capacity.segment_records;
        let (mut next, end) = (first, first + count as u64);
        std::iter::from_fn(move || {
            let slot = next % per_segment;
            let count = (end - next).min(per_segment - slot);
            let run = (next / per_segment, slot * LOCATION_BYTES as u64, count as usize);
            next += count;
            (count > 0).then_some(run)
        })
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(names::segment(segment))
    }

    fn existing(&self, segment: u64) -> Option<PathBuf> {
        Some(self.path(segment)).filter(|path| path.symlink_metadata().is_ok())
    }

    fn segment(&self, number: u64, create: bool) -> Result<Arc<StoreFile>> {
        let known = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(segment) = known.get(&number) {
            return Ok(Arc::clone(segment));
        }
        drop(known);
        let file = if create && self.existing(number).is_none() {
            self.fs.create_file(&self.path(number))?
        } else {
            self.fs.open_file(&self.path(number), self.writable).map_err(missing)?
        };
        let segment = Arc::new(file);
        let mut known = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(known.entry(number).or_insert(segment)))
    }
}

/// How many of `wanted`, at least one, are read together.
fn round(wanted: &[Range<u64>]) -> usize {
    let mut count = 0;
    let fit = wanted.iter().take_while(|records| {
        count += records.end - records.start;
        count <= ROUND_RECORDS
    });
    fit.count().max(1)
}

fn bytes_of(records: &Range<u64>) -> usize {
    (records.end - records.start) as usize * LOCATION_BYTES
}

/// Reads `pieces` one behind the other into `bytes`. Gives false if that failed: reading them one
/// by one will succeed, or say what is wrong.
fn read_batch(pieces: &[Piece], mut bytes: &mut [u8], io: Option<Backend>) -> Result<bool> {
    let reader = engine()?.route(io).reader;
    let mut ops = Vec::with_capacity(pieces.len());
    for Piece { segment, offset, bytes: count } in pieces {
        let (now, later) = bytes.split_at_mut(*count);
        bytes = later;
        ops.push(ReadOp { file: segment.file(), offset: *offset, dst: SpanMut::from(now) });
    }
    with_context(|context| {
        let reader = context.reader(reader)?;
        Ok(reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(())).is_ok())
    })
}

/// A file that the header says must be there is damage, not a failed system call.
pub(crate) fn missing(error: Error) -> Error {
    match error {
        Error::Io { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::invalid(&path, "the file is missing")
        }
        other => other,
    }
}
