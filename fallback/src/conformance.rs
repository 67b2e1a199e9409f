//! What every backend must do, as a test that each of them runs.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::read::{BatchReader, ReadErrorKind, ReadOp};
use crate::span::{Slots, SpanMut};

const FILE_BYTES: usize = 3 << 20;

/// Checks the whole contract of [`BatchReader`].
///
/// # Panics
/// If `reader` breaks it.
pub fn check(reader: &mut dyn BatchReader) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let contents: Vec<u8> = (0..FILE_BYTES).map(|i| (i * 31 % 251) as u8).collect();
    let path = directory.path().join("data");
    File::create(&path).and_then(|mut file| file.write_all(&contents)).expect("a test file");
    let file = File::open(&path).expect("the test file");

    batches_of_every_size_are_read(reader, &file, &contents);
    a_file_that_ends_is_an_error(reader, &file);
    a_refused_read_is_an_error(reader, &path);
    a_break_ends_the_batch(reader, &file);
    a_panic_leaves_nothing_under_way(reader, &file);
    batches_of_every_size_are_read(reader, &file, &contents);
}

/// Where the operations of a batch begin and how long they are.
fn ranges(count: usize) -> Vec<(usize, usize)> {
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
            (next() % (FILE_BYTES - len), len)
        })
        .collect()
}

fn read_all(
    reader: &mut dyn BatchReader,
    file: &File,
    ranges: &[(usize, usize)],
    memory: &mut [u8],
) -> Vec<usize> {
    let mut rest = memory;
    let mut ops = Vec::new();
    for (offset, len) in ranges {
        let (dst, later) = rest.split_at_mut(*len);
        rest = later;
        ops.push(ReadOp { file, offset: *offset as u64, dst: SpanMut::from(dst) });
    }
    let mut seen = Vec::new();
    let read = reader.read(&mut ops, &mut |number, bytes| {
        assert_eq!(bytes.len(), ranges[number].1);
        seen.push(number);
        ControlFlow::Continue(())
    });
    read.expect("every operation can be read");
    seen
}

fn batches_of_every_size_are_read(reader: &mut dyn BatchReader, file: &File, contents: &[u8]) {
    for count in [0, 1, 2, 255, 256, 257, 3000] {
        let ranges = ranges(count);
        let mut memory = vec![0xEE; ranges.iter().map(|(_, len)| len).sum()];
        let mut seen = read_all(reader, file, &ranges, &mut memory);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..count), "each of {count} operations is told of once");
        let mut rest = memory.as_slice();
        for (offset, len) in ranges {
            let (found, later) = rest.split_at(len);
            rest = later;
            assert!(found == &contents[offset..offset + len], "{len} bytes at {offset} are wrong");
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

fn a_panic_leaves_nothing_under_way(reader: &mut dyn BatchReader, file: &File) {
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
    read_all(reader, file, &[(0, 64)], &mut other);
    assert!(memory == before, "a read was still under way");
}
