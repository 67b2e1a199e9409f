//! Opening a store that exists. Nothing here depends on how many records it has.

use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

use ringloader_fallback::process::generation;

use super::{Access, Chunks, Mode, Options, Storage};
use crate::backend;
use crate::codec::{Codec, DICTIONARY_BYTES_MAX, Dictionary};
use crate::error::{Error, Result};
use crate::file::{Fs, StoreFile};
use crate::format::{Frontier, names};
use crate::identity::{IDENTITY_BYTES_MAX, Identity};
use crate::readahead::Readahead;
use crate::table::{Table, missing};

impl Storage {
    /// Opens the store at `path` and gives what its records are.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<(Self, Identity)> {
        let fs = &options.fs;
        // Files are opened as they are needed, and the working directory may change meanwhile.
        let path = &absolute(path)?;
        options.io.map_or(Ok(()), backend::require)?;
        check_directory(path)?;
        let writable = options.mode == Mode::ReadWrite;
        let meta = fs.open_file(&path.join(names::META), writable).map_err(missing)?;
        lock(&meta, options.mode, path)?;
        // The lock comes first: only under it do the files stand still.
        let header = Self::read_header(&meta)?;
        let identity = read_identity(path, fs)?;
        let dictionary = read_dictionary(path, fs, header.codec)?;
        let frontier = header.frontier;

        let chunks = Chunks::new(path, fs, writable);
        check_tail(&chunks, &frontier)?;
        let table = Table::new(path, fs, writable, options.capacity);
        table.check_length(frontier.length)?;

        let access = match options.mode {
            Mode::Read => Access::Reader,
            Mode::ReadWrite => Access::Writer(Mutex::new(Self::write_reserved(&header))),
        };
        let storage = Self {
            path: path.to_owned(),
            fs: fs.clone(),
            capacity: options.capacity,
            codec: header.codec,
            dictionary,
            io: options.io,
            meta,
            chunks,
            table,
            readahead: Readahead::default(),
            access,
            process: generation(),
            published: Mutex::new(frontier),
            reorders: AtomicU64::new(0),
            gate: RwLock::new(()),
            closed: AtomicBool::new(false),
        };
        Ok((storage, identity))
    }
}

/// `path` from the root of the file system; links in it stay as they are.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|e| Error::InvalidArgument(format!("path {:?}: {e}", path.display().to_string())))
}

fn check_directory(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(Error::invalid(path, "it is not a directory")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NotFound { path: path.to_owned() });
        }
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(Error::NotFound { path: path.to_owned() });
        }
        Err(e) => return Err(Error::io("inspect", path, e)),
    }
    match path.join(names::META).symlink_metadata() {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Error::invalid(path, "the directory has no meta.zr"))
        }
        Err(e) => Err(Error::io("inspect", &path.join(names::META), e)),
    }
}

/// Checks that the last chunk is as long as the header says.
fn check_tail(chunks: &Chunks, frontier: &Frontier) -> Result<()> {
    let tail = chunks.get(frontier.tail_chunk)?;
    if tail.reaches(u64::from(frontier.tail_offset))? {
        return Ok(());
    }
    let reason = format!("it ends before byte {}, the header's frontier", frontier.tail_offset);
    Err(Error::invalid(tail.file.path(), reason))
}

/// Locks the store as long as `meta` is open: readers share, a writer is alone.
fn lock(meta: &StoreFile, mode: Mode, path: &Path) -> Result<()> {
    let (locked, reason) = match mode {
        Mode::Read => (meta.file().try_lock_shared(), "a writer has it open, here or elsewhere"),
        Mode::ReadWrite => (
            meta.file().try_lock(),
            "it is open already, here or elsewhere; open all handles with mode='r' to share it",
        ),
    };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Busy { path: path.to_owned(), reason }),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", meta.path(), e)),
    }
}

fn read_identity(path: &Path, fs: &Fs) -> Result<Identity> {
    let bytes = read_small(&path.join(names::IDENTITY), fs, IDENTITY_BYTES_MAX)?;
    Identity::decode(&bytes).map_err(|reason| {
        Error::invalid(
            &path.join(names::IDENTITY),
            format!("the type identity is malformed: {reason}"),
        )
    })
}

fn read_dictionary(path: &Path, fs: &Fs, codec: Codec) -> Result<Option<Arc<Dictionary>>> {
    let file = path.join(names::DICTIONARY);
    if codec != Codec::ZstdDict {
        return match file.symlink_metadata() {
            Ok(_) => Err(Error::invalid(&file, format!("a {codec} store has no dictionary"))),
            Err(_) => Ok(None),
        };
    }
    let bytes = read_small(&file, fs, DICTIONARY_BYTES_MAX)?;
    let dictionary = Dictionary::new(bytes).map_err(|reason| Error::invalid(&file, reason))?;
    Ok(Some(Arc::new(dictionary)))
}

fn read_small(path: &Path, fs: &Fs, limit: u64) -> Result<Vec<u8>> {
    let file = fs.open_file(path, false).map_err(missing)?;
    let len = file.len()?;
    if len > limit {
        return Err(Error::invalid(path, format!("{len} bytes are over the limit of {limit}")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
