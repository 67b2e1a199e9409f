//! Dense stores: every record is one row of a fixed shape.

use std::ops::Range;
use std::path::Path;

use ringloader_fallback::{Slots, Span, SpanMut};

use crate::append::{self, Source};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::gather;
use crate::identity::{Dtype, Identity};
use crate::pool::Buffer;
use crate::runtime::take_buffer;
use crate::storage::{Blueprint, Options, Storage};
use crate::store::store_methods;

/// Records that are located and planned at a time: no batch for training is larger, and a slice
/// of a whole store needs no more memory than this for its plan.
const PLANNED_RECORDS: usize = 64 << 10;

/// A store of records of one dtype and one shape.
///
/// All methods take `&self` and may be called from many threads: gathers and one appender run
/// at the same time; deletes and compactions wait for them and keep new ones waiting.
#[derive(Debug)]
pub struct DenseStore {
    storage: Storage,
    dtype: Dtype,
    item_shape: Vec<u64>,
    /// At most 2^31: `Identity::width` has checked it.
    record_bytes: u32,
}

store_methods!(DenseStore);

impl DenseStore {
    /// Makes a store at `path`, where there must be nothing or an empty directory. `dictionary`
    /// goes with [`Codec::ZstdDict`], and only with it.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::InvalidArgument`] for a dtype, shape or dictionary
    /// that cannot be stored, and file errors; nothing is left behind then.
    pub fn create(
        path: &Path,
        dtype: Dtype,
        item_shape: &[u64],
        codec: Codec,
        dictionary: Option<&[u8]>,
        options: &Options,
    ) -> Result<Self> {
        let identity = Identity::Dense { dtype, item_shape: item_shape.to_vec() };
        let blueprint = Blueprint { identity: &identity, codec, dictionary };
        let storage = Storage::create(path, &blueprint, options)?;
        Self::new(storage, identity)
    }

    /// Opens the store at `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Busy`], [`Error::InvalidStore`] (also for a ragged store),
    /// and file errors.
    pub fn open(path: &Path, options: &Options) -> Result<Self> {
        let (storage, identity) = Storage::open(path, options)?;
        Self::new(storage, identity)
    }

    fn new(storage: Storage, identity: Identity) -> Result<Self> {
        let width = identity.width().map_err(|reason| Error::invalid(storage.path(), reason))?;
        match identity {
            Identity::Dense { dtype, item_shape } => {
                Ok(Self { storage, dtype, item_shape, record_bytes: width as u32 })
            }
            Identity::Ragged { .. } => {
                Err(Error::invalid(storage.path(), "it is a ragged store; open it as RaggedStore"))
            }
        }
    }

    /// The shape of a record; empty for scalars.
    pub fn item_shape(&self) -> &[u64] {
        &self.item_shape
    }

    /// The bytes of a record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes as usize
    }

    /// Appends the records whose bytes lie one behind the other in `records`, and gives the
    /// index of the first. When it returns, gathers see all of them, and the death of the
    /// process loses none; [`sync`](Self::sync) makes them outlive a power loss.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `records` is a positive number of whole records;
    /// [`Error::StoreFull`]; file errors. None of the batch is in the store then.
    pub fn append<'a>(&self, records: impl Into<Span<'a>>) -> Result<u64> {
        let records = records.into();
        if records.is_empty() || !records.len().is_multiple_of(self.record_bytes()) {
            return Err(Error::InvalidArgument(format!(
                "{} bytes are not one or more records of {} bytes",
                records.len(),
                self.record_bytes
            )));
        }
        append::append(&self.storage, &Rows { records, record_bytes: self.record_bytes() })
    }

    /// The records `indices`, one behind the other in memory from the process's pool.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::Decode`] or [`Error::BadLocation`] for a damaged
    /// record, naming it; file errors.
    pub fn gather(&self, indices: &[u64]) -> Result<Buffer> {
        let bytes = indices.len().checked_mul(self.record_bytes());
        let bytes = bytes.ok_or(Error::OutOfMemory { what: "a batch", bytes: u64::MAX })?;
        let mut buffer = take_buffer(bytes)?;
        self.gather_into(indices, buffer.span_mut())?;
        Ok(buffer)
    }

    /// The records `indices`, one behind the other in `dst`, which must be exactly as large.
    /// After an error `dst` holds nothing of meaning.
    ///
    /// # Errors
    /// As [`gather`](Self::gather), and [`Error::BufferTooSmall`] if the size differs.
    pub fn gather_into<'a>(&self, indices: &[u64], dst: impl Into<SpanMut<'a>>) -> Result<()> {
        let mut dst = dst.into();
        let need = indices.len() as u128 * u128::from(self.record_bytes);
        if dst.len() as u128 != need {
            let need = u64::try_from(need).unwrap_or(u64::MAX);
            return Err(Error::BufferTooSmall { need, got: dst.len() as u64 });
        }
        let _inside = self.storage.enter()?;
        let mut filled = 0;
        for part in indices.chunks(PLANNED_RECORDS) {
            let end = filled + part.len() * self.record_bytes();
            let located = gather::locate(&self.storage, part, Some(self.record_bytes))?;
            let slots = Slots::uniform(dst.slice_mut(filled..end), self.record_bytes());
            gather::fetch(&self.storage, part, &located, slots)?;
            filled = end;
        }
        Ok(())
    }
}

/// Rows of one buffer, as they are.
struct Rows<'a> {
    records: Span<'a>,
    record_bytes: usize,
}

impl Source for Rows<'_> {
    fn len(&self) -> usize {
        self.records.len() / self.record_bytes
    }

    fn record_bytes(&self, _i: usize) -> u64 {
        self.record_bytes as u64
    }

    fn visit(
        &self,
        range: Range<usize>,
        piece: &mut dyn FnMut(Span<'_>) -> Result<()>,
    ) -> Result<()> {
        piece(self.records.slice(range.start * self.record_bytes..range.end * self.record_bytes))
    }
}
