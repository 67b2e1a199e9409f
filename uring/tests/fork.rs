//! What a forked child may do with a reader of its parent's. A program of its own, so that the
//! fork meets no other test's threads.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, missing_docs)]

use std::fs::File;
use std::ops::ControlFlow;

use ringloader_fallback::{BatchReader, ReadOp, SpanMut};
use ringloader_uring::{DEPTH, RingReader};

/// Ends a child that waits for ever.
const CHILD_SECONDS_MAX: u32 = 20;

/// Whether `check` holds in a forked child.
fn holds_in_a_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check` and ends without returning to the test; what `check` uses
    // of the parent's (memory, files) it has a copy of.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: neither call touches memory. `_exit` skips what belongs to the parent.
        unsafe {
            libc::alarm(CHILD_SECONDS_MAX);
            libc::_exit(i32::from(!check()))
        }
    }
    assert!(child > 0, "fork failed");
    let mut status = 0;
    // SAFETY: `status` is writable, and `child` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// Whether a batch is read whole that is deeper than the ring and has empty reads between.
fn reads(reader: &mut RingReader) -> bool {
    let file = File::open("/proc/self/exe").unwrap();
    let mut memory = vec![[0; 4]; 600];
    let mut ops: Vec<_> = memory
        .iter_mut()
        .enumerate()
        .map(|(i, dst)| {
            let len = if i % 10 == 0 { 0 } else { 4 };
            ReadOp { file: &file, offset: 0, dst: SpanMut::from(&mut dst[..len]) }
        })
        .collect();
    let mut told = vec![0; 600];
    let read = reader.read(&mut ops, &mut |number, _| {
        told[number] += 1;
        ControlFlow::Continue(())
    });
    let is_read = |(i, bytes): (usize, &[u8; 4])| i % 10 == 0 || bytes == b"\x7fELF";
    read.is_ok() && told == [1; 600] && memory.iter().enumerate().all(is_read)
}

#[test]
fn a_child_may_read_with_a_readers_copy_or_drop_it() {
    let mut reader = RingReader::new(DEPTH).expect("io_uring works here");
    assert!(reads(&mut reader));
    assert!(holds_in_a_child(|| reads(&mut reader)), "the copy makes a ring anew");
    assert!(reads(&mut reader), "the child left the parent's queue alone");
    let mut copy = Some(reader);
    assert!(holds_in_a_child(|| {
        drop(copy.take());
        RingReader::new(DEPTH).is_ok_and(|mut reader| reads(&mut reader))
    }));
    assert!(reads(&mut copy.expect("only the child dropped it")));
}
