//! Forks: which process of a line of forks this is, and values of which each process has one. The
//! pool of I/O threads and the engine are such values. A forked child must not use its parent's
//! threads, nor wait for a lock that one of them held, so it makes its own and never looks into
//! its parent's.
//!
//! This is one of the rooms in which `unsafe` is allowed: a list that is searched and extended
//! without a lock, because a lock that another thread held during the fork stays held for ever,
//! and a function that the C library calls in a forked child.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// How many forks lie between this process and the first of its line that asked.
///
/// Unlike the number that the system gives a process, it is never that of an ancestor, whatever
/// the process namespaces, and it costs no system call.
pub fn generation() -> u64 {
    static FORKS_ARE_COUNTED: OnceLock<()> = OnceLock::new();
    FORKS_ARE_COUNTED.get_or_init(count_forks);
    GENERATION.load(Ordering::Relaxed)
}

static GENERATION: AtomicU64 = AtomicU64::new(0);

#[cfg(unix)]
fn count_forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the function lives as long as the process, and in the child, where only functions
    // that are safe in a signal handler may be called, it only adds to a number.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    assert_eq!(refused, 0, "no memory to count forks");
}

#[cfg(not(unix))]
fn count_forks() {}

/// One value for each process, made on first use.
pub struct PerProcess<T> {
    /// The node of the process that asked last; each leads to that of an ancestor.
    newest: AtomicPtr<Node<T>>,
    /// Shared and sent between threads only where `T` may be.
    values: PhantomData<OnceLock<T>>,
}

struct Node<T> {
    process: u64,
    /// Only threads of `process` touch it, so whoever waits for it waits for a living thread.
    value: OnceLock<T>,
    older: *mut Node<T>,
}

impl<T> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()), values: PhantomData }
    }

    /// This process's value, if it was made.
    pub fn get(&self) -> Option<&T> {
        self.find(generation())?.value.get()
    }

    /// This process's value, made by `make` if it is the first to ask.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.node(generation()).value.get_or_init(make)
    }

    /// The node of `process`, added if there is none.
    fn node(&self, process: u64) -> &Node<T> {
        loop {
            // Before the search: what another thread adds during it makes `add` do nothing.
            let older = self.newest.load(Ordering::Acquire);
            if let Some(node) = self.find(process) {
                return node;
            }
            self.add(Node { process, value: OnceLock::new(), older });
        }
    }

    /// Adds `node`, unless another thread has added one since its `older` was looked up.
    fn add(&self, node: Node<T>) {
        let older = node.older;
        let added = Box::into_raw(Box::new(node));
        if self.newest.compare_exchange(older, added, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            // SAFETY: the pointer comes from `Box::into_raw` above and was not shared.
            drop(unsafe { Box::from_raw(added) });
        }
    }

    /// The node of `process`.
    fn find(&self, process: u64) -> Option<&Node<T>> {
        let mut next = self.newest.load(Ordering::Acquire);
        // SAFETY: every pointer in the list comes from `Box::into_raw` in `add`, and the acquiring
        // load sees what was written before it was shared. Nodes are not freed before `self` is
        // dropped, and only shared references to them are made.
        while let Some(node) = unsafe { next.as_ref() } {
            if node.process == process {
                return Some(node);
            }
            next = node.older;
        }
        None
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let mut next = *self.newest.get_mut();
        while !next.is_null() {
            // SAFETY: the pointer comes from `Box::into_raw` in `add`; `&mut self` says that no
            // reference to a node is left, and the list leads to each node once.
            next = unsafe { Box::from_raw(next) }.older;
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn a_value_is_made_once() {
        let value = PerProcess::new();
        assert_eq!(value.get(), None);
        assert_eq!(value.get_or_init(|| 1), &1);
        assert_eq!(value.get_or_init(|| 2), &1);
        assert_eq!(value.get(), Some(&1));
    }

    #[test]
    fn threads_that_race_get_the_same_value() {
        let (value, made) = (PerProcess::new(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| value.get_or_init(|| made.fetch_add(1, Ordering::Relaxed)));
            }
        });
        assert_eq!((value.get(), made.into_inner()), (Some(&0), 1));
    }

    #[test]
    fn each_process_has_its_own_value() {
        let value = PerProcess::new();
        value.node(1).value.get_or_init(|| "parent");
        value.node(2).value.get_or_init(|| "child");
        assert_eq!(value.node(1).value.get(), Some(&"parent"));
        assert_eq!(value.node(2).value.get(), Some(&"child"));
        assert_eq!(value.get(), None);
    }
}
