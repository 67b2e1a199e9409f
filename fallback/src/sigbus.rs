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

/// A range of addresses that is a mapped file.
#[derive(Debug)]
struct Region {
    taken: AtomicBool,
    start: AtomicUsize,
    /// 0 while the region guards nothing.
    len: AtomicUsize,
    damaged: AtomicBool,
}

impl Region {
    const fn free() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
        }
    }

    fn contains(&self, address: usize) -> bool {
        // The length is set last and cleared first.
        let len = self.len.load(Ordering::Acquire);
        address.wrapping_sub(self.start.load(Ordering::Acquire)) < len
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
        let mut regions = REGIONS.iter();
        let free = regions.find(|region| !region.taken.swap(true, Ordering::AcqRel));
        let region = free.ok_or_else(|| io::Error::other("too many mapped files"))?;
        region.damaged.store(false, Ordering::Relaxed);
        region.start.store(start.addr(), Ordering::Release);
        region.len.store(len, Ordering::Release);
        Ok(Self(region))
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
        self.0.len.store(0, Ordering::Release);
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Whether faults reach the handler: somebody may have replaced it.
pub(crate) fn is_installed() -> bool {
    current().is_ok_and(|action| is_ours(&action))
}

/// Puts the handler in place, once for each process: a child may have one of its own by now.
fn install() -> io::Result<()> {
    static INSTALLED: PerProcess<Result<(), i32>> = PerProcess::new();
    let install_now = || install_anew().map_err(|error| error.raw_os_error().unwrap_or_default());
    INSTALLED.get_or_init(install_now).map_err(io::Error::from_raw_os_error)
}

fn install_anew() -> io::Result<()> {
    let previous = current()?;
    if is_ours(&previous) {
        return Ok(());
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
