//! A delete or a close that fails or is cut off: no record reads as bytes that it never had,
//! none is there that was not before, and doing it again finishes it.
//!
//! Delete edits the table in place, so one that is cut off may have moved some of the last
//! records already: each of those is then in its old place and in its new one, and the deleted
//! record whose place it took is gone. These tests hold it to exactly that.

mod common;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Random, SMALL, Store, kinds, options, reader, records, swap_delete};
use ringloader_engine::codec::Codec;
use ringloader_engine::file::{Fs, FsCall, FsHook};

const NEVER: usize = usize::MAX;

/// Fails the call number `first`, and all later ones if it is sticky.
struct Failing {
    calls: AtomicUsize,
    first: AtomicUsize,
    sticky: bool,
}

impl Failing {
    fn new(sticky: bool) -> Arc<Self> {
        Arc::new(Self { calls: AtomicUsize::new(0), first: AtomicUsize::new(NEVER), sticky })
    }

    fn arm(&self, after: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.first.store(after, Ordering::SeqCst);
    }

    /// Stops failing and gives the calls since [`arm`](Self::arm).
    fn disarm(&self) -> usize {
        self.first.store(NEVER, Ordering::SeqCst);
        self.calls.load(Ordering::SeqCst)
    }
}

impl FsHook for Failing {
    fn before(&self, _call: &FsCall<'_>) -> io::Result<()> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let first = self.first.load(Ordering::SeqCst);
        let fails = number == first || (self.sticky && number > first);
        if fails { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

const HOLES: [u64; 9] = [2, 3, 4, 20, 36, 37, 55, 58, 59];

fn prepared(path: &Path, dense: bool, codec: Codec, fs: &Fs) -> (Store, Vec<Vec<u8>>) {
    let store = Store::create(path, dense, codec, &options(SMALL, fs)).unwrap();
    let all = records(&mut Random::new(51), dense, 60);
    store.append(&all).unwrap();
    (store, all)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Whether `found` is `old`, or `new`, or `old` with some of its records where `new` has them.
fn is_legal(found: &[Vec<u8>], old: &[Vec<u8>], new: &[Vec<u8>]) -> bool {
    let moved = |i: usize| new.get(i) == Some(&found[i]);
    found == new
        || (found.len() == old.len() && (0..found.len()).all(|i| found[i] == old[i] || moved(i)))
}

fn fail_every_call_of_a_delete(sticky: bool) {
    for (dense, codec) in kinds() {
        for after in 0.. {
            let directory = common::directory();
            let path = directory.path().join("store");
            let failing = Failing::new(sticky);
            let (store, old) = prepared(&path, dense, codec, &Fs::hooked(failing.clone()));
            let mut new = old.clone();
            swap_delete(&mut new, &HOLES);
            failing.arm(after);
            let deleted = store.delete(&HOLES);
            let calls = failing.disarm();
            if after >= calls {
                deleted.unwrap();
                assert!(after > 3, "a delete made only {after} calls");
                break;
            }
            let context = format!("dense {dense} {codec} call {after} sticky {sticky}");
            let error = deleted.unwrap_err().to_string();
            assert!(error.contains("injected"), "{context}: {error}");
            // The handle and the files, as they would be after kill -9, show the same.
            let live = store.all().unwrap();
            assert!(is_legal(&live, &old, &new), "{context}");
            let cut_off = directory.path().join("copy");
            copy(&path, &cut_off);
            let reopened = Store::open(&cut_off, dense, &options(SMALL, &Fs::default())).unwrap();
            assert_eq!(reopened.all().unwrap(), live, "{context}");
            // Records that are there twice survive a compaction, ...
            reopened.compact().unwrap();
            assert_eq!(reopened.all().unwrap(), live, "{context}");
            // ... and deleting again finishes what was begun, here and after reopening.
            for unfinished in [store, reopened] {
                if live != new {
                    unfinished.delete(&HOLES).unwrap();
                }
                assert_eq!(unfinished.all().unwrap(), new, "{context}");
                unfinished.close().unwrap();
            }
            let store = Store::open(&path, dense, &reader(SMALL)).unwrap();
            assert_eq!(store.all().unwrap(), new, "{context}");
        }
    }
}

#[test]
fn a_delete_that_fails_once_can_be_done_again() {
    fail_every_call_of_a_delete(false);
}

#[test]
fn a_delete_that_fails_and_goes_on_failing_can_be_done_again() {
    fail_every_call_of_a_delete(true);
}

#[test]
fn a_close_that_fails_says_so_and_lets_go_of_the_store() {
    for (dense, codec) in kinds() {
        for sticky in [false, true] {
            for after in 0.. {
                let directory = common::directory();
                let path = directory.path().join("store");
                let failing = Failing::new(sticky);
                let (store, all) = prepared(&path, dense, codec, &Fs::hooked(failing.clone()));
                failing.arm(after);
                let closed = store.close();
                let calls = failing.disarm();
                if after >= calls {
                    closed.unwrap();
                    assert!(after > 3, "a close made only {after} calls");
                    break;
                }
                assert!(closed.unwrap_err().to_string().contains("injected"));
                assert!(store.gather(&[0]).is_err(), "it is closed");
                store.close().unwrap();
                // The lock is free while the closed handle still exists.
                let reopened = Store::open(&path, dense, &options(SMALL, &Fs::default())).unwrap();
                assert_eq!(reopened.all().unwrap(), all);
                drop(store);
                reopened.append(&all[..2]).unwrap();
            }
        }
    }
}

#[test]
fn a_delete_of_a_record_that_is_not_there_changes_nothing() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let path = directory.path().join("store");
        let failing = Failing::new(true);
        let (store, all) = prepared(&path, dense, codec, &Fs::hooked(failing.clone()));
        // Not even a call on the file system is made.
        failing.arm(0);
        let error = store.delete(&[3, 60, 4]).unwrap_err();
        assert_eq!(error.code(), Some(-3), "{error}");
        assert!(error.to_string().contains("60"), "{error}");
        store.delete(&[]).unwrap();
        assert_eq!(failing.disarm(), 0);
        assert_eq!(store.all().unwrap(), all);
    }
}
