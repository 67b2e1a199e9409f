//! The chunk files of a store, opened when they are first touched.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Result;
use crate::file::{Fs, StoreFile, numbered_files};
use crate::format::{Frontier, names};
use crate::table::missing;

/// One chunk.
#[derive(Debug)]
pub(crate) struct ChunkFile {
    pub(crate) file: StoreFile,
    /// The file's length when it was last asked for.
    bytes_seen: AtomicU64,
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
}

/// Every chunk of a store.
#[derive(Debug)]
pub(crate) struct Chunks {
    dir: PathBuf,
    fs: Fs,
    writable: bool,
    open: RwLock<HashMap<u32, Arc<ChunkFile>>>,
}

impl Chunks {
    pub(super) fn new(dir: &Path, fs: &Fs, writable: bool) -> Self {
        Self { dir: dir.to_owned(), fs: fs.clone(), writable, open: RwLock::default() }
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
        let chunk = Arc::new(ChunkFile { file, bytes_seen: AtomicU64::new(0) });
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(open.entry(id).or_insert(chunk))
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
