//! What can go wrong with a store. A fault of the file, of the system, of the argument and of
//! the state never share a variant, and each carries what a person needs to act.

use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible call of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory for a batch could not be had.
    #[error("out of memory: {what} needs {bytes} bytes")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// How much it was.
        bytes: u64,
    },
    /// The system refused or failed a file operation.
    #[error("cannot {op} {}: {source}", .path.display())]
    Io {
        /// The operation, as a verb.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The backend that was asked for by name cannot be had on this machine.
    #[error("io={name:?} is not available: {reason}")]
    BackendUnavailable {
        /// The backend's name.
        name: &'static str,
        /// Why it cannot be had and what to change.
        reason: String,
    },
    /// An index that names no record.
    #[error("index {index} is out of range for {length} records in {}", .path.display())]
    IndexOutOfRange {
        /// The store.
        path: PathBuf,
        /// The index as it was given.
        index: i128,
        /// Records in the store.
        length: u64,
    },
    /// A record over [`MAX_RECORD_BYTES`](crate::format::MAX_RECORD_BYTES), or over what one
    /// chunk can hold.
    #[error("record {record} of the batch has {bytes} bytes, over the limit of {limit}: nothing was appended to {}", .path.display())]
    RecordTooLarge {
        /// The store.
        path: PathBuf,
        /// The record's place in the batch.
        record: usize,
        /// Its size as stored, prefix included.
        bytes: u64,
        /// The most that is allowed.
        limit: u64,
    },
    /// A record of no bytes, which the format cannot hold.
    #[error("record {record} of the batch is empty, and a record must have at least one byte: nothing was appended to {}", .path.display())]
    EmptyRecord {
        /// The store.
        path: PathBuf,
        /// The record's place in the batch.
        record: usize,
    },
    /// The chunks or the record table cannot hold the batch.
    #[error("store is full: {reason}: {}", .path.display())]
    StoreFull {
        /// The store.
        path: PathBuf,
        /// Which limit was met.
        reason: String,
    },
    /// The caller's memory is too small for the batch.
    #[error("buffer too small: the batch needs {need} bytes and the buffer has {got}")]
    BufferTooSmall {
        /// Bytes that the batch takes.
        need: u64,
        /// Bytes that were given.
        got: u64,
    },
    /// A stored record that does not decode to what its location says.
    #[error("record {record} failed to decode: {reason}: {}", .path.display())]
    Decode {
        /// The store.
        path: PathBuf,
        /// The record's index.
        record: u64,
        /// What was expected and found.
        reason: String,
    },
    /// A record whose location cannot be right.
    #[error("record {record} has an invalid location: {reason}: {}", .path.display())]
    BadLocation {
        /// The store.
        path: PathBuf,
        /// The record's index.
        record: u64,
        /// What was expected and found.
        reason: String,
    },
    /// Files that are not a store, or not one that is whole.
    #[error("not a valid store: {reason}: {}", .path.display())]
    InvalidStore {
        /// The store or the file concerned.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// A dictionary could not be trained from the samples.
    #[error("zstd dictionary training failed: {reason}")]
    DictTraining {
        /// What to change.
        reason: String,
    },
    /// There is nothing at the path.
    #[error("store not found: {}", .path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// There is something at the path of a new store.
    #[error("store already exists: {}", .path.display())]
    AlreadyExists {
        /// The path.
        path: PathBuf,
    },
    /// Another handle or process holds the store.
    #[error("store is busy ({reason}): {}", .path.display())]
    Busy {
        /// The store.
        path: PathBuf,
        /// Who can hold it, and what would be allowed.
        reason: &'static str,
    },
    /// An argument that no store could accept.
    #[error("{0}")]
    InvalidArgument(String),
    /// A call that came too late or too early.
    #[error("{0}")]
    InvalidState(String),
    /// A call on a store that was closed.
    #[error("store is closed: {}", .path.display())]
    Closed {
        /// The store.
        path: PathBuf,
    },
    /// A writing call on a store that was opened for reading.
    #[error("store is open with mode='r' and cannot be changed: {}", .path.display())]
    ReadOnly {
        /// The store.
        path: PathBuf,
    },
    /// A bug in ringloader: a worker panicked. The batch was not delivered.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// The reference's numeric code (`ZrecordError.code`), for the errors that have one.
    pub fn code(&self) -> Option<i32> {
        Some(match self {
            Self::OutOfMemory { .. } => -1,
            Self::Io { .. } | Self::BackendUnavailable { .. } => -2,
            Self::IndexOutOfRange { .. } => -3,
            Self::RecordTooLarge { .. } => -4,
            Self::StoreFull { .. } => -5,
            Self::BufferTooSmall { .. } => -6,
            Self::Decode { .. } => -7,
            Self::InvalidStore { .. } | Self::BadLocation { .. } => -8,
            Self::DictTraining { .. } => -9,
            Self::NotFound { .. } => -11,
            Self::AlreadyExists { .. } => -12,
            Self::Busy { .. } => -13,
            Self::EmptyRecord { .. }
            | Self::InvalidArgument(_)
            | Self::InvalidState(_)
            | Self::Closed { .. }
            | Self::ReadOnly { .. }
            | Self::Internal(_) => return None,
        })
    }

    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { op, path: path.to_owned(), source }
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::InvalidStore { path: path.to_owned(), reason: reason.into() }
    }
}
