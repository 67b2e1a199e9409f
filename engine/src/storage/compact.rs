//! Reclaiming the bytes of deleted records, in place.
//!
//! Records slide towards the start of the chunks in the order in which they lie there. No
//! record is ever copied over bytes that are still referenced: a batch that moves is no larger
//! than the gap it moves over, and where the gap is too narrow the records behind it are first
//! copied to the end of the store, which widens it. Each copy is durable before the table points
//! to it, and the table before the old bytes are reused, so at every instant the store on disk
//! is one that can be opened and read whole.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::Ordering;

use super::delete::consecutive;
use super::{Storage, Writer};
use crate::error::{Error, Result};
use crate::format::{Capacity, Frontier, Location};

/// The most bytes that move between two syncs, so that a sync costs little beside them; also the
/// width of the gap that records slide over, and so what is copied to the end at most to widen it.
const SLIDE_BYTES_MAX: u64 = 64 << 20;

/// Locations that are read and checked at a time, so that a damaged table is found out before
/// all of it is in memory.
const TABLE_RECORDS: u64 = 64 << 10;

/// A live record and its place in the table.
#[derive(Debug, Clone, Copy)]
struct Live {
    location: Location,
    index: u64,
}

impl Live {
    fn bytes(&self) -> u64 {
        self.location.phys_length.into()
    }

    fn place(&self) -> Cursor {
        Cursor { chunk: self.location.chunk.into(), offset: self.location.offset.into() }
    }

    fn moved_to(&self, to: Cursor) -> Self {
        let location =
            Location { chunk: to.chunk as u32, offset: to.offset as u32, ..self.location };
        Self { location, ..*self }
    }
}

/// A record, and what it is after its move.
type Move = (Live, Live);

/// A position in the chunks where records are put one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    /// Wider than a chunk's number, so that the one after the last can be named and refused.
    chunk: u64,
    offset: u64,
}

impl Cursor {
    /// Where a record of `bytes` goes, and the cursor behind it.
    fn place(self, bytes: u64, capacity: &Capacity) -> (Self, Self) {
        let fits = self.offset + bytes <= capacity.chunk_bytes;
        let at = if fits { self } else { Self { chunk: self.chunk + 1, offset: 0 } };
        (at, Self { offset: at.offset + bytes, ..at })
    }

    /// Bytes from here that no record at `first` or behind it occupies.
    fn gap_to(self, first: Self) -> u64 {
        match first.chunk.cmp(&self.chunk) {
            Greater => u64::MAX,
            Equal => first.offset.saturating_sub(self.offset),
            // Only entries that share their bytes with others can lie behind the cursor.
            Less => 0,
        }
    }

    fn frontier(self, length: u64) -> Frontier {
        Frontier { length, tail_chunk: self.chunk as u32, tail_offset: self.offset as u32 }
    }
}

/// The bytes of `records`, or `limit` if they are more.
fn bytes_up_to(records: &[Live], limit: u64) -> u64 {
    let mut total = 0;
    for live in records {
        total += live.bytes();
        if total >= limit {
            return limit;
        }
    }
    total
}

impl Storage {
    /// Moves the live records together and gives back the space behind them.
    pub(crate) fn compact(&self) -> Result<()> {
        let _inside = self.enter_alone()?;
        let mut writer = self.writer()?;
        self.sync_as(&mut writer)?;
        self.reorders.fetch_add(1, Ordering::AcqRel);

        self.chunks.read_in_order(true);
        let compacted = self.move_together(&mut writer);
        self.chunks.read_in_order(false);
        compacted
    }

    fn move_together(&self, writer: &mut Writer) -> Result<()> {
        let mut records = self.live_records()?;
        let mut cursor = Cursor { chunk: 0, offset: 0 };
        let mut next = 0;
        loop {
            next += self.settled(&records[next..], &mut cursor);
            let Some(first) = records.get(next) else { break };
            let wanted = first.bytes().max(bytes_up_to(&records[next..], SLIDE_BYTES_MAX));
            let (to, _) = cursor.place(first.bytes(), &self.capacity);
            if to.gap_to(first.place()) < wanted {
                self.widen_gap(writer, &mut records[next..], wanted)?;
            } else {
                next += self.slide(&records[next..], &mut cursor)?;
            }
        }

        let before = self.frontier();
        let after = cursor.frontier(before.length);
        self.publish(writer, after)?;
        self.sync_as(writer)?;
        self.chunks.truncate(&after)?;
        self.table.truncate(after.length)
    }

    /// Every record in the order of its place on disk.
    fn live_records(&self) -> Result<Vec<Live>> {
        let frontier = self.frontier();
        let mut records = Vec::new();
        while let Some(left @ 1..) = frontier.length.checked_sub(records.len() as u64) {
            let first = records.len() as u64;
            let locations = self.table.read(first, left.min(TABLE_RECORDS) as usize)?;
            for (index, location) in (first..).zip(locations) {
                location.check(self.codec, &frontier, &self.capacity).map_err(|reason| {
                    Error::BadLocation { path: self.path.clone(), record: index, reason }
                })?;
                records.push(Live { location, index });
            }
        }
        records.sort_unstable_by_key(|live| live.location.place());
        Ok(records)
    }

    /// Passes the records that are in their place already and says how many they are.
    fn settled(&self, records: &[Live], cursor: &mut Cursor) -> usize {
        let stays = |live: &&Live| {
            let (to, behind) = cursor.place(live.bytes(), &self.capacity);
            let stays = to == live.place();
            if stays {
                *cursor = behind;
            }
            stays
        };
        records.iter().take_while(stays).count()
    }

    /// Moves as many of `records` to `cursor` as fit before the first of them.
    fn slide(&self, records: &[Live], cursor: &mut Cursor) -> Result<usize> {
        let first = records[0].place();
        let mut moves: Vec<Move> = Vec::new();
        let mut bytes = 0;
        for live in records {
            let (to, behind) = cursor.place(live.bytes(), &self.capacity);
            bytes += live.bytes();
            let is_free = to.chunk < first.chunk
                || (to.chunk == first.chunk && behind.offset <= first.offset);
            if !is_free || (bytes > SLIDE_BYTES_MAX && !moves.is_empty()) {
                break;
            }
            moves.push((*live, live.moved_to(to)));
            *cursor = behind;
        }
        assert!(!moves.is_empty(), "the gap has room for the first record");
        self.copy(&moves)?;
        self.chunks.sync()?;
        self.point_table_at(&moves)?;
        Ok(moves.len())
    }

    /// Copies the first of `records` to the end of the store until those that are left begin
    /// `wanted` bytes later, and puts the copies behind the others in `records`.
    fn widen_gap(&self, writer: &mut Writer, records: &mut [Live], wanted: u64) -> Result<()> {
        let frontier = self.frontier();
        let mut end =
            Cursor { chunk: frontier.tail_chunk.into(), offset: frontier.tail_offset.into() };
        let mut moves: Vec<Move> = Vec::new();
        let mut bytes = 0;
        for live in records.iter() {
            let (to, behind) = end.place(live.bytes(), &self.capacity);
            if to.chunk >= self.capacity.chunks {
                let reason = "no chunk is left to move records out of the way".into();
                return Err(Error::StoreFull { path: self.path.clone(), reason });
            }
            if to.chunk != end.chunk {
                self.chunks.roll_over_to(to.chunk as u32)?;
            }
            moves.push((*live, live.moved_to(to)));
            end = behind;
            bytes += live.bytes();
            if bytes >= wanted {
                break;
            }
        }
        self.copy(&moves)?;
        // The header must reach past the copies before the table may point at them.
        self.publish(writer, end.frontier(frontier.length))?;
        self.sync_as(writer)?;
        self.point_table_at(&moves)?;
        for (live, (_, moved)) in records.iter_mut().zip(&moves) {
            *live = *moved;
        }
        records.rotate_left(moves.len());
        Ok(())
    }

    fn copy(&self, moves: &[Move]) -> Result<()> {
        let mut bytes = Vec::new();
        for (live, moved) in moves {
            bytes.resize(live.location.phys_length as usize, 0);
            let (from, to) = (live.place(), moved.place());
            self.chunks.get(live.location.chunk)?.file.read_exact_at(&mut bytes, from.offset)?;
            self.chunks
                .get(moved.location.chunk)?
                .file
                .write_all_at(bytes.as_slice(), to.offset)?;
        }
        Ok(())
    }

    fn point_table_at(&self, moves: &[Move]) -> Result<()> {
        let entries = moves.iter().map(|(_, moved)| (moved.index, moved.location)).collect();
        for (first, locations) in consecutive(entries) {
            self.table.write(first, &locations)?;
        }
        self.table.sync()
    }
}
