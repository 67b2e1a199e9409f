//! Files that no store has are refused: what is in place of a store's file, what an identity
//! or a header cannot be, and whatever else would take memory without bound.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use common::{Random, SMALL, Store, kinds, options, records};
use ringloader_engine::codec::{Codec, DICTIONARY_BYTES_MAX};
use ringloader_engine::file::Fs;
use ringloader_engine::format::{HEADER_BYTES, names};
use ringloader_engine::identity::IDENTITY_BYTES_MAX;
use ringloader_engine::{Error, Result};

/// A closed store with more than one chunk and more than one segment.
fn store(directory: &Path, dense: bool, codec: Codec) -> (PathBuf, Vec<Vec<u8>>) {
    let path = directory.join("store");
    let store = Store::create(&path, dense, codec, &options(SMALL, &Fs::default())).unwrap();
    let all = records(&mut Random::new(41), dense, 60);
    store.append(&all).unwrap();
    store.close().unwrap();
    (path, all)
}

fn open(path: &Path, dense: bool) -> Result<Store> {
    Store::open(path, dense, &options(SMALL, &Fs::default()))
}

fn files(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

fn restore(path: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        if !files.contains_key(&entry) {
            fs::remove_file(entry).unwrap();
        }
    }
    for (file, bytes) in files {
        fs::write(file, bytes).unwrap();
    }
}

/// Opens the store and does all that touches its files; gives the first error.
fn use_all(path: &Path, dense: bool, more: &[Vec<u8>]) -> Result<()> {
    let store = open(path, dense)?;
    store.all()?;
    store.delete(&[0])?;
    store.append(more)?;
    store.compact()?;
    store.close()
}

fn sparse(path: &Path, len: u64) {
    File::create(path).unwrap().set_len(len).unwrap();
}

type Replace = (&'static str, fn(&Path));

/// What can stand in the place of a file.
const REPLACEMENTS: &[Replace] = &[
    ("nothing", |_| ()),
    ("a directory", |file| fs::create_dir(file).unwrap()),
    #[cfg(unix)]
    ("a link to the file itself", |file| {
        let moved = file.with_extension("moved");
        fs::write(&moved, "contents that are never read").unwrap();
        std::os::unix::fs::symlink(moved, file).unwrap();
    }),
    #[cfg(unix)]
    ("a link to nothing", |file| std::os::unix::fs::symlink("nowhere", file).unwrap()),
    #[cfg(unix)]
    ("a device", |file| std::os::unix::fs::symlink("/dev/zero", file).unwrap()),
    #[cfg(target_os = "linux")]
    ("a pipe", |file| {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }),
];

#[test]
fn what_is_in_the_place_of_a_file_is_named_and_neither_followed_nor_waited_for() {
    let more = records(&mut Random::new(42), true, 5);
    for (name, replace) in REPLACEMENTS {
        let directory = common::directory();
        let (path, _) = store(directory.path(), true, Codec::ZstdDict);
        for (file, bytes) in files(&path) {
            fs::remove_file(&file).unwrap();
            replace(&file);
            let error = use_all(&path, true, &more).unwrap_err();
            // A chunk is missed by the first record that is in it.
            let is_named = matches!(error, Error::InvalidStore { .. } | Error::BadLocation { .. });
            assert!(is_named, "{name} as {file:?}: {error}");
            let named = file.file_name().unwrap().to_str().unwrap();
            assert!(error.to_string().contains(named), "{name} as {file:?}: {error}");
            let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir(&file));
            let _ = fs::remove_file(file.with_extension("moved"));
            fs::write(&file, bytes).unwrap();
        }
    }
}

#[cfg(unix)]
#[test]
fn a_link_in_the_place_of_the_next_file_is_not_written_through() {
    let more = records(&mut Random::new(43), true, 100);
    for name in ["2.chunk", "2.loc"] {
        let directory = common::directory();
        let (path, all) = store(directory.path(), true, Codec::Raw);
        let target = directory.path().join("precious");
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, path.join(name)).unwrap();
        let store = open(&path, true).unwrap();
        let error = store.append(&more).unwrap_err();
        assert!(matches!(error, Error::InvalidStore { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        assert_eq!(store.all().unwrap(), all);
    }
}

#[test]
fn a_path_that_is_no_store_is_an_error_that_says_what_is_there() {
    let directory = common::directory();
    let path = directory.path().join("store");
    for missing in [path.clone(), path.join("below"), directory.path().join("")] {
        let error = open(&missing, true).map(drop).unwrap_err();
        let code = if missing.exists() { -8 } else { -11 };
        assert_eq!(error.code(), Some(code), "{error}");
    }
    fs::write(&path, "a file").unwrap();
    assert!(matches!(open(&path, true), Err(Error::InvalidStore { .. })));
    assert!(matches!(open(&path.join("below"), true), Err(Error::NotFound { .. })));
}

#[test]
fn files_of_any_size_are_refused_before_they_are_read() {
    let directory = common::directory();
    let (path, all) = store(directory.path(), true, Codec::ZstdDict);
    let sizes = [
        (names::META, 0),
        (names::META, HEADER_BYTES as u64 - 1),
        (names::META, HEADER_BYTES as u64 + 1),
        (names::META, 1 << 40),
        (names::IDENTITY, 0),
        (names::IDENTITY, IDENTITY_BYTES_MAX + 1),
        (names::IDENTITY, 1 << 40),
        (names::DICTIONARY, 0),
        (names::DICTIONARY, DICTIONARY_BYTES_MAX + 1),
        (names::DICTIONARY, 1 << 40),
    ];
    for (name, len) in sizes {
        let file = path.join(name);
        let good = fs::read(&file).unwrap();
        sparse(&file, len);
        let error = open(&path, true).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidStore { .. }), "{name} of {len} bytes: {error}");
        assert!(error.to_string().contains(name), "{error}");
        fs::write(&file, good).unwrap();
    }
    assert_eq!(open(&path, true).unwrap().all().unwrap(), all);
}

#[test]
fn a_table_that_reaches_as_far_as_its_header_says_is_still_not_believed() {
    let directory = common::directory();
    let (path, _) = store(directory.path(), true, Codec::Raw);
    let length = 1u64 << 60;
    let mut header = fs::read(path.join(names::META)).unwrap();
    header[..8].copy_from_slice(&length.to_le_bytes());
    fs::write(path.join(names::META), header).unwrap();
    let error = open(&path, true).map(drop).unwrap_err();
    assert!(matches!(error, Error::InvalidStore { .. }), "{error}");
    // Only the segment that holds the last record, and that one a hole.
    let last = names::segment((length - 1) / SMALL.segment_records);
    sparse(&path.join(last), SMALL.segment_records * 16);
    if let Ok(store) = open(&path, true) {
        for record in [length - 1, length / 2, 100] {
            let error = store.gather(&[record]).unwrap_err();
            assert_eq!(error.code(), Some(-8), "{error}");
        }
        assert!(store.compact().is_err());
    }
}

#[test]
fn an_identity_that_no_store_writes_is_refused() {
    let directory = common::directory();
    let (path, _) = store(directory.path(), true, Codec::Raw);
    let good = fs::read(path.join(names::IDENTITY)).unwrap();
    let dense = |dtype: &[u8]| [b"\x82\xa5dtype", dtype, b"\xaaitem_shape\x91\x18"].concat();
    assert_eq!(good, dense(b"\xa3|u1"), "the identity that is varied below");
    let refused: [(&str, Vec<u8>); 16] = [
        ("an object", dense(b"\xa2|O")),
        ("no width", dense(b"\xa2|u")),
        ("no numpy kind", dense(b"\xa3|q8")),
        ("a width of nothing", dense(b"\xa3|S0")),
        ("bytes in place of text", dense(b"\xc4\x03|u1")),
        ("text that is no UTF-8", dense(b"\xa3|\xff1")),
        ("a number", dense(b"\x01")),
        ("nil", dense(b"\xc0")),
        ("no fields", dense(b"\x90")),
        ("a field of one", dense(b"\x91\x91\xa1a")),
        ("a field of four", dense(b"\x91\x94\xa1a\xa3|u1\x91\x01\x01")),
        ("a long form of the text", dense(b"\xd9\x03|u1")),
        ("a negative axis", [&good[..good.len() - 1], b"\xff"].concat()),
        ("an axis that is no integer", [&good[..good.len() - 1], b"\xca\0\0\0\0"].concat()),
        ("too large a record", [&good[..good.len() - 1], b"\xcf\xff\xff\xff\xff\0\0\0\0"].concat()),
        ("something behind it", [good.as_slice(), b"\0"].concat()),
    ];
    let cut = (0..good.len()).map(|len| ("a part", good[..len].to_vec()));
    for (what, bytes) in refused.into_iter().chain(cut) {
        fs::write(path.join(names::IDENTITY), bytes).unwrap();
        let error = open(&path, true).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidStore { .. }), "{what}: {error}");
        assert!(error.to_string().contains(names::IDENTITY), "{what}: {error}");
    }
}

#[test]
fn a_codec_tag_of_another_store_is_noticed() {
    for (dense, codec) in kinds() {
        for tag in (0..=4u8).filter(|tag| *tag != codec as u8) {
            let directory = common::directory();
            let (path, all) = store(directory.path(), dense, codec);
            let mut header = fs::read(path.join(names::META)).unwrap();
            header[16] = tag;
            fs::write(path.join(names::META), header).unwrap();
            match open(&path, dense) {
                Err(error) => assert_eq!(error.code(), Some(-8), "{codec} as {tag}: {error}"),
                // zstd and zstd_dict are told apart by the dictionary's file alone.
                Ok(store) => {
                    for record in 0..all.len() as u64 {
                        let error = store.gather(&[record]).unwrap_err();
                        let code = error.code();
                        assert!(matches!(code, Some(-7 | -8)), "{codec} as {tag}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_byte_of_any_file_can_make_a_change_lose_what_reads() {
    const ROUNDS: usize = 250;
    for (dense, codec) in kinds() {
        let directory = common::directory();
        let (path, _) = store(directory.path(), dense, codec);
        let good = files(&path);
        let names: Vec<&PathBuf> = good.keys().collect();
        let mut random = Random::new(44);
        for round in 0..ROUNDS {
            let file = names[random.below(names.len())];
            let mut bad = good[file].clone();
            for _ in 0..=random.below(2) {
                let at = random.below(bad.len());
                bad[at] ^= 1 << random.below(8);
            }
            fs::write(file, bad).unwrap();
            change_and_compare(&path, dense, &format!("{codec} round {round} {file:?}"));
            restore(&path, &good);
        }
    }
}

/// Compacts and appends: what could be read before reads the same afterwards, whether the
/// change was made or refused.
fn change_and_compare(path: &Path, dense: bool, context: &str) {
    let Ok(store) = open(path, dense) else { return };
    let length = store.len().min(100);
    let read = |store: &Store| -> Vec<Option<Vec<u8>>> {
        (0..length).map(|i| store.gather(&[i]).ok()?.pop()).collect()
    };
    let before = read(&store);
    let compacted = store.compact();
    let after = read(&store);
    for (before, after) in before.iter().zip(&after) {
        assert!(before.is_none() || before == after, "{context}: compact gave {compacted:?}");
    }
    let more = records(&mut Random::new(45), dense, 3);
    // The identity may be damaged, and then these are no records of the store.
    if let Ok(first) = store.append(&more) {
        assert_eq!(store.gather(&[first + 2]).unwrap(), more[2..], "{context}");
        let after = read(&store);
        assert!(before.iter().zip(&after).all(|(b, a)| b.is_none() || b == a), "{context}");
    }
}
