//! The read contract that every backend of ringloader keeps, and its portable form.
//!
//! A gather is planned above this crate into [`ReadOp`]s, positional reads that each fill one
//! span of memory, and handed whole to a [`BatchReader`]. This crate owns that contract
//! ([`read`]), the raw memory it fills ([`span`]), the system calls on such memory ([`sys`]), the
//! backend that runs everywhere ([`pread`]), and what a forked process needs anew
//! ([`process`]). It knows nothing of records, codecs or stores.

#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
pub mod pread;
pub mod process;
pub mod read;
pub mod span;
pub mod sys;

pub use pread::PreadReader;
pub use process::PerProcess;
pub use read::{BatchReader, Done, ReadError, ReadErrorKind, ReadOp};
pub use span::{Slots, Span, SpanMut};
