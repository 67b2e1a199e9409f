//! Stores that loaderx 1.8.6 wrote give exactly the records that it was given.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use ringloader_engine::identity::Dtype;
use ringloader_engine::runtime::{Backend, info};
use ringloader_engine::storage::{Mode, Options};
use ringloader_engine::{DenseStore, RaggedRecord, RaggedStore, Span};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/loaderx-1.8.6")
}

/// The names of the fixtures whose arrays are in files that end with `suffix`.
fn names(suffix: &str) -> Vec<String> {
    let files = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> =
        files.filter_map(|name| Some(name.to_str()?.strip_suffix(suffix)?.to_owned())).collect();
    names.sort();
    names
}

/// Every way to read that this machine has.
fn readers() -> Vec<Options> {
    let mut ways = vec![None, Some(Backend::Pread)];
    ways.extend((info().unwrap().io == Backend::Uring).then_some(Some(Backend::Uring)));
    let reader = |io| Options { mode: Mode::Read, io, ..Options::default() };
    ways.into_iter().map(reader).collect()
}

/// An array of a `.npy` file.
struct Array {
    descr: String,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl Array {
    /// Reads version 1 of the format, in C order.
    fn parse(file: &[u8]) -> Self {
        assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
        let header_bytes = usize::from(u16::from_le_bytes([file[8], file[9]]));
        let (header, bytes) = file[10..].split_at(header_bytes);
        let header = std::str::from_utf8(header).unwrap();
        assert!(header.contains("'fortran_order': False"), "{header}");
        let between = |start: &str, end: &str| {
            let (_, rest) = header.split_once(start).unwrap();
            rest.split_once(end).unwrap().0.to_owned()
        };
        let numbers = between("'shape': (", ")");
        let numbers = numbers.split(',').map(str::trim).filter(|number| !number.is_empty());
        Self {
            descr: between("'descr': ", ", 'fortran_order'"),
            shape: numbers.map(|number| number.parse().unwrap()).collect(),
            bytes: bytes.to_vec(),
        }
    }
}

/// The arrays of a `.npz` file, a zip archive whose members are stored as they are.
fn members(archive: &[u8]) -> Vec<Array> {
    let mut arrays = Vec::new();
    let mut rest = archive;
    while let Some(header) = rest.strip_prefix(b"PK\x03\x04") {
        let short = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        assert_eq!(short(4), 0, "the member is compressed");
        let (name_bytes, extra_bytes) = (short(22), short(24));
        let extra = &header[26 + name_bytes..];
        // numpy gives every member's size as a zip64 extra.
        assert_eq!(&header[14..22], [0xFF; 8]);
        assert_eq!(extra[..2], [1, 0]);
        let size = u64::from_le_bytes(*extra[4..].first_chunk().unwrap()) as usize;
        let (member, after) = extra[extra_bytes..].split_at(size);
        arrays.push(Array::parse(member));
        rest = after;
    }
    arrays
}

/// The records of a ragged store: the shape and the bytes of each.
fn ragged_records(store: &RaggedStore) -> Vec<(Vec<u64>, Vec<u8>)> {
    let mut batch = store.gather(&(0..store.len()).collect::<Vec<_>>()).unwrap();
    let count = batch.layout.len();
    (0..count).map(|i| (batch.layout.shape(i).to_vec(), batch.payload(i).to_vec())).collect()
}

fn copy(name: &str, directory: &Path) -> PathBuf {
    let path = directory.join(name);
    fs::create_dir(&path).unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    path
}

#[test]
fn dense_stores_of_loaderx_give_their_arrays() {
    let names = names(".npy");
    assert!(names.len() >= 17, "{names:?}");
    for name in names {
        let array = Array::parse(&fs::read(fixtures().join(format!("{name}.npy"))).unwrap());
        for options in readers() {
            let store = DenseStore::open(&fixtures().join(&name), &options).unwrap();
            assert_eq!(store.len(), array.shape[0], "{name}");
            assert_eq!(store.item_shape(), &array.shape[1..], "{name}");
            match store.dtype() {
                Dtype::Plain(dtype) => assert_eq!(format!("'{dtype}'"), array.descr, "{name}"),
                Dtype::Structured(_) => assert!(array.descr.starts_with('['), "{name}"),
            }
            let all: Vec<u64> = (0..store.len()).collect();
            let mut batch = store.gather(&all).unwrap();
            assert!(batch.bytes_mut() == array.bytes, "{name} through {:?}", options.io);
            for (record, expected) in all.iter().zip(array.bytes.chunks(store.record_bytes())) {
                assert_eq!(store.gather(&[*record]).unwrap().bytes_mut(), expected, "{name}");
            }
        }
    }
}

#[test]
fn ragged_stores_of_loaderx_give_their_arrays() {
    let names = names(".npz");
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let arrays = members(&fs::read(fixtures().join(format!("{name}.npz"))).unwrap());
        for options in readers() {
            let store = RaggedStore::open(&fixtures().join(&name), &options).unwrap();
            let found = ragged_records(&store);
            assert_eq!(found.len(), arrays.len(), "{name}");
            for (record, ((shape, bytes), array)) in found.iter().zip(&arrays).enumerate() {
                assert_eq!(shape, &array.shape, "{name} record {record}");
                assert!(bytes == &array.bytes, "{name} record {record} by {:?}", options.io);
                let Dtype::Plain(dtype) = store.dtype() else { panic!("{name} is structured") };
                assert_eq!(format!("'{dtype}'"), array.descr, "{name} record {record}");
            }
        }
    }
}

#[test]
fn a_store_opens_as_what_it_is_and_as_nothing_else() {
    for (dense, name) in names(".npy")
        .into_iter()
        .map(|name| (true, name))
        .chain(names(".npz").into_iter().map(|name| (false, name)))
    {
        let path = fixtures().join(&name);
        let options = &readers()[0];
        let error = if dense {
            RaggedStore::open(&path, options).map(drop).unwrap_err()
        } else {
            DenseStore::open(&path, options).map(drop).unwrap_err()
        };
        assert_eq!(error.code(), Some(-8), "{name}: {error}");
        assert!(error.to_string().contains(&name), "{error}");
    }
}

#[test]
fn dense_stores_of_loaderx_can_be_changed() {
    let directory = common::directory();
    for name in names(".npy") {
        let path = copy(&name, directory.path());
        let store = DenseStore::open(&path, &Options::default()).unwrap();
        let bytes = store.record_bytes();
        let array = Array::parse(&fs::read(fixtures().join(format!("{name}.npy"))).unwrap());
        let mut model: Vec<Vec<u8>> = array.bytes.chunks(bytes).map(<[u8]>::to_vec).collect();
        let more: Vec<Vec<u8>> = if model.is_empty() {
            vec![vec![1; bytes]; 3]
        } else {
            model.iter().take(3).cloned().collect()
        };
        assert_eq!(store.append(more.concat().as_slice()).unwrap(), model.len() as u64);
        model.extend(more);
        store.delete(&[1, 0]).unwrap();
        common::swap_delete(&mut model, &[1, 0]);
        store.compact().unwrap();
        store.close().unwrap();
        let store = DenseStore::open(&path, &readers()[0]).unwrap();
        let mut batch = store.gather(&(0..store.len()).collect::<Vec<_>>()).unwrap();
        assert!(batch.bytes_mut() == model.concat(), "{name}");
        let stats = store.stats().unwrap();
        assert_eq!(stats.records, model.len() as u64, "{name}");
        assert_eq!(stats.chunk_bytes, stats.live_bytes, "{name}");
    }
}

#[test]
fn ragged_stores_of_loaderx_can_be_changed() {
    let directory = common::directory();
    for name in names(".npz") {
        let path = copy(&name, directory.path());
        let store = RaggedStore::open(&path, &Options::default()).unwrap();
        let mut model = ragged_records(&store);
        let payload = vec![3; 2 * store.item_bytes() as usize];
        let more = RaggedRecord { shape: &[2, 1], payload: Span::from(payload.as_slice()) };
        assert_eq!(store.append(&[more, more]).unwrap(), model.len() as u64);
        model.extend([(vec![2, 1], payload.clone()), (vec![2, 1], payload)]);
        store.delete(&[0]).unwrap();
        model.swap_remove(0);
        store.compact().unwrap();
        store.close().unwrap();
        let store = RaggedStore::open(&path, &readers()[0]).unwrap();
        assert_eq!(ragged_records(&store), model, "{name}");
    }
}
