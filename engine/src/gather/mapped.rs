//! A located batch copied from mappings of its chunks, without a system call for each record.
//!
//! This is the fast road only. Whatever goes wrong on it (a file that was cut, a page that cannot
//! be read, a frame that does not decode) sends the whole batch to the readers, which give the
//! right bytes or say what is wrong with which record.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringloader_fallback::{Mapping, Slots, SpanMut, mapping};

use super::{Batch, Touched};
use crate::backend::Mapped;
use crate::error::Result;
use crate::executor::{Context, Shard, with_context};
use crate::format::Location;
use crate::plan::shares;

/// Shards for each thread: enough for the threads to finish at about the same time.
const SHARDS_PER_THREAD: usize = 4;
/// So many records further on the memory is told what will be copied.
const PREFETCHED_RECORDS: usize = 3;
/// A batch that takes longer than this, beside a microsecond for each [`SLOW_BYTES`], has waited
/// for a disk.
const SLOW: Duration = Duration::from_millis(1);
/// A slow copy or decoder, in bytes to a microsecond.
const SLOW_BYTES: u64 = 200;

/// Copies the records of `batch` into `slots`, one slot for each. Gives the chunks whose records
/// are still to be read: they are not in memory, or something was wrong.
pub(super) fn fetch<'b>(batch: &'b Batch<'_>, slots: Slots<'_>) -> Result<Vec<&'b Touched>> {
    let Some(copier) = Copier::new(batch) else {
        return Ok(batch.located.chunks.iter().collect());
    };
    let started = Instant::now();
    copier.run(slots)?;
    copier.doubt_if_slow(started.elapsed());
    Ok(copier.left())
}

/// A batch on its way from mappings.
struct Copier<'b> {
    batch: &'b Batch<'b>,
    /// The mapping of each chunk that the batch touches, in the same order, where there is one.
    mappings: Vec<Option<Arc<Mapping>>>,
    failed: AtomicBool,
}

impl<'b> Copier<'b> {
    fn new(batch: &'b Batch<'b>) -> Option<Self> {
        let mapped = batch.route.mapped;
        if mapped == Mapped::Never || batch.located.locations.is_empty() {
            return None;
        }
        let chunks = &batch.storage.chunks;
        let of_chunk = |chunk: &Touched| chunk.file.mapping(chunk.end, mapped, chunks);
        let mappings: Vec<_> = batch.located.chunks.iter().map(of_chunk).collect();
        let has_some = mappings.iter().any(Option::is_some);
        // Asked last: making the first mapping puts the handler in place. Workers see to it
        // themselves that their faults are caught.
        let is_safe = has_some && mapping::faults_are_caught_here();
        is_safe.then_some(Self { batch, mappings, failed: AtomicBool::new(false) })
    }

    fn run(&self, mut slots: Slots<'_>) -> Result<()> {
        let locations = &self.batch.located.locations;
        let count = match self.batch.threads() {
            1 => 1,
            threads => threads * SHARDS_PER_THREAD,
        };
        let mut shards: Vec<Shard<'_>> = shares(locations.iter().map(|l| l.logic_length), count)
            .into_iter()
            .map(|range| -> Shard<'_> {
                let dst = slots.take(range.clone());
                Box::new(move |context| self.run_shard(context, range, dst))
            })
            .collect();
        with_context(|context| match shards.len() {
            1 => {
                shards.remove(0)(context);
                Ok(())
            }
            _ => self.batch.engine.executor.run(context, shards),
        })
    }

    fn run_shard(&self, context: &mut Context, range: Range<usize>, dst: SpanMut<'_>) {
        let locations = &self.batch.located.locations[range];
        if self.batch.is_raw() {
            self.copy(locations, dst);
        } else if self.failed.load(Ordering::Relaxed)
            || self.decode(context, locations, dst).is_none()
        {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Copies raw records; those that lie one behind the other are copied as one.
    fn copy(&self, locations: &[Location], mut dst: SpanMut<'_>) {
        let mut copied = 0;
        for run in locations.chunk_by(Location::is_followed_by) {
            copied += run.len();
            if let Some(soon) = locations.get(copied + PREFETCHED_RECORDS)
                && let Some(mapping) = self.mapping(soon.chunk)
            {
                mapping.prefetch(soon.offset.into(), soon.phys_length as usize);
            }
            let bytes = run.iter().map(|location| location.phys_length as usize).sum();
            let (mut records, rest) = dst.split_at(bytes);
            if let Some(mapping) = self.mapping(run[0].chunk) {
                mapping.copy_to(run[0].offset.into(), &mut records);
            }
            dst = rest;
        }
    }

    /// Decodes compressed records, one behind the other. Each frame is copied first: the file
    /// can change under its mapping, and the decoder must not see its input change.
    fn decode(
        &self,
        context: &mut Context,
        locations: &[Location],
        mut dst: SpanMut<'_>,
    ) -> Option<()> {
        let dictionary = self.batch.storage.dictionary().map(Arc::as_ref);
        for location in locations {
            let (record, rest) = dst.split_at(location.logic_length as usize);
            dst = rest;
            let Some(mapping) = self.mapping(location.chunk) else { continue };
            let (decoder, frame) = context.staged(location.phys_length as usize).ok()?;
            mapping.copy_to(location.offset.into(), &mut SpanMut::from(&mut *frame));
            decoder.decode(frame, dictionary, record).ok()?;
        }
        context.shrink();
        Some(())
    }

    fn mapping(&self, chunk: u32) -> Option<&Mapping> {
        let chunks = &self.batch.located.chunks;
        let found = match self.mappings.len() {
            1 => 0,
            _ => chunks
                .binary_search_by_key(&chunk, |chunk| chunk.id)
                .expect("every located record's chunk is open"),
        };
        self.mappings[found].as_deref()
    }

    /// Has the page cache asked again if the batch took longer than what is in memory can take.
    fn doubt_if_slow(&self, spent: Duration) {
        let bytes = self.batch.located.locations.iter().map(|l| u64::from(l.logic_length));
        let limit = SLOW + Duration::from_micros(bytes.sum::<u64>() / SLOW_BYTES);
        if spent > limit {
            self.batch.located.chunks.iter().for_each(|chunk| chunk.file.doubt());
        }
    }

    /// The chunks that had no mapping, or of which a byte that was copied was none of the file. A
    /// mapping of a file that was cut has zeros up to the end of its last page, so the file's
    /// length counts as well.
    fn left(&self) -> Vec<&'b Touched> {
        let failed = self.failed.load(Ordering::Relaxed);
        let is_left = |(chunk, mapping): &(&Touched, &Option<Arc<Mapping>>)| {
            let Some(mapping) = mapping else { return true };
            let reaches = chunk.file.file.len().is_ok_and(|bytes| bytes >= chunk.end);
            if !mapping.is_intact() || !reaches {
                chunk.file.give_up_mapping();
                return true;
            }
            failed
        };
        let chunks = self.batch.located.chunks.iter().zip(&self.mappings);
        chunks.filter(is_left).map(|(chunk, _)| chunk).collect()
    }
}
