//! A located batch through a [`BatchReader`]: planned, cut into parts, and each part handed to the
//! reader of the thread that works on it.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};

use ringloader_fallback::{BatchReader, ReadError, ReadErrorKind, ReadOp, Slots, Span, SpanMut};

use super::{Batch, Touched};
use crate::backend::Reader;
use crate::codec::context::Decoder;
use crate::codec::{Codec, Dictionary};
use crate::error::{Error, Result};
use crate::executor::{Context, Shard, with_context};
use crate::plan::{Plan, Read};
use crate::residency::Heat;

/// Shards for each thread: enough for the threads to finish at about the same time.
const SHARDS_PER_THREAD: usize = 4;
/// Cold reads that a thread has to itself, at least, unless their bytes are as many as below. A
/// disk serves many reads at once, so they are not cut smaller than the cores ask for.
const COLD_READS_PER_SHARD: usize = 64;
/// Bytes that are worth another thread, which copies them from the page cache.
const COLD_BYTES_PER_SHARD: usize = 8 << 20;
/// The most that one read fetches. Larger runs are cut, so that reading and decoding overlap.
const READ_BYTES_MAX: usize = 1 << 20;
/// The same for raw records of a scan, which one thread reads from front to back: the system reads
/// ahead best of a single reader.
const SCAN_READ_BYTES_MAX: usize = 1 << 30;
/// Stored bytes that are staged at a time for decoding; they stay in the second-level cache.
const STAGING_BYTES: usize = 512 << 10;

/// Reads the records of `batch` that lie in `chunks` into their `slots`, one for each record.
pub(super) fn fetch(batch: &Batch<'_>, chunks: &[&Touched], slots: Slots<'_>) -> Result<()> {
    let is_wanted = |id| chunks.binary_search_by_key(&id, |chunk| chunk.id).is_ok();
    let all = chunks.len() == batch.located.chunks.len();
    let plan = Plan::new(&batch.located.locations, |location| all || is_wanted(location.chunk));
    let heat = batch.heat(chunks);
    let run = plan.run().filter(|_| heat < Heat::Warm);
    let goes_on = run.is_some_and(|(chunk, run)| batch.storage.readahead.goes_on(chunk, run));
    for chunk in chunks {
        chunk.file.read_in_order(goes_on);
    }
    let scans = goes_on && batch.is_raw() && heat == Heat::Cold && plan.is_in_order();
    let route = if scans { batch.route.for_one_read() } else { batch.route };
    let reader = route.reader;
    let fetcher = Fetcher { batch, plan: &plan, reader, scans, failure: Mutex::new(None) };
    let mut parts = fetcher.parts(slots, heat);
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
            batch.engine.executor.run(context, shards)?;
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
    batch: &'b Batch<'b>,
    plan: &'b Plan,
    reader: Reader,
    /// Whether it is raw records, in order, that go on where another batch ended, from a disk.
    scans: bool,
    failure: Mutex<Option<Error>>,
}

impl Fetcher<'_> {
    /// Cuts the plan into parts, one for each thread's turn, with their destinations.
    fn parts<'d>(&self, mut slots: Slots<'d>, heat: Heat) -> Vec<Part<'d>> {
        let raw = self.batch.is_raw();
        let plan = self.plan;
        let raw_bytes_max = if self.scans { SCAN_READ_BYTES_MAX } else { READ_BYTES_MAX };
        let part = |range: Range<usize>| {
            if raw {
                let reads = plan.reads(range, raw_bytes_max, |a, b| b.slot == a.slot + 1);
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
        plan.shards(self.part_count(heat)).into_iter().map(part).collect()
    }

    fn part_count(&self, heat: Heat) -> usize {
        match self.batch.threads() {
            _ if self.scans => 1,
            1 => 1,
            threads if heat == Heat::Cold && self.batch.is_raw() => {
                let by_bytes = self.plan.bytes() / COLD_BYTES_PER_SHARD;
                threads.min(by_bytes.max(self.plan.fetches.len() / COLD_READS_PER_SHARD))
            }
            threads => threads * SHARDS_PER_THREAD,
        }
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
        match self.batch.storage.codec() {
            Codec::Raw => self.copy(context, part),
            Codec::Zstd | Codec::ZstdDict => {
                let decoded = self.decode(context, part);
                context.shrink();
                decoded
            }
        }
    }

    /// Reads raw records straight to where they go.
    fn copy(&self, context: &mut Context, part: Part<'_>) -> Result<()> {
        let reader = context.reader(self.reader)?;
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
        let mut reads = part.reads.as_slice();
        while !reads.is_empty() {
            let (now, later) = reads.split_at(staged_together(reads));
            reads = later;
            let bytes = now.iter().map(|read| read.bytes).sum();
            let (reader, decoder, staging) = context.decoding(self.reader, bytes)?;
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
        let dictionary = self.batch.storage.dictionary().map(Arc::as_ref);
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
                path: self.batch.storage.path().to_owned(),
                record: self.record(i),
                reason,
            })?;
        }
        Ok(())
    }

    fn op<'a>(&'a self, read: &Read, dst: SpanMut<'a>) -> ReadOp<'a> {
        let fetch = &self.plan.fetches[read.fetches.start];
        ReadOp {
            file: self.batch.located.chunk(fetch.chunk()).file.file(),
            offset: fetch.offset(),
            dst,
        }
    }

    /// The index of the record of fetch `i`.
    fn record(&self, i: usize) -> u64 {
        self.batch.indices[self.plan.fetches[i].slot as usize]
    }

    /// Names the record that a failed read was for.
    fn read_failed(&self, reads: &[Read], error: &ReadError) -> Error {
        let read = &reads[error.op];
        let path = self.batch.storage.path();
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
                let chunk = self.plan.fetches[read.fetches.start].chunk();
                let chunk = self.batch.located.chunk(chunk);
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
