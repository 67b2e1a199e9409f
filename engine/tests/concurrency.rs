//! Many threads on one handle: gathers and appends go on together, and what moves records waits.

mod common;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::{DENSE_BYTES, Random, SMALL, Store, kinds, options, reader, records, swap_delete};
use ringloader_engine::Error;
use ringloader_engine::codec::Codec;
use ringloader_engine::file::{Fs, FsCall, FsHook};

/// Long enough for a thread that need not wait to have gone on.
const A_WHILE: Duration = Duration::from_millis(100);

/// A record whose bytes follow from its number and its first byte from its writer.
fn numbered(writer: u8, number: u64, dense: bool) -> Vec<u8> {
    let len = if dense { DENSE_BYTES } else { 16 + number as usize % 90 };
    let mut bytes: Vec<u8> = (0..len).map(|i| (number as usize * 31 + i * i) as u8).collect();
    bytes[..9].copy_from_slice(&[&[writer], number.to_le_bytes().as_slice()].concat());
    bytes
}

/// What [`numbered`] made the record from.
fn number(record: &[u8], dense: bool) -> (u8, u64) {
    let number = u64::from_le_bytes(*record[1..].first_chunk().unwrap());
    assert_eq!(record, numbered(record[0], number, dense), "a record that nobody wrote");
    (record[0], number)
}

fn create(path: &Path, dense: bool, codec: Codec) -> Store {
    Store::create(path, dense, codec, &options(SMALL, &Fs::default())).unwrap()
}

/// Sets a flag when dropped, so that the other threads end even if this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn gathers_see_every_append_whole_or_not_at_all() {
    const BATCH: u64 = 7;
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let store = create(&directory.path().join("store"), dense, codec);
        let ended = AtomicBool::new(false);
        let gathered = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 0..3 {
                let (store, ended, gathered) = (&store, &ended, &gathered);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    while !ended.load(Ordering::Acquire) {
                        let length = store.len();
                        assert_eq!(length % BATCH, 0, "part of an append was published");
                        if length == 0 {
                            continue;
                        }
                        let mut indices: Vec<u64> =
                            (0..20).map(|_| random.below(length as usize) as u64).collect();
                        // The newest, whose block of the table has just changed.
                        indices.extend(length - BATCH..length);
                        let found = store.gather(&indices).unwrap();
                        for (record, index) in found.iter().zip(indices) {
                            assert_eq!(number(record, dense), (0, index));
                        }
                        gathered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _ends = Ends(&ended);
            for first in (0..300 * BATCH).step_by(BATCH as usize) {
                let batch: Vec<_> = (first..first + BATCH).map(|i| numbered(0, i, dense)).collect();
                assert_eq!(store.append(&batch).unwrap(), first);
            }
            while gathered.load(Ordering::Relaxed) < 20 {
                thread::yield_now();
            }
        });
    }
}

#[test]
fn appends_of_many_threads_are_each_in_one_piece() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let path = directory.path().join("store");
        let store = create(&path, dense, codec);
        let placed = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for writer in 0..4u8 {
                let (store, placed) = (&store, &placed);
                scope.spawn(move || {
                    let mut random = Random::new(writer.into());
                    let mut next = 0;
                    for _ in 0..25 {
                        let count = 1 + random.below(12) as u64;
                        let batch: Vec<_> =
                            (next..next + count).map(|i| numbered(writer, i, dense)).collect();
                        let first = store.append(&batch).unwrap();
                        placed.lock().unwrap().push((first, writer, next, count));
                        next += count;
                    }
                });
            }
        });
        let mut placed = placed.into_inner().unwrap();
        placed.sort_unstable();
        let mut end = 0;
        store.close().unwrap();
        let store = Store::open(&path, dense, &reader(SMALL)).unwrap();
        for (first, writer, next, count) in placed {
            assert_eq!(first, end, "appends overlap or leave a gap");
            end += count;
            let found = store.gather(&(first..end).collect::<Vec<_>>()).unwrap();
            let found: Vec<_> = found.iter().map(|record| number(record, dense)).collect();
            assert_eq!(found, (next..next + count).map(|i| (writer, i)).collect::<Vec<_>>());
        }
        assert_eq!(store.len(), end);
    }
}

#[test]
fn deletes_and_compactions_keep_gathers_out() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let store = create(&directory.path().join("store"), dense, codec);
        let mut model: Vec<_> = (0..400).map(|i| numbered(0, i, dense)).collect();
        store.append(&model).unwrap();
        let ended = AtomicBool::new(false);
        // What the store held before and holds after the change that is under way.
        let states = Mutex::new((model.clone(), model.clone()));
        thread::scope(|scope| {
            for seed in 0..3 {
                let (store, ended, states) = (&store, &ended, &states);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    while !ended.load(Ordering::Acquire) {
                        let indices: Vec<u64> = (0..30).map(|_| random.below(100) as u64).collect();
                        let pick = |state: &[Vec<u8>]| -> Vec<Vec<u8>> {
                            indices.iter().map(|i| state[*i as usize].clone()).collect()
                        };
                        let (oldest, _) = states.lock().unwrap().clone();
                        let found = store.gather(&indices).unwrap();
                        let (old, new) = states.lock().unwrap().clone();
                        // If nothing changed meanwhile, the batch is of one state or the other.
                        if oldest == old {
                            assert!(found == pick(&old) || found == pick(&new), "half a delete");
                        }
                        assert!(found.iter().all(|record| number(record, dense).0 == 0));
                    }
                });
            }
            let _ends = Ends(&ended);
            let mut random = Random::new(9);
            while model.len() > 120 {
                let holes: Vec<u64> = (0..5).map(|_| random.below(model.len()) as u64).collect();
                swap_delete(&mut model, &holes);
                states.lock().unwrap().1.clone_from(&model);
                store.delete(&holes).unwrap();
                states.lock().unwrap().0.clone_from(&model);
                if random.below(4) == 0 {
                    store.compact().unwrap();
                }
            }
        });
        assert_eq!(store.all().unwrap(), model);
    }
}

/// Holds calls on files with a given ending until it is opened.
struct Barrier {
    ending: &'static str,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    waiting: usize,
}

impl Barrier {
    fn new(ending: &'static str) -> Arc<Self> {
        Arc::new(Self { ending, state: Mutex::default(), changed: Condvar::new() })
    }

    fn set_closed(&self, closed: bool) {
        self.state.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }

    fn wait_until_somebody_waits(&self) {
        let state = self.state.lock().unwrap();
        let somebody = |state: &mut State| state.waiting == 0;
        drop(self.changed.wait_while(state, somebody).unwrap());
    }
}

impl FsHook for Barrier {
    fn before(&self, call: &FsCall<'_>) -> io::Result<()> {
        let (FsCall::WriteAt(path, ..) | FsCall::ReadAt(path, ..)) = call else { return Ok(()) };
        if path.to_str().unwrap().ends_with(self.ending) {
            let mut state = self.state.lock().unwrap();
            state.waiting += 1;
            self.changed.notify_all();
            state = self.changed.wait_while(state, |state| state.closed).unwrap();
            state.waiting -= 1;
        }
        Ok(())
    }
}

/// Opens the barrier when dropped, so that a failed test ends.
struct Opens<'a>(&'a Barrier);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

#[test]
fn close_waits_for_an_append_and_keeps_it() {
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let path = directory.path().join("store");
        let barrier = Barrier::new(".chunk");
        let store =
            Store::create(&path, dense, codec, &options(SMALL, &Fs::hooked(barrier.clone())))
                .unwrap();
        let batch = records(&mut Random::new(1), dense, 5);
        barrier.set_closed(true);
        thread::scope(|scope| {
            let opens = Opens(&barrier);
            let appending = scope.spawn(|| store.append(&batch));
            barrier.wait_until_somebody_waits();
            let closing = scope.spawn(|| store.close());
            thread::sleep(A_WHILE);
            assert!(!closing.is_finished() && !appending.is_finished());
            drop(opens);
            assert_eq!(appending.join().unwrap().unwrap(), 0);
            closing.join().unwrap().unwrap();
        });
        let calls = [
            store.append(&batch).map(drop),
            store.gather(&[0]).map(drop),
            store.delete(&[0]),
            store.compact(),
            store.sync(),
        ];
        for error in calls.map(Result::unwrap_err) {
            assert!(matches!(error, Error::Closed { .. }), "{error}");
        }
        store.close().unwrap();
        assert_eq!(Store::open(&path, dense, &reader(SMALL)).unwrap().all().unwrap(), batch);
    }
}

#[test]
fn what_moves_records_waits_for_gathers() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let barrier = Barrier::new(".loc");
    let all = records(&mut Random::new(2), true, 20);
    let store =
        Store::create(&path, true, Codec::Raw, &options(SMALL, &Fs::hooked(barrier.clone())))
            .unwrap();
    store.append(&all).unwrap();
    barrier.set_closed(true);
    thread::scope(|scope| {
        let opens = Opens(&barrier);
        // The table is not in memory yet, so this gather stops where it reads it.
        let gathering = scope.spawn(|| store.gather(&[0, 19]));
        barrier.wait_until_somebody_waits();
        let deleting = scope.spawn(|| store.delete(&[0]));
        thread::sleep(A_WHILE);
        assert!(!deleting.is_finished() && store.len() == 20);
        drop(opens);
        assert_eq!(gathering.join().unwrap().unwrap(), [all[0].clone(), all[19].clone()]);
        deleting.join().unwrap().unwrap();
    });
    assert_eq!(store.gather(&[0]).unwrap(), [all[19].clone()]);
}

#[test]
fn readers_share_a_store_and_exclude_a_writer() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let writer = create(&path, true, Codec::Raw);
    let all = records(&mut Random::new(3), true, 20);
    writer.append(&all).unwrap();
    let open_writer = || Store::open(&path, true, &options(SMALL, &Fs::default()));
    let open_reader = || Store::open(&path, true, &reader(SMALL));
    for refused in [open_writer(), open_reader()] {
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert_eq!(error.code(), Some(-13));
    }
    writer.close().unwrap();
    let readers = [open_reader().unwrap(), open_reader().unwrap()];
    assert!(matches!(open_writer(), Err(Error::Busy { .. })));
    for reader in &readers {
        assert_eq!(reader.all().unwrap(), all);
        assert!(matches!(reader.append(&all), Err(Error::ReadOnly { .. })));
        assert!(matches!(reader.delete(&[0]), Err(Error::ReadOnly { .. })));
        assert!(matches!(reader.compact(), Err(Error::ReadOnly { .. })));
    }
    // Closing one lets no writer in, dropping the other does.
    readers[0].close().unwrap();
    assert!(matches!(open_writer(), Err(Error::Busy { .. })));
    drop(readers);
    assert_eq!(open_writer().unwrap().all().unwrap(), all);
}

#[test]
fn large_batches_of_many_threads_share_the_workers() {
    for codec in Codec::ALL {
        let directory = common::directory();
        let options = options(ringloader_engine::format::Capacity::FORMAT, &Fs::default());
        let path = directory.path().join("store");
        let store = Store::create(&path, false, codec, &options).unwrap();
        let mut random = Random::new(4);
        let all: Vec<_> = (0..64).map(|i| random.bytes(8000 + i * 97)).collect();
        store.append(&all).unwrap();
        thread::scope(|scope| {
            for seed in 0..6 {
                let (store, all) = (&store, &all);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..15 {
                        let indices: Vec<u64> =
                            (0..120).map(|_| random.below(all.len()) as u64).collect();
                        let found = store.gather(&indices).unwrap();
                        for (record, index) in found.iter().zip(indices) {
                            assert!(*record == all[index as usize]);
                        }
                    }
                });
            }
        });
    }
}
