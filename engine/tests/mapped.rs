//! Records that are copied from mappings of their chunks: the same bytes, and where the file under
//! a mapping was changed by someone else, an error and never wrong bytes or a dead process.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{DENSE_BYTES, Random, Store, kinds, options, records};
use ringloader_engine::codec::Codec;
use ringloader_engine::file::Fs;
use ringloader_engine::format::Capacity;
use ringloader_engine::identity::Dtype;
use ringloader_engine::runtime::Backend;
use ringloader_engine::storage::{Mode, Options};
use ringloader_engine::{DenseStore, Error};

/// The engine's choice, which maps what is in memory, and mappings whatever is there.
const MAPPING: [Option<Backend>; 2] = [None, Some(Backend::Mmap)];
const RECORDS: usize = 3000;

fn store(directory: &Path, dense: bool, codec: Codec) -> (PathBuf, Vec<Vec<u8>>) {
    let path = directory.join("store");
    let store = Store::create(&path, dense, codec, &Options::default()).unwrap();
    let all = records(&mut Random::new(5), dense, RECORDS);
    store.append(&all).unwrap();
    store.close().unwrap();
    (path, all)
}

fn open(path: &Path, dense: bool, io: Option<Backend>) -> Store {
    let options = Options { mode: Mode::Read, io, ..Options::default() };
    Store::open(path, dense, &options).unwrap()
}

fn chunk(path: &Path) -> File {
    File::options().read(true).write(true).open(path.join("0.chunk")).unwrap()
}

#[test]
fn every_way_to_read_gives_the_same_bytes() {
    let ways = [None, Some(Backend::Uring), Some(Backend::Pread), Some(Backend::Mmap)];
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let (path, all) = store(directory.path(), dense, codec);
        for io in ways {
            let store = open(&path, dense, io);
            let mut random = Random::new(1);
            for size in [1, 2, 300, RECORDS] {
                let indices: Vec<u64> = (0..size).map(|_| random.below(RECORDS) as u64).collect();
                let wanted: Vec<_> = indices.iter().map(|i| all[*i as usize].clone()).collect();
                assert!(store.gather(&indices).unwrap() == wanted, "{io:?} {codec:?} {size}");
            }
            assert!(store.all().unwrap() == all);
        }
    }
}

/// Whole pages go, or a part of one: of that the mapping would show zeros, without any fault.
#[test]
fn a_chunk_that_was_cut_under_its_mapping_is_an_error_that_names_a_record() {
    for (dense, codec) in kinds() {
        for io in MAPPING {
            for end in [4096, 5000] {
                let directory = common::directory();
                let (path, all) = store(directory.path(), dense, codec);
                let store = open(&path, dense, io);
                assert!(store.all().unwrap() == all);
                let file = chunk(&path);
                let bytes = fs::read(path.join("0.chunk")).unwrap();
                file.set_len(end).unwrap();
                let last = RECORDS as u64 - 1;
                let error = store.gather(&[0, last]).unwrap_err();
                assert!(matches!(error, Error::BadLocation { record, .. } if record == last));
                assert!(store.all().is_err());
                assert!(store.gather(&[0, 1, 2]).unwrap() == all[..3], "the rest can be had");
                // Whoever cut it puts the bytes back.
                fs::write(path.join("0.chunk"), bytes).unwrap();
                assert!(store.all().unwrap() == all);
            }
        }
    }
}

/// A chunk that was cut once is read from then on, also in batches whose other chunks are mapped.
#[test]
fn a_batch_may_be_copied_in_part_and_read_in_part() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let path = directory.path().join("store");
        let capacity = Capacity { chunk_bytes: 10_000, segment_records: 1000, chunks: 1000 };
        let options = Options { io: Some(Backend::Mmap), ..options(capacity, &Fs::default()) };
        let store = Store::create(&path, dense, codec, &options).unwrap();
        let all = records(&mut Random::new(5), dense, RECORDS);
        store.append(&all).unwrap();
        store.close().unwrap();
        let store = Store::open(&path, dense, &options).unwrap();
        assert!(store.all().unwrap() == all);
        let cut = path.join("1.chunk");
        let bytes = fs::read(&cut).unwrap();
        File::options().write(true).open(&cut).unwrap().set_len(10).unwrap();
        assert!(store.all().is_err());
        fs::write(&cut, bytes).unwrap();
        assert!(path.join("2.chunk").exists(), "there are chunks on both sides");
        let mut random = Random::new(2);
        for size in [2, 300, 10_000] {
            let indices: Vec<u64> = (0..size).map(|_| random.below(RECORDS) as u64).collect();
            let wanted: Vec<_> = indices.iter().map(|i| all[*i as usize].clone()).collect();
            assert!(store.gather(&indices).unwrap() == wanted, "{codec:?} {size}");
        }
        assert!(store.all().unwrap() == all);
    }
}

#[test]
fn threads_that_gather_while_a_chunk_is_cut_get_right_bytes_or_an_error() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let (path, all) = store(directory.path(), dense, codec);
        let store = open(&path, dense, Some(Backend::Mmap));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 0..4 {
                let (store, all, stop) = (&store, &all, &stop);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    while !stop.load(Ordering::Relaxed) {
                        let start = random.below(RECORDS - 200);
                        let indices: Vec<u64> = (start as u64..start as u64 + 200).collect();
                        match store.gather(&indices) {
                            Ok(found) => assert!(found == all[start..start + 200]),
                            Err(error) => assert_eq!(error.code(), Some(-8), "{error}"),
                        }
                    }
                });
            }
            let file = chunk(&path);
            let len = file.metadata().unwrap().len();
            for step in (0..=20).rev() {
                file.set_len(len * step / 20).unwrap();
                thread::sleep(std::time::Duration::from_millis(2));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_chunk_that_grows_past_its_mapping_is_mapped_anew() {
    const RECORD_BYTES: usize = 1 << 20;
    let directory = common::directory();
    let options = Options { io: Some(Backend::Mmap), ..Options::default() };
    let (path, dtype) = (directory.path().join("store"), Dtype::Plain("|u1".into()));
    let shape = [RECORD_BYTES as u64];
    let store = DenseStore::create(&path, dtype, &shape, Codec::Raw, None, &options).unwrap();
    for number in 0..40u8 {
        store.append(vec![number; RECORD_BYTES].as_slice()).unwrap();
        let mut batch = store.gather(&[number.into(), 0]).unwrap();
        let bytes = batch.bytes_mut();
        assert!(bytes[..RECORD_BYTES].iter().all(|byte| *byte == number));
        assert!(bytes[RECORD_BYTES..].iter().all(|byte| *byte == 0));
    }
}

/// A compaction moves records under the mapping, and cuts the file.
#[test]
fn a_compaction_is_seen_through_the_mapping() {
    for (dense, codec) in kinds() {
        for io in MAPPING {
            let directory = common::directory();
            let (path, mut all) = store(directory.path(), dense, codec);
            let options = Options { io, ..Options::default() };
            let store = Store::open(&path, dense, &options).unwrap();
            assert!(store.all().unwrap() == all);
            let holes: Vec<u64> = (0..RECORDS as u64).step_by(3).collect();
            store.delete(&holes).unwrap();
            common::swap_delete(&mut all, &holes);
            store.compact().unwrap();
            assert!(store.all().unwrap() == all);
            let more = records(&mut Random::new(8), dense, 100);
            store.append(&more).unwrap();
            all.extend(more);
            assert!(store.all().unwrap() == all);
        }
    }
}

#[test]
fn many_small_records_of_a_batch_that_repeats_are_right() {
    let directory = common::directory();
    let (path, all) = store(directory.path(), true, Codec::Raw);
    let store = open(&path, true, None);
    // Large enough for several threads, and for more records than are planned together.
    let indices: Vec<u64> = (0..100_000u64).map(|i| i * 7 % RECORDS as u64).collect();
    let Store::Dense(dense) = &store else { unreachable!() };
    let mut batch = dense.gather(&indices).unwrap();
    for (found, index) in batch.bytes_mut().chunks(DENSE_BYTES).zip(&indices) {
        assert!(found == all[*index as usize]);
    }
}
