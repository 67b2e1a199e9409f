//! Append: records placed behind the frontier, written, put in the table, and published.
//!
//! Called by `dense` and `ragged` with a [`Source`] of records. Nothing that it writes is
//! reachable before the header is written last, so an append that fails or is interrupted has
//! not happened. Compression runs on every core while the batch before is written.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ringloader_fallback::Span;

use crate::codec::{Codec, Dictionary};
use crate::error::{Error, Result};
use crate::executor::{Context, Shard, with_context};
use crate::file::StoreFile;
use crate::format::{Capacity, Frontier, Location, MAX_RECORD_BYTES};
use crate::runtime::engine;
use crate::storage::{ChunkFile, Storage};

/// Pieces of raw records up to this size are gathered for one write. Copying them costs less
/// than a system call for each, and the buffer stays in the second-level cache.
const COPY_BYTES: usize = 128 << 10;
/// Locations that are written to the table at a time.
const TABLE_RECORDS: usize = 64 << 10;
/// Record bytes that one shard compresses.
const SHARD_BYTES: u64 = 256 << 10;
/// Shards for each thread that are compressed between two writes.
const SHARDS_PER_THREAD: usize = 4;
/// Record bytes that are compressed between two writes, unless a single record has more: what an
/// append of huge records may hold in memory.
const ROUND_BYTES_MAX: u64 = 256 << 20;

/// Records to append, as bytes.
pub(crate) trait Source: Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Bytes of record `i` as it is to be stored, before compression.
    fn record_bytes(&self, i: usize) -> u64;

    /// Gives the bytes of the records `range`, one behind the other, in pieces.
    fn visit(
        &self,
        range: Range<usize>,
        piece: &mut dyn FnMut(Span<'_>) -> Result<()>,
    ) -> Result<()>;
}

/// Appends all records of `source` and gives the index of the first.
pub(crate) fn append(storage: &Storage, source: &dyn Source) -> Result<u64> {
    let _inside = storage.enter()?;
    let mut writer = storage.writer()?;
    let frontier = storage.frontier();
    check(storage, source, &frontier)?;
    let mut placer = Placer::new(storage, &frontier)?;
    match storage.codec() {
        Codec::Raw => write_raw(source, &mut placer)?,
        Codec::Zstd | Codec::ZstdDict => write_compressed(storage, source, &mut placer)?,
    }
    placer.flush_table()?;
    storage.publish(&mut writer, placer.frontier())?;
    Ok(frontier.length)
}

/// Refuses what cannot be stored, before anything is written.
fn check(storage: &Storage, source: &dyn Source, frontier: &Frontier) -> Result<()> {
    let capacity = storage.capacity();
    if frontier.length.checked_add(source.len() as u64).is_none() {
        let reason = format!("it has {} records", frontier.length);
        return Err(Error::StoreFull { path: storage.path().to_owned(), reason });
    }
    let mut end = (u64::from(frontier.tail_chunk), u64::from(frontier.tail_offset));
    for record in 0..source.len() {
        let bytes = source.record_bytes(record);
        let path = || storage.path().to_owned();
        if bytes == 0 {
            return Err(Error::EmptyRecord { path: path(), record });
        }
        let limit = MAX_RECORD_BYTES.min(capacity.chunk_bytes);
        if bytes > limit {
            return Err(Error::RecordTooLarge { path: path(), record, bytes, limit });
        }
        // Compressed sizes are not known yet, so the most they could be counts.
        let phys = storage.codec().phys_length_max(bytes).min(capacity.chunk_bytes);
        end = if end.1 + phys <= capacity.chunk_bytes {
            (end.0, end.1 + phys)
        } else {
            (end.0 + 1, phys)
        };
        if end.0 >= capacity.chunks {
            let reason = format!("the batch would need more than {} chunks", capacity.chunks);
            return Err(Error::StoreFull { path: path(), reason });
        }
    }
    Ok(())
}

/// Gives each record its place and keeps the table and the chunks in step.
struct Placer<'s> {
    storage: &'s Storage,
    capacity: &'s Capacity,
    chunk: Arc<ChunkFile>,
    tail_chunk: u32,
    tail_offset: u64,
    /// Records that are in the table or in `pending`.
    length: u64,
    pending: Vec<Location>,
}

impl<'s> Placer<'s> {
    fn new(storage: &'s Storage, frontier: &Frontier) -> Result<Self> {
        Ok(Self {
            storage,
            capacity: storage.capacity(),
            chunk: storage.chunks.get(frontier.tail_chunk)?,
            tail_chunk: frontier.tail_chunk,
            tail_offset: frontier.tail_offset.into(),
            length: frontier.length,
            pending: Vec::new(),
        })
    }

    fn frontier(&self) -> Frontier {
        Frontier {
            length: self.length,
            tail_chunk: self.tail_chunk,
            tail_offset: self.tail_offset as u32,
        }
    }

    /// Places as many records as go on in the chunk where the first of them goes, rolling over
    /// to the next chunk if that one does not fit. Gives their number and where they begin.
    ///
    /// `lengths` are the stored and the record length of each.
    fn place_run(
        &mut self,
        lengths: &mut dyn Iterator<Item = (u64, u64)>,
        next: &mut Option<(u64, u64)>,
    ) -> Result<(usize, u64)> {
        if let Some((phys, _)) = *next
            && self.tail_offset + phys > self.capacity.chunk_bytes
        {
            self.roll_over()?;
        }
        let start = self.tail_offset;
        let mut count = 0;
        while let Some((phys, logic)) = *next {
            if self.tail_offset + phys > self.capacity.chunk_bytes {
                break;
            }
            self.pending.push(Location {
                offset: self.tail_offset as u32,
                phys_length: phys as u32,
                logic_length: logic as u32,
                chunk: self.tail_chunk,
            });
            self.tail_offset += phys;
            self.length += 1;
            count += 1;
            *next = lengths.next();
            if self.pending.len() == TABLE_RECORDS {
                break;
            }
        }
        Ok((count, start))
    }

    fn roll_over(&mut self) -> Result<()> {
        let next =
            self.tail_chunk.checked_add(1).filter(|id| u64::from(*id) < self.capacity.chunks);
        let Some(next) = next else {
            let reason = format!("all {} chunks are used", self.capacity.chunks);
            return Err(Error::StoreFull { path: self.storage.path().to_owned(), reason });
        };
        self.chunk = self.storage.chunks.roll_over_to(next)?;
        (self.tail_chunk, self.tail_offset) = (next, 0);
        Ok(())
    }

    /// Writes pending locations if they are many.
    fn flush_full_table(&mut self) -> Result<()> {
        if self.pending.len() < TABLE_RECORDS { Ok(()) } else { self.flush_table() }
    }

    fn flush_table(&mut self) -> Result<()> {
        let first = self.length - self.pending.len() as u64;
        self.storage.table.write(first, &self.pending)?;
        self.pending.clear();
        Ok(())
    }
}

fn write_raw(source: &dyn Source, placer: &mut Placer<'_>) -> Result<()> {
    let mut lengths = (0..source.len()).map(|i| (source.record_bytes(i), source.record_bytes(i)));
    let mut next = lengths.next();
    let mut written = 0;
    let mut gathered = Vec::with_capacity(COPY_BYTES);
    while next.is_some() {
        let (count, offset) = placer.place_run(&mut lengths, &mut next)?;
        let mut run = Run { file: &placer.chunk.file, offset, gathered: &mut gathered };
        source.visit(written..written + count, &mut |piece| run.write(piece))?;
        run.flush()?;
        written += count;
        placer.flush_full_table()?;
    }
    Ok(())
}

/// Consecutive bytes of a file, from pieces: large ones are written from where they are, small
/// ones are gathered first.
struct Run<'a> {
    file: &'a StoreFile,
    /// Where the gathered bytes go.
    offset: u64,
    gathered: &'a mut Vec<u8>,
}

impl Run<'_> {
    fn write(&mut self, piece: Span<'_>) -> Result<()> {
        if self.gathered.len() + piece.len() > COPY_BYTES {
            self.flush()?;
        }
        if piece.len() > COPY_BYTES {
            self.file.write_all_at(piece, self.offset)?;
            self.offset += piece.len() as u64;
        } else {
            piece.append_to(self.gathered);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.gathered.is_empty() {
            self.file.write_all_at(self.gathered.as_slice(), self.offset)?;
            self.offset += self.gathered.len() as u64;
            self.gathered.clear();
        }
        Ok(())
    }
}

/// Frames of consecutive records, one behind the other.
struct Frames {
    bytes: Vec<u8>,
    /// Stored and record length of each.
    lengths: Vec<(u64, u64)>,
}

fn write_compressed(storage: &Storage, source: &dyn Source, placer: &mut Placer<'_>) -> Result<()> {
    let engine = engine()?;
    let shards_at_once = engine.executor.threads_per_batch() * SHARDS_PER_THREAD;
    let mut next = 0;
    let mut compressed: Vec<Frames> = Vec::new();
    let placer = Mutex::new(placer);
    while next < source.len() || !compressed.is_empty() {
        let ranges = shard_ranges(source, &mut next, shards_at_once);
        let results: Vec<Mutex<Option<Result<Frames>>>> =
            ranges.iter().map(|_| Mutex::new(None)).collect();
        let mut written = Ok(());
        let before = std::mem::take(&mut compressed);
        let (written_slot, placer) = (&mut written, &placer);
        let write: Shard<'_> = Box::new(move |_| {
            let mut placer = placer.lock().unwrap_or_else(PoisonError::into_inner);
            *written_slot = before.iter().try_for_each(|frames| write_frames(frames, &mut placer));
        });
        let compress = ranges.into_iter().zip(&results).map(|(range, result)| -> Shard<'_> {
            Box::new(move |context| {
                let frames = compress(storage, source, range, context);
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(frames);
            })
        });
        let shards = std::iter::once(write).chain(compress).collect();
        with_context(|context| engine.executor.run(context, shards))?;
        written?;
        for result in results {
            let frames = result.into_inner().unwrap_or_else(PoisonError::into_inner);
            compressed.push(frames.expect("every shard has run")?);
        }
    }
    Ok(())
}

/// Ranges of records, from `next` on, for at most `count` shards.
fn shard_ranges(source: &dyn Source, next: &mut usize, count: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity(count);
    let mut round_bytes = 0;
    while *next < source.len() && ranges.len() < count && round_bytes < ROUND_BYTES_MAX {
        let start = *next;
        let mut bytes = 0;
        while *next < source.len() && bytes < SHARD_BYTES {
            bytes += source.record_bytes(*next);
            *next += 1;
        }
        round_bytes += bytes;
        ranges.push(start..*next);
    }
    ranges
}

fn compress(
    storage: &Storage,
    source: &dyn Source,
    range: Range<usize>,
    context: &mut Context,
) -> Result<Frames> {
    let (encoder, record) = context.encoding();
    let failed = |reason: String| {
        Error::Internal(format!("compressing for {}: {reason}", storage.path().display()))
    };
    let dictionary: Option<&Arc<Dictionary>> = storage.dictionary();
    encoder.select(dictionary).map_err(failed)?;
    let mut frames = Frames { bytes: Vec::new(), lengths: Vec::with_capacity(range.len()) };
    for i in range {
        // A copy, so that the compressor sees bytes that nobody changes.
        record.clear();
        source.visit(i..i + 1, &mut |piece| {
            piece.append_to(record);
            Ok(())
        })?;
        let phys = encoder.encode(record, &mut frames.bytes).map_err(failed)?;
        frames.lengths.push((phys as u64, record.len() as u64));
    }
    context.shrink();
    Ok(frames)
}

fn write_frames(frames: &Frames, placer: &mut Placer<'_>) -> Result<()> {
    let mut lengths = frames.lengths.iter().copied();
    let mut next = lengths.next();
    let mut bytes = frames.bytes.as_slice();
    while next.is_some() {
        let before = placer.pending.len();
        let (count, offset) = placer.place_run(&mut lengths, &mut next)?;
        let placed = &placer.pending[before..before + count];
        let len = placed.iter().map(|location| location.phys_length as usize).sum();
        let (now, later) = bytes.split_at(len);
        placer.chunk.file.write_all_at(now, offset)?;
        bytes = later;
        placer.flush_full_table()?;
    }
    Ok(())
}
