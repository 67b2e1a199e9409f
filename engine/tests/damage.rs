//! Files may hold anything: the answer is an error in bounded memory, or the right bytes.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Random, SMALL, Store, kinds, options, records};
use ringloader_engine::codec::Codec;
use ringloader_engine::file::Fs;
use ringloader_engine::format::{Location, encode_locations, names};
use ringloader_engine::{Error, Result};

fn store(directory: &Path, dense: bool, codec: Codec) -> (PathBuf, Vec<Vec<u8>>) {
    let path = directory.join("store");
    let store = Store::create(&path, dense, codec, &options(SMALL, &Fs::default())).unwrap();
    let all = records(&mut Random::new(21), dense, 40);
    store.append(&all).unwrap();
    store.close().unwrap();
    (path, all)
}

fn open(path: &Path, dense: bool) -> Result<Store> {
    Store::open(path, dense, &options(SMALL, &Fs::default()))
}

fn set_location(path: &Path, record: u64, change: impl Fn(&mut Location)) {
    let segment = path.join(names::segment(record / SMALL.segment_records));
    let mut bytes = fs::read(&segment).unwrap();
    let start = (record % SMALL.segment_records) as usize * 16;
    let entry: &mut [u8; 16] = bytes[start..].first_chunk_mut().unwrap();
    let mut location = Location::decode(entry);
    change(&mut location);
    entry.copy_from_slice(&location.encode());
    fs::write(segment, bytes).unwrap();
}

#[test]
fn a_location_that_cannot_be_right_names_its_record() {
    type Change = (&'static str, fn(&mut Location));
    let changes: [Change; 7] = [
        ("past the file", |l| l.offset = 990),
        ("past the chunk", |l| l.offset = u32::MAX - 3),
        ("no stored bytes", |l| l.phys_length = 0),
        ("no bytes", |l| l.logic_length = 0),
        ("over the limit", |l| l.logic_length = (1 << 31) + 1),
        ("no such chunk", |l| l.chunk = u32::MAX),
        ("the first chunk that is not there", |l| l.chunk += 100),
    ];
    for (dense, codec) in kinds() {
        for (name, change) in changes {
            let directory = common::directory();
            let (path, all) = store(directory.path(), dense, codec);
            set_location(&path, 17, change);
            let store = open(&path, dense).unwrap();
            let error = store.gather(&[3, 17]).unwrap_err();
            assert!(matches!(error, Error::BadLocation { record: 17, .. }), "{name}: {error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{name}: {error}");
            assert_eq!(store.gather(&[3, 18]).unwrap(), [all[3].clone(), all[18].clone()]);
            assert!(matches!(store.compact(), Err(Error::BadLocation { record: 17, .. })));
        }
    }
}

#[test]
fn records_that_share_their_bytes_survive_a_compaction() {
    // An interrupted delete of loaderx leaves a record twice.
    for (dense, codec) in kinds() {
        for seed in 0..20 {
            let directory = common::directory();
            let (path, _) = store(directory.path(), dense, codec);
            let mut random = Random::new(seed);
            for _ in 0..=random.below(30) {
                let (twin, original) = (random.below(37), random.below(37));
                let bytes = fs::read(path.join("0.loc")).unwrap();
                let found = Location::decode(bytes[original * 16..].first_chunk().unwrap());
                set_location(&path, twin as u64, |location| *location = found);
            }
            let store = open(&path, dense).unwrap();
            let before = store.all().unwrap();
            store.compact().unwrap();
            assert_eq!(store.all().unwrap(), before, "seed {seed}");
            store.close().unwrap();
            assert_eq!(open(&path, dense).unwrap().all().unwrap(), before, "seed {seed}");
        }
    }
}

#[test]
fn a_header_that_promises_more_than_there_is_is_refused() {
    for (offset, value) in [(0, 1 << 60), (0, 41), (8, 1 << 31), (12, 1 << 31), (16, 7)] {
        let directory = common::directory();
        let (path, _) = store(directory.path(), true, Codec::Zstd);
        let mut header = fs::read(path.join(names::META)).unwrap();
        header[offset..offset + 8].copy_from_slice(&u64::to_le_bytes(value)[..8]);
        fs::write(path.join(names::META), header).unwrap();
        let error = open(&path, true).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidStore { .. }), "byte {offset}: {error}");
    }
}

#[test]
fn a_dictionary_of_another_store_is_noticed() {
    let directory = common::directory();
    let (path, _) = store(directory.path(), false, Codec::ZstdDict);
    fs::write(path.join(names::DICTIONARY), Random::new(5).bytes(300)).unwrap();
    let store = open(&path, false).unwrap();
    for record in 0..40 {
        // A frame that made no use of the dictionary may still decode.
        if let Err(error) = store.gather(&[record]) {
            assert!(matches!(error, Error::Decode { record: named, .. } if named == record));
        }
    }
    assert!(store.all().is_err());
}

/// Whether what was gathered is right, or a record that the damaged table may well point to.
fn is_explained(found: &[Vec<u8>], all: &[Vec<u8>], codec: Codec) -> bool {
    codec == Codec::Raw || found.iter().all(|record| all.contains(record))
}

#[test]
fn no_byte_of_any_file_can_make_a_store_panic_or_lie() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let (path, all) = store(directory.path(), dense, codec);
        let files: Vec<PathBuf> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        let mut random = Random::new(77);
        for round in 0..1500 {
            let file = &files[random.below(files.len())];
            let good = fs::read(file).unwrap();
            let mut bad = good.clone();
            match random.below(4) {
                0 => bad.truncate(random.below(good.len() + 1)),
                1 => {
                    let len = 1 + random.below(40);
                    bad.extend(random.bytes(len));
                }
                _ if !bad.is_empty() => {
                    for _ in 0..=random.below(3) {
                        let at = random.below(bad.len());
                        bad[at] ^= 1 << random.below(8);
                    }
                }
                _ => {}
            }
            fs::write(file, &bad).unwrap();
            if let Ok(store) = open(&path, dense) {
                let length = store.len().min(200);
                for record in 0..length {
                    if let Ok(found) = store.gather(&[record]) {
                        assert!(is_explained(&found, &all, codec), "round {round} of {codec}");
                    }
                }
                let _ = store.gather(&(0..length).collect::<Vec<_>>());
            }
            fs::write(file, &good).unwrap();
        }
        assert_eq!(open(&path, dense).unwrap().all().unwrap(), all);
    }
}

#[test]
fn no_table_can_make_a_compaction_hang() {
    for (dense, codec) in kinds() {
        for seed in 0..60 {
            let directory = common::directory();
            let (path, _) = store(directory.path(), dense, codec);
            let mut random = Random::new(seed);
            // Places all over the chunks, that overlap in any way.
            for record in 0..40 {
                if random.below(3) == 0 {
                    set_location(&path, record, |location| {
                        location.chunk = 0;
                        location.offset = random_offset(seed, record);
                    });
                }
            }
            let store = open(&path, dense).unwrap();
            let before = store.all().ok();
            if store.compact().is_ok()
                && let Some(before) = before
            {
                assert_eq!(store.all().unwrap(), before, "seed {seed}");
            }
        }
    }
}

fn random_offset(seed: u64, record: u64) -> u32 {
    Random::new(seed * 1000 + record).below(900) as u32
}

#[test]
fn a_table_of_nothing_but_garbage_is_refused_record_by_record() {
    let directory = common::directory();
    let (path, _) = store(directory.path(), false, Codec::Zstd);
    let garbage = Location { offset: 0, phys_length: 900, logic_length: 900 << 15, chunk: 0 };
    fs::write(path.join("0.loc"), encode_locations(&[garbage; 37])).unwrap();
    let store = open(&path, false).unwrap();
    // Memory for the batch is asked for, and is untouched until something decodes.
    assert!(store.gather(&(0..37).collect::<Vec<_>>()).is_err());
}
