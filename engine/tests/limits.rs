//! The limits of the format at their true places, in sparse files.

#![cfg(unix)]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::{DENSE_BYTES, Random, Store, options, reader, records};
use ringloader_engine::codec::Codec;
use ringloader_engine::file::Fs;
use ringloader_engine::format::{Capacity, HEADER_BYTES, Header, Location, names};

const CHUNK_BYTES: u64 = u32::MAX as u64;
const SEGMENT_RECORDS: u64 = 1 << 28;
/// What the sparse files may take on the disk, in bytes.
const DISK_BYTES_MAX: u64 = 1 << 20;

/// A closed store of three records.
fn store(directory: &Path, codec: Codec) -> (PathBuf, Vec<Vec<u8>>) {
    let path = directory.join("store");
    let all = records(&mut Random::new(31), true, 3);
    let store = create(&path, codec);
    store.append(&all).unwrap();
    store.close().unwrap();
    (path, all)
}

fn create(path: &Path, codec: Codec) -> Store {
    Store::create(path, true, codec, &options(Capacity::FORMAT, &Fs::default())).unwrap()
}

fn open(path: &Path) -> Store {
    Store::open(path, true, &options(Capacity::FORMAT, &Fs::default())).unwrap()
}

fn change_header(path: &Path, change: impl Fn(&mut Header)) {
    let meta = path.join(names::META);
    let bytes: [u8; HEADER_BYTES] = fs::read(&meta).unwrap().try_into().unwrap();
    let mut header = Header::decode(&bytes).unwrap();
    change(&mut header);
    fs::write(meta, header.encode()).unwrap();
}

fn extend(file: &Path, len: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(len).unwrap();
}

fn location(path: &Path, record: u64) -> Location {
    let segment = fs::File::open(path.join(names::segment(record / SEGMENT_RECORDS))).unwrap();
    let mut entry = [0; 16];
    segment.read_exact_at(&mut entry, record % SEGMENT_RECORDS * 16).unwrap();
    Location::decode(&entry)
}

fn assert_sparse(path: &Path) {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    let used: u64 = entries.map(|metadata| metadata.blocks() * 512).sum();
    assert!(used <= DISK_BYTES_MAX, "{used} bytes on the disk");
}

#[test]
fn a_record_may_end_at_byte_4294967295_of_a_chunk_and_no_later() {
    let bytes = DENSE_BYTES as u64;
    for (room, left_in_chunk_0) in [(2 * bytes, 2), (bytes, 1), (bytes - 1, 0), (0, 0)] {
        let directory = common::directory();
        let (path, mut all) = store(directory.path(), Codec::Raw);
        let tail = CHUNK_BYTES - room;
        change_header(&path, |header| header.frontier.tail_offset = tail as u32);
        extend(&path.join("0.chunk"), tail);

        let more = records(&mut Random::new(32), true, 4);
        let store = open(&path);
        assert_eq!(store.append(&more).unwrap(), 3);
        all.extend(more);
        assert_eq!(store.all().unwrap(), all);
        let placed: Vec<Location> = (3..7).map(|record| location(&path, record)).collect();
        let in_chunk_0 = placed.iter().filter(|location| location.chunk == 0).count();
        assert_eq!(in_chunk_0, left_in_chunk_0, "{room} bytes were left");
        assert!(placed.iter().all(|location| location.end() <= CHUNK_BYTES));
        assert_eq!(placed[left_in_chunk_0].offset, 0);
        store.close().unwrap();
        assert_eq!(open(&path).all().unwrap(), all);
        assert_sparse(&path);
    }
}

#[test]
fn compaction_brings_records_back_from_the_end_of_a_chunk() {
    for codec in Codec::ALL {
        let directory = common::directory();
        let (path, mut all) = store(directory.path(), codec);
        let tail = CHUNK_BYTES - 100;
        change_header(&path, |header| header.frontier.tail_offset = tail as u32);
        extend(&path.join("0.chunk"), tail);
        let more = records(&mut Random::new(33), true, 40);
        let store = open(&path);
        store.append(&more).unwrap();
        all.extend(more);
        assert!(path.join("1.chunk").exists());
        store.compact().unwrap();
        assert_eq!(store.all().unwrap(), all, "{codec}");
        assert!(!path.join("1.chunk").exists());
        assert_eq!(fs::metadata(path.join("0.chunk")).unwrap().len(), store.live_bytes());
        assert_sparse(&path);
    }
}

#[test]
fn the_table_goes_on_in_its_second_segment_at_record_268435456() {
    let directory = common::directory();
    let (path, _) = store(directory.path(), Codec::Zstd);
    let length = SEGMENT_RECORDS - 2;
    change_header(&path, |header| header.frontier.length = length);
    extend(&path.join("0.loc"), length * 16);

    let more = records(&mut Random::new(34), true, 5);
    let store = open(&path);
    assert_eq!(store.append(&more).unwrap(), length);
    assert_eq!(store.len(), length + 5);
    let segment_bytes = |id| fs::metadata(path.join(names::segment(id))).unwrap().len();
    assert_eq!((segment_bytes(0), segment_bytes(1)), (16 << 28, 3 * 16));
    let indices: Vec<u64> = (length..length + 5).collect();
    assert_eq!(store.gather(&indices).unwrap(), more);

    // Deleting takes records of the second segment to holes in the first.
    store.delete(&[length, 7]).unwrap();
    assert_eq!(
        store.gather(&[length, length + 1, length + 2, 7]).unwrap(),
        [more[4].clone(), more[1].clone(), more[2].clone(), more[3].clone()]
    );
    store.close().unwrap();
    let shared = Store::open(&path, true, &reader(Capacity::FORMAT)).unwrap();
    assert_eq!(shared.gather(&[length, 7]).unwrap(), [more[4].clone(), more[3].clone()]);
    assert_sparse(&path);
}

#[test]
fn opening_and_gathering_do_not_depend_on_the_number_of_records() {
    let directory = common::directory();
    let (path, all) = store(directory.path(), Codec::Raw);
    change_header(&path, |header| header.frontier.length = SEGMENT_RECORDS);
    extend(&path.join("0.loc"), SEGMENT_RECORDS * 16);
    let started = std::time::Instant::now();
    let store = open(&path);
    assert_eq!(store.gather(&[2, 0]).unwrap(), [all[2].clone(), all[0].clone()]);
    assert!(started.elapsed().as_secs() < 1);
}
