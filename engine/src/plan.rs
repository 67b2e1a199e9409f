//! The plan of a gather: what to read, in which order, and where it goes. A plain value, made
//! from locations and carried out elsewhere; the code that moves bytes has no decisions left.

use std::ops::Range;

use crate::format::Location;

/// One record to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fetch {
    /// Chunk and offset, as one number that orders by place.
    place: u64,
    /// Stored bytes.
    pub(crate) phys_length: u32,
    /// The record's place in the batch.
    pub(crate) slot: u32,
}

impl Fetch {
    pub(crate) fn chunk(&self) -> u32 {
        (self.place >> 32) as u32
    }

    pub(crate) fn offset(&self) -> u64 {
        self.place & u64::from(u32::MAX)
    }

    fn end(&self) -> u64 {
        self.place + u64::from(self.phys_length)
    }
}

/// The records of a batch in the order of their place on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) fetches: Vec<Fetch>,
}

/// Consecutive fetches that one read serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    /// Which fetches of the plan.
    pub(crate) fetches: Range<usize>,
    /// Bytes to read.
    pub(crate) bytes: usize,
}

impl Plan {
    /// The plan for a batch whose records are at `locations`, in the order of the batch, as far as
    /// they are `wanted`.
    pub(crate) fn new(locations: &[Location], wanted: impl Fn(&Location) -> bool) -> Self {
        let mut fetches: Vec<Fetch> = (0..)
            .zip(locations)
            .filter(|(_, location)| wanted(location))
            .map(|(slot, l)| Fetch { place: l.place(), phys_length: l.phys_length, slot })
            .collect();
        fetches.sort_unstable_by_key(|fetch| (fetch.place, fetch.slot));
        Self { fetches }
    }

    /// Stored bytes of all fetches.
    pub(crate) fn bytes(&self) -> usize {
        self.fetches.iter().map(|fetch| fetch.phys_length as usize).sum()
    }

    /// Cuts the plan into at most `count` ranges of about equal stored bytes.
    pub(crate) fn shards(&self, count: usize) -> Vec<Range<usize>> {
        shares(self.fetches.iter().map(|fetch| fetch.phys_length), count)
    }

    /// Where the batch begins and ends, if its records lie one behind the other in one chunk.
    pub(crate) fn run(&self) -> Option<(u32, Range<u64>)> {
        let (first, last) = (self.fetches.first()?, self.fetches.last()?);
        let is_run = self.fetches.is_sorted_by(|a, b| a.end() == b.place);
        is_run.then(|| (first.chunk(), first.offset()..last.end() - (last.place - last.offset())))
    }

    /// Whether the batch asks for its records in the order of their place.
    pub(crate) fn is_in_order(&self) -> bool {
        self.fetches.is_sorted_by_key(|fetch| fetch.slot)
    }

    /// The reads for a range of fetches. Fetches whose bytes follow each other on disk share a
    /// read of at most `bytes_max`, if `joins` says that their destinations do as well.
    pub(crate) fn reads(
        &self,
        range: Range<usize>,
        bytes_max: usize,
        joins: impl Fn(&Fetch, &Fetch) -> bool,
    ) -> Vec<Read> {
        let mut reads: Vec<Read> = Vec::with_capacity(range.len());
        for i in range {
            let fetch = &self.fetches[i];
            let bytes = fetch.phys_length as usize;
            if let Some(read) = reads.last_mut() {
                let before = &self.fetches[i - 1];
                // Consecutive places in two chunks never follow each other: an end is at most
                // 2^32 - 1, one short of the next chunk.
                if before.end() == fetch.place
                    && read.bytes + bytes <= bytes_max
                    && joins(before, fetch)
                {
                    read.fetches.end = i + 1;
                    read.bytes += bytes;
                    continue;
                }
            }
            reads.push(Read { fetches: i..i + 1, bytes });
        }
        reads
    }
}

/// Cuts records of `sizes` bytes into at most `count` ranges of about equal bytes.
pub(crate) fn shares(sizes: impl Iterator<Item = u32> + Clone, count: usize) -> Vec<Range<usize>> {
    let total: u64 = sizes.clone().map(u64::from).sum();
    let share = total.div_ceil(count.max(1) as u64).max(1);
    let (mut shares, mut start, mut bytes) = (Vec::with_capacity(count), 0, 0);
    let mut end = 0;
    for size in sizes {
        end += 1;
        bytes += u64::from(size);
        if bytes >= share {
            shares.push(start..end);
            (start, bytes) = (end, 0);
        }
    }
    if start < end {
        shares.push(start..end);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(chunk: u32, offset: u32, phys_length: u32) -> Location {
        Location { offset, phys_length, logic_length: phys_length, chunk }
    }

    fn whole(locations: &[Location]) -> Plan {
        Plan::new(locations, |_| true)
    }

    fn plan() -> Plan {
        whole(&[
            location(1, 0, 10),
            location(0, 30, 10),
            location(0, 0, 10),
            location(0, 10, 10),
            location(0, 10, 10),
            location(0, 20, 10),
        ])
    }

    #[test]
    fn fetches_are_in_the_order_of_their_place() {
        let slots: Vec<u32> = plan().fetches.iter().map(|fetch| fetch.slot).collect();
        assert_eq!(slots, [2, 3, 4, 5, 1, 0]);
    }

    #[test]
    fn what_is_not_wanted_is_not_fetched_and_slots_stay() {
        let locations = [location(1, 0, 10), location(0, 30, 10), location(1, 10, 10)];
        let plan = Plan::new(&locations, |location| location.chunk == 1);
        let slots: Vec<u32> = plan.fetches.iter().map(|fetch| fetch.slot).collect();
        assert_eq!((slots, plan.bytes()), (vec![0, 2], 20));
    }

    #[test]
    fn adjacent_records_share_a_read_where_they_may() {
        let plan = plan();
        let all = plan.reads(0..6, 1000, |_, _| true);
        // The record that is asked for twice is read twice.
        let ranges: Vec<_> = all.iter().map(|read| (read.fetches.clone(), read.bytes)).collect();
        assert_eq!(ranges, [(0..2, 20), (2..5, 30), (5..6, 10)]);
        assert_eq!(plan.reads(0..6, 1000, |_, _| false).len(), 6);
        assert_eq!(plan.reads(0..6, 20, |_, _| true)[1].bytes, 20);
    }

    #[test]
    fn records_one_behind_the_other_are_a_run() {
        let locations: Vec<_> = [30, 0, 10, 20].map(|offset| location(2, offset, 10)).into();
        assert_eq!(whole(&locations).run(), Some((2, 0..40)));
        assert!(!whole(&locations).is_in_order() && whole(&locations[1..]).is_in_order());
        assert_eq!(whole(&locations[..3]).run(), None);
        assert_eq!(whole(&[location(1, 0, 10), location(2, 10, 10)]).run(), None);
        assert_eq!(plan().run(), None);
        assert_eq!(whole(&[]).run(), None);
    }

    #[test]
    fn shards_cover_the_plan_once() {
        let plan = plan();
        for count in 1..10 {
            let shards = plan.shards(count);
            assert!(shards.len() <= count);
            assert_eq!(shards.first().unwrap().start, 0);
            assert_eq!(shards.last().unwrap().end, 6);
            assert!(shards.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
        assert!(whole(&[]).shards(3).is_empty());
    }
}
