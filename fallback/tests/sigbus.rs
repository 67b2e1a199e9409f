//! SIGBUS that is none of ours: what the process had decided about it still happens. Each case
//! runs in a child process, since most of them end it.
#![cfg(unix)]
#![allow(unsafe_code)]

use std::env;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use ringloader_fallback::SpanMut;
use ringloader_fallback::mapping::{Mapping, faults_are_caught_here};

const CASE: &str = "RINGLOADER_TEST_SIGBUS";

/// Runs this test again in a child, which does `case`.
fn run(case: &str) -> ExitStatus {
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", "what_the_process_decided_about_other_signals_stands", "--nocapture"])
        .env(CASE, case);
    child.output().unwrap().status
}

extern "C" fn exit_with_seven(_signal: i32) {
    // SAFETY: it may be called in a signal handler.
    unsafe { libc::_exit(7) }
}

fn handle(handler: libc::sighandler_t) {
    // SAFETY: the handler may be called for signals.
    unsafe { libc::signal(libc::SIGBUS, handler) };
}

fn cut_file(directory: &tempfile::TempDir) -> File {
    let path = directory.path().join("data");
    std::fs::write(&path, [1; 8192]).unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

/// Faults in a mapping of ours, which must be survived.
fn fault_in_ours() {
    let directory = tempfile::tempdir().unwrap();
    let file = cut_file(&directory);
    let mapping = Mapping::new(&file, 8192).unwrap();
    file.set_len(0).unwrap();
    assert!(faults_are_caught_here());
    let mut memory = [0; 8192];
    mapping.copy_to(0, &mut SpanMut::from(&mut memory[..]));
    assert!(!mapping.is_intact());
}

/// Faults in a mapping that is not ours.
fn fault_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let file = cut_file(&directory);
    // SAFETY: the file is cut below, which is the point.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    file.set_len(0).unwrap();
    // SAFETY: the address is mapped.
    unsafe { std::ptr::read_volatile(map.as_ptr()) };
}

/// The status of a forked child in which `holds` was true: 0.
fn in_fork(holds: impl FnOnce() -> bool) -> i32 {
    let mut status = 0;
    // SAFETY: the child leaves without running anything of its parent's; the C library's
    // allocator can be used in it.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!holds())),
            child => assert_eq!(libc::waitpid(child, &raw mut status, 0), child),
        }
    }
    status
}

fn child(case: &str) {
    match case {
        "default" => {
            handle(libc::SIG_DFL);
            fault_in_ours();
            fault_elsewhere();
        }
        "sent" => {
            handle(libc::SIG_DFL);
            fault_in_ours();
            // SAFETY: it only sends a signal.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        "ignored" => {
            handle(libc::SIG_IGN);
            fault_in_ours();
            // SAFETY: it only sends a signal.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        "handled" => {
            handle(exit_with_seven as *const () as libc::sighandler_t);
            fault_in_ours();
            fault_elsewhere();
        }
        "replaced" => {
            fault_in_ours();
            handle(exit_with_seven as *const () as libc::sighandler_t);
            assert!(!faults_are_caught_here(), "the caller must not copy from mappings now");
        }
        "replaced before a fork" => {
            fault_in_ours();
            handle(exit_with_seven as *const () as libc::sighandler_t);
            assert_eq!(
                in_fork(|| Mapping::new(&File::open("/proc/self/exe").unwrap(), 1).is_err()),
                0
            );
        }
        _ => unreachable!("{case}"),
    }
}

#[test]
fn what_the_process_decided_about_other_signals_stands() {
    if let Ok(case) = env::var(CASE) {
        return child(&case);
    }
    assert_eq!(run("default").signal(), Some(libc::SIGBUS));
    assert_eq!(run("sent").signal(), Some(libc::SIGBUS));
    assert_eq!(run("ignored").code(), Some(0));
    assert_eq!(run("handled").code(), Some(7));
    assert_eq!(run("replaced").code(), Some(0));
    assert_eq!(run("replaced before a fork").code(), Some(0));
}
