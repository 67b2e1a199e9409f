//! Workers: threads, one for each core, that help whoever has a large batch.
//!
//! A batch is cut into shards. The caller works on them from one end, and idle workers that
//! were woken for it steal from the other until none is left. Every thread has a [`Context`] of
//! its own, so shards share nothing but what they borrow. A batch of one shard never leaves the
//! calling thread.

mod context;
mod cores;
mod scope;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

use core_affinity::CoreId;
use crossbeam_deque::{Injector, Steal, Stealer, Worker as Deque};
use ringloader_fallback::mapping;
use ringloader_fallback::process::generation;

use crate::backend::Reader;
use crate::error::{Error, Result};
pub(crate) use context::Context;
pub(crate) use cores::Cores;

/// A part of a batch that one thread works on.
pub(crate) type Shard<'a> = Box<dyn FnOnce(&mut Context) + Send + 'a>;

/// How often a waiting thread looks again before it sleeps. Some microseconds: a loop that
/// gathers all the time finds its workers awake, and an idle process soon does nothing.
const LOOKS_BEFORE_SLEEP: u32 = 2000;

thread_local! {
    /// The context of a thread that is no worker: it works on its own batches.
    static CALLER: RefCell<Option<(u64, Context)>> = const { RefCell::new(None) };
}

/// Calls `work` with this thread's context. If it panics, the context is not used again.
pub(crate) fn with_context<R>(work: impl FnOnce(&mut Context) -> R) -> R {
    // A forked child must not touch a ring that it shares with its parent.
    let process = generation();
    let kept = CALLER.take().filter(|(owner, _)| *owner == process);
    let mut context = kept.map(|(_, context)| context).unwrap_or_default();
    let done = work(&mut context);
    CALLER.set(Some((process, context)));
    done
}

/// The workers of a process.
#[derive(Debug)]
pub(crate) struct Executor {
    shared: Arc<Shared>,
    pin: bool,
    /// How many workers run; they are started by the first batch that asks for help.
    started: OnceLock<usize>,
}

#[derive(Debug)]
struct Shared {
    /// Batches that want help, once for each worker that was woken for them.
    calls: Injector<Arc<Batch>>,
    workers: Box<[Worker]>,
    /// What workers read through.
    reader: Reader,
    cores: Cores,
}

#[derive(Debug)]
struct Worker {
    core: Option<usize>,
    /// Whether the thread sleeps or is about to. Whoever sets it to false wakes the thread.
    idle: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Executor {
    /// Workers for this process: `workers` of them, or one for each core that it may use.
    pub(crate) fn new(workers: Option<usize>, pin: bool, reader: Reader) -> Self {
        let cores = Cores::of_this_process();
        let count = workers.unwrap_or(cores.busy_max);
        let worker = |i: usize| Worker {
            core: cores.ids.get(i % cores.ids.len().max(1)).copied().filter(|_| pin),
            idle: AtomicBool::new(false),
            thread: OnceLock::new(),
        };
        let workers = (0..count).map(worker).collect();
        let pin = pin && !cores.ids.is_empty() && count > 0;
        let shared = Shared { calls: Injector::new(), workers, reader, cores };
        Self { shared: Arc::new(shared), pin, started: OnceLock::new() }
    }

    pub(crate) fn workers(&self) -> usize {
        self.shared.workers.len()
    }

    pub(crate) fn pinned(&self) -> bool {
        self.pin
    }

    pub(crate) fn cores(&self) -> &Cores {
        &self.shared.cores
    }

    /// Threads that can work on one batch: the caller, and workers for the other cores.
    pub(crate) fn threads_per_batch(&self) -> usize {
        self.workers().max(1)
    }

    /// Runs all shards, here and on workers, and returns when the last is done.
    ///
    /// # Errors
    /// [`Error::Internal`] if a shard panicked. The others have run all the same.
    pub(crate) fn run(&self, context: &mut Context, shards: Vec<Shard<'_>>) -> Result<()> {
        let helpers = (shards.len().saturating_sub(1)).min(self.threads_per_batch() - 1);
        // The caller pops what was pushed last, so the first shards, and workers steal from the
        // other end: memory that batches share stays in the caches of the same core.
        let deque = Deque::new_lifo();
        let batch = Arc::new(Batch {
            shards: deque.stealer(),
            unfinished: AtomicUsize::new(shards.len()),
            caller: thread::current(),
            panic: Mutex::new(None),
        });
        // The shards borrow from the caller. `finish` below returns only when each of them was
        // run to its end, which `unfinished` counts, so none outlives what it borrows.
        for shard in scope::lend(shards).into_iter().rev() {
            deque.push(shard);
        }
        if helpers > 0 {
            self.call(&batch, helpers);
        }
        while let Some(shard) = deque.pop() {
            batch.run(shard, context);
        }
        batch.finish()
    }

    /// Wakes idle workers for `batch`, on other cores than this one: a worker here would only take
    /// turns with the caller.
    fn call(&self, batch: &Arc<Batch>, helpers: usize) {
        let helpers = helpers.min(*self.started.get_or_init(|| self.start()));
        let here = current_core();
        let workers = &self.shared.workers;
        // From the next core on: other processes that share the cores begin at theirs.
        let first = workers.iter().position(|worker| worker.core > here).unwrap_or(0);
        let elsewhere = workers[first..]
            .iter()
            .chain(&workers[..first])
            .filter(|worker| worker.core.is_none() || worker.core != here);
        for _ in 0..helpers {
            self.shared.calls.push(Arc::clone(batch));
        }
        // Workers that are awake find the calls by themselves.
        elsewhere.filter(|worker| worker.wake()).take(helpers).for_each(drop);
    }

    /// Starts the workers and says how many run.
    fn start(&self) -> usize {
        let start = |number: &usize| {
            let (number, shared) = (*number, Arc::clone(&self.shared));
            let thread = thread::Builder::new()
                .name(format!("ringloader-{number}"))
                .spawn(move || shared.work(number))
                // Callers work on their own batches, so fewer workers are only slower.
                .inspect_err(|error| log::warn!("cannot start worker {number}: {error}"));
            thread.is_ok_and(|handle| {
                self.shared.workers[number].thread.set(handle.thread().clone()).is_ok()
            })
        };
        (0..self.workers()).filter(start).count()
    }
}

impl Worker {
    fn wake(&self) -> bool {
        let was_idle = self.idle.swap(false, Ordering::SeqCst);
        if was_idle && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        was_idle
    }
}

impl Shared {
    /// What a worker thread does for as long as the process lives.
    fn work(&self, number: usize) {
        let me = &self.workers[number];
        mapping::unblock_faults_here();
        match me.core {
            Some(core) => drop(core_affinity::set_for_current(CoreId { id: core })),
            None => cores::bind_to_all(&self.cores.ids),
        }
        let mut context = Context::default();
        // Made now, so that a process that has warmed up needs no more descriptors. A batch that
        // needs what cannot be had is told so.
        let _ = context.reader(self.reader);
        loop {
            let batch = self.next_batch(me);
            while let Some(shard) = batch.steal() {
                batch.run(shard, &mut context);
            }
        }
    }

    fn next_batch(&self, me: &Worker) -> Arc<Batch> {
        loop {
            for _ in 0..LOOKS_BEFORE_SLEEP {
                if let Some(batch) = steal(|| self.calls.steal()) {
                    return batch;
                }
                std::hint::spin_loop();
            }
            me.idle.store(true, Ordering::SeqCst);
            // A call made just before `idle` was set has woken nobody.
            if let Some(batch) = steal(|| self.calls.steal()) {
                me.idle.store(false, Ordering::Release);
                return batch;
            }
            while me.idle.load(Ordering::Acquire) {
                thread::park();
            }
        }
    }
}

fn steal<T>(attempt: impl Fn() -> Steal<T>) -> Option<T> {
    loop {
        match attempt() {
            Steal::Success(stolen) => return Some(stolen),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}

/// Shards that are being run.
#[derive(Debug)]
struct Batch {
    shards: Stealer<Shard<'static>>,
    unfinished: AtomicUsize,
    caller: Thread,
    panic: Mutex<Option<String>>,
}

impl Batch {
    fn steal(&self) -> Option<Shard<'static>> {
        steal(|| self.shards.steal())
    }

    fn run(&self, shard: Shard<'static>, context: &mut Context) {
        // Counted whatever happens, since the caller waits for it.
        let _finished = Finished(self);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shard(context))) {
            // What the shard left in its context cannot be trusted.
            *context = Context::default();
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(message(&*panic));
        }
    }

    /// Waits until every shard was run.
    fn finish(&self) -> Result<()> {
        let mut looks = 0;
        while self.unfinished.load(Ordering::Acquire) > 0 {
            if looks < LOOKS_BEFORE_SLEEP {
                looks += 1;
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
        match self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(message) => Err(Error::Internal(message)),
            None => Ok(()),
        }
    }
}

/// Counts a shard of the batch as run when dropped.
struct Finished<'a>(&'a Batch);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        if self.0.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.caller.unpark();
        }
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// The core that runs this thread, where the system tells.
fn current_core() -> Option<usize> {
    #[cfg(target_os = "linux")]
    let core = Some(rustix::thread::sched_getcpu());
    #[cfg(not(target_os = "linux"))]
    let core = None;
    core
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(workers: usize, pin: bool, reader: Reader) -> Executor {
        Executor::new(Some(workers), pin, reader)
    }

    #[test]
    fn every_shard_runs_once_and_may_borrow() {
        let executor = executor(3, false, Reader::Pread);
        for round in 0..200 {
            let counts: Vec<AtomicUsize> = (0..round % 17).map(|_| AtomicUsize::new(0)).collect();
            let shards: Vec<Shard<'_>> = counts
                .iter()
                .map(|count| -> Shard<'_> {
                    Box::new(move |_| {
                        count.fetch_add(1, Ordering::Relaxed);
                    })
                })
                .collect();
            with_context(|context| executor.run(context, shards)).unwrap();
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_in_a_shard_is_an_error_and_the_executor_lives() {
        let executor = executor(2, false, Reader::Pread);
        let ran = AtomicUsize::new(0);
        for _ in 0..20 {
            ran.store(0, Ordering::Relaxed);
            let shards: Vec<Shard<'_>> = (0..8)
                .map(|i| -> Shard<'_> {
                    let ran = &ran;
                    Box::new(move |_| {
                        ran.fetch_add(1, Ordering::Relaxed);
                        assert_ne!(i, 5, "shard five is bad");
                    })
                })
                .collect();
            let error = with_context(|context| executor.run(context, shards)).unwrap_err();
            assert!(error.to_string().contains("shard five is bad"));
            assert_eq!(ran.load(Ordering::Relaxed), 8);
        }
    }

    #[test]
    fn many_callers_share_the_workers() {
        let executor = executor(2, true, Reader::Uring { required: false, depth: 8 });
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let sum = AtomicUsize::new(0);
                        let shards: Vec<Shard<'_>> = (1..=10)
                            .map(|i| -> Shard<'_> {
                                let sum = &sum;
                                Box::new(move |_| {
                                    sum.fetch_add(i, Ordering::Relaxed);
                                })
                            })
                            .collect();
                        with_context(|context| executor.run(context, shards)).unwrap();
                        assert_eq!(sum.load(Ordering::Relaxed), 55);
                    }
                });
            }
        });
    }
}
