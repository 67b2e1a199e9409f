//! The locations that are in memory, and which ones to read when some are missing. It knows
//! records' numbers only, and never a file.
//!
//! Blocks are whole numbers of [`PAGE_RECORDS`]. Of a block that nobody asked for before, only the
//! page around the record is read; whoever asks for another of its records gets all of it. So
//! the first random gathers from a huge store read little, and the table is soon in memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::block::Block;
use crate::format::Location;

/// Records of a block: 64 KiB of the table.
pub(super) const BLOCK_RECORDS: u64 = 4096;
/// Records of a page: 4 KiB of the table, the least that a disk reads.
pub(super) const PAGE_RECORDS: u64 = 256;
/// Memory for the locations of one store, in bytes: 100 million irregular records about, or any
/// number of regular ones. Past it, blocks are dropped and read again when needed.
pub(super) const BUDGET_BYTES: usize = 512 << 20;

#[derive(Debug)]
pub(super) struct Cache {
    blocks: HashMap<u64, Part, BuildHasherDefault<BlockHasher>>,
    bytes: usize,
    budget: usize,
}

/// What is known of a block: locations from the record `start` of the block on.
#[derive(Debug)]
struct Part {
    start: u64,
    block: Block,
}

impl Part {
    fn end(&self) -> u64 {
        self.start + self.block.count()
    }
}

impl Cache {
    pub(super) fn new(budget: usize) -> Self {
        Self { blocks: HashMap::default(), bytes: 0, budget }
    }

    #[inline]
    pub(super) fn get(&self, index: u64) -> Option<Location> {
        let part = self.blocks.get(&(index / BLOCK_RECORDS))?;
        // A record before the start wraps to a number that no block reaches.
        part.block.get((index % BLOCK_RECORDS).wrapping_sub(part.start))
    }

    /// What to read so that the records `missing`, which ascend and are below `length`, are
    /// known: ranges of records that ascend, each within a block.
    pub(super) fn wanted(
        &self,
        missing: impl Iterator<Item = u64>,
        length: u64,
    ) -> Vec<Range<u64>> {
        let mut wanted: Vec<Range<u64>> = Vec::new();
        for index in missing {
            let unknown = !self.blocks.contains_key(&(index / BLOCK_RECORDS));
            match wanted.last_mut() {
                Some(last) if last.contains(&index) => {}
                Some(last) if last.start / BLOCK_RECORDS == index / BLOCK_RECORDS => {
                    *last = around(index, BLOCK_RECORDS, length);
                }
                _ if unknown => wanted.push(around(index, PAGE_RECORDS, length)),
                _ => wanted.push(around(index, BLOCK_RECORDS, length)),
            }
        }
        wanted
    }

    /// Keeps the locations from the record `first` on, in place of what is known of their block,
    /// unless that has all of them.
    pub(super) fn keep(&mut self, first: u64, block: Block) {
        let (number, start) = (first / BLOCK_RECORDS, first % BLOCK_RECORDS);
        let known = self.blocks.get(&number);
        if known.is_some_and(|part| part.start <= start && part.end() >= start + block.count()) {
            return;
        }
        self.remove(number);
        while self.bytes + block.bytes() > self.budget && !self.blocks.is_empty() {
            self.drop_half();
        }
        self.bytes += block.bytes();
        self.blocks.insert(number, Part { start, block });
    }

    /// Which half goes matters little for random access, and never for what is right.
    fn drop_half(&mut self) {
        let mut keep = true;
        self.blocks.retain(|_, _| {
            keep = !keep;
            keep
        });
        self.bytes = self.blocks.values().map(|part| part.block.bytes()).sum();
    }

    /// Forgets every block that has one of `records`.
    pub(super) fn forget(&mut self, records: &Range<u64>) {
        if !records.is_empty() {
            for number in records.start / BLOCK_RECORDS..=(records.end - 1) / BLOCK_RECORDS {
                self.remove(number);
            }
        }
    }

    pub(super) fn forget_all(&mut self) {
        *self = Self::new(self.budget);
    }

    fn remove(&mut self, number: u64) {
        if let Some(part) = self.blocks.remove(&number) {
            self.bytes -= part.block.bytes();
        }
    }
}

/// The aligned range of `size` records that `index` is in, as far as it lies below `length`.
fn around(index: u64, size: u64, length: u64) -> Range<u64> {
    let start = index / size * size;
    start..length.min(start.saturating_add(size))
}

/// Block numbers are small and dense: one multiplication spreads them enough.
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only block numbers are hashed");
    }

    fn write_u64(&mut self, block: u64) {
        self.0 = (block ^ (block >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 29;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Random, raw, shuffled};
    use super::*;

    /// What is wanted, as first record and the one behind the last.
    fn wanted(cache: &Cache, missing: &[u64], length: u64) -> Vec<(u64, u64)> {
        let wanted = cache.wanted(missing.iter().copied(), length);
        wanted.into_iter().map(|records| (records.start, records.end)).collect()
    }

    #[test]
    fn a_page_is_wanted_first_and_then_the_whole_block() {
        let mut cache = Cache::new(BUDGET_BYTES);
        assert_eq!(wanted(&cache, &[300, 300, 511], 9000), [(256, 512)]);
        assert_eq!(wanted(&cache, &[300, 512, 8999], 9000), [(0, 4096), (8960, 9000)]);
        cache.keep(256, Block::new(&raw(256, 0, 8)));
        assert_eq!((cache.get(255), cache.get(512)), (None, None));
        assert_eq!(cache.get(257).unwrap().offset, 8);
        assert_eq!(wanted(&cache, &[512, 5000], 9000), [(0, 4096), (4864, 5120)]);
        assert_eq!(wanted(&cache, &[512], 600), [(0, 600)]);
        assert_eq!(wanted(&cache, &[u64::MAX - 1], u64::MAX), [(u64::MAX - 255, u64::MAX)]);
    }

    #[test]
    fn a_page_never_takes_the_place_of_its_block() {
        let mut cache = Cache::new(BUDGET_BYTES);
        cache.keep(0, Block::new(&raw(4096, 0, 8)));
        cache.keep(256, Block::new(&raw(256, 2048, 8)));
        assert!(cache.get(4095).is_some());
        cache.forget(&(4095..4096));
        assert!(cache.get(0).is_none());
        assert_eq!(cache.bytes, 0);
    }

    #[test]
    fn a_block_that_deletes_have_shortened_takes_the_place_of_a_page_behind_its_end() {
        let mut cache = Cache::new(BUDGET_BYTES);
        cache.keep(3840, Block::new(&raw(256, 0, 8)));
        cache.keep(0, Block::new(&raw(100, 0, 8)));
        assert!(cache.get(99).is_some() && cache.get(3840).is_none());
    }

    #[test]
    fn the_budget_is_kept() {
        let mut cache = Cache::new(100_000);
        let mut random = Random(1);
        for number in 0..1000 {
            let block = Block::new(&shuffled(&mut random, raw(4096, 0, 8)));
            cache.keep(number * BLOCK_RECORDS, block);
            let bytes: usize = cache.blocks.values().map(|part| part.block.bytes()).sum();
            assert!(cache.bytes == bytes && bytes <= 100_000);
            assert!(cache.get(number * BLOCK_RECORDS).is_some());
        }
    }
}
