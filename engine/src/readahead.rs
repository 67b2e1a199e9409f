//! Noticing scans. Chunks are read at random places, so the system is told to read nothing beside
//! what it is asked for; of a scan from front to back it is told that too, and reads ahead.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

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
}

impl Readahead {
    /// Learns that a batch is the bytes `batch` of chunk number `chunk`, and says whether it goes
    /// on where another ended.
    pub(crate) fn goes_on(&self, chunk: u32, batch: Range<u64>) -> bool {
        self.scan.lock().unwrap_or_else(PoisonError::into_inner).advance(chunk, batch)
    }
}

impl Scan {
    fn advance(&mut self, chunk: u32, batch: Range<u64>) -> bool {
        let near = (batch.end - batch.start).saturating_mul(BATCHES_OUT_OF_ORDER);
        let goes_on = self.chunk == chunk && self.end > 0 && batch.start.abs_diff(self.end) <= near;
        let end = if goes_on { self.end.max(batch.end) } else { batch.end };
        *self = Self { chunk, end };
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn batches_that_follow_each_other_are_a_scan() {
        let mut scan = Scan::default();
        assert!(!scan.advance(3, 0..4 * MIB), "one batch is no scan");
        assert!(scan.advance(3, 4 * MIB..8 * MIB));
        // Another thread was faster.
        assert!(scan.advance(3, 16 * MIB..20 * MIB));
        assert!(scan.advance(3, 12 * MIB..16 * MIB));
        assert_eq!(scan, Scan { chunk: 3, end: 20 * MIB });
    }

    #[test]
    fn batches_elsewhere_begin_a_new_scan() {
        let mut scan = Scan::default();
        scan.advance(0, 0..MIB);
        assert!(!scan.advance(1, MIB..2 * MIB), "another chunk");
        assert!(!scan.advance(1, 100 * MIB..101 * MIB), "far away");
        assert!(!scan.advance(1, 0..MIB), "and far back");
        assert!(scan.advance(1, MIB..2 * MIB));
    }
}
