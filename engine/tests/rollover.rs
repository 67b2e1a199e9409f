//! Where a chunk, a segment or a store is full.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{DENSE_BYTES, Random, Store, kinds, options, records};
use ringloader_engine::Error;
use ringloader_engine::codec::Codec;
use ringloader_engine::file::Fs;
use ringloader_engine::format::{Capacity, Location, decode_locations};

fn capacity(chunk_bytes: u64, chunks: u64) -> Capacity {
    Capacity { chunk_bytes, segment_records: 10, chunks }
}

fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

fn locations(path: &Path, segment: u64) -> Vec<Location> {
    decode_locations(&fs::read(path.join(format!("{segment}.loc"))).unwrap())
}

#[test]
fn a_record_may_end_at_the_last_byte_of_a_chunk_and_no_later() {
    let bytes = DENSE_BYTES as u64;
    for (chunk_bytes, first_of_next) in [(4 * bytes, 4), (4 * bytes - 1, 3), (4 * bytes + 1, 4)] {
        let directory = common::directory();
        let path = directory.path().join("store");
        let options = options(capacity(chunk_bytes, 100), &Fs::default());
        let store = Store::create(&path, true, Codec::Raw, &options).unwrap();
        let batch = records(&mut Random::new(1), true, 9);
        store.append(&batch[..2]).unwrap();
        store.append(&batch[2..]).unwrap();
        let table = locations(&path, 0);
        let next = table.iter().position(|location| location.chunk == 1).unwrap();
        assert_eq!((next, table[next].offset), (first_of_next, 0));
        assert_eq!(fs::metadata(path.join("0.chunk")).unwrap().len(), next as u64 * bytes);
        assert_eq!(store.all().unwrap(), batch);
    }
}

#[test]
fn the_table_goes_on_in_the_next_segment() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let options = options(capacity(10_000, 100), &Fs::default());
    let store = Store::create(&path, false, Codec::Zstd, &options).unwrap();
    let batch = records(&mut Random::new(2), false, 25);
    for part in batch.chunks(4) {
        store.append(part).unwrap();
    }
    assert_eq!((0..3).map(|i| locations(&path, i).len()).collect::<Vec<_>>(), [10, 10, 5]);
    assert_eq!(store.all().unwrap(), batch);
    store.delete(&(0..15).collect::<Vec<_>>()).unwrap();
    store.compact().unwrap();
    assert_eq!(locations(&path, 0).len(), 10);
    assert!(!path.join("1.loc").exists());
}

#[test]
fn a_full_store_is_refused_before_anything_is_written() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let path = directory.path().join("store");
        let options = options(capacity(1000, 2), &Fs::default());
        let store = Store::create(&path, dense, codec, &options).unwrap();
        let batch = records(&mut Random::new(3), dense, 8);
        store.append(&batch).unwrap();
        let before = files(&path);
        let many = records(&mut Random::new(4), dense, 200);
        let error = store.append(&many).unwrap_err();
        assert_eq!(error.code(), Some(-5), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
        assert_eq!(files(&path), before);
        assert_eq!(store.append(&batch[..1]).unwrap(), 8, "the store goes on");
        assert_eq!(store.all().unwrap()[8], batch[0]);
    }
}

#[test]
fn a_record_that_no_chunk_can_hold_is_refused_before_anything_is_written() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let options = options(capacity(500, 100), &Fs::default());
    let store = Store::create(&path, false, Codec::Raw, &options).unwrap();
    let before = files(&path);
    let error = store.append(&[vec![1; 10], vec![2; 485]]).unwrap_err();
    assert!(matches!(error, Error::RecordTooLarge { record: 1, bytes: 501, .. }), "{error}");
    assert_eq!(files(&path), before);
    store.append(&[vec![1; 10], vec![2; 484]]).unwrap();
}

#[test]
fn what_an_interrupted_append_left_in_the_next_chunk_is_cut_off() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let options = options(capacity(100, 100), &Fs::default());
    let store = Store::create(&path, true, Codec::Raw, &options).unwrap();
    let batch = records(&mut Random::new(5), true, 9);
    store.append(&batch[..4]).unwrap();
    fs::write(path.join("1.chunk"), vec![9; 5000]).unwrap();
    fs::write(path.join("0.loc"), [fs::read(path.join("0.loc")).unwrap(), vec![9; 77]].concat())
        .unwrap();
    store.append(&batch[4..]).unwrap();
    assert_eq!(store.all().unwrap(), batch);
    store.close().unwrap();
    assert_eq!(Store::open(&path, true, &options).unwrap().all().unwrap(), batch);
}
