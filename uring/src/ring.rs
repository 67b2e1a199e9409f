//! One `io_uring`, used by one thread at a time, that reads whole batches.
//!
//! This is one of the rooms in which `unsafe` is allowed: the kernel writes to memory that it
//! was given as an address. What makes it sound is in [`Flight`]: it counts the reads that the
//! kernel has, and however a batch ends, it does not let go before the kernel has none.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::thread::{self, ThreadId};

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use ringloader_fallback::{BatchReader, Done, ReadError, ReadErrorKind, ReadOp};

use crate::{Features, SetupError};

/// Reads that are under way at once: the depth at which a disk in measurements gave the most. The
/// completion queue is twice as long, so it cannot overflow.
pub const DEPTH: u32 = 256;
/// The most bytes of one submission, a round number below the kernel's limit of 2 GiB.
const SUBMISSION_BYTES_MAX: usize = 1 << 30;
/// How often a read that the kernel gives back with EAGAIN or EINTR is tried again.
const RETRIES_MAX: u32 = 1000;

/// Reads batches through a ring of its own.
#[derive(Debug)]
pub struct RingReader {
    ring: Ring,
    /// Bytes of each operation of the batch that were read. Kept for its memory.
    filled: Vec<usize>,
    /// Operations to submit again. Kept for its memory.
    again: Vec<u32>,
}

struct Ring {
    uring: IoUring,
    features: Features,
    /// The thread that made it. With `SINGLE_ISSUER` no other may submit.
    thread: ThreadId,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("features", &self.features).finish_non_exhaustive()
    }
}

impl RingReader {
    /// Makes a ring for this thread and tries it.
    ///
    /// # Errors
    /// [`SetupError`] says which step failed and what to change.
    pub fn new() -> Result<Self, SetupError> {
        Ok(Self { ring: Ring::new()?, filled: Vec::new(), again: Vec::new() })
    }

    /// What the ring uses.
    pub fn features(&self) -> Features {
        self.ring.features
    }
}

impl Ring {
    fn new() -> Result<Self, SetupError> {
        let failed = |step| move |source| SetupError { step, source };
        let (mut uring, features) = build().map_err(failed("io_uring_setup"))?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(failed("io_uring_register"))?;
        if !probe.is_supported(opcode::Read::CODE) {
            let source = io::Error::from(io::ErrorKind::Unsupported);
            return Err(SetupError { step: "IORING_OP_READ", source });
        }
        // A filter may allow the set-up and refuse the use.
        let nothing = opcode::Nop::new().build();
        // SAFETY: the operation refers to no memory.
        unsafe { uring.submission().push(&nothing) }.expect("a new queue is empty");
        uring.submit_and_wait(1).map_err(failed("io_uring_enter"))?;
        uring.completion().for_each(drop);
        Ok(Self { uring, features, thread: thread::current().id() })
    }
}

/// A ring with as many of the flags as the kernel has: it refuses those it does not know.
fn build() -> io::Result<(IoUring, Features)> {
    let all = Features { single_issuer: true, defer_taskrun: true, coop_taskrun: false };
    let some = Features { single_issuer: false, defer_taskrun: false, coop_taskrun: true };
    let none = Features { coop_taskrun: false, ..some };
    let mut refused = None;
    for features in [all, some, none] {
        let mut builder = IoUring::builder();
        if features.single_issuer {
            builder.setup_single_issuer();
        }
        if features.defer_taskrun {
            builder.setup_defer_taskrun();
        }
        if features.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        match builder.build(DEPTH) {
            Ok(uring) => return Ok((uring, features)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("every attempt was refused"))
}

impl BatchReader for RingReader {
    fn read(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> Result<(), ReadError> {
        let failed = |source| ReadError { op: 0, kind: ReadErrorKind::Io(source) };
        if self.ring.thread != thread::current().id() {
            self.ring = Ring::new().map_err(|error| failed(io::Error::other(error)))?;
        }
        self.filled.clear();
        self.filled.resize(ops.len(), 0);
        self.again.clear();
        let mut batch = Batch {
            flight: Flight { uring: &mut self.ring.uring, under_way: 0 },
            filled: &mut self.filled,
            again: &mut self.again,
            next: 0,
            retries: 0,
        };
        batch.run(ops, done)
    }
}

/// Reads that the kernel has. Dropping it waits for all of them.
struct Flight<'r> {
    uring: &'r mut IoUring,
    under_way: u32,
}

impl Flight<'_> {
    /// Hands `entry` to the kernel at the next [`wait`](Self::wait).
    ///
    /// # Safety
    /// The memory that the entry refers to must stay valid, and unused by anybody else, until
    /// its completion was taken or this flight was dropped.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller keeps the memory valid for as long as the kernel has the entry,
        // which `drop` bounds by the life of `self`.
        unsafe { self.uring.submission().push(entry) }.expect("at most DEPTH reads are under way");
        self.under_way += 1;
    }

    /// Submits what was pushed and waits until there is a completion.
    fn wait(&mut self) -> io::Result<()> {
        match self.uring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            // The kernel is short of something, or a signal came: what was completed is taken
            // first, and the rest is submitted by the next call.
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn completion(&mut self) -> Option<cqueue::Entry> {
        let entry = self.uring.completion().next()?;
        self.under_way -= 1;
        Some(entry)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        while self.under_way > 0 {
            if self.completion().is_none()
                && let Err(error) = self.wait()
            {
                // Going on would free memory that the kernel is about to write.
                eprintln!("ringloader: io_uring does not give its reads back: {error}");
                std::process::abort();
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// A batch on its way.
struct Batch<'r> {
    flight: Flight<'r>,
    filled: &'r mut Vec<usize>,
    again: &'r mut Vec<u32>,
    /// The first operation that was not submitted yet.
    next: usize,
    retries: u32,
}

impl Batch<'_> {
    fn run(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> Result<(), ReadError> {
        loop {
            let broke_off = self.submit(ops, done);
            if broke_off || self.flight.under_way == 0 {
                return Ok(());
            }
            let waited = self.flight.wait();
            waited.map_err(|error| ReadError { op: 0, kind: ReadErrorKind::Io(error) })?;
            while let Some(entry) = self.flight.completion() {
                let number = entry.user_data() as usize;
                let complete = self.advance(number, entry.result(), ops[number].dst.len());
                let complete = complete.map_err(|kind| ReadError { op: number, kind })?;
                if complete && done(number, ops[number].dst.as_span()).is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// Pushes operations up to the depth, those that must go on first. Says whether `done`
    /// broke off at one that needs no reading.
    fn submit(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> bool {
        while self.flight.under_way < DEPTH {
            let number = match self.again.pop() {
                Some(number) => number as usize,
                None if self.next < ops.len() => {
                    self.next += 1;
                    self.next - 1
                }
                None => break,
            };
            let op = &mut ops[number];
            let filled = self.filled[number];
            let left = op.dst.len() - filled;
            if left == 0 {
                if done(number, op.dst.as_span()).is_break() {
                    return true;
                }
                continue;
            }
            let len = left.min(SUBMISSION_BYTES_MAX);
            let mut rest = op.dst.slice_mut(filled..filled + len);
            let file = types::Fd(op.file.as_raw_fd());
            let entry = opcode::Read::new(file, rest.as_mut_ptr(), len as u32)
                .offset(op.offset + filled as u64)
                .build()
                .user_data(number as u64);
            // SAFETY: the span is borrowed by `ops` for longer than the flight lives, nobody
            // reads it before the operation is done, and the file is open meanwhile.
            unsafe { self.flight.push(&entry) };
        }
        false
    }

    /// Counts the bytes of one completion. Says whether the operation is complete; if it is not,
    /// it will be submitted again.
    fn advance(&mut self, number: usize, result: i32, len: usize) -> Result<bool, ReadErrorKind> {
        let filled = &mut self.filled[number];
        match result {
            0 => return Err(ReadErrorKind::Eof { filled: *filled }),
            1.. => *filled += result as usize,
            _ => {
                let error = io::Error::from_raw_os_error(-result);
                self.retries += 1;
                if !is_passing(&error) || self.retries > RETRIES_MAX {
                    return Err(ReadErrorKind::Io(error));
                }
            }
        }
        if *filled == len {
            return Ok(true);
        }
        self.again.push(number as u32);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::ControlFlow;

    use ringloader_fallback::{SpanMut, conformance};

    use super::*;

    #[test]
    fn the_ring_keeps_the_contract() {
        conformance::check(&mut RingReader::new().expect("io_uring works here"));
    }

    #[test]
    fn a_reader_may_move_to_another_thread() {
        let mut reader = RingReader::new().expect("io_uring works here");
        let read = move || {
            let file = File::open("/proc/self/exe").unwrap();
            let mut memory = [0; 4];
            let mut ops = [ReadOp { file: &file, offset: 0, dst: SpanMut::from(&mut memory[..]) }];
            reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(())).unwrap();
            assert_eq!(&memory, b"\x7fELF");
        };
        thread::spawn(read).join().unwrap();
    }
}
