//! The table against a plain list of locations, and the lists that its parts are tested with.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cache::BLOCK_RECORDS;
use super::*;

/// Marsaglia's xorshift64.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }
}

/// Records of `bytes` bytes one behind the other.
pub(super) fn raw(count: u32, offset: u32, bytes: u32) -> Vec<Location> {
    let location = |i| Location {
        offset: offset + i * bytes,
        phys_length: bytes,
        logic_length: bytes,
        chunk: 0,
    };
    (0..count).map(location).collect()
}

/// Frames of about 300 to 500 bytes one behind the other.
pub(super) fn zstd(random: &mut Random, count: u32) -> Vec<Location> {
    let mut offset = 0;
    let mut location = |_| {
        let phys_length = 300 + random.below(200) as u32;
        let location = Location { offset, phys_length, logic_length: 2048, chunk: 3 };
        offset += phys_length;
        location
    };
    (0..count).map(&mut location).collect()
}

pub(super) fn shuffled(random: &mut Random, mut locations: Vec<Location>) -> Vec<Location> {
    for i in (1..locations.len()).rev() {
        locations.swap(i, random.below(i + 1));
    }
    locations
}

/// Fields that stand still, rise, fall, run over, or are anything, each in its own way.
pub(super) fn hostile(random: &mut Random, count: usize) -> Vec<Location> {
    let mut fields = [(); 4].map(|()| hostile_field(random, count));
    let mut next = |field: usize| fields[field].pop().expect("as many values as records");
    (0..count)
        .map(|_| Location {
            offset: next(0),
            phys_length: next(1),
            logic_length: next(2),
            chunk: next(3),
        })
        .collect()
}

fn hostile_field(random: &mut Random, count: usize) -> Vec<u32> {
    const EDGES: [u32; 8] = [0, 1, 255, 256, 1 << 31, (1 << 31) - 1, u32::MAX - 1, u32::MAX];
    let edge = |random: &mut Random| EDGES[random.below(EDGES.len())];
    let (first, step) = (edge(random), edge(random).wrapping_add(random.below(9) as u32));
    let kind = random.below(6);
    let value = |i: usize| match kind {
        0 => first,
        1 => first.wrapping_add(step.wrapping_mul(i as u32)),
        2 => first.wrapping_add(random.below(256) as u32),
        3 => first.wrapping_sub(random.below(70_000) as u32),
        4 => edge(random),
        _ => random.next() as u32,
    };
    (0..count).map(value).collect()
}

fn table(dir: &Path, segment_records: u64) -> Table {
    let capacity = Capacity { segment_records, ..Capacity::FORMAT };
    Table::new(dir, &Fs::default(), true, capacity)
}

fn location(offset: u32) -> Location {
    Location { offset, phys_length: 10, logic_length: 10, chunk: 0 }
}

/// Locations as a store makes them, or as nobody would.
fn some(random: &mut Random, count: usize) -> Vec<Location> {
    match random.below(5) {
        0 => raw(count as u32, random.below(1 << 20) as u32, 8),
        // Deletes have left their traces.
        3 => {
            let mut locations = raw(count as u32, 0, 150);
            for _ in 0..count / 50 {
                locations[random.below(count)] = hostile(random, 1)[0];
            }
            locations
        }
        1 => zstd(random, count as u32),
        2 => shuffled(random, raw(count as u32, 0, 150)),
        _ => hostile(random, count),
    }
}

fn check(table: &Table, model: &[Location], indices: &[u64]) {
    let found = table.locate(indices, model.len() as u64, None).unwrap();
    let right = indices.iter().map(|index| model[*index as usize]);
    assert!(found.len() == indices.len() && found.iter().copied().eq(right));
}

fn indices(random: &mut Random, length: usize) -> Vec<u64> {
    let count = 1 + random.below(300);
    match random.below(3) {
        0 => (0..count).map(|_| random.below(length) as u64).collect(),
        // Near each other, also twice, and up to the end.
        1 => {
            let start = random.below(length);
            (0..count).map(|_| (start + random.below(3000)).min(length - 1) as u64).collect()
        }
        _ => {
            let start = random.below(length);
            (start..length.min(start + 10_000)).rev().map(|index| index as u64).collect()
        }
    }
}

/// One random history: what a writer does between gathers, under a budget that drops blocks.
fn run(seed: u64, segment_records: u64, budget: usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut table = table(dir.path(), segment_records);
    table.cache = RwLock::new(Cache::new(budget));
    let mut model: Vec<Location> = Vec::new();
    for _ in 0..60 {
        match random.below(8) {
            0 | 1 => {
                let count = 1 + random.below(9000);
                let more = some(&mut random, count);
                table.write(model.len() as u64, &more).unwrap();
                model.extend(more);
            }
            // A delete: entries change and the end comes nearer, but nothing is cut.
            2 if model.len() > 10 => {
                let count = 1 + random.below(model.len().min(5000) - 1);
                let first = random.below(model.len() - count);
                let moved = some(&mut random, count);
                table.write(first as u64, &moved).unwrap();
                model[first..first + count].copy_from_slice(&moved);
                model.truncate(model.len() - random.below(count));
            }
            3 if random.below(4) == 0 => table.truncate(model.len() as u64).unwrap(),
            _ if !model.is_empty() => {
                let indices = indices(&mut random, model.len());
                check(&table, &model, &indices);
            }
            _ => {}
        }
    }
    let all: Vec<u64> = (0..model.len() as u64).collect();
    check(&table, &model, &all);
    check(&table, &model, &all);
}

#[test]
fn any_history_gives_what_a_list_of_locations_would() {
    for seed in 0..15 {
        run(seed, 1 << 28, BUDGET_BYTES);
        run(seed, 5000, BUDGET_BYTES);
        run(seed, 1 << 28, 60_000);
        run(seed, 37, 1);
    }
}

#[test]
fn locations_cross_segments_and_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 5000);
    let all: Vec<_> = (0..12_000).map(|i| location(i * 37 % 1000)).collect();
    table.write(0, &all[..4000]).unwrap();
    // Read a block while it is short, then let it grow.
    check(&table, &all[..4000], &[3999]);
    table.write(4000, &all[4000..]).unwrap();
    let indices: Vec<u64> = (0..12_000).rev().collect();
    check(&table, &all, &indices);
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
    let table = table(dir.path(), 5000);
    table.write(0, &[location(0), location(10)]).unwrap();
    assert!(table.check_length(2).is_ok());
    assert_eq!(table.check_length(3).unwrap_err().code(), Some(-8));
    assert_eq!(table.check_length(1 << 40).unwrap_err().code(), Some(-8));
}

#[test]
fn a_table_that_was_cut_meanwhile_is_an_error_that_names_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 1 << 28);
    table.write(0, &raw(20_000, 0, 8)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("0.loc")).unwrap();
    file.set_len(10_000 * 16).unwrap();
    // One read, and several together.
    for indices in [&[19_999][..], &[1, 19_999], &[19_999, 1, 15_000]] {
        let error = table.locate(indices, 20_000, None).unwrap_err();
        assert!(error.code() == Some(-8) && error.to_string().contains("0.loc"), "{error}");
    }
    check(&table, &raw(10_000, 0, 8), &[1, 9_999]);
}

/// Gathers see records that were published, while more are written behind them, again and again
/// into places that failed appends have written before.
#[test]
fn gathers_beside_an_append_find_every_published_record() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 1 << 28);
    let published = AtomicU64::new(0);
    let right =
        |index: u64| Location { offset: (index as u32).wrapping_mul(2_654_435_761), ..location(0) };
    let last = 40_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(3);
            let mut length = 0;
            while length < last {
                let count = 1 + random.below(700);
                table.write(length, &vec![location(u32::MAX); count]).unwrap();
                let batch: Vec<_> = (length..length + count as u64).map(right).collect();
                table.write(length, &batch).unwrap();
                length += count as u64;
                published.store(length, Ordering::Release);
            }
        });
        for seed in 11..14 {
            let (table, published) = (&table, &published);
            scope.spawn(move || {
                let mut random = Random(seed);
                while published.load(Ordering::Acquire) < last {
                    let length = published.load(Ordering::Acquire);
                    if length > 0 {
                        let back = BLOCK_RECORDS.min(length) as usize;
                        let mut index = || match random.below(2) {
                            0 => random.below(length as usize) as u64,
                            _ => length - 1 - random.below(back) as u64,
                        };
                        let indices: Vec<_> = (0..40).map(|_| index()).collect();
                        let found = table.locate(&indices, length, None).unwrap();
                        assert!(found.into_iter().eq(indices.iter().copied().map(right)));
                    }
                }
            });
        }
    });
}

/// What a disk is asked for all at once, after a first slow read, which tests cannot wait for.
#[test]
fn a_batch_of_reads_gives_what_single_reads_do_or_leaves_the_error_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path(), 5000);
    let all = hostile(&mut Random(9), 12_000);
    table.write(0, &all).unwrap();
    let wanted = [256..512, 4864..5120, 8192..12_000];
    let pieces = table.pieces(&wanted).unwrap();
    assert_eq!(pieces.len(), 5, "two ranges cross a segment's end: {pieces:?}");
    let right: Vec<_> =
        wanted.iter().flat_map(|r| &all[r.start as usize..r.end as usize]).collect();
    for io in [None, Some(Backend::Pread)] {
        let mut bytes = vec![0; right.len() * LOCATION_BYTES];
        assert!(read_batch(&pieces, &mut bytes, io).unwrap());
        assert!(decode_locations(&bytes).iter().eq(right.iter().copied()));
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("2.loc")).unwrap();
        file.set_len(100).unwrap();
        assert!(!read_batch(&pieces, &mut bytes, io).unwrap());
        table.write(0, &all).unwrap();
    }
}
