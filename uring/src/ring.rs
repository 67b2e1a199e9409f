//! One `io_uring` and the reads that it has under way. The reader calls it; it never decides
//! what to read next and never calls back.
//!
//! This is one of the rooms in which `unsafe` is allowed: the kernel writes to memory that it
//! was given as an address. What makes it sound is [`Flight`]: it borrows the operations whose
//! memory the kernel has, and however a batch ends, it does not let go before the kernel has none.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::process;
use std::thread::{self, ThreadId};

use io_uring::{EnterFlags, IoUring, Probe, opcode, types};
use ringloader_fallback::process::generation;
use ringloader_fallback::{ReadOp, Span};

use crate::{Features, SetupError};

/// The most bytes of one submission, a round number below the kernel's limit of 2 GiB.
const SUBMISSION_BYTES_MAX: usize = 1 << 30;

/// A ring for one thread.
pub(crate) struct Ring {
    uring: IoUring,
    /// Reads under way at once. The completion queue is twice as long, so it cannot overflow.
    depth: u32,
    features: Features,
    owner: Owner,
    /// Set when submissions were left in the queue: they hold addresses that are no longer ours
    /// to write, so the kernel must never see them.
    stale: bool,
}

/// Who may use a ring: one thread, because with `SINGLE_ISSUER` the kernel lets no other submit,
/// and no forked child. The queues of a child's copy are the same memory as its parent's, so what
/// the child pushed there the parent would submit, and the kernel write to the parent's memory.
/// That the kernel refuses the child comes too late: this is asked before anything is pushed.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    process: u64,
    thread: ThreadId,
}

impl Owner {
    fn here() -> Self {
        Self { process: generation(), thread: thread::current().id() }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("features", &self.features)
            .field("owner", &self.owner)
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for the calling thread, and `depth` reads.
    pub(crate) fn new(depth: u32) -> Result<Self, SetupError> {
        let (uring, features) = build(depth).map_err(SetupError::at("io_uring_setup"))?;
        let mut probe = Probe::new();
        uring
            .submitter()
            .register_probe(&mut probe)
            .map_err(SetupError::at("io_uring_register"))?;
        if !probe.is_supported(opcode::Read::CODE) {
            let source = io::Error::from(io::ErrorKind::Unsupported);
            return Err(SetupError::at("IORING_OP_READ")(source));
        }
        Ok(Self { uring, depth, features, owner: Owner::here(), stale: false })
    }

    pub(crate) fn features(&self) -> Features {
        self.features
    }

    /// Makes the ring anew if the calling thread may not read with it.
    pub(crate) fn make_ready(&mut self) -> Result<(), SetupError> {
        if !self.is_usable_here() {
            *self = Self::new(self.depth)?;
        }
        Ok(())
    }

    /// Whether the calling thread may read with it.
    fn is_usable_here(&self) -> bool {
        !self.stale && self.owner == Owner::here()
    }

    /// Entries that were pushed and that the kernel has not taken.
    fn unsubmitted(&mut self) -> u32 {
        self.uring.submission().len() as u32
    }

    /// Waits for a completion and submits nothing.
    fn wait_only(&self) -> io::Result<()> {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: without an argument the call refers to no memory but the ring's own.
        unsafe { self.uring.submitter().enter::<libc::sigset_t>(0, 1, flags, None) }.map(drop)
    }
}

/// A ring with as many of the flags as the kernel has: it refuses those it does not know.
fn build(depth: u32) -> io::Result<(IoUring, Features)> {
    let all = Features { single_issuer: true, defer_taskrun: true, coop_taskrun: false };
    let some = Features { single_issuer: false, defer_taskrun: false, coop_taskrun: true };
    let none = Features { coop_taskrun: false, ..some };
    let mut refused = None;
    for features in [all, some, none] {
        match build_with(features, depth) {
            Ok(uring) => return Ok((uring, features)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("every attempt was refused"))
}

fn build_with(features: Features, depth: u32) -> io::Result<IoUring> {
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
    builder.build(depth)
}

/// The operations of a batch, and which of them the kernel has. Dropping it waits for those.
pub(crate) struct Flight<'r, 'op> {
    ring: &'r mut Ring,
    ops: &'r mut [ReadOp<'op>],
    /// Pushed, and not yet seen as completions.
    under_way: u32,
}

impl<'r, 'op> Flight<'r, 'op> {
    /// Makes ready to read `ops` with `ring`, which is made anew if it cannot be used here.
    pub(crate) fn new(ring: &'r mut Ring, ops: &'r mut [ReadOp<'op>]) -> Result<Self, SetupError> {
        ring.make_ready()?;
        Ok(Self { ring, ops, under_way: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Bytes that operation `number` asks for.
    pub(crate) fn bytes_of(&self, number: usize) -> usize {
        self.ops[number].dst.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way == 0
    }

    /// The memory of operation `number`, which must not be under way.
    pub(crate) fn span(&self, number: usize) -> Span<'_> {
        self.ops[number].dst.as_span()
    }

    /// Hands operation `number`, of which `filled` bytes were read, to the kernel at the next
    /// [`wait`](Self::wait). It must not be under way, and there must be room.
    pub(crate) fn push(&mut self, number: usize, filled: usize) -> io::Result<()> {
        assert!(self.under_way < self.ring.depth, "the ring is full");
        let op = &mut self.ops[number];
        let offset = offset_of(op, filled)?;
        let len = (op.dst.len() - filled).min(SUBMISSION_BYTES_MAX);
        let mut rest = op.dst.slice_mut(filled..filled + len);
        let file = types::Fd(op.file.as_raw_fd());
        let entry = opcode::Read::new(file, rest.as_mut_ptr(), len as u32)
            .offset(offset)
            .build()
            .user_data(number as u64);
        // SAFETY: `rest` is writable for `len` bytes for as long as the operation lives, and
        // the file is open as long. This flight borrows the operation, and its `drop` returns
        // only when the kernel has given back every entry it took and can take no other.
        unsafe { self.ring.uring.submission().push(&entry) }
            .expect("the queue has as many places as may be under way");
        self.under_way += 1;
        Ok(())
    }

    /// Submits what was pushed and waits until there is a completion. Where the kernel is short
    /// of something (EAGAIN, EBUSY) some or all of it may be submitted by the next call.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self.ring.uring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            // A signal came: the caller finds no completion and waits again.
            _ => Ok(()),
        }
    }

    /// The number of an operation that the kernel gave back, and the kernel's result.
    pub(crate) fn completion(&mut self) -> Option<(usize, i32)> {
        let entry = self.ring.uring.completion().next()?;
        self.under_way -= 1;
        Some((entry.user_data() as usize, entry.result()))
    }
}

/// Where the bytes after the first `filled` are. The kernel would take the largest number for
/// "where the file's cursor is".
fn offset_of(op: &ReadOp<'_>, filled: usize) -> io::Result<u64> {
    let offset = op.offset.checked_add(filled as u64);
    offset
        .filter(|offset| i64::try_from(*offset).is_ok())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

impl Drop for Flight<'_, '_> {
    fn drop(&mut self) {
        if self.under_way == 0 {
            return;
        }
        let unsubmitted = self.ring.unsubmitted();
        self.ring.stale = unsubmitted > 0;
        while self.under_way > unsubmitted {
            if self.completion().is_none()
                && let Err(error) = self.ring.wait_only()
                && !is_passing(&error)
            {
                // The kernel may write to the batch's memory at any time, and whoever owns it
                // frees it after this. An end that can be seen is better than that.
                eprintln!("ringloader: io_uring does not give its reads back: {error}");
                process::abort();
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use ringloader_fallback::SpanMut;

    use super::*;
    use crate::DEPTH;

    #[test]
    fn every_set_of_flags_that_the_kernel_has_makes_a_ring() {
        for (single_issuer, defer_taskrun, coop_taskrun) in
            [(true, true, false), (false, false, true), (false, false, false)]
        {
            let features = Features { single_issuer, defer_taskrun, coop_taskrun };
            match build_with(features, DEPTH) {
                Ok(uring) => assert!(uring.params().cq_entries() >= 2 * DEPTH),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{features}"),
            }
        }
    }

    #[test]
    fn what_was_not_submitted_is_never_read() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut memory = [0x55; 4];
        let mut ops = [ReadOp { file: &file, offset: 0, dst: SpanMut::from(&mut memory[..]) }];
        let mut ring = Ring::new(DEPTH).expect("io_uring works here");
        let mut flight = Flight::new(&mut ring, &mut ops).unwrap();
        flight.push(0, 0).unwrap();
        drop(flight);
        assert!(!ring.is_usable_here(), "the queue holds an address");
        assert_eq!(memory, [0x55; 4]);
    }
}
