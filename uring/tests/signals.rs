//! Signals that come while a batch waits. A program of its own, because the timer is the process's.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, missing_docs)]

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use ringloader_fallback::{BatchReader, ReadOp, SpanMut};
use ringloader_uring::{DEPTH, RingReader};

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: i32) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Sends SIGALRM to the process each millisecond; system calls that it meets are not restarted.
fn send_signals() {
    let pause = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let timer = libc::itimerval { it_interval: pause, it_value: pause };
    // SAFETY: the handler only adds to a number; both calls only read what they are given. An
    // action of zeros has no flags, so no SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()), 0);
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()), 0);
    }
}

#[test]
fn signals_end_no_batch_and_lose_no_byte() {
    const PARTS: usize = 40;
    let (source, mut sink) = io::pipe().unwrap();
    let file = File::from(OwnedFd::from(source));
    let mut reader = RingReader::new(DEPTH).expect("io_uring works here");
    let mut memory = [0; PARTS];
    send_signals();
    thread::scope(|scope| {
        scope.spawn(move || {
            for part in 0..PARTS {
                thread::sleep(Duration::from_millis(5));
                sink.write_all(&[part as u8]).unwrap();
            }
        });
        let mut ops = [ReadOp { file: &file, offset: 0, dst: SpanMut::from(&mut memory[..]) }];
        reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(())).unwrap();
    });
    assert!(memory.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    assert!(SIGNALS.load(Ordering::Relaxed) > 0);
}
