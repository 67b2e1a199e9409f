//! The read contract: what a batch of positional reads is, and what a backend owes for it.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use crate::span::{Span, SpanMut};

/// One positional read: fill all of `dst` with the bytes of `file` from `offset` on.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// The file to read.
    pub file: &'a File,
    /// Where in the file the first byte is, in bytes.
    pub offset: u64,
    /// The memory to fill; its length is the length of the read.
    pub dst: SpanMut<'a>,
}

/// What a caller is told as reads complete: the number of the operation and its bytes.
///
/// It runs on the thread that called [`BatchReader::read`], so it may decode into memory of its
/// own. `Break` ends the batch early.
pub type Done<'d> = dyn FnMut(usize, Span<'_>) -> ControlFlow<()> + 'd;

/// A backend that performs whole batches of reads.
///
/// What every implementation keeps:
/// - `read` returns `Ok` when every operation has filled its span, or when `done` broke off.
/// - `done` is called once for each completed operation, in any order, and never for one that
///   failed. After it breaks, or after the first error, it is not called again.
/// - Short reads are resumed and interrupted ones repeated. A file that ends inside an
///   operation is [`ReadErrorKind::Eof`].
/// - When `read` returns or unwinds, no read is under way: the memory is the caller's again.
/// - A reader that failed can be used for the next batch.
pub trait BatchReader: Send {
    /// Performs `ops`, telling `done` of each as it completes.
    fn read(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> Result<(), ReadError>;
}

/// A batch that could not be read: which operation failed, and why.
#[derive(Debug)]
pub struct ReadError {
    /// The operation's place in the batch.
    pub op: usize,
    /// What went wrong with it.
    pub kind: ReadErrorKind,
}

/// Why a read failed.
#[derive(Debug)]
pub enum ReadErrorKind {
    /// The system refused or failed the read.
    Io(io::Error),
    /// The file ended after `filled` bytes of the operation.
    Eof {
        /// Bytes that the file still had.
        filled: usize,
    },
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            ReadErrorKind::Io(error) => write!(f, "read {} of the batch: {error}", self.op),
            ReadErrorKind::Eof { filled } => {
                write!(f, "read {} of the batch: the file ends after {filled} bytes", self.op)
            }
        }
    }
}

impl std::error::Error for ReadError {}
