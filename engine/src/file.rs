//! The one door to the file system: everything that a store creates, writes, cuts, syncs,
//! renames or removes passes here, so a test can record every call and fail any of them
//! ([`FsHook`]). Reads of batches go through the other door, `BatchReader`.
//!
//! Nothing here knows what a store is.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringloader_fallback::{Span, sys};

use crate::error::{Error, Result};

/// A call that is about to be made on the file system.
#[derive(Debug, Clone, Copy)]
pub enum FsCall<'a> {
    /// Make one directory.
    CreateDir(&'a Path),
    /// Make a file that must not exist.
    CreateFile(&'a Path),
    /// Open a file that must exist.
    Open(&'a Path),
    /// Read bytes at an offset.
    ReadAt(&'a Path, u64, usize),
    /// Write these bytes at an offset.
    WriteAt(&'a Path, u64, &'a [u8]),
    /// Set a file's length.
    Truncate(&'a Path, u64),
    /// Make a file's bytes durable.
    Sync(&'a Path),
    /// Make a directory's entries durable.
    SyncDir(&'a Path),
    /// Rename the first to the second.
    Rename(&'a Path, &'a Path),
    /// Remove a file.
    RemoveFile(&'a Path),
    /// Remove an empty directory.
    RemoveDir(&'a Path),
}

/// A test's eye on the file system.
pub trait FsHook: Send + Sync {
    /// Sees `call` before it is made; an error is returned in place of making it.
    fn before(&self, call: &FsCall<'_>) -> io::Result<()>;
}

/// The file system as a store sees it.
#[derive(Clone, Default)]
pub struct Fs {
    hook: Option<Arc<dyn FsHook>>,
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs").field("hooked", &self.hook.is_some()).finish()
    }
}

impl Fs {
    /// A file system whose every call `hook` sees first.
    pub fn hooked(hook: Arc<dyn FsHook>) -> Self {
        Self { hook: Some(hook) }
    }

    fn before(&self, op: &'static str, path: &Path, call: FsCall<'_>) -> Result<()> {
        match &self.hook {
            Some(hook) => hook.before(&call).map_err(|e| Error::io(op, path, e)),
            None => Ok(()),
        }
    }

    pub(crate) fn create_dir(&self, path: &Path) -> Result<()> {
        self.before("create directory", path, FsCall::CreateDir(path))?;
        fs::create_dir(path).map_err(|e| Error::io("create directory", path, e))
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.before("rename to", to, FsCall::Rename(from, to))?;
        fs::rename(from, to).map_err(|e| Error::io("rename to", to, e))
    }

    pub(crate) fn remove_file(&self, path: &Path) -> Result<()> {
        self.before("remove", path, FsCall::RemoveFile(path))?;
        fs::remove_file(path).map_err(|e| Error::io("remove", path, e))
    }

    pub(crate) fn remove_dir(&self, path: &Path) -> Result<()> {
        self.before("remove directory", path, FsCall::RemoveDir(path))?;
        fs::remove_dir(path).map_err(|e| Error::io("remove directory", path, e))
    }

    /// Makes the entries of `path` durable. Windows has no such call; its file systems order
    /// directory changes themselves.
    pub(crate) fn sync_dir(&self, path: &Path) -> Result<()> {
        self.before("sync directory", path, FsCall::SyncDir(path))?;
        if cfg!(unix) {
            let synced = File::open(path).and_then(|dir| dir.sync_all());
            synced.map_err(|e| Error::io("sync directory", path, e))?;
        }
        Ok(())
    }

    /// Creates a file that must not exist, for reading and writing.
    pub(crate) fn create_file(&self, path: &Path) -> Result<StoreFile> {
        self.before("create", path, FsCall::CreateFile(path))?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        Ok(self.adopt(path, file.map_err(|e| Error::io("create", path, e))?))
    }

    /// Opens a regular file that exists, for reading and, if `writable`, for writing.
    ///
    /// A symbolic link, a pipe or a directory in its place is [`Error::InvalidStore`]: following
    /// or waiting for one would let a store's files be anything.
    pub(crate) fn open_file(&self, path: &Path, writable: bool) -> Result<StoreFile> {
        self.before("open", path, FsCall::Open(path))?;
        let mut options = OpenOptions::new();
        options.read(true).write(writable);
        refuse_special_files(&mut options);
        let file = options.open(path).map_err(|e| not_followed(path, e))?;
        let metadata = file.metadata().map_err(|e| Error::io("inspect", path, e))?;
        if !metadata.is_file() {
            return Err(Error::invalid(path, "it is not a regular file"));
        }
        block_on_reads(&file).map_err(|e| Error::io("open", path, e))?;
        Ok(self.adopt(path, file))
    }

    fn adopt(&self, path: &Path, file: File) -> StoreFile {
        StoreFile { file, path: path.to_owned(), fs: self.clone(), dirty: AtomicBool::new(true) }
    }
}

/// The numbers of the files in `dir` that are named by a number and `suffix`.
pub(crate) fn numbered_files(dir: &Path, suffix: &str) -> Result<Vec<u64>> {
    let entries = fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))?;
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io("list", dir, e))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(suffix));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    Ok(numbers)
}

#[cfg(unix)]
fn refuse_special_files(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    // NONBLOCK: opening a pipe for reading must not wait for a writer.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed());
}

#[cfg(not(unix))]
fn refuse_special_files(_options: &mut OpenOptions) {}

/// A regular file that was opened with NONBLOCK waits for its disk all the same, but not on every
/// network file system, nor through a ring.
#[cfg(unix)]
fn block_on_reads(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)? - rustix::fs::OFlags::NONBLOCK;
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

#[cfg(not(unix))]
fn block_on_reads(_file: &File) -> io::Result<()> {
    Ok(())
}

/// Opening a symbolic link with NOFOLLOW fails with ELOOP (EMLINK on some BSDs), and opening
/// a directory for writing with EISDIR; all mean that the file is not what a store has there.
fn not_followed(path: &Path, error: io::Error) -> Error {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Error::invalid(path, "it is a symbolic link"),
        Ok(metadata) if !metadata.is_file() => Error::invalid(path, "it is not a regular file"),
        _ => Error::io("open", path, error),
    }
}

/// An open file of a store.
#[derive(Debug)]
pub(crate) struct StoreFile {
    file: File,
    path: PathBuf,
    fs: Fs,
    /// Whether there may be something to make durable: so it is when a file is opened, because
    /// whoever wrote it before may have died before its sync.
    dirty: AtomicBool,
}

impl StoreFile {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(|e| Error::io("inspect", &self.path, e))?;
        Ok(metadata.len())
    }

    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.fs.before("read", &self.path, FsCall::ReadAt(&self.path, offset, bytes.len()))?;
        read_exact_at(&self.file, bytes, offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::invalid(
                &self.path,
                format!("it ends before byte {}", offset + bytes.len() as u64),
            ),
            _ => Error::io("read", &self.path, e),
        })
    }

    pub(crate) fn write_all_at<'a>(&self, bytes: impl Into<Span<'a>>, offset: u64) -> Result<()> {
        self.dirty.store(true, Ordering::Release);
        let bytes = bytes.into();
        if self.fs.hook.is_some() {
            let seen = bytes.to_vec();
            self.fs.before("write", &self.path, FsCall::WriteAt(&self.path, offset, &seen))?;
        }
        sys::write_all_at(&self.file, bytes, offset).map_err(|e| Error::io("write", &self.path, e))
    }

    pub(crate) fn truncate(&self, len: u64) -> Result<()> {
        self.dirty.store(true, Ordering::Release);
        self.fs.before("truncate", &self.path, FsCall::Truncate(&self.path, len))?;
        self.file.set_len(len).map_err(|e| Error::io("truncate", &self.path, e))
    }

    /// Makes the file's bytes and length durable, if they may not be yet.
    pub(crate) fn sync(&self) -> Result<()> {
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self
            .fs
            .before("sync", &self.path, FsCall::Sync(&self.path))
            .and_then(|()| self.file.sync_data().map_err(|e| Error::io("sync", &self.path, e)));
        if synced.is_err() {
            self.dirty.store(true, Ordering::Release);
        }
        synced
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                bytes = &mut bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
