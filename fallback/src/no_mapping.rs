//! What stands in for mappings where a fault in one cannot be caught: none can be made, so
//! callers need no conditions of their own.

use std::fs::File;
use std::io;

use crate::span::SpanMut;

/// Whether a fault of this thread in a mapping would be caught now.
pub fn faults_are_caught_here() -> bool {
    false
}

/// Does nothing: there are no faults.
pub fn unblock_faults_here() {}

/// A mapping that cannot be made on this system.
#[derive(Debug)]
pub enum Mapping {}

impl Mapping {
    /// Always fails.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`].
    pub fn new(_file: &File, _len: u64) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes in the mapping.
    pub fn len(&self) -> u64 {
        match *self {}
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    /// Copies the bytes from `offset` on over the whole of `dst`.
    pub fn copy_to(&self, _offset: u64, _dst: &mut SpanMut<'_>) {
        match *self {}
    }

    /// Begins to bring bytes closer to the processor.
    pub fn prefetch(&self, _offset: u64, _len: usize) {
        match *self {}
    }

    /// Whether everything that was copied so far was there to be copied.
    pub fn is_intact(&self) -> bool {
        match *self {}
    }
}
