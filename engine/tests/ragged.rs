//! Records that each have their own shape.

mod common;

use std::fs;
use std::path::Path;

use ringloader_engine::codec::Codec;
use ringloader_engine::identity::Dtype;
use ringloader_engine::storage::Options;
use ringloader_engine::{Error, RaggedRecord, RaggedStore, Span};

fn create(path: &Path, dtype: &str) -> RaggedStore {
    let dtype = Dtype::Plain(dtype.into());
    RaggedStore::create(path, dtype, Codec::Raw, None, &Options::default()).unwrap()
}

fn record<'a>(shape: &'a [u64], payload: &'a [u8]) -> RaggedRecord<'a> {
    RaggedRecord { shape, payload: Span::from(payload) }
}

#[test]
fn every_record_keeps_its_shape() {
    let directory = common::directory();
    let store = create(&directory.path().join("store"), "<u2");
    let long = [1; 64];
    let shapes: [&[u64]; 6] = [&[], &[1], &[3, 2], &[6], &[1, 1, 6], &long];
    let payload: Vec<u8> = (0..12).collect();
    let batch: Vec<_> = shapes
        .iter()
        .map(|shape| record(shape, &payload[..2 * shape.iter().product::<u64>() as usize]))
        .collect();
    assert_eq!(store.append(&batch).unwrap(), 0);
    let mut found = store.gather(&[5, 4, 3, 2, 1, 0, 0]).unwrap();
    for (slot, i) in [5, 4, 3, 2, 1, 0, 0].into_iter().enumerate() {
        assert_eq!(found.layout.shape(slot), shapes[i]);
        assert_eq!(found.payload(slot), batch[i].payload.to_vec());
    }
}

#[test]
fn a_payload_of_another_size_than_its_shape_is_refused_before_anything_is_written() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let store = create(&path, "<u2");
    let axes = [1; 65];
    let wrong: [(&[u64], &[u8]); 6] = [
        (&[3], &[0; 4]),
        (&[3], &[0; 7]),
        (&[], &[0; 4]),
        (&[0, 2], &[0; 4]),
        // The product is 2 once it has overflowed.
        (&[1 << 63, 2, 1], &[0; 2]),
        (&axes, &[0; 2]),
    ];
    for (shape, payload) in wrong {
        let good = record(&[1], &[1, 2]);
        let error = store.append(&[good, record(shape, payload)]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{shape:?}: {error}");
        assert!(error.to_string().contains("record 1 of the batch"), "{error}");
    }
    assert!(matches!(store.append(&[]), Err(Error::InvalidArgument(_))));
    let error = store.append(&[record(&[0], &[])]).unwrap_err();
    assert!(matches!(error, Error::EmptyRecord { record: 0, .. }), "{error}");
    assert_eq!(store.len(), 0);
    assert_eq!(fs::metadata(path.join("0.chunk")).unwrap().len(), 0);
    assert!(!path.join("0.loc").exists());
}

#[test]
fn a_record_over_two_gibibytes_is_refused_with_its_prefix_counted() {
    let directory = common::directory();
    let store = create(&directory.path().join("store"), "|u1");
    // Zeroed memory that nobody touches costs nothing.
    let payload = vec![0; (1 << 31) - 15];
    let error = store.append(&[record(&[payload.len() as u64], &payload)]).unwrap_err();
    assert!(matches!(error, Error::RecordTooLarge { bytes: 0x8000_0001, .. }), "{error}");
    assert_eq!(error.code(), Some(-4));
    assert_eq!(store.len(), 0);
}

#[test]
fn a_batch_is_gathered_into_memory_that_is_large_enough() {
    let directory = common::directory();
    let store = create(&directory.path().join("store"), "<u2");
    store.append(&[record(&[2], &[1, 2, 3, 4]), record(&[1], &[5, 6])]).unwrap();
    // Two prefixes of a rank and an axis, and the payloads.
    let need = 2 * 16 + 6;
    for got in [0, need - 1] {
        let mut memory = vec![9; got];
        let error = store.gather_into(&[1, 0], memory.as_mut_slice()).unwrap_err();
        let (need, got) = (need as u64, got as u64);
        assert!(
            matches!(error, Error::BufferTooSmall { need: n, got: g } if (n, g) == (need, got)),
            "{error}"
        );
        assert!(memory.iter().all(|byte| *byte == 9), "nothing was read");
    }
    let mut memory = vec![9; need + 5];
    let layout = store.gather_into(&[1, 0], memory.as_mut_slice()).unwrap();
    assert_eq!((layout.shape(0), layout.shape(1)), ([1].as_slice(), [2].as_slice()));
    assert_eq!(memory[layout.payload(0)], [5, 6]);
    assert_eq!(memory[layout.payload(1)], [1, 2, 3, 4]);
    assert_eq!(memory[need..], [9; 5], "the rest is the caller's");
}

#[test]
fn packing_moves_payloads_together_and_changes_none() {
    let directory = common::directory();
    let store = create(&directory.path().join("store"), "|u1");
    let payloads: Vec<Vec<u8>> = (1..50u8).map(|len| vec![len; len.into()]).collect();
    let shapes: Vec<[u64; 1]> = payloads.iter().map(|payload| [payload.len() as u64]).collect();
    let batch: Vec<_> = shapes.iter().zip(&payloads).map(|(s, p)| record(s, p)).collect();
    store.append(&batch).unwrap();
    let indices: Vec<u64> = (0..49).rev().chain([7, 7]).collect();
    let wanted: Vec<u8> = indices.iter().flat_map(|i| payloads[*i as usize].clone()).collect();
    let mut found = store.gather(&indices).unwrap();
    for _ in 0..2 {
        assert_eq!(found.pack(), wanted.len());
        assert_eq!(found.buffer.bytes_mut()[..wanted.len()], wanted);
        for (slot, i) in indices.iter().enumerate() {
            assert_eq!(found.payload(slot), payloads[*i as usize]);
            assert_eq!(found.layout.shape(slot), shapes[*i as usize]);
        }
    }
    let mut empty = store.gather(&[]).unwrap();
    assert_eq!((empty.layout.len(), empty.pack()), (0, 0));
}

#[test]
fn a_shape_that_is_not_its_record_s_is_a_decoding_error_of_that_record() {
    let directory = common::directory();
    let path = directory.path().join("store");
    let store = create(&path, "<u2");
    store.append(&[record(&[2], &[1, 2, 3, 4]), record(&[1], &[5, 6])]).unwrap();
    let chunk = path.join("0.chunk");
    let good = fs::read(&chunk).unwrap();
    for (rank, axis) in
        [(0, 1), (2, 1), (65, 1), (u64::MAX, 1), (1, 2), (1, 0), (1, u64::MAX), (1, 1 << 63)]
    {
        let mut bad = good.clone();
        // The second record begins behind a prefix of 16 bytes and a payload of 4.
        bad[20..36].copy_from_slice(&[rank, axis].map(u64::to_le_bytes).concat());
        fs::write(&chunk, bad).unwrap();
        let error = store.gather(&[0, 1]).unwrap_err();
        assert!(matches!(error, Error::Decode { record: 1, .. }), "{rank} {axis}: {error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
        assert_eq!(store.gather(&[0]).unwrap().payload(0), [1, 2, 3, 4]);
    }
    fs::write(&chunk, good).unwrap();
    assert_eq!(store.gather(&[1]).unwrap().payload(0), [5, 6]);
}
