//! What happens when the bytes behind a file mapping cannot be had: the file was cut by someone
//! else, or its disk fails. The system then sends SIGBUS, which would end the process. The
//! handler here puts a page of zeros where the fault was and marks the region as damaged, so that
//! the copy runs on and whoever made it learns that it is worth nothing. (The Wayland library
//! guards its shared memory in the same way.)
//!
//! Faults elsewhere go to the handler that was there before.
//!
//! This is one of the rooms in which `unsafe` is allowed: a signal handler, which touches
//! nothing but atomics and memory of the regions it guards.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

use crate::process::PerProcess;

/// Regions that are guarded at once. Each may be gigabytes large.
const REGIONS_MAX: usize = 1024;

static REGIONS: [Region; REGIONS_MAX] = [const { Region::free() }; REGIONS_MAX];
/// The handler that ours has replaced.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A range of addresses that is a mapped file. The handler reads it while others may change it, so
/// it is a seqlock (Boehm, "Can seqlocks get along with programming language memory models?", 2012).
#[derive(Debug)]
struct Region {
    taken: AtomicBool,
    /// Odd while the region guards something; each change is another number.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    damaged: AtomicBool,
}

impl Region {
    const fn free() -> Self {
        Self {
            taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
        }
    }

    /// Guards `len` bytes from `start` on, unless the region is taken.
    fn take(&self, start: usize, len: usize) -> bool {
        let is_mine = !self.taken.swap(true, Ordering::AcqRel);
        if is_mine {
            // Whoever sees what is stored from here on sees also that the last owner let go.
            fence(Ordering::Release);
            self.damaged.store(false, Ordering::Relaxed);
            self.start.store(start, Ordering::Relaxed);
            self.len.store(len, Ordering::Relaxed);
            self.version.fetch_add(1, Ordering::Release);
        }
        is_mine
    }

    fn release(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
        self.taken.store(false, Ordering::Release);
    }

    /// Whether it guards `address`. A region that changes meanwhile does not: a fault is in memory
    /// whose guard lives until the copy that faulted is done.
    fn contains(&self, address: usize) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = self.version.load(Ordering::Relaxed) == version;
        version % 2 == 1 && is_whole && address.wrapping_sub(start) < len
    }
}

/// Keeps faults in a range of addresses from ending the process. The range must be given up
/// before it is unmapped.
#[derive(Debug)]
pub(crate) struct Guard(&'static Region);

impl Guard {
    /// Guards `len` bytes from `start` on, which are a mapping of the caller.
    pub(crate) fn new(start: *const u8, len: usize) -> io::Result<Self> {
        install()?;
        let region = REGIONS.iter().find(|region| region.take(start.addr(), len));
        region.map(Self).ok_or_else(|| io::Error::other("too many mapped files"))
    }

    /// Whether all that was read from the region so far were bytes of the file. Once it is not,
    /// it stays so.
    pub(crate) fn is_intact(&self) -> bool {
        // The mark is set before the zeros are there to be read, so whoever has read them sees it.
        fence(Ordering::SeqCst);
        !self.0.damaged.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Whether faults of this thread reach the handler: somebody may have replaced it, or blocked its
/// signal, and a fault whose signal is blocked ends the process.
pub(crate) fn catches_faults_here() -> bool {
    current().is_ok_and(|action| is_ours(&action)) && !is_blocked_here()
}

/// Lets faults of this thread reach the handler, whatever mask it has inherited.
pub(crate) fn unblock_here() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call makes the set that the others use; only this thread's mask changes.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}

fn is_blocked_here() -> bool {
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: without a set the call only writes this thread's mask to `blocked`.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr()) } {
        // SAFETY: the call has filled the set, and SIGBUS is a signal.
        0 => unsafe { libc::sigismember(blocked.as_ptr(), libc::SIGBUS) != 0 },
        _ => true,
    }
}

/// Puts the handler in place, once for each process: a child may have one of its own by now.
fn install() -> io::Result<()> {
    static INSTALLED: PerProcess<Result<(), String>> = PerProcess::new();
    let install_now = || install_anew().map_err(|error| error.to_string());
    INSTALLED.get_or_init(install_now).clone().map_err(io::Error::other)
}

fn install_anew() -> io::Result<()> {
    let previous = current()?;
    if is_ours(&previous) {
        return Ok(());
    }
    let is_handler = !matches!(previous.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if is_handler && !PREVIOUS.load(Ordering::Acquire).is_null() {
        // An ancestor had ours in place, so this one may call it, and ours must not call it back.
        return Err(io::Error::other("the handler of SIGBUS was replaced before a fork"));
    }
    // SAFETY: the call has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(page_bytes as usize, Ordering::Release);
    // Kept for the rest of the process: the handler may be running when it is replaced.
    PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
    // SAFETY: a `sigaction` of zeros is a valid value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler_address();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler keeps the rules of signal handlers, and is never unloaded.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn current() -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: it only writes the action that is in place to `action`.
    match unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), action.as_mut_ptr()) } {
        // SAFETY: the call has filled it.
        0 => Ok(unsafe { action.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn handler_address() -> libc::sighandler_t {
    on_fault as *const () as libc::sighandler_t
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler_address()
}

/// The signal handler.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the system passes a valid `info`; for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: as above.
    let is_fault = unsafe { (*info).si_code } > 0;
    let region = REGIONS.iter().find(|region| is_fault && region.contains(address));
    let is_mended = region.is_some_and(|region| {
        region.damaged.store(true, Ordering::SeqCst);
        put_zeros_at(address)
    });
    if !is_mended {
        // SAFETY: the arguments are those that this handler was called with.
        unsafe { pass_on(signal, info, context) };
    }
}

/// Puts a page of zeros at `address`, which lies in a guarded region.
fn put_zeros_at(address: usize) -> bool {
    let page_bytes = PAGE_BYTES.load(Ordering::Acquire);
    let page = ptr::without_provenance_mut(address - address % page_bytes);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // Whoever was interrupted may be about to look at its own errno.
    let kept = io::Error::last_os_error().raw_os_error();
    // SAFETY: the page belongs to a mapping that its owner unmaps only after its guard is gone,
    // and it holds nothing: that it could not be read is why we are here.
    let mapped = unsafe { libc::mmap(page, page_bytes, libc::PROT_READ, flags, -1, 0) };
    set_errno(kept.unwrap_or_default());
    mapped != libc::MAP_FAILED
}

#[cfg(target_os = "linux")]
fn set_errno(value: i32) {
    // SAFETY: the C library gives the address of this thread's errno.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(target_vendor = "apple")]
fn set_errno(value: i32) {
    // SAFETY: the C library gives the address of this thread's errno.
    unsafe { *libc::__error() = value };
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn set_errno(_value: i32) {}

/// Does with a SIGBUS that is not ours what would have happened without us.
///
/// # Safety
/// The arguments are those of a signal handler.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the pointer comes from a box that is never freed.
    let previous = unsafe { PREVIOUS.load(Ordering::Acquire).as_ref() };
    let address = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    // SAFETY: `info` is valid.
    if address == libc::SIG_IGN && unsafe { (*info).si_code } <= 0 {
        return;
    }
    if address == libc::SIG_DFL || address == libc::SIG_IGN {
        // Sent again once this handler has returned, and this time it ends the process.
        // SAFETY: both functions may be called in a signal handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    let wants_info = previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0);
    if wants_info {
        type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the system had this address as a handler with this signature.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(address) };
        handler(signal, info, context);
    } else {
        // SAFETY: as above, without SA_SIGINFO.
        let handler =
            unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(i32)>(address) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_region_that_changes_is_never_seen_half_changed() {
        const SMALL: (usize, usize) = (0x1000, 0x10);
        const LARGE: (usize, usize) = (0x10_0000, 0x10_0000);
        let region = Region::free();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    for (start, len) in [SMALL, LARGE] {
                        assert!(region.take(start, len));
                        region.release();
                    }
                }
                is_done.store(true, Ordering::Release);
            });
            while !is_done.load(Ordering::Acquire) {
                // In neither, but in the start of one with the length of the other.
                assert!(!region.contains(SMALL.0 + LARGE.1 - 1));
            }
        });
        assert!(region.take(SMALL.0, SMALL.1) && region.contains(SMALL.0));
        assert!(!region.take(LARGE.0, LARGE.1), "it is taken");
        region.release();
        assert!(!region.contains(SMALL.0));
    }

    #[test]
    fn a_thread_that_blocks_the_signal_catches_nothing() {
        install().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(catches_faults_here());
                let mut set = MaybeUninit::uninit();
                // SAFETY: the first call makes the set that the others use; only this thread's
                // mask is changed.
                unsafe {
                    libc::sigemptyset(set.as_mut_ptr());
                    libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
                }
                assert!(!catches_faults_here());
                unblock_here();
                assert!(catches_faults_here());
            });
        });
        assert!(catches_faults_here());
    }
}
