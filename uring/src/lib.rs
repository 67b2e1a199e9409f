//! The read contract of ringloader on `io_uring`: a batch of reads costs a system call or two,
//! and hundreds of reads are under way at once.
//!
//! On other systems than Linux this crate is empty but for [`probe`] and a [`RingReader`] that
//! cannot be made, so callers need no conditions of their own.

#[cfg(target_os = "linux")]
mod reader;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod window;

use std::fmt;
use std::io;

#[cfg(target_os = "linux")]
pub use reader::RingReader;

/// Reads that a ring has under way at once unless it is told otherwise: the depth at which a disk
/// in measurements gave the most.
pub const DEPTH: u32 = 256;
/// The most reads that a ring can have under way.
pub const DEPTH_MAX: u32 = 4096;

/// What the kernel's `io_uring` can do and this crate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0).
    pub single_issuer: bool,
    /// `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1).
    pub defer_taskrun: bool,
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19).
    pub coop_taskrun: bool,
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.single_issuer, "SINGLE_ISSUER"),
            (self.defer_taskrun, "DEFER_TASKRUN"),
            (self.coop_taskrun, "COOP_TASKRUN"),
        ];
        let on: Vec<&str> = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        if on.is_empty() {
            f.write_str("with no optional flags")
        } else {
            write!(f, "with {}", on.join(" and "))
        }
    }
}

/// Why there is no ring, and what to change.
#[derive(Debug)]
pub struct SetupError {
    /// What was tried.
    step: &'static str,
    source: io::Error,
}

impl SetupError {
    fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { step, source }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.source)?;
        let advice = match self.source.kind() {
            io::ErrorKind::Unsupported => {
                "the kernel is older than Linux 5.6, or a seccomp profile hides io_uring, as Docker's default does"
            }
            io::ErrorKind::PermissionDenied => {
                "a seccomp profile forbids io_uring, as Docker's default does (allow io_uring_setup, \
                 io_uring_enter and io_uring_register), or the sysctl kernel.io_uring_disabled is not 0"
            }
            io::ErrorKind::OutOfMemory => {
                "raise the limit of locked memory (ulimit -l), to which Linux before 5.12 counts rings"
            }
            _ if self.source.raw_os_error() == Some(EMFILE) => {
                "raise the limit of open files (ulimit -n)"
            }
            _ => return Ok(()),
        };
        write!(f, "; {advice}")
    }
}

/// Too many open files, on every system that has `io_uring`.
const EMFILE: i32 = 24;

impl std::error::Error for SetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Whether `io_uring` works in this process, by making a ring and using it.
///
/// # Errors
/// [`SetupError`] says which step failed and what to change.
pub fn probe() -> Result<Features, SetupError> {
    Ok(RingReader::new(DEPTH)?.features())
}

/// A reader that cannot be made on this system.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum RingReader {}

#[cfg(not(target_os = "linux"))]
impl RingReader {
    /// Always fails.
    ///
    /// # Errors
    /// That this is not Linux.
    pub fn new(_depth: u32) -> Result<Self, SetupError> {
        Err(SetupError::at("io_uring")(io::Error::other("this system is not Linux")))
    }

    /// What the ring uses.
    pub fn features(&self) -> Features {
        match *self {}
    }

    /// Makes sure that the next batch has a ring.
    ///
    /// # Errors
    /// None: there is no such reader.
    pub fn make_ready(&mut self) -> Result<(), SetupError> {
        match *self {}
    }
}

#[cfg(not(target_os = "linux"))]
impl ringloader_fallback::BatchReader for RingReader {
    fn read(
        &mut self,
        _ops: &mut [ringloader_fallback::ReadOp<'_>],
        _done: &mut ringloader_fallback::Done<'_>,
    ) -> Result<(), ringloader_fallback::ReadError> {
        match *self {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_and_what_to_change() {
        for (code, advice) in [
            (libc::ENOSYS, "older than Linux 5.6"),
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::EACCES, "seccomp"),
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "ulimit -n"),
        ] {
            let error = SetupError::at("io_uring_setup")(io::Error::from_raw_os_error(code));
            let message = error.to_string();
            assert!(message.starts_with("io_uring_setup: "), "{message}");
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn a_probe_says_which_flags_are_on() {
        let features = probe().expect("io_uring works here");
        let message = features.to_string();
        assert_eq!(message.contains("DEFER_TASKRUN"), features.defer_taskrun, "{message}");
    }
}
