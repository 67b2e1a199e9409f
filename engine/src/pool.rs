//! Memory for batches, recycled: a dropped batch's memory serves the next one.
//!
//! Faulting in fresh pages costs more than filling them, so memory that was used stays mapped
//! for a while. The pool keeps at most [`IDLE_BYTES_MAX`] that nobody uses, and none of it for
//! longer than twice [`IDLE_TIME_MAX`]: a thread of its own sees to that, which sleeps while nothing
//! is idle. Large buffers are huge-page advised.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use ringloader_fallback::SpanMut;
use ringloader_fallback::process::generation;

use crate::error::{Error, Result};

/// Idle bytes that the pool keeps at most: some batches of large images.
pub const IDLE_BYTES_MAX: usize = 1 << 30;
/// How long memory may be idle before the pool gives it back to the system.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// Smaller buffers come from the allocator, which recycles them well, and which does not spend
/// one of the kernel's 65,530 mappings of a process on each.
const MAPPED_BYTES_MIN: usize = 64 << 10;
/// From here on a buffer is worth huge pages.
const HUGE_PAGE_BYTES_MIN: usize = 2 << 20;
/// Size classes to a power of two: at most an eighth of a buffer is waste.
const CLASSES_PER_DOUBLING: usize = 8;

/// Recycled memory, shared by all threads of a process.
#[derive(Debug)]
pub struct Pool {
    idle: Mutex<Idle>,
    idle_time_max: Duration,
    /// The process that lends from it. In a forked child the lock may be held for ever by a
    /// thread that is not there.
    process: u64,
    /// The thread that gives old memory back, once there was some.
    keeper: OnceLock<Option<Thread>>,
    /// Whether that thread waits for the next buffer, or for its time.
    keeper_waits: AtomicBool,
}

impl Default for Pool {
    fn default() -> Self {
        Self::with_idle_time(IDLE_TIME_MAX)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(Some(keeper)) = self.keeper.get() {
            keeper.unpark();
        }
    }
}

#[derive(Debug, Default)]
struct Idle {
    /// Idle buffers by size, the most recently used last.
    buffers: BTreeMap<usize, Vec<(Instant, MmapMut)>>,
    bytes: usize,
}

impl Pool {
    fn with_idle_time(idle_time_max: Duration) -> Self {
        Self {
            idle: Mutex::default(),
            idle_time_max,
            process: generation(),
            keeper: OnceLock::new(),
            keeper_waits: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes, whose contents are whatever was there before.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<Buffer> {
        let out_of_memory = || Error::OutOfMemory { what: "a batch", bytes: len as u64 };
        if len < MAPPED_BYTES_MIN {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(len).map_err(|_| out_of_memory())?;
            bytes.resize(len, 0);
            return Ok(Buffer { memory: Memory::Heap(bytes), len });
        }
        let class = size_class(len).ok_or_else(out_of_memory)?;
        let recycled = self.lock().take(class);
        let map = match recycled {
            Some(map) => map,
            None => map_anonymous(class).map_err(|_| out_of_memory())?,
        };
        let home = Arc::clone(self);
        Ok(Buffer { memory: Memory::Mapped { map: Some(map), home }, len })
    }

    /// Bytes that are kept for the next batch.
    pub fn idle_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Gives back to the system what nobody has used for too long.
    fn trim(&self) {
        let expired = self.lock().expire(self.idle_time_max);
        // Unmapping takes long, so it happens after the lock is released.
        drop(expired);
    }

    fn put(self: &Arc<Self>, map: MmapMut) {
        if self.process != generation() {
            return;
        }
        let dropped = {
            let mut idle = self.lock();
            let mut dropped = idle.expire(self.idle_time_max);
            if idle.bytes + map.len() <= IDLE_BYTES_MAX {
                idle.bytes += map.len();
                idle.buffers.entry(map.len()).or_default().push((Instant::now(), map));
            } else {
                dropped.push(map);
            }
            dropped
        };
        drop(dropped);
        let keeper = self.keeper.get_or_init(|| self.start_keeper());
        // Once in its time: a loop that gathers puts back a buffer with every batch.
        let is_asleep = self.keeper_waits.swap(false, Ordering::SeqCst);
        if let Some(keeper) = keeper.as_ref().filter(|_| is_asleep) {
            keeper.unpark();
        }
    }

    fn start_keeper(self: &Arc<Self>) -> Option<Thread> {
        let pool = Arc::downgrade(self);
        let keep = move || {
            while let Some(pool) = pool.upgrade() {
                pool.trim();
                pool.keeper_waits.store(true, Ordering::SeqCst);
                // A buffer that came back just before has woken nobody.
                let is_empty = pool.idle_bytes() == 0;
                if !is_empty {
                    pool.keeper_waits.store(false, Ordering::SeqCst);
                }
                let pause = pool.idle_time_max;
                // Whoever drops the pool must not wait for this thread.
                drop(pool);
                if is_empty {
                    thread::park();
                } else {
                    thread::park_timeout(pause);
                }
            }
        };
        let started = thread::Builder::new().name("ringloader-pool".into()).spawn(keep);
        // Without it memory goes back when the next batch is dropped.
        started.ok().map(|handle| handle.thread().clone())
    }
}

impl Idle {
    /// The warmest buffer of `class`, or of the next class: ragged batches vary a little.
    fn take(&mut self, class: usize) -> Option<MmapMut> {
        let fits = class..=class + class / 4;
        let (_, buffers) = self.buffers.range_mut(fits).find(|(_, buffers)| !buffers.is_empty())?;
        let (_, map) = buffers.pop()?;
        self.bytes -= map.len();
        Some(map)
    }

    fn expire(&mut self, age: Duration) -> Vec<MmapMut> {
        let now = Instant::now();
        let mut expired = Vec::new();
        for buffers in self.buffers.values_mut() {
            // The oldest come first, so what is expired is a prefix.
            let old = buffers.partition_point(|(since, _)| now.duration_since(*since) >= age);
            expired.extend(buffers.drain(..old).map(|(_, map)| map));
        }
        self.buffers.retain(|_, buffers| !buffers.is_empty());
        self.bytes -= expired.iter().map(|map| map.len()).sum::<usize>();
        expired
    }
}

/// `len` rounded up so that similar batches share their buffers; `None` if there is no such size.
fn size_class(len: usize) -> Option<usize> {
    let step = len.checked_next_power_of_two()? / (2 * CLASSES_PER_DOUBLING);
    len.checked_next_multiple_of(step)
}

fn map_anonymous(len: usize) -> std::io::Result<MmapMut> {
    let map = MmapMut::map_anon(len)?;
    #[cfg(target_os = "linux")]
    if len >= HUGE_PAGE_BYTES_MIN {
        // Kernels without transparent huge pages refuse; the pages are then small.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(map)
}

/// A batch's memory. Dropping it gives it back to its pool.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    /// `map` is `None` only while the buffer is being dropped.
    Mapped {
        map: Option<MmapMut>,
        home: Arc<Pool>,
    },
}

impl Buffer {
    /// The buffer's bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped { map, .. } => {
                &mut map.as_mut().expect("a buffer has memory until it is dropped")[..self.len]
            }
        }
    }

    /// The buffer as memory to fill.
    pub fn span_mut(&mut self) -> SpanMut<'_> {
        SpanMut::from(self.bytes_mut())
    }

    /// The first byte. It stays where it is for as long as the buffer lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes_mut().as_mut_ptr()
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Mapped { map, home } = &mut self.memory
            && let Some(map) = map.take()
        {
            home.put(map);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_dropped_buffer_serves_the_next_batch() {
        let pool = Arc::new(Pool::default());
        let mut first = pool.take(3 * MIB).unwrap();
        let address = first.as_mut_ptr();
        assert_ne!(pool.take(3 * MIB).unwrap().as_mut_ptr(), address, "a live buffer was lent");
        drop(first);
        assert_eq!(pool.take(3 * MIB).unwrap().as_mut_ptr(), address);
    }

    #[test]
    fn a_batch_of_similar_size_shares_the_buffer() {
        let pool = Arc::new(Pool::default());
        let address = pool.take(36 * MIB).unwrap().as_mut_ptr();
        let mut next = pool.take(35 * MIB + 17).unwrap();
        assert_eq!((next.as_mut_ptr(), next.len()), (address, 35 * MIB + 17));
    }

    #[test]
    fn idle_memory_is_bounded_and_given_back_in_time() {
        let pool = Arc::new(Pool::with_idle_time(Duration::from_millis(200)));
        let buffers: Vec<_> = (0..5).map(|_| pool.take(IDLE_BYTES_MAX / 4).unwrap()).collect();
        drop(buffers);
        assert_eq!(pool.idle_bytes(), IDLE_BYTES_MAX);
        let given_back = || {
            (0..1000).any(|_| {
                thread::sleep(Duration::from_millis(10));
                pool.idle_bytes() == 0
            })
        };
        assert!(given_back());
        // A buffer that was lent meanwhile is given back too.
        drop(pool.take(MIB));
        assert_eq!(pool.idle_bytes(), MIB);
        assert!(given_back());
    }

    #[test]
    fn size_classes_waste_at_most_an_eighth() {
        for len in [MAPPED_BYTES_MIN, 100_000, 1 << 20, (1 << 20) + 1, 37 * MIB, 38_535_168] {
            let class = size_class(len).unwrap();
            assert!(class >= len && class - len <= len / 8, "{len} gives {class}");
        }
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    fn an_impossible_batch_is_an_error() {
        let pool = Arc::new(Pool::default());
        assert_eq!(pool.take(usize::MAX / 2).unwrap_err().code(), Some(-1));
    }
}
