//! Every call on the file system passes one door, and may fail there.

mod common;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{Random, SMALL, Store, kinds, options, reader, records, swap_delete};
use ringloader_engine::codec::Codec;
use ringloader_engine::file::{Fs, FsCall, FsHook};

/// Counts calls, and fails those from one on.
struct Failing {
    calls: AtomicUsize,
    first: AtomicUsize,
    sticky: bool,
    log: Mutex<Vec<String>>,
}

const NEVER: usize = usize::MAX;

impl Failing {
    fn new(sticky: bool) -> Arc<Self> {
        let (calls, first) = (AtomicUsize::new(0), AtomicUsize::new(NEVER));
        Arc::new(Self { calls, first, sticky, log: Mutex::default() })
    }

    /// Fails the call that is `after` calls away, and all later ones if sticky.
    fn arm(&self, after: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.log.lock().unwrap().clear();
        self.first.store(after, Ordering::SeqCst);
    }

    fn disarm(&self) -> usize {
        self.first.store(NEVER, Ordering::SeqCst);
        self.calls.load(Ordering::SeqCst)
    }
}

impl FsHook for Failing {
    fn before(&self, call: &FsCall<'_>) -> io::Result<()> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        self.log.lock().unwrap().push(format!("{call:?}").chars().take(90).collect());
        let first = self.first.load(Ordering::SeqCst);
        if number == first || (self.sticky && number > first) {
            return Err(io::Error::other("injected"));
        }
        Ok(())
    }
}

/// The changes that are tried, each on a store that has records, garbage and several chunks.
#[derive(Debug, Clone, Copy)]
enum Change {
    Append,
    Compact,
    Sync,
}

impl Change {
    fn make(self, store: &Store, more: &[Vec<u8>]) -> ringloader_engine::Result<()> {
        match self {
            Self::Append => store.append(more).map(drop),
            Self::Compact => store.compact(),
            Self::Sync => store.append(&more[..3]).and_then(|_| store.sync()),
        }
    }
}

fn prepared(
    path: &Path,
    dense: bool,
    codec: Codec,
    fs: &Fs,
) -> (Store, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut random = Random::new(11);
    let store = Store::create(path, dense, codec, &options(SMALL, fs)).unwrap();
    let mut model = records(&mut random, dense, 60);
    store.append(&model).unwrap();
    let holes: Vec<u64> = (0..60).filter(|i| i % 4 == 1).collect();
    store.delete(&holes).unwrap();
    swap_delete(&mut model, &holes);
    let more = records(&mut random, dense, 50);
    (store, model, more)
}

/// What the store may hold after `change` failed or was cut off: nothing of it, or all of it.
fn is_legal(found: &[Vec<u8>], model: &[Vec<u8>], more: &[Vec<u8>], change: Change) -> bool {
    let added = match change {
        Change::Append => more,
        Change::Compact => &[],
        Change::Sync => &more[..3],
    };
    found == model || found == [model, added].concat()
}

fn fail_every_call(sticky: bool) {
    for (dense, codec) in kinds() {
        for change in [Change::Append, Change::Compact, Change::Sync] {
            let mut after = 0;
            loop {
                let directory = common::directory();
                let path = directory.path().join("store");
                let failing = Failing::new(sticky);
                let (store, model, more) =
                    prepared(&path, dense, codec, &Fs::hooked(failing.clone()));
                failing.arm(after);
                let made = change.make(&store, &more);
                let calls = failing.disarm();
                let context =
                    format!("dense {dense} {codec} {change:?} call {after} sticky {sticky}");
                if after >= calls {
                    made.unwrap();
                    break;
                }
                if let Err(error) = made {
                    assert!(error.to_string().contains("injected"), "{context}: {error}");
                }
                // The handle goes on and shows the old records or the new ones, ...
                let found = store.all().unwrap();
                assert!(is_legal(&found, &model, &more, change), "{context}: live");
                // ... so do the files as they are, as they would be after kill -9, ...
                let copy = directory.path().join("copy");
                copy_store(&path, &copy);
                let cut_off = Store::open(&copy, dense, &reader(SMALL)).unwrap();
                let on_disk = cut_off.all().unwrap();
                assert!(is_legal(&on_disk, &model, &more, change), "{context}: on disk");
                // ... and the next change works.
                store.append(&more[..2]).unwrap();
                store.close().unwrap();
                let reopened = Store::open(&path, dense, &reader(SMALL)).unwrap();
                assert_eq!(reopened.all().unwrap(), [&found, &more[..2]].concat(), "{context}");
                after += 1;
            }
            assert!(after > 3, "{change:?} made only {after} calls");
        }
    }
}

fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_change_that_fails_once_is_undone_or_done() {
    fail_every_call(false);
}

#[test]
fn a_change_that_fails_and_goes_on_failing_is_undone_or_done() {
    fail_every_call(true);
}

#[test]
fn a_creation_that_fails_leaves_nothing_behind() {
    for (dense, codec) in kinds() {
        for sticky in [false, true] {
            let mut after = 0;
            loop {
                let directory = common::directory();
                let path = directory.path().join("parent").join("store");
                let failing = Failing::new(sticky);
                failing.arm(after);
                let made = Store::create(
                    &path,
                    dense,
                    codec,
                    &options(SMALL, &Fs::hooked(failing.clone())),
                );
                let calls = failing.disarm();
                if after >= calls {
                    made.unwrap();
                    break;
                }
                // With a sticky failure even the removal fails; what is left then is no store.
                let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
                match made {
                    Ok(store) => {
                        store.append(&records(&mut Random::new(0), dense, 2)).map(drop).unwrap();
                    }
                    Err(error) if !sticky => {
                        assert!(left.is_empty(), "call {after} ({error}) left {left:?}");
                    }
                    Err(_) => {
                        let opened = Store::open(&path, dense, &reader(SMALL));
                        assert!(opened.is_err() || opened.unwrap().len() == 0);
                    }
                }
                after += 1;
            }
        }
    }
}

#[test]
fn every_mutating_call_of_an_append_is_seen_and_the_header_comes_last() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let failing = Failing::new(false);
    let (store, _, more) = prepared(&path, true, Codec::Zstd, &Fs::hooked(failing.clone()));
    failing.arm(NEVER);
    store.append(&more).unwrap();
    let log = failing.log.lock().unwrap().clone();
    let first = |name: &str| log.iter().position(|call| call.contains(name));
    let last = |name: &str| log.iter().rposition(|call| call.contains(name));
    assert!(last(".chunk") < first(".loc"), "{log:#?}");
    assert!(last(".loc") < first("meta.zr"), "{log:#?}");
    assert_eq!(last("meta.zr"), Some(log.len() - 1), "{log:#?}");
}
