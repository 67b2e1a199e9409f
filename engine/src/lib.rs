//! Typed record stores for training loops.
//!
//! Records are appended once and then gathered in random batches, endlessly. A gather is
//! planned from locations that are kept in memory, read in one submission (`io_uring` on Linux, a
//! pread pool elsewhere), decoded by one thread for each core, and lands in recycled memory.
//!
//! Two stores share one format on disk, which is that of loaderx 1.8.6: [`DenseStore`] for
//! records of one shape, [`RaggedStore`] for records that each have their own. Records are bytes
//! here; a [`Dtype`](identity::Dtype) only names what they mean.
//!
//! ```
//! use ringloader_engine::codec::Codec;
//! use ringloader_engine::identity::Dtype;
//! use ringloader_engine::storage::Options;
//! use ringloader_engine::DenseStore;
//!
//! # let directory = tempfile::tempdir()?;
//! let path = directory.path().join("pairs");
//! let dtype = Dtype::Plain("<u2".into());
//! let store = DenseStore::create(&path, dtype, &[2], Codec::Zstd, None, &Options::default())?;
//!
//! let records: Vec<u8> = [[1u16, 2], [3, 4], [5, 6]].concat().iter().flat_map(|v| v.to_le_bytes()).collect();
//! assert_eq!(store.append(records.as_slice())?, 0);
//!
//! let mut batch = store.gather(&[2, 0])?;
//! assert_eq!(batch.bytes_mut(), [5, 0, 6, 0, 1, 0, 2, 0]);
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules from the ground up: `error`, [`mod@format`], [`mod@file`], [`codec`], [`identity`], [`pool`],
//! `backend`, `executor`, [`runtime`], `table`, `residency`, `readahead`, [`storage`], `plan`, `gather`,
//! `append`, and on top
//! [`DenseStore`] and [`RaggedStore`]. Imports point downwards only.

mod append;
mod backend;
pub mod codec;
mod dense;
mod error;
mod executor;
pub mod file;
pub mod format;
mod gather;
pub mod identity;
mod plan;
pub mod pool;
mod ragged;
mod readahead;
mod residency;
pub mod runtime;
pub mod storage;
mod store;
mod table;

pub use dense::DenseStore;
pub use error::{Error, Result};
pub use ragged::{RaggedBatch, RaggedLayout, RaggedRecord, RaggedStore};
pub use ringloader_fallback::{PerProcess, Span, SpanMut};
