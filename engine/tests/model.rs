//! Any sequence of operations leaves what a plain list of records would hold.

mod common;

use common::{Random, SMALL, Store, kinds, options, reader, records, swap_delete};
use ringloader_engine::codec::Codec;
use ringloader_engine::file::Fs;
use ringloader_engine::format::Capacity;

const OPERATIONS: usize = 50;

fn run(seed: u64, dense: bool, codec: Codec, capacity: Capacity) {
    let directory = common::directory();
    let path = directory.path().join("store");
    let mut random = Random::new(seed);
    let options = options(capacity, &Fs::default());
    let mut store = Store::create(&path, dense, codec, &options).unwrap();
    let mut model: Vec<Vec<u8>> = Vec::new();
    for step in 0..OPERATIONS {
        match random.below(10) {
            0..=3 => {
                let count = 1 + random.below(20);
                let batch = records(&mut random, dense, count);
                assert_eq!(store.append(&batch).unwrap(), model.len() as u64);
                model.extend(batch);
            }
            4 | 5 if !model.is_empty() => {
                let count = random.below(model.len() + 1);
                let holes: Vec<u64> =
                    (0..count).map(|_| random.below(model.len()) as u64).collect();
                store.delete(&holes).unwrap();
                swap_delete(&mut model, &holes);
            }
            6 => {
                store.compact().unwrap();
                assert!(store.chunk_bytes() <= before_slack(&store, capacity));
            }
            7 => {
                store.close().unwrap();
                store = Store::open(&path, dense, &options).unwrap();
            }
            8 => {
                store.sync().unwrap();
                store.close().unwrap();
                let shared = Store::open(&path, dense, &reader(capacity)).unwrap();
                assert_eq!(shared.all().unwrap(), model, "seed {seed} step {step}");
                shared.close().unwrap();
                store = Store::open(&path, dense, &options).unwrap();
            }
            _ if !model.is_empty() => {
                let indices: Vec<u64> =
                    (0..=random.below(40)).map(|_| random.below(model.len()) as u64).collect();
                let wanted: Vec<_> = indices.iter().map(|i| model[*i as usize].clone()).collect();
                assert_eq!(store.gather(&indices).unwrap(), wanted, "seed {seed} step {step}");
            }
            _ => {}
        }
        assert_eq!(store.len(), model.len() as u64);
    }
    assert_eq!(store.all().unwrap(), model, "seed {seed}");
}

/// The most that a compacted store may take: each chunk but the last wastes less than a record.
fn before_slack(store: &Store, capacity: Capacity) -> u64 {
    const RECORD_BYTES_MAX: u64 = 200;
    let chunks = store.live_bytes() / (capacity.chunk_bytes - RECORD_BYTES_MAX) + 1;
    store.live_bytes() + chunks * RECORD_BYTES_MAX
}

#[test]
fn any_sequence_of_operations_keeps_the_records_across_small_chunks_and_segments() {
    for seed in 0..280 {
        for (dense, codec) in kinds() {
            run(seed, dense, codec, SMALL);
        }
    }
}

#[test]
fn any_sequence_of_operations_keeps_the_records() {
    for seed in 1000..1060 {
        for (dense, codec) in kinds() {
            run(seed, dense, codec, Capacity::FORMAT);
        }
    }
}

#[test]
fn a_batch_larger_than_a_plan_is_gathered_in_order() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let options = options(Capacity::FORMAT, &Fs::default());
    let store = Store::create(&path, true, Codec::Raw, &options).unwrap();
    let all = records(&mut Random::new(8), true, 1000);
    store.append(&all).unwrap();
    let indices: Vec<u64> = (0..150_000).map(|i| i * 7919 % 1000).collect();
    let found = store.gather(&indices).unwrap();
    assert!(found.iter().zip(&indices).all(|(record, i)| *record == all[*i as usize]));
    assert_eq!(found.len(), indices.len());
}
