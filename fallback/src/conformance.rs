//! What every backend must do, as a test that each of them runs. It owns the files it reads and
//! is compiled for tests only; it never looks behind [`BatchReader`].

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::read::{BatchReader, ReadErrorKind, ReadOp};
use crate::span::{Slots, SpanMut};

const FILE_BYTES: usize = 3 << 20;

/// The files of a test and what they hold.
struct Corpus {
    files: [File; 2],
    contents: [Vec<u8>; 2],
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Corpus {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |number: usize| directory.path().join(number.to_string());
        let contents = [31, 37]
            .map(|factor| (0..FILE_BYTES).map(|i| (i * factor % 251) as u8).collect::<Vec<u8>>());
        let files = [0, 1].map(|number| {
            File::create(path(number))
                .and_then(|mut file| file.write_all(&contents[number]))
                .expect("a test file");
            File::open(path(number)).expect("the test file")
        });
        Self { files, contents, path: path(0), _directory: directory }
    }
}

/// Checks the whole contract of [`BatchReader`].
///
/// # Panics
/// If `reader` breaks it.
pub fn check(reader: &mut dyn BatchReader) {
    let corpus = Corpus::new();
    let file = &corpus.files[0];
    batches_of_every_size_are_read(reader, &corpus);
    a_file_that_ends_is_an_error(reader, file);
    a_refused_read_is_an_error(reader, &corpus.path);
    #[cfg(target_os = "linux")]
    a_read_that_the_device_fails_is_an_error(reader, file);
    an_offset_past_the_limit_is_an_error(reader, file);
    a_break_ends_the_batch(reader, file);
    a_break_at_an_empty_read_ends_the_batch(reader, file);
    a_panic_leaves_nothing_under_way(reader, &corpus);
    batches_of_every_size_are_read(reader, &corpus);
}

/// Checks the contract on several threads at once, each with a reader of its own.
///
/// # Panics
/// If one of them breaks it.
pub fn check_on_many_threads<R: BatchReader>(make: impl Fn() -> R + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(&mut make()));
        }
    });
}

/// One read of a test: which file, where it begins, and how long it is.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    offset: usize,
    len: usize,
}

/// Places that overlap, in both files, some of them empty and some large.
fn places(count: usize) -> Vec<Place> {
    let mut state = count as u64 + 1;
    let mut next = move || {
        // Knuth's MMIX generator.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let lengths = [0, 1, 511, 4095, 4096, 70_000];
    (0..count)
        .map(|i| {
            let len = if i % 500 == 7 { 1 << 20 } else { lengths[next() % lengths.len()] };
            Place { file: next() % 2, offset: next() % (FILE_BYTES - len), len }
        })
        .collect()
}

fn read_all(
    reader: &mut dyn BatchReader,
    corpus: &Corpus,
    places: &[Place],
    memory: &mut [u8],
) -> Vec<usize> {
    let mut rest = memory;
    let mut ops = Vec::new();
    for place in places {
        let (dst, later) = rest.split_at_mut(place.len);
        rest = later;
        let file = &corpus.files[place.file];
        ops.push(ReadOp { file, offset: place.offset as u64, dst: SpanMut::from(dst) });
    }
    let mut seen = Vec::new();
    let caller = std::thread::current().id();
    let read = reader.read(&mut ops, &mut |number, bytes| {
        assert_eq!(std::thread::current().id(), caller);
        let Place { file, offset, len } = places[number];
        let expected = &corpus.contents[file][offset..offset + len];
        assert!(bytes.as_slice() == Some(expected), "{len} bytes at {offset} are there when told");
        seen.push(number);
        ControlFlow::Continue(())
    });
    read.expect("every operation can be read");
    seen
}

fn batches_of_every_size_are_read(reader: &mut dyn BatchReader, corpus: &Corpus) {
    for count in [0, 1, 2, 255, 256, 257, 3000] {
        let places = places(count);
        let mut memory = vec![0xEE; places.iter().map(|place| place.len).sum()];
        let mut seen = read_all(reader, corpus, &places, &mut memory);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..count), "each of {count} operations is told of once");
        let mut rest = memory.as_slice();
        for Place { file, offset, len } in places {
            let (found, later) = rest.split_at(len);
            rest = later;
            let expected = &corpus.contents[file][offset..offset + len];
            assert!(found == expected, "{len} bytes at {offset} are wrong");
        }
    }
}

/// A batch of reads of 1000 bytes, of which number `bad` is at `offset` of `file`.
fn batch<'a>(
    memory: &'a mut [u8],
    good: &'a File,
    bad: usize,
    file: &'a File,
    offset: u64,
) -> Vec<ReadOp<'a>> {
    let mut slots = Slots::uniform(SpanMut::from(memory), 1000);
    (0..slots.len())
        .map(|i| {
            let (file, offset) = if i == bad { (file, offset) } else { (good, i as u64 * 100) };
            ReadOp { file, offset, dst: slots.take(i..i + 1) }
        })
        .collect()
}

fn a_file_that_ends_is_an_error(reader: &mut dyn BatchReader, file: &File) {
    for bad in [0, 150, 299] {
        let mut memory = vec![0; 300_000];
        let mut ops = batch(&mut memory, file, bad, file, FILE_BYTES as u64 - 400);
        let read = reader.read(&mut ops, &mut |number, _| {
            assert_ne!(number, bad, "a read that failed is not done");
            ControlFlow::Continue(())
        });
        let error = read.expect_err("the file ends");
        assert_eq!(error.op, bad);
        assert!(matches!(error.kind, ReadErrorKind::Eof { filled: 400 }), "{error}");
    }
}

fn a_refused_read_is_an_error(reader: &mut dyn BatchReader, path: &std::path::Path) {
    let good = File::open(path).expect("the test file");
    let write_only = File::options().append(true).open(path).expect("the test file");
    let mut memory = vec![0; 20_000];
    let mut ops = batch(&mut memory, &good, 13, &write_only, 0);
    let read = reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(()));
    let error = read.expect_err("the file is open for writing only");
    assert_eq!(error.op, 13);
    assert!(matches!(error.kind, ReadErrorKind::Io(_)), "{error}");
}

/// The kernel answers EIO where a process's memory has nothing, as it does for a bad sector.
#[cfg(target_os = "linux")]
fn a_read_that_the_device_fails_is_an_error(reader: &mut dyn BatchReader, good: &File) {
    let memory_of_process = File::open("/proc/self/mem").expect("the process's own memory");
    for bad in [0, 150, 299] {
        let mut memory = vec![0; 300_000];
        let mut ops = batch(&mut memory, good, bad, &memory_of_process, 0);
        let read = reader.read(&mut ops, &mut |number, _| {
            assert_ne!(number, bad, "a read that failed is not done");
            ControlFlow::Continue(())
        });
        let error = read.expect_err("there is nothing at address 0");
        assert_eq!(error.op, bad);
        let ReadErrorKind::Io(source) = error.kind else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(5), "EIO");
    }
}

fn a_break_ends_the_batch(reader: &mut dyn BatchReader, file: &File) {
    for stop_after in [1, 100, 600] {
        let mut memory = vec![0; 700_000];
        let mut ops = batch(&mut memory, file, usize::MAX, file, 0);
        let mut told = 0;
        let read = reader.read(&mut ops, &mut |_, _| {
            told += 1;
            if told == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        read.expect("a break is no error");
        assert_eq!(told, stop_after);
    }
}

/// A read of nothing needs no system call, and may come while others are under way.
fn a_break_at_an_empty_read_ends_the_batch(reader: &mut dyn BatchReader, file: &File) {
    let mut memory = vec![0; 300_000];
    let mut ops = batch(&mut memory, file, usize::MAX, file, 0);
    ops[150].dst = SpanMut::from(&mut [][..]);
    let mut told = 0;
    let read = reader.read(&mut ops, &mut |number, _| {
        told += usize::from(number == 150);
        if told > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    read.expect("a break is no error");
    assert_eq!(told, 1);
}

/// The largest number would mean "where the file's cursor is" to some system calls.
fn an_offset_past_the_limit_is_an_error(reader: &mut dyn BatchReader, file: &File) {
    for offset in [u64::MAX, 1 << 63, i64::MAX as u64 - 8] {
        let mut memory = vec![0; 20_000];
        let mut ops = batch(&mut memory, file, 13, file, offset);
        let read = reader.read(&mut ops, &mut |number, _| {
            assert_ne!(number, 13, "a read that failed is not done");
            ControlFlow::Continue(())
        });
        let error = read.expect_err("no file is that long");
        assert_eq!(error.op, 13, "{error}");
    }
}

fn a_panic_leaves_nothing_under_way(reader: &mut dyn BatchReader, corpus: &Corpus) {
    let file = &corpus.files[0];
    let mut memory = vec![0; 700_000];
    let mut ops = batch(&mut memory, file, usize::MAX, file, 0);
    let mut told = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        reader.read(&mut ops, &mut |_, _| {
            told += 1;
            assert!(told < 10, "enough");
            ControlFlow::Continue(())
        })
    }));
    assert!(panicked.is_err());
    drop(ops);
    memory.fill(0x55);
    let before = memory.clone();
    let mut other = vec![0; 64];
    read_all(reader, corpus, &[Place { file: 0, offset: 0, len: 64 }], &mut other);
    assert!(memory == before, "a read was still under way");
}
