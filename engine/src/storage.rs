//! A store's files: the header and its lock, the chunks, the record table, and the frontier
//! behind which records are published. Records here are bytes; their meaning is for the floors
//! above (`dense`, `ragged`), and moving them is for `gather`, `append`, `delete` and `compact`.

mod chunks;
mod compact;
mod create;
mod delete;
mod open;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ringloader_fallback::process::generation;

use crate::backend::Backend;
use crate::codec::{Codec, Dictionary};
use crate::error::{Error, Result};
use crate::file::{Fs, StoreFile};
use crate::format::{Capacity, Frontier, HEADER_BYTES, Header};
use crate::readahead::Readahead;
use crate::table::Table;
pub(crate) use chunks::{ChunkFile, Chunks};
pub(crate) use create::Blueprint;

/// How a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// For reading, beside other readers (`"r"`).
    Read,
    /// For reading and writing, alone (`"r+"`).
    ReadWrite,
}

impl Mode {
    /// The mode's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::ReadWrite => "r+",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "r" => Ok(Self::Read),
            "r+" => Ok(Self::ReadWrite),
            _ => {
                Err(Error::InvalidArgument(format!("unknown mode {name:?}: expected 'r' or 'r+'")))
            }
        }
    }
}

/// What can be chosen when a store is opened or made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Reader or writer. A store that is made is open for writing.
    pub mode: Mode,
    /// The way its bytes are read; `None` is the engine's choice.
    pub io: Option<Backend>,
    /// Sizes at which files roll over; tests make them small.
    #[doc(hidden)]
    pub capacity: Capacity,
    /// The file system; tests watch it and fail it.
    #[doc(hidden)]
    pub fs: Fs,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::ReadWrite, io: None, capacity: Capacity::FORMAT, fs: Fs::default() }
    }
}

/// What a store's files hold, in records and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Live records.
    pub records: u64,
    /// Bytes that the live records occupy in the chunks.
    pub live_bytes: u64,
    /// Bytes to which the chunks have grown; each but the last counts as full.
    pub chunk_bytes: u64,
}

impl Stats {
    /// An upper bound of what a compaction frees: it counts the slack at the end of each chunk
    /// but the last, which a record that did not fit has left.
    pub fn reclaimable(&self) -> u64 {
        self.chunk_bytes.saturating_sub(self.live_bytes)
    }
}

/// An open store.
#[derive(Debug)]
pub(crate) struct Storage {
    path: PathBuf,
    fs: Fs,
    capacity: Capacity,
    codec: Codec,
    dictionary: Option<Arc<Dictionary>>,
    io: Option<Backend>,
    meta: StoreFile,
    pub(crate) chunks: Chunks,
    pub(crate) table: Table,
    pub(crate) readahead: Readahead,
    access: Access,
    /// The process that holds the lock. A forked child must not act for it.
    process: u64,
    /// What gathers may see.
    published: Mutex<Frontier>,
    /// Deletes and compactions so far, so that an iteration can notice one.
    reorders: AtomicU64,
    /// Held for reading while records are read or appended, for writing while they move.
    gate: RwLock<()>,
    /// Set under the gate; read by itself where nothing must wait.
    closed: AtomicBool,
}

#[derive(Debug)]
enum Access {
    Reader,
    Writer(Mutex<Writer>),
}

/// What only a writer knows.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The header's reserved bytes, kept as they were found.
    reserved: [u8; 15],
    /// Whether anything was written since the last sync.
    dirty: bool,
    /// Whether a writer before this one may have died before its sync, so that the first one
    /// has to cover every file.
    inherited: bool,
}

impl Storage {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn codec(&self) -> Codec {
        self.codec
    }

    pub(crate) fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.dictionary.as_ref()
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    pub(crate) fn io(&self) -> Option<Backend> {
        self.io
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.access {
            Access::Reader => Mode::Read,
            Access::Writer(_) => Mode::ReadWrite,
        }
    }

    /// Whether this process is the one that opened the store.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == generation()
    }

    pub(crate) fn reorders(&self) -> u64 {
        self.reorders.load(Ordering::Acquire)
    }

    pub(crate) fn frontier(&self) -> Frontier {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Keeps the store open and its records in place for as long as the guard lives.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let inside = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.check_open()?;
        Ok(inside)
    }

    /// Waits for all gathers and appends and keeps new ones out.
    fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let inside = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.check_open()?;
        Ok(inside)
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed { path: self.path.clone() }) } else { Ok(()) }
    }

    /// The one writer of this store, when its turn comes.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let Access::Writer(writer) = &self.access else {
            return Err(Error::ReadOnly { path: self.path.clone() });
        };
        if !self.is_ours() {
            return Err(Error::Busy {
                path: self.path.clone(),
                reason: "it was opened for writing by the parent of this forked process",
            });
        }
        Ok(writer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes `frontier` the end of the store, on disk and then for gathers.
    pub(crate) fn publish(&self, writer: &mut Writer, frontier: Frontier) -> Result<()> {
        writer.dirty = true;
        let header = Header { frontier, codec: self.codec, reserved: writer.reserved };
        self.meta.write_all_at(header.encode().as_slice(), 0)?;
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = frontier;
        Ok(())
    }

    /// Makes everything that was appended or deleted durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let _inside = self.enter()?;
        let mut writer = self.writer()?;
        self.sync_as(&mut writer)
    }

    fn sync_as(&self, writer: &mut Writer) -> Result<()> {
        if !writer.dirty && !writer.inherited {
            return Ok(());
        }
        if writer.inherited {
            self.chunks.open_all()?;
            self.table.open_all()?;
        }
        // Payload, table, entries of the directory, and only then the header that counts them.
        self.chunks.sync()?;
        self.table.sync()?;
        self.fs.sync_dir(&self.path)?;
        self.meta.sync()?;
        (writer.dirty, writer.inherited) = (false, false);
        Ok(())
    }

    pub(crate) fn stats(&self) -> Result<Stats> {
        /// Locations that are looked at together.
        const BATCH: u64 = 64 << 10;
        let _inside = self.enter()?;
        let frontier = self.frontier();
        let mut live_bytes = 0;
        let mut first = 0;
        while first < frontier.length {
            let count = BATCH.min(frontier.length - first);
            let locations = self.table.read(first, count as usize)?;
            live_bytes += locations.iter().map(|l| u64::from(l.phys_length)).sum::<u64>();
            first += count;
        }
        // A chunk that was left for the next counts whole, as in the reference.
        let full_bytes = u64::from(frontier.tail_chunk) * (self.capacity.chunk_bytes + 1);
        let chunk_bytes = full_bytes + u64::from(frontier.tail_offset);
        Ok(Stats { records: frontier.length, live_bytes, chunk_bytes })
    }

    /// Waits for what is under way, makes a writer's changes durable, and lets go of the files.
    /// A second close does nothing. Whatever a sync says, the store is closed afterwards.
    pub(crate) fn close(&self) -> Result<()> {
        let _inside = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if self.closed.swap(true, Ordering::AcqRel) { Ok(()) } else { self.let_go() }
    }

    fn let_go(&self) -> Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        let synced = match &self.access {
            Access::Reader => Ok(()),
            Access::Writer(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                // A writer that wrote nothing leaves everything as it was.
                if writer.dirty { self.sync_as(&mut writer) } else { Ok(()) }
            }
        };
        self.chunks.forget_all();
        self.table.forget_all();
        // A forked child may still share the open file: unlock it, as closing alone would not.
        let _ = self.meta.file().unlock();
        synced
    }

    fn write_reserved(header: &Header) -> Writer {
        Writer { reserved: header.reserved, dirty: false, inherited: true }
    }

    fn read_header(meta: &StoreFile) -> Result<Header> {
        let found = meta.len()?;
        if found != HEADER_BYTES as u64 {
            return Err(Error::invalid(
                meta.path(),
                format!("the header has {found} bytes and must have {HEADER_BYTES}"),
            ));
        }
        let mut bytes = [0; HEADER_BYTES];
        meta.read_exact_at(&mut bytes, 0)?;
        Header::decode(&bytes).map_err(|reason| Error::invalid(meta.path(), reason))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if !self.is_closed()
            && let Err(error) = self.let_go()
        {
            log::error!("closing {} when it was dropped: {error}", self.path.display());
        }
    }
}
