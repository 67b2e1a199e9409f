//! Ragged stores: every record has its own shape, kept in front of its payload as little-endian
//! `u64`: the number of axes, then each axis.

use std::ops::Range;
use std::path::Path;

use ringloader_fallback::{Slots, Span, SpanMut};

use crate::append::{self, Source};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::gather::{self, Located};
use crate::identity::{DIMENSIONS_MAX, Dtype, Identity, shape_bytes};
use crate::pool::Buffer;
use crate::runtime::take_buffer;
use crate::storage::{Blueprint, Options, Storage};
use crate::store::store_methods;

/// Bytes of one number of the shape prefix.
const AXIS_BYTES: usize = 8;

/// A store of records of one dtype, each with its own shape.
///
/// All methods take `&self` and may be called from many threads: gathers and one appender run
/// at the same time; deletes and compactions wait for them and keep new ones waiting.
#[derive(Debug)]
pub struct RaggedStore {
    storage: Storage,
    dtype: Dtype,
    item_bytes: u64,
}

store_methods!(RaggedStore);

/// A record to append.
#[derive(Debug, Clone, Copy)]
pub struct RaggedRecord<'a> {
    /// The length of each axis; none for a scalar.
    pub shape: &'a [u64],
    /// The elements in C order.
    pub payload: Span<'a>,
}

impl RaggedStore {
    /// Makes a store at `path`, where there must be nothing or an empty directory. `dictionary`
    /// goes with [`Codec::ZstdDict`], and only with it.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::InvalidArgument`] for a dtype or dictionary that
    /// cannot be stored, and file errors; nothing is left behind then.
    pub fn create(
        path: &Path,
        dtype: Dtype,
        codec: Codec,
        dictionary: Option<&[u8]>,
        options: &Options,
    ) -> Result<Self> {
        let identity = Identity::Ragged { dtype };
        let blueprint = Blueprint { identity: &identity, codec, dictionary };
        let storage = Storage::create(path, &blueprint, options)?;
        Self::new(storage, identity)
    }

    /// Opens the store at `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Busy`], [`Error::InvalidStore`] (also for a dense store),
    /// and file errors.
    pub fn open(path: &Path, options: &Options) -> Result<Self> {
        let (storage, identity) = Storage::open(path, options)?;
        Self::new(storage, identity)
    }

    fn new(storage: Storage, identity: Identity) -> Result<Self> {
        let item_bytes =
            identity.width().map_err(|reason| Error::invalid(storage.path(), reason))?;
        match identity {
            Identity::Ragged { dtype } => Ok(Self { storage, dtype, item_bytes }),
            Identity::Dense { .. } => {
                Err(Error::invalid(storage.path(), "it is a dense store; open it as DenseStore"))
            }
        }
    }

    /// The bytes of an element.
    pub fn item_bytes(&self) -> u64 {
        self.item_bytes
    }

    /// Appends `records` and gives the index of the first. When it returns, gathers see all of
    /// them, and the death of the process loses none; [`sync`](Self::sync) makes them outlive a
    /// power loss.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are none or a payload is not what its shape says;
    /// [`Error::EmptyRecord`]; [`Error::RecordTooLarge`]; [`Error::StoreFull`]; file errors.
    /// None of the batch is in the store then.
    pub fn append(&self, records: &[RaggedRecord<'_>]) -> Result<u64> {
        if records.is_empty() {
            let path = self.storage.path().display();
            return Err(Error::InvalidArgument(format!("append to {path}: there are no records")));
        }
        for (number, record) in records.iter().enumerate() {
            if record.payload.is_empty() {
                let path = self.storage.path().to_owned();
                return Err(Error::EmptyRecord { path, record: number });
            }
            let bytes = shape_bytes(self.item_bytes, record.shape);
            if record.shape.len() > DIMENSIONS_MAX || bytes != Some(record.payload.len() as u64) {
                return Err(Error::InvalidArgument(format!(
                    "record {number} of the batch has {} bytes, and shape {:?} of {}-byte elements \
                     is another size",
                    record.payload.len(),
                    record.shape,
                    self.item_bytes
                )));
            }
        }
        append::append(&self.storage, &Prefixed { records })
    }

    /// The records `indices`, in memory from the process's pool.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`]; [`Error::Decode`] or [`Error::BadLocation`] for a damaged
    /// record, naming it; file errors.
    pub fn gather(&self, indices: &[u64]) -> Result<RaggedBatch> {
        let _inside = self.storage.enter()?;
        let located = gather::locate(&self.storage, indices, None)?;
        let mut buffer = take_buffer(offsets(&located).last().copied().unwrap_or(0))?;
        let layout = self.fetch(indices, &located, buffer.span_mut())?;
        Ok(RaggedBatch { buffer, layout })
    }

    /// The records `indices`, in the first bytes of `dst`, which must be large enough for them
    /// and their shape prefixes. After an error `dst` holds nothing of meaning.
    ///
    /// # Errors
    /// As [`gather`](Self::gather), and [`Error::BufferTooSmall`].
    pub fn gather_into<'a>(
        &self,
        indices: &[u64],
        dst: impl Into<SpanMut<'a>>,
    ) -> Result<RaggedLayout> {
        let mut dst = dst.into();
        let _inside = self.storage.enter()?;
        let located = gather::locate(&self.storage, indices, None)?;
        let need = offsets(&located).last().copied().unwrap_or(0);
        if need > dst.len() {
            return Err(Error::BufferTooSmall { need: need as u64, got: dst.len() as u64 });
        }
        self.fetch(indices, &located, dst.slice_mut(0..need))
    }

    fn fetch(
        &self,
        indices: &[u64],
        located: &Located,
        mut dst: SpanMut<'_>,
    ) -> Result<RaggedLayout> {
        let offsets = offsets(located);
        let len = dst.len();
        let slots = Slots::at_offsets(dst.slice_mut(0..len), &offsets);
        gather::fetch(&self.storage, indices, located, slots)?;
        let mut layout = RaggedLayout::default();
        for (slot, bounds) in offsets.windows(2).enumerate() {
            let record = dst.as_span().slice(bounds[0]..bounds[1]);
            layout.push(bounds[0], record, self.item_bytes).map_err(|reason| Error::Decode {
                path: self.storage.path().to_owned(),
                record: indices[slot],
                reason,
            })?;
        }
        Ok(layout)
    }
}

/// Where each located record begins when they lie one behind the other, and where they end.
///
/// Prefixes are multiples of eight bytes and payloads of the element's size, so elements are
/// aligned as far as their size allows, to eight bytes.
fn offsets(located: &Located) -> Vec<usize> {
    let mut end = 0usize;
    let ends = located.locations.iter().map(|location| {
        end = end.saturating_add(location.logic_length as usize);
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// Where the records of a gathered batch are, and their shapes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RaggedLayout {
    payloads: Vec<Range<usize>>,
    /// The axes of all records, one record behind the other.
    axes: Vec<u64>,
    /// Where each record's axes end in `axes`.
    axis_ends: Vec<usize>,
}

impl RaggedLayout {
    /// Records of the batch.
    pub fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Whether the batch has no records.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// The bytes of record `i` of the batch, without its prefix.
    pub fn payload(&self, i: usize) -> Range<usize> {
        self.payloads[i].clone()
    }

    /// The shape of record `i` of the batch.
    pub fn shape(&self, i: usize) -> &[u64] {
        let start = if i == 0 { 0 } else { self.axis_ends[i - 1] };
        &self.axes[start..self.axis_ends[i]]
    }

    /// Reads the prefix of the record that lies at `offset` of the batch, and checks it.
    fn push(&mut self, offset: usize, record: Span<'_>, item_bytes: u64) -> Result<(), String> {
        let no_room = || format!("its {} bytes have no room for a shape", record.len());
        if record.len() < AXIS_BYTES {
            return Err(no_room());
        }
        let rank = record.u64_le_at(0);
        if rank > DIMENSIONS_MAX as u64 {
            return Err(format!("its shape prefix says {rank} axes"));
        }
        let prefix = AXIS_BYTES * (rank as usize + 1);
        if record.len() < prefix {
            return Err(no_room());
        }
        let start = self.axes.len();
        self.axes.extend((1..=rank as usize).map(|axis| record.u64_le_at(AXIS_BYTES * axis)));
        let shape = &self.axes[start..];
        let payload = record.len() - prefix;
        // Append stores no empty record, and a zero would leave the other axes unchecked.
        if payload == 0 || shape_bytes(item_bytes, shape) != Some(payload as u64) {
            return Err(format!(
                "shape {shape:?} of {item_bytes}-byte elements is not its {payload} bytes"
            ));
        }
        self.axis_ends.push(self.axes.len());
        self.payloads.push(offset + prefix..offset + record.len());
        Ok(())
    }
}

/// A gathered batch.
#[derive(Debug)]
pub struct RaggedBatch {
    /// The batch's memory.
    pub buffer: Buffer,
    /// Where each record is in it.
    pub layout: RaggedLayout,
}

impl RaggedBatch {
    /// The elements of record `i` of the batch, in C order.
    pub fn payload(&mut self, i: usize) -> &[u8] {
        let range = self.layout.payload(i);
        &self.buffer.bytes_mut()[range]
    }

    /// Moves the payloads together to the front of the buffer, without their prefixes, and
    /// gives the number of their bytes.
    pub fn pack(&mut self) -> usize {
        let bytes = self.buffer.bytes_mut();
        let mut end = 0;
        for payload in &mut self.layout.payloads {
            let len = payload.len();
            bytes.copy_within(payload.clone(), end);
            *payload = end..end + len;
            end += len;
        }
        end
    }
}

/// Records with their prefixes.
struct Prefixed<'a> {
    records: &'a [RaggedRecord<'a>],
}

impl Source for Prefixed<'_> {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn record_bytes(&self, i: usize) -> u64 {
        let record = &self.records[i];
        (AXIS_BYTES * (record.shape.len() + 1) + record.payload.len()) as u64
    }

    fn visit(
        &self,
        range: Range<usize>,
        piece: &mut dyn FnMut(Span<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut prefix = [0; AXIS_BYTES * (DIMENSIONS_MAX + 1)];
        for record in &self.records[range] {
            let rank = record.shape.len() as u64;
            let numbers = std::iter::once(&rank).chain(record.shape);
            for (bytes, number) in prefix.chunks_exact_mut(AXIS_BYTES).zip(numbers) {
                bytes.copy_from_slice(&number.to_le_bytes());
            }
            piece(Span::from(&prefix[..AXIS_BYTES * (record.shape.len() + 1)]))?;
            piece(record.payload)?;
        }
        Ok(())
    }
}
