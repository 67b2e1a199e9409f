//! What a forked child may rely on. A program of its own, so that the fork meets no other test's
//! threads.
#![cfg(unix)]
#![allow(unsafe_code, missing_docs)]

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ringloader_fallback::{BatchReader, PerProcess, PreadReader, ReadOp, SpanMut};

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

fn reads_cold(file: &File) -> bool {
    let mut memory = [0; 4000];
    let mut ops: Vec<_> = memory
        .chunks_mut(100)
        .map(|dst| ReadOp { file, offset: 5, dst: SpanMut::from(dst) })
        .collect();
    let mut reader = PreadReader::with_cold_after(Duration::ZERO);
    let read = reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(()));
    read.is_ok() && memory == [7; 4000]
}

#[test]
fn a_child_waits_for_nothing_of_its_parent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    File::create(&path).unwrap().write_all(&[7; 200]).unwrap();
    let file = File::open(&path).unwrap();

    assert!(reads_cold(&file));
    assert!(holds_in_a_child(|| reads_cold(&file)), "the child makes threads of its own");

    // A fork while another thread is making the value: in the child it will never be made.
    let value = PerProcess::new();
    let (started, has_started) = mpsc::channel();
    let (finish, may_finish) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let value = &value;
        scope.spawn(move || {
            value.get_or_init(|| {
                started.send(()).unwrap();
                may_finish.recv().unwrap();
                1
            });
        });
        has_started.recv().unwrap();
        let made_its_own =
            holds_in_a_child(|| value.get().is_none() && value.get_or_init(|| 2) == &2);
        finish.send(()).unwrap();
        assert!(made_its_own);
    });
    assert_eq!(value.get(), Some(&1));
}
