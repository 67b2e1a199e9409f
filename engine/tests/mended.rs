//! Faults that were found by review, each kept as the test that shows it.

mod common;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{Random, SMALL, Store, options, reader, records};
use ringloader_engine::Error;
use ringloader_engine::codec::Codec;
use ringloader_engine::file::{Fs, FsCall, FsHook};
use ringloader_engine::format::{Capacity, names};
use ringloader_engine::identity::{Dtype, Identity};

/// Records calls, and fails those that it is told to.
#[derive(Default)]
struct Watching {
    log: Mutex<Vec<String>>,
    fails: Mutex<Option<(&'static str, usize)>>,
}

impl Watching {
    /// Fails the call number `nth` of those that contain `what`.
    fn fail(&self, what: &'static str, nth: usize) {
        *self.fails.lock().unwrap() = Some((what, nth));
    }

    fn calls_with(&self, what: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|call| call.contains(what)).count()
    }
}

impl FsHook for Watching {
    fn before(&self, call: &FsCall<'_>) -> io::Result<()> {
        let call = format!("{call:?}");
        let mut fails = self.fails.lock().unwrap();
        if let Some((what, left)) = &mut *fails
            && call.contains(*what)
        {
            if *left == 0 {
                *fails = None;
                return Err(io::Error::other("injected"));
            }
            *left -= 1;
        }
        drop(fails);
        self.log.lock().unwrap().push(call);
        Ok(())
    }
}

fn create(path: &Path, codec: Codec, capacity: Capacity, fs: &Fs) -> Store {
    Store::create(path, true, codec, &options(capacity, fs)).unwrap()
}

fn set_header(path: &Path, at: usize, bytes: &[u8]) {
    let meta = path.join(names::META);
    let mut header = fs::read(&meta).unwrap();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(meta, header).unwrap();
}

fn entries(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut entries: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    entries.sort();
    entries
}

/// identity.rs: `Field` and `Dtype` are untagged, so serde tries a field of three as one of two
/// first, nested type and all: the time doubles with every level.
#[test]
fn a_nested_identity_of_200_bytes_is_decoded_at_once() {
    let mut bytes = b"\x81\xa5dtype".to_vec();
    (0..30).for_each(|_| bytes.extend_from_slice(b"\x91\x93\xa1a"));
    bytes.extend_from_slice(b"\xa3|u1");
    (0..30).for_each(|_| bytes.extend_from_slice(b"\x91\x01"));
    let (sender, decoded) = mpsc::channel();
    thread::spawn(move || sender.send(Identity::decode(&bytes).map(drop)));
    assert!(decoded.recv_timeout(Duration::from_secs(5)).is_ok(), "it takes over five seconds");
}

/// identity.rs, `plain_bytes`: `rest[1..]` of nothing, or inside a character.
#[test]
fn a_time_without_a_width_is_refused() {
    for name in ["<M", "<m", "|M", "<M\u{e9}"] {
        assert!(Dtype::Plain(name.into()).item_bytes().is_err(), "{name}");
    }
}

/// identity.rs, `plain_bytes`: `u64::from_str` takes a sign and zeros, and the unit is not read.
#[test]
fn a_dtype_that_numpy_does_not_write_is_refused() {
    for name in ["<S+5", "<i04", "<M8]", "<M8x]", "<M8[ns"] {
        assert!(Dtype::Plain(name.into()).item_bytes().is_err(), "{name}");
    }
}

/// storage/open.rs: a writer begins as if all was durable, and only what it opens is synced.
#[test]
fn the_first_sync_makes_durable_what_a_killed_writer_left() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let killed = create(&path, Codec::Raw, SMALL, &Fs::default());
    killed.append(&records(&mut Random::new(1), true, 100)).unwrap();
    // As kill -9 leaves the files.
    let left = directory.path().join("left");
    fs::create_dir(&left).unwrap();
    for name in entries(&path) {
        fs::copy(path.join(&name), left.join(&name)).unwrap();
    }
    let watching = Arc::new(Watching::default());
    let store = Store::open(&left, true, &options(SMALL, &Fs::hooked(watching.clone()))).unwrap();
    store.sync().unwrap();
    for name in entries(&left).iter().filter(|name| *name != names::IDENTITY) {
        let sync = format!("{:?}", FsCall::Sync(&left.join(name)));
        assert_eq!(watching.calls_with(&sync), 1, "{name}");
    }
}

/// storage/compact.rs and chunks.rs: what one compaction could not remove, none ever does.
#[test]
fn what_a_compaction_could_not_remove_the_next_one_removes() {
    for nth in 0..15 {
        let directory = common::directory();
        let path = directory.path().join("store");
        let watching = Arc::new(Watching::default());
        let store = create(&path, Codec::Raw, SMALL, &Fs::hooked(watching.clone()));
        store.append(&records(&mut Random::new(1), true, 300)).unwrap();
        store.delete(&(0..290).collect::<Vec<_>>()).unwrap();
        watching.fail("RemoveFile", nth);
        let _ = store.compact();
        store.compact().unwrap();
        let whole = ["0.chunk", "0.loc", names::META, names::IDENTITY];
        assert_eq!(entries(&path), whole, "removal {nth}");
    }
}

/// storage/chunks.rs, `truncate`: a chunk that no record needs may be missing.
#[test]
fn a_missing_chunk_that_nobody_needs_does_not_stop_a_compaction() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let store = create(&path, Codec::Raw, SMALL, &Fs::default());
    store.append(&records(&mut Random::new(1), true, 300)).unwrap();
    store.delete(&(10..290).collect::<Vec<_>>()).unwrap();
    fs::remove_file(path.join("3.chunk")).unwrap();
    store.compact().unwrap();
    assert_eq!(entries(&path), ["0.chunk", "0.loc", names::META, names::IDENTITY]);
}

/// storage/compact.rs, `Cursor::place`: `chunk + 1` wraps to chunk 0, which is then emptied.
#[test]
fn a_compaction_of_a_store_without_a_chunk_left_is_refused() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let capacity = Capacity { chunks: 1 << 32, ..SMALL };
    let store = create(&path, Codec::Raw, capacity, &Fs::default());
    store.append(&records(&mut Random::new(1), true, 30)).unwrap();
    store.delete(&[0]).unwrap();
    let all = store.all().unwrap();
    store.close().unwrap();
    set_header(&path, 8, &u32::MAX.to_le_bytes());
    set_header(&path, 12, &1000u32.to_le_bytes());
    fs::write(path.join("4294967295.chunk"), vec![0; 1000]).unwrap();
    let store = Store::open(&path, true, &options(capacity, &Fs::default())).unwrap();
    let _ = store.compact();
    assert_eq!(store.all().unwrap(), all);
}

/// append.rs, `place_run`: the length wraps to 0.
#[test]
fn a_table_that_cannot_grow_refuses_an_append() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let store = create(&path, Codec::Raw, Capacity::FORMAT, &Fs::default());
    store.append(&records(&mut Random::new(1), true, 3)).unwrap();
    store.close().unwrap();
    set_header(&path, 0, &u64::MAX.to_le_bytes());
    let last = path.join(names::segment((u64::MAX - 1) >> 28));
    File::create(last).unwrap().set_len(16 << 28).unwrap();
    // Three records of 24 bytes cannot be 2^64 - 1: opening may well refuse it.
    if let Ok(store) = Store::open(&path, true, &options(Capacity::FORMAT, &Fs::default())) {
        store.append(&records(&mut Random::new(1), true, 1)).unwrap_err();
        assert_eq!(store.len(), u64::MAX);
    }
}

/// gather.rs, `check`: what is wrong with a chunk's file is said without the record.
#[test]
fn a_chunk_that_cannot_be_opened_is_an_error_that_names_the_record() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let store = create(&path, Codec::Raw, SMALL, &Fs::default());
    store.append(&records(&mut Random::new(1), true, 100)).unwrap();
    store.close().unwrap();
    fs::remove_file(path.join("1.chunk")).unwrap();
    let store = Store::open(&path, true, &reader(SMALL)).unwrap();
    let error = store.gather(&[0, 55]).unwrap_err();
    assert_eq!(error.code(), Some(-8));
    let message = error.to_string();
    assert!(message.contains("record 55") && message.contains("1.chunk"), "{message}");
}

/// storage/create.rs, `check_vacant`: every error of the system is taken for "already exists".
#[test]
fn a_path_that_cannot_be_looked_at_is_not_said_to_exist() {
    let directory = common::directory();
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    for path in [file.join("store"), directory.path().join("x".repeat(300))] {
        let made = Store::create(&path, true, Codec::Raw, &options(SMALL, &Fs::default()));
        let error = made.map(drop).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
}

/// storage/create.rs, `site_name`: the name of the site is longer than that of the store.
#[test]
fn a_store_may_have_any_name_that_the_file_system_takes() {
    let directory = common::directory();
    let path = directory.path().join("x".repeat(250));
    create(&path, Codec::Raw, SMALL, &Fs::default()).close().unwrap();
}

/// storage/create.rs, `build`: a site that was there already is cleared all the same.
#[test]
fn a_creation_removes_nothing_that_it_has_not_made() {
    let directory = common::directory();
    let site = |n| directory.path().join(format!(".store.creating-{}-{n}", std::process::id()));
    for n in 0..100 {
        fs::create_dir(site(n)).unwrap();
        fs::write(site(n).join(names::META), "another process is at work here").unwrap();
    }
    let options = options(SMALL, &Fs::default());
    let made = Store::create(&directory.path().join("store"), true, Codec::Raw, &options);
    made.unwrap().close().unwrap();
    assert!((0..100).all(|n| site(n).join(names::META).exists()));
}

/// storage.rs, `Options::mode`: "a store that is made is open for writing".
#[test]
fn a_store_that_is_made_is_open_for_writing() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let store = Store::create(&path, true, Codec::Raw, &reader(SMALL)).unwrap();
    store.append(&records(&mut Random::new(1), true, 1)).unwrap();
}
