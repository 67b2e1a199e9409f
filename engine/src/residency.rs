//! Where a chunk's bytes are, as far as anybody knows: how much of the file the page cache
//! holds, and a mapping of it once nearly all of it was there.
//!
//! The page cache changes by itself, so what is known here is a hint for speed and nothing else:
//! a copy from a mapping whose pages were evicted meanwhile is slow, and one whose file was cut
//! is noticed ([`Mapping::is_intact`]).

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ringloader_fallback::{Mapping, PerProcess, page_cache};

use crate::backend::Mapped;
use crate::file::StoreFile;

/// What the page cache holds is asked again after this time.
const ANSWER_AGE: Duration = Duration::from_millis(100);
/// At most one part in so many of the time goes into asking, over all chunks of a store.
const ASKING_SHARE: u32 = 50;
/// A chunk of which more than one part in so many is not in memory is read as a cold one.
const COLD_SHARE: u64 = 20;
/// For so long after a copy has waited for a disk, a chunk of which pages are missing is read: a
/// ring waits for many at once.
const DOUBT: Duration = Duration::from_secs(1);
/// A mapping that was refused is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Mappings are made as large as the next power of two from here on, so that a chunk that is
/// being written to is not mapped anew for each batch.
const MAPPING_BYTES_MIN: u64 = 16 << 20;

/// Nanoseconds since the first call.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The time that a store's chunks may spend on asking.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    next: AtomicU64,
}

/// What is known of one chunk.
#[derive(Debug, Default)]
pub(crate) struct Residency {
    /// When the page cache is to be asked next.
    next: AtomicU64,
    /// What it said: a [`Heat`].
    heat: AtomicU8,
    mapping: RwLock<Option<Arc<Mapping>>>,
    /// Until when it is not copied from a mapping unless every page is in memory: a copy has
    /// waited for a disk.
    doubted: AtomicU64,
    /// Until when it is not mapped: that was refused, or a mapping of it was damaged.
    unmappable: AtomicU64,
}

/// How much of a chunk is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heat {
    /// Nobody has asked, or nobody says.
    Unknown,
    /// A part that matters is not.
    Cold,
    /// Nearly all of it.
    Warm,
    /// Every page.
    Resident,
}

impl Heat {
    const ALL: [Self; 4] = [Self::Unknown, Self::Cold, Self::Warm, Self::Resident];

    fn of(cached: u64, bytes: u64) -> Self {
        if cached >= bytes {
            Self::Resident
        } else if bytes - cached <= bytes / COLD_SHARE {
            Self::Warm
        } else {
            Self::Cold
        }
    }
}

impl Residency {
    /// How much of `file` is in memory, as it was when that was last asked.
    pub(crate) fn heat(&self, file: &StoreFile, budget: &Budget) -> Heat {
        let now = now();
        let next = self.next.load(Ordering::Relaxed);
        // Only one thread asks at a time, and the others go on with what was known.
        if now >= next
            && now >= budget.next.load(Ordering::Relaxed)
            && self
                .next
                .compare_exchange(next, u64::MAX, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.ask(file, budget);
        }
        Heat::ALL[self.heat.load(Ordering::Relaxed) as usize]
    }

    fn ask(&self, file: &StoreFile, budget: &Budget) {
        let begin = now();
        let answer = file.len().ok().and_then(|bytes| {
            let cached = page_cache::cached_bytes(file.file());
            cached.inspect_err(tell_once).map(|cached| Heat::of(cached, bytes)).ok()
        });
        self.heat.store(answer.unwrap_or(Heat::Unknown) as u8, Ordering::Relaxed);
        let end = now();
        let pause = (end - begin) * u64::from(ASKING_SHARE);
        budget.next.store(end + pause, Ordering::Relaxed);
        self.next.store(end + pause.max(ANSWER_AGE.as_nanos() as u64), Ordering::Relaxed);
    }

    /// A copy took so long that pages cannot have been there. Asks again at the next chance, and
    /// does not copy until all of them are, or some time has passed.
    pub(crate) fn doubt(&self) {
        self.next.store(0, Ordering::Relaxed);
        self.doubted.store(now() + DOUBT.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A mapping of `file` that reaches up to byte `end`, if its records are to be copied from
    /// one now.
    pub(crate) fn mapping(
        &self,
        file: &StoreFile,
        end: u64,
        mapped: Mapped,
        budget: &Budget,
    ) -> Option<Arc<Mapping>> {
        let wanted = match mapped {
            Mapped::Never => false,
            Mapped::Resident => match self.heat(file, budget) {
                Heat::Resident => true,
                // Pages that nobody has asked for yet may be missing for ever.
                Heat::Warm => now() >= self.doubted.load(Ordering::Relaxed),
                Heat::Cold | Heat::Unknown => false,
            },
            Mapped::Always => true,
        };
        if !wanted {
            return None;
        }
        let known = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = known.as_ref().filter(|mapping| mapping.len() >= end) {
            return Some(Arc::clone(mapping));
        }
        drop(known);
        (now() >= self.unmappable.load(Ordering::Relaxed)).then(|| self.map(file, end))?
    }

    fn map(&self, file: &StoreFile, end: u64) -> Option<Arc<Mapping>> {
        let bytes = file.len().ok()?.max(end).max(MAPPING_BYTES_MIN).next_power_of_two();
        match Mapping::new(file.file(), bytes) {
            Ok(mapping) => {
                let mapping = Arc::new(mapping);
                *self.mapping.write().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&mapping));
                Some(mapping)
            }
            Err(error) => {
                let until = now() + RETRY_AFTER.as_nanos() as u64;
                let was_mappable = self.unmappable.swap(until, Ordering::Relaxed) == 0;
                if was_mappable && error.kind() != ErrorKind::Unsupported {
                    let path = file.path().display();
                    log::warn!("{path} is read, not mapped: {error}");
                }
                None
            }
        }
    }

    /// Never maps the chunk again: what a mapping gave was not what the file has.
    pub(crate) fn give_up_mapping(&self) {
        self.unmappable.store(u64::MAX, Ordering::Relaxed);
        *self.mapping.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Says once for each process that a file system does not tell what is in memory.
fn tell_once(error: &io::Error) {
    static TOLD: PerProcess<()> = PerProcess::new();
    if error.kind() == ErrorKind::Unsupported {
        TOLD.get_or_init(|| {
            log::warn!(
                "a file system does not say what of a store is in memory, as overlayfs and ZFS do \
                 not: its records are read, not copied; a store on a volume of another file \
                 system, or one opened with io=\"mmap\", is faster once it is in memory"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_is_what_matters_of_the_part_in_memory() {
        assert_eq!(Heat::of(0, 0), Heat::Resident);
        assert_eq!(Heat::of(4096, 4095), Heat::Resident);
        assert_eq!(Heat::of(96 << 10, 100 << 10), Heat::Warm);
        assert_eq!(Heat::of(90 << 10, 100 << 10), Heat::Cold);
        assert_eq!(Heat::of(0, 4096), Heat::Cold);
        for heat in Heat::ALL {
            assert_eq!(Heat::ALL[heat as usize], heat);
        }
    }
}
