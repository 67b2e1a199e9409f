//! The read contract that every backend of ringloader keeps, and its portable form.
//!
//! A gather is planned above this crate into [`ReadOp`]s, positional reads that each fill one
//! span of memory, and handed whole to a [`BatchReader`]. This crate owns that contract
//! ([`read`]), the raw memory it fills ([`span`]) and the backend that runs everywhere
//! ([`pread`]). It knows nothing of records, codecs or stores.

pub mod pread;
pub mod read;
pub mod span;

pub use pread::PreadReader;
pub use read::{BatchReader, Done, ReadError, ReadErrorKind, ReadOp};
pub use span::{Slots, Span, SpanMut};
