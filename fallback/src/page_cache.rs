//! What the system's page cache holds of a file, and what it is told of the reads to come.
//! Advice is only that: where a system does not take it, nothing is lost but time.
//!
//! This is one of the rooms in which `unsafe` is allowed, for system calls that the standard
//! library does not have.
#![cfg_attr(unix, allow(unsafe_code))]

use std::fs::File;
use std::io;

/// Whether the system says what is in its page cache: Linux 6.5 and later.
pub fn can_be_asked() -> bool {
    #[cfg(target_os = "linux")]
    let asked = File::open("/proc/self/exe").and_then(|file| cached_bytes_of(&file, 0));
    #[cfg(not(target_os = "linux"))]
    let asked: io::Result<u64> = Err(io::ErrorKind::Unsupported.into());
    !asked.is_err_and(|error| error.kind() == io::ErrorKind::Unsupported)
}

/// Bytes of `file` that are in the page cache, in whole pages.
///
/// Asking takes some microseconds for each gigabyte that is in memory, and a read if nothing is.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] where the system does not say, or the file system keeps the
/// bytes elsewhere, as overlayfs and ZFS do; [`io::ErrorKind::PermissionDenied`] for who may
/// neither write nor own the file.
#[cfg(target_os = "linux")]
pub fn cached_bytes(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let cached = cached_bytes_of(file, 0)?;
    // What was just read is in memory, if the answer means anything.
    if cached == 0 && file.read_at(&mut [0], 0)? == 1 && cached_bytes_of(file, 1)? == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(cached)
}

/// Cached bytes of the first `len` bytes, in whole pages; 0 stands for the whole file.
#[cfg(target_os = "linux")]
fn cached_bytes_of(file: &File, len: u64) -> io::Result<u64> {
    use std::os::fd::AsRawFd;

    /// `cachestat(2)`, the same number on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;

    /// `struct cachestat_range`; a length of 0 reaches to the end of the file.
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }

    /// `struct cachestat`, all in pages.
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    let (range, mut counts) = (Range { offset: 0, len }, Counts::default());
    // SAFETY: the kernel reads `range` and fills `counts`, which are laid out as it says.
    let asked = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0u32)
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(counts.cached * page_bytes as u64)
}

/// Bytes of `file` that are in the page cache: nobody tells here.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub fn cached_bytes(_file: &File) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// How a file will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// At random places: what lies behind a read is not to be read with it.
    Random,
    /// From front to back: it is.
    InOrder,
}

/// Tells the system how `file` will be read through this descriptor.
pub fn advise(file: &File, pattern: Pattern) {
    #[cfg(target_os = "linux")]
    let advice = match pattern {
        Pattern::Random => libc::POSIX_FADV_RANDOM,
        Pattern::InOrder => libc::POSIX_FADV_SEQUENTIAL,
    };
    #[cfg(target_os = "linux")]
    fadvise(file, advice);
    #[cfg(not(target_os = "linux"))]
    let _ = (file, pattern);
}

#[cfg(target_os = "linux")]
fn fadvise(file: &File, advice: i32) {
    use std::os::fd::AsRawFd;
    // SAFETY: the call touches no memory of the process. What it says is of no consequence. A
    // length of 0 reaches to the end of the file.
    unsafe { libc::posix_fadvise64(file.as_raw_fd(), 0, 0, advice) };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::span::Span;
    use crate::sys;

    #[test]
    fn what_was_written_is_cached_and_what_was_dropped_is_not() {
        // A disk is needed: memory file systems cannot drop anything.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = directory.path().join("data");
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        sys::write_all_at(&file, Span::from(&vec![1; 1 << 20][..]), 0).unwrap();
        match cached_bytes(&file) {
            Ok(cached) => assert!(cached >= 1 << 20, "{cached}"),
            // Kernels before 6.5.
            Err(error) => return assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        file.sync_all().unwrap();
        fadvise(&file, libc::POSIX_FADV_DONTNEED);
        assert!(cached_bytes(&file).unwrap() < 1 << 20);
        // Asking about a file of which nothing is there leaves its first page there.
        assert!(cached_bytes_of(&file, 1).unwrap() > 0);
        advise(&file, Pattern::Random);
        let mut bytes = vec![0; 1 << 20];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert!(cached_bytes(&file).unwrap() >= 1 << 20);
    }
}
