//! The positional read and write of the system, on spans, and how long to bear with a system
//! call that fails in passing. The backends and the engine's files call it; it never looks at
//! the bytes and keeps no state.
//!
//! This is one of the rooms in which `unsafe` is allowed: the memory of a span may be shared
//! with code outside Rust, so it goes to the kernel as a raw pointer and never becomes a slice.
#![cfg_attr(unix, allow(unsafe_code))]

use std::fs::File;
use std::io;
use std::thread;
use std::time::Duration;

use crate::span::{Span, SpanMut};

/// The most bytes of one call. Linux moves at most 2 GiB less a page, macOS fails past 2 GiB.
const CALL_BYTES_MAX: usize = 1 << 30;

/// How often in a row a call that makes no progress is repeated.
const RETRIES_MAX: u32 = 200;
/// The pause before each repetition. All of them make 0.2 s: a shortage of kernel memory that
/// lasts longer is for the caller to know.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Bears with failures that pass by themselves, up to a limit.
#[derive(Debug, Default)]
pub struct Patience {
    /// Failures since the last progress.
    failures: u32,
}

impl Patience {
    /// Begins to count anew, because there was progress.
    pub fn restore(&mut self) {
        self.failures = 0;
    }

    /// Whether `error` is of the kinds that pass by themselves: EAGAIN, EBUSY, EINTR.
    pub fn may_pass(error: &io::Error) -> bool {
        use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
        matches!(error.kind(), Interrupted | ResourceBusy | WouldBlock)
    }

    /// Pauses if `error` may pass: the caller then tries again. Gives the error back if it is of
    /// another kind, or has come too often.
    pub fn bear(&mut self, error: io::Error) -> io::Result<()> {
        if !Self::may_pass(&error) || self.failures == RETRIES_MAX {
            return Err(error);
        }
        self.failures += 1;
        thread::sleep(RETRY_PAUSE);
        Ok(())
    }
}

/// Reads some bytes from `offset` on into the front of `dst`, and says how many; 0 is the end.
#[cfg(unix)]
pub fn read_at(file: &File, dst: &mut SpanMut<'_>, offset: u64) -> io::Result<usize> {
    use std::os::fd::AsRawFd;
    let len = dst.len().min(CALL_BYTES_MAX);
    // SAFETY: `dst` is writable for `len` bytes, and the descriptor is open while `file` is
    // borrowed.
    let read = unsafe {
        libc::pread(file.as_raw_fd(), dst.as_mut_ptr().cast(), len, offset.cast_signed())
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Writes some bytes from the front of `src` at `offset`, and says how many.
#[cfg(unix)]
pub fn write_at(file: &File, src: Span<'_>, offset: u64) -> io::Result<usize> {
    use std::os::fd::AsRawFd;
    let len = src.len().min(CALL_BYTES_MAX);
    // SAFETY: `src` is readable for `len` bytes, and the descriptor is open while `file` is
    // borrowed.
    let written =
        unsafe { libc::pwrite(file.as_raw_fd(), src.as_ptr().cast(), len, offset.cast_signed()) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Bytes that are copied at a time where the standard library alone does the call.
#[cfg(windows)]
const BOUNCE_BYTES: usize = 256 << 10;

/// Reads some bytes from `offset` on into the front of `dst`, and says how many; 0 is the end.
#[cfg(windows)]
pub fn read_at(file: &File, dst: &mut SpanMut<'_>, offset: u64) -> io::Result<usize> {
    use std::os::windows::fs::FileExt;
    let mut bounce = vec![0; dst.len().min(BOUNCE_BYTES)];
    let read = file.seek_read(&mut bounce, offset)?;
    dst.slice_mut(0..read).copy_from(Span::from(&bounce[..read]));
    Ok(read)
}

/// Writes some bytes from the front of `src` at `offset`, and says how many.
#[cfg(windows)]
pub fn write_at(file: &File, src: Span<'_>, offset: u64) -> io::Result<usize> {
    use std::os::windows::fs::FileExt;
    let len = src.len().min(BOUNCE_BYTES);
    file.seek_write(&src.slice(0..len).to_vec(), offset)
}

/// Writes all of `src` at `offset`: interrupted calls are repeated and short ones resumed.
pub fn write_all_at(file: &File, mut src: Span<'_>, mut offset: u64) -> io::Result<()> {
    while !src.is_empty() {
        match write_at(file, src, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                src = src.slice(written..src.len());
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
