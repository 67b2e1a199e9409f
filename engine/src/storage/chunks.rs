//! The chunk files of a store, opened when they are first touched.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ringloader_fallback::Mapping;
use ringloader_fallback::page_cache::{self, Pattern};

use crate::backend::Mapped;
use crate::error::Result;
use crate::file::{Fs, StoreFile, numbered_files};
use crate::format::{Frontier, names};
use crate::residency::{Budget, Heat, Residency};
use crate::table::missing;

/// One chunk.
#[derive(Debug)]
pub(crate) struct ChunkFile {
    pub(crate) file: StoreFile,
    /// The file's length when it was last asked for.
    bytes_seen: AtomicU64,
    residency: Residency,
    /// Whether the system was told that reads come in the order of the bytes.
    in_order: AtomicBool,
}

impl ChunkFile {
    /// Whether the file reaches up to byte `end`.
    pub(crate) fn reaches(&self, end: u64) -> Result<bool> {
        if end <= self.bytes_seen.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let bytes = self.file.len()?;
        self.bytes_seen.store(bytes, Ordering::Relaxed);
        Ok(end <= bytes)
    }

    /// How much of it is in memory, as far as `chunks` may ask.
    pub(crate) fn heat(&self, chunks: &Chunks) -> Heat {
        self.residency.heat(&self.file, &chunks.budget)
    }

    /// A mapping of it up to byte `end`, if records are to be copied from one now.
    pub(crate) fn mapping(
        &self,
        end: u64,
        mapped: Mapped,
        chunks: &Chunks,
    ) -> Option<Arc<Mapping>> {
        self.residency.mapping(&self.file, end, mapped, &chunks.budget)
    }

    /// Says whether the reads to come are in the order of the bytes, or at random places.
    pub(crate) fn read_in_order(&self, in_order: bool) {
        if self.in_order.load(Ordering::SeqCst) == in_order {
            return;
        }
        self.in_order.store(in_order, Ordering::SeqCst);
        // Another thread may say otherwise at the same time: whoever tells the system last looks
        // again, so what it was told last is what is remembered.
        let mut told = in_order;
        loop {
            page_cache::advise(self.file.file(), pattern(told));
            let wanted = self.in_order.load(Ordering::SeqCst);
            if wanted == told {
                break;
            }
            told = wanted;
        }
    }

    /// Has the page cache asked again.
    pub(crate) fn doubt(&self) {
        self.residency.doubt();
    }

    /// Never maps it again.
    pub(crate) fn give_up_mapping(&self) {
        self.residency.give_up_mapping();
    }
}

/// Every chunk of a store.
#[derive(Debug)]
pub(crate) struct Chunks {
    dir: PathBuf,
    fs: Fs,
    writable: bool,
    open: RwLock<HashMap<u32, Arc<ChunkFile>>>,
    budget: Budget,
    /// Whether chunks that are opened now are read in the order of their bytes.
    in_order: AtomicBool,
}

impl Chunks {
    pub(super) fn new(dir: &Path, fs: &Fs, writable: bool) -> Self {
        Self {
            dir: dir.to_owned(),
            fs: fs.clone(),
            writable,
            open: RwLock::default(),
            budget: Budget::default(),
            in_order: AtomicBool::new(false),
        }
    }

    fn path(&self, id: u32) -> PathBuf {
        self.dir.join(names::chunk(id))
    }

    /// The chunk `id`, which exists.
    pub(crate) fn get(&self, id: u32) -> Result<Arc<ChunkFile>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = open.get(&id) {
            return Ok(Arc::clone(chunk));
        }
        drop(open);
        let file = self.fs.open_file(&self.path(id), self.writable).map_err(missing)?;
        Ok(self.adopt(id, file))
    }

    /// The chunk `id`, made if a roll-over has just reached it. What an interrupted append has
    /// left there is cut off.
    pub(crate) fn roll_over_to(&self, id: u32) -> Result<Arc<ChunkFile>> {
        let path = self.path(id);
        let file = if path.symlink_metadata().is_ok() {
            let file = self.fs.open_file(&path, true)?;
            file.truncate(0)?;
            file
        } else {
            self.fs.create_file(&path)?
        };
        self.forget(id);
        Ok(self.adopt(id, file))
    }

    fn adopt(&self, id: u32, file: StoreFile) -> Arc<ChunkFile> {
        let in_order = self.in_order.load(Ordering::Relaxed);
        page_cache::advise(file.file(), pattern(in_order));
        let chunk = Arc::new(ChunkFile {
            file,
            bytes_seen: AtomicU64::new(0),
            residency: Residency::default(),
            in_order: AtomicBool::new(in_order),
        });
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(open.entry(id).or_insert(chunk))
    }

    /// Says whether the reads to come are in the order of the bytes, as those of a compaction.
    pub(super) fn read_in_order(&self, in_order: bool) {
        self.in_order.store(in_order, Ordering::Relaxed);
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().for_each(|chunk| chunk.read_in_order(in_order));
    }

    fn forget(&self, id: u32) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Opens every chunk file that there is.
    pub(super) fn open_all(&self) -> Result<()> {
        for id in numbered_files(&self.dir, ".chunk")? {
            if let Ok(id) = u32::try_from(id) {
                self.get(id)?;
            }
        }
        Ok(())
    }

    /// Closes every file that nobody is reading.
    pub(super) fn forget_all(&self) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes the chunks that were opened durable: what was written was opened.
    pub(super) fn sync(&self) -> Result<()> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().try_for_each(|chunk| chunk.file.sync())
    }

    /// Cuts the last chunk to `frontier` and removes every chunk past it, also those that an
    /// earlier compaction could not remove.
    pub(super) fn truncate(&self, frontier: &Frontier) -> Result<()> {
        let mut past = numbered_files(&self.dir, ".chunk")?;
        past.retain(|id| *id > u64::from(frontier.tail_chunk));
        past.sort_unstable();
        for id in past.into_iter().rev().filter_map(|id| u32::try_from(id).ok()) {
            self.forget(id);
            self.fs.remove_file(&self.path(id))?;
        }
        self.forget(frontier.tail_chunk);
        self.get(frontier.tail_chunk)?.file.truncate(u64::from(frontier.tail_offset))
    }
}

fn pattern(in_order: bool) -> Pattern {
    if in_order { Pattern::InOrder } else { Pattern::Random }
}
