//! The read contract that every backend of ringloader keeps, and its portable form.
//!
//! A gather is planned above this crate into [`ReadOp`]s, positional reads that each fill one
//! span of memory, and handed whole to a [`BatchReader`]. This crate owns that contract
//! ([`read`]), the raw memory it fills ([`span`]), the system calls on such memory ([`sys`]), the
//! backend that runs everywhere ([`pread`]), files as memory ([`mapping`]), what the page cache
//! holds of them ([`page_cache`]), and what a forked process needs anew ([`process`]). It knows
//! nothing of records, codecs or stores.

#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
#[cfg(unix)]
pub mod mapping;
#[cfg(not(unix))]
#[path = "no_mapping.rs"]
pub mod mapping;
pub mod page_cache;
pub mod pread;
pub mod process;
pub mod read;
#[cfg(unix)]
mod sigbus;
pub mod span;
pub mod sys;

pub use mapping::Mapping;
pub use pread::PreadReader;
pub use process::PerProcess;
pub use read::{BatchReader, Done, ReadError, ReadErrorKind, ReadOp};
pub use span::{Slots, Span, SpanMut};
