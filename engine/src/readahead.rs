//! Reading ahead of batches that follow each other. Chunks are read at random places, so the
//! system is told to read nothing beside what it is asked for; a scan from front to back is
//! noticed here, and the bytes that its next batches will want are asked for in advance.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ringloader_fallback::page_cache;

use crate::file::StoreFile;

/// How far to read ahead, in batches.
const BATCHES_AHEAD: u64 = 3;
/// And in bytes: enough to keep a disk busy, and no more than a small part of the memory.
const BYTES_AHEAD: Range<u64> = 8 << 20..256 << 20;
/// Batches of one scan that several threads gather may come out of order by so many.
const BATCHES_OUT_OF_ORDER: u64 = 8;

/// The scan of a store that is under way, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    scan: Mutex<Scan>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Scan {
    chunk: u32,
    /// Where the batch ended that went farthest.
    end: u64,
    /// Up to where the bytes were asked for.
    asked: u64,
}

impl Readahead {
    /// Learns that a batch is the bytes `batch` of chunk number `chunk`, and asks for those that
    /// come next if it goes on where another ended.
    pub(crate) fn expect(&self, file: &StoreFile, chunk: u32, batch: Range<u64>) {
        let next = self.scan.lock().unwrap_or_else(PoisonError::into_inner).advance(chunk, batch);
        if let Some(range) = next {
            page_cache::advise_will_need(file.file(), range);
        }
    }
}

impl Scan {
    fn advance(&mut self, chunk: u32, batch: Range<u64>) -> Option<Range<u64>> {
        let bytes = batch.end - batch.start;
        let goes_on = self.chunk == chunk
            && self.end > 0
            && batch.start.abs_diff(self.end) <= bytes.saturating_mul(BATCHES_OUT_OF_ORDER);
        if !goes_on {
            *self = Self { chunk, end: batch.end, asked: batch.end };
            return None;
        }
        self.end = self.end.max(batch.end);
        let ahead = (bytes * BATCHES_AHEAD).clamp(BYTES_AHEAD.start, BYTES_AHEAD.end);
        let from = self.asked.max(self.end);
        self.asked = from.max(self.end + ahead);
        (from < self.asked).then_some(from..self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_scan_is_read_ahead_of_and_no_byte_is_asked_for_twice() {
        let mut scan = Scan::default();
        assert_eq!(scan.advance(3, 0..4 * MIB), None, "one batch is no scan");
        assert_eq!(scan.advance(3, 4 * MIB..8 * MIB), Some(8 * MIB..20 * MIB));
        assert_eq!(scan.advance(3, 8 * MIB..12 * MIB), Some(20 * MIB..24 * MIB));
        // Another thread was faster.
        assert_eq!(scan.advance(3, 16 * MIB..20 * MIB), Some(24 * MIB..32 * MIB));
        assert_eq!(scan.advance(3, 12 * MIB..16 * MIB), None);
    }

    #[test]
    fn batches_elsewhere_begin_a_new_scan() {
        let mut scan = Scan::default();
        scan.advance(0, 0..MIB);
        assert_eq!(scan.advance(1, MIB..2 * MIB), None, "another chunk");
        assert_eq!(scan.advance(1, 100 * MIB..101 * MIB), None, "far away");
        assert_eq!(scan.advance(1, 0..MIB), None, "and far back");
        assert!(scan.advance(1, MIB..2 * MIB).is_some());
    }
}
