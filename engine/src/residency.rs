//! Where a chunk's bytes are, as far as anybody knows: how much of the file the page cache
//! holds, and a mapping of it once all of it was there.
//!
//! The page cache changes by itself, so what is known here is a hint for speed and nothing else:
//! a copy from a mapping whose pages were evicted meanwhile is slow, and one whose file was cut
//! is noticed ([`Mapping::is_intact`]).

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ringloader_fallback::{Mapping, page_cache};

use crate::backend::Mapped;
use crate::file::StoreFile;

/// What the page cache holds is asked again after this time.
const ANSWER_AGE: Duration = Duration::from_millis(100);
/// At most one part in so many of the time goes into asking, over all chunks of a store.
const ASKING_SHARE: u32 = 50;
/// A chunk of which more than one part in so many is not in memory is read as a cold one.
const COLD_SHARE: u64 = 20;
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
    /// Set when the chunk cannot be mapped, or a mapping of it was damaged.
    unmappable: AtomicBool,
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
            cached.map(|cached| Heat::of(cached, bytes)).map_err(|error| error.kind()).ok()
        });
        self.heat.store(answer.unwrap_or(Heat::Unknown) as u8, Ordering::Relaxed);
        let end = now();
        let pause = (end - begin) * u64::from(ASKING_SHARE);
        budget.next.store(end + pause, Ordering::Relaxed);
        self.next.store(end + pause.max(ANSWER_AGE.as_nanos() as u64), Ordering::Relaxed);
    }

    /// Asks again at the next chance: a copy took so long that pages cannot have been there.
    pub(crate) fn doubt(&self) {
        self.next.store(0, Ordering::Relaxed);
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
            Mapped::Resident => self.heat(file, budget) == Heat::Resident,
            Mapped::Always => true,
        };
        if !wanted || self.unmappable.load(Ordering::Relaxed) {
            return None;
        }
        let known = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = known.as_ref().filter(|mapping| mapping.len() >= end) {
            return Some(Arc::clone(mapping));
        }
        drop(known);
        self.map(file, end)
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
                if error.kind() != ErrorKind::Unsupported {
                    let path = file.path().display();
                    log::warn!("{path} is read, not mapped: {error}");
                }
                self.unmappable.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Never maps the chunk again: what a mapping gave was not what the file has.
    pub(crate) fn give_up_mapping(&self) {
        self.unmappable.store(true, Ordering::Relaxed);
        *self.mapping.write().unwrap_or_else(PoisonError::into_inner) = None;
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
