//! The record table: where each record is. Locations are kept in memory, so a gather makes no
//! system call for them once they were used.
//!
//! The table is read in blocks of [`BLOCK_RECORDS`] when one of their records is first asked
//! for, and kept up to [`BUDGET_BYTES`]. A block that is an arithmetic run (raw dense records
//! that were never deleted) is kept as its first location and a stride.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::file::{Fs, StoreFile, numbered_files};
use crate::format::{
    Capacity, LOCATION_BYTES, Location, decode_locations, encode_locations, names,
};

/// Records of a block: 64 KiB of the table, about what one disk read costs anyway.
pub(crate) const BLOCK_RECORDS: u64 = 4096;
/// Memory for the locations of one store, in bytes: 33 million irregular records, or any number
/// of regular ones that fits a disk. Past it, blocks are dropped and read again when needed.
pub(crate) const BUDGET_BYTES: usize = 512 << 20;
/// What a block costs beside its locations: its place in the map, and the counted box.
const BLOCK_OVERHEAD_BYTES: usize = 96;

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

#[derive(Debug, Default)]
struct Cache {
    blocks: HashMap<u64, Arc<Block>, BuildHasherDefault<BlockHasher>>,
    bytes: usize,
}

/// Consecutive locations from a block's first record on.
#[derive(Debug)]
enum Block {
    /// Records of one size, one behind the other in one chunk.
    Run {
        first: Location,
        count: u32,
    },
    Listed(Box<[Location]>),
}

impl Block {
    fn new(locations: Vec<Location>) -> Self {
        match locations.first() {
            Some(first) if is_run(first, &locations) => {
                Self::Run { first: *first, count: locations.len() as u32 }
            }
            _ => Self::Listed(locations.into_boxed_slice()),
        }
    }

    fn get(&self, i: u64) -> Option<Location> {
        match self {
            Self::Run { first, count } => (i < u64::from(*count)).then(|| Location {
                // `is_run` has seen that the last of them fits.
                offset: first.offset + i as u32 * first.phys_length,
                ..*first
            }),
            Self::Listed(locations) => locations.get(i as usize).copied(),
        }
    }

    fn bytes(&self) -> usize {
        let listed = match self {
            Self::Run { .. } => 0,
            Self::Listed(locations) => size_of_val::<[Location]>(locations),
        };
        listed + BLOCK_OVERHEAD_BYTES
    }
}

fn is_run(first: &Location, locations: &[Location]) -> bool {
    let mut next = u64::from(first.offset);
    locations.iter().all(|location| {
        let follows = location.place() == (u64::from(first.chunk) << 32 | next)
            && location.phys_length == first.phys_length
            && location.logic_length == first.logic_length;
        next += u64::from(location.phys_length);
        follows && u32::try_from(next).is_ok()
    })
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

impl Table {
    pub(crate) fn new(dir: &Path, fs: &Fs, writable: bool, capacity: Capacity) -> Self {
        Self {
            dir: dir.to_owned(),
            fs: fs.clone(),
            writable,
            capacity,
            segments: RwLock::default(),
            cache: RwLock::default(),
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

    /// The locations of `indices`, all of which are below `length`.
    pub(crate) fn locate(&self, indices: &[u64], length: u64) -> Result<Vec<Location>> {
        let mut found = Vec::with_capacity(indices.len());
        while found.len() < indices.len() {
            let missing = self.locate_cached(&indices[found.len()..], &mut found);
            if let Some(index) = missing {
                let block = index / BLOCK_RECORDS;
                let loaded = Arc::new(Block::new(self.load(block, length)?));
                let location = loaded.get(index % BLOCK_RECORDS);
                self.keep(block, loaded);
                found.push(location.expect("a block reaches up to the length it was loaded with"));
            }
        }
        Ok(found)
    }

    /// Looks up what it can without reading and gives the first index that it could not.
    fn locate_cached(&self, indices: &[u64], found: &mut Vec<Location>) -> Option<u64> {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        for &index in indices {
            let block = cache.blocks.get(&(index / BLOCK_RECORDS));
            match block.and_then(|block| block.get(index % BLOCK_RECORDS)) {
                Some(location) => found.push(location),
                None => return Some(index),
            }
        }
        None
    }

    /// Reads a block, as far as it lies below `length`.
    fn load(&self, block: u64, length: u64) -> Result<Vec<Location>> {
        let first = block * BLOCK_RECORDS;
        self.read(first, (length - first).min(BLOCK_RECORDS) as usize)
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

    fn keep(&self, number: u64, block: Arc<Block>) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        if cache.bytes + block.bytes() > BUDGET_BYTES {
            // Which half goes matters little for random access, and never for what is right.
            let mut keep = false;
            cache.blocks.retain(|_, _| {
                keep = !keep;
                keep
            });
            cache.bytes = cache.blocks.values().map(|block| block.bytes()).sum();
        }
        cache.bytes += block.bytes();
        if let Some(old) = cache.blocks.insert(number, block) {
            cache.bytes -= old.bytes();
        }
    }

    /// Writes consecutive locations from `first` on. A block in memory that they belong to is
    /// forgotten, so readers see either the old table or the new one, whole.
    pub(crate) fn write(&self, first: u64, locations: &[Location]) -> Result<()> {
        let written = self.write_segments(first, locations);
        // Also after an error: some of it may be on disk, and memory must not say otherwise.
        self.forget(first, locations.len() as u64);
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

    fn forget(&self, first: u64, count: u64) {
        let Some(last) = count.checked_sub(1).map(|more| first + more) else { return };
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        for number in first / BLOCK_RECORDS..=last / BLOCK_RECORDS {
            if let Some(block) = cache.blocks.remove(&number) {
                cache.bytes -= block.bytes();
            }
        }
    }

    /// Cuts the segments to exactly `length` records and removes those past it.
    pub(crate) fn truncate(&self, length: u64) -> Result<()> {
        *self.cache.write().unwrap_or_else(PoisonError::into_inner) = Cache::default();
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
        *self.cache.write().unwrap_or_else(PoisonError::into_inner) = Cache::default();
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

/// A file that the header says must be there is damage, not a failed system call.
pub(crate) fn missing(error: Error) -> Error {
    match error {
        Error::Io { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::invalid(&path, "the file is missing")
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(offset: u32) -> Location {
        Location { offset, phys_length: 10, logic_length: 10, chunk: 0 }
    }

    fn table(dir: &Path) -> Table {
        let capacity = Capacity { segment_records: 5000, ..Capacity::FORMAT };
        Table::new(dir, &Fs::default(), true, capacity)
    }

    #[test]
    fn runs_are_kept_as_a_stride_and_give_the_same_locations() {
        let listed: Vec<_> = (0..100).map(|i| location(10 * i)).collect();
        let block = Block::new(listed.clone());
        assert!(matches!(block, Block::Run { .. }));
        let again: Vec<_> = (0..100).map(|i| block.get(i).unwrap()).collect();
        assert_eq!(again, listed);
        assert_eq!(block.get(100), None);
        let mut shuffled = listed;
        shuffled.swap(3, 4);
        assert!(matches!(Block::new(shuffled), Block::Listed(_)));
        // A run whose arithmetic would leave 32 bits is listed.
        let past = Location { phys_length: 1 << 31, ..location(1 << 31) };
        assert!(matches!(Block::new(vec![past]), Block::Listed(_)));
    }

    #[test]
    fn locations_cross_segments_and_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(dir.path());
        let all: Vec<_> = (0..12_000).map(|i| location(i * 37 % 1000)).collect();
        table.write(0, &all[..4000]).unwrap();
        // Read a block while it is short, then let it grow.
        assert_eq!(table.locate(&[3999], 4000).unwrap(), [all[3999]]);
        table.write(4000, &all[4000..]).unwrap();
        let indices: Vec<u64> = (0..12_000).rev().collect();
        let found = table.locate(&indices, 12_000).unwrap();
        assert!(found.iter().rev().eq(all.iter()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        table.truncate(5001).unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("1.loc")).unwrap().len(), 16);
        assert!(!dir.path().join("2.loc").exists());
        table.truncate(0).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_short_table_is_found_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(dir.path());
        table.write(0, &[location(0), location(10)]).unwrap();
        assert!(table.check_length(2).is_ok());
        assert_eq!(table.check_length(3).unwrap_err().code(), Some(-8));
        assert_eq!(table.check_length(1 << 40).unwrap_err().code(), Some(-8));
    }
}
