//! What the tests of stores share: seeded numbers, records, and small capacities.
#![allow(dead_code, unreachable_pub)]

use std::path::Path;

use ringloader_engine::codec::Codec;
use ringloader_engine::file::Fs;
use ringloader_engine::format::Capacity;
use ringloader_engine::identity::Dtype;
use ringloader_engine::storage::{Mode, Options};
use ringloader_engine::{DenseStore, RaggedRecord, RaggedStore, Result, Span};

/// A directory that is removed when dropped; in memory where there is such a place, because
/// these tests sync thousands of times and ask nothing of the disk.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Marsaglia's xorshift64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        // Half of it repeats, so that compression has something to do.
        (0..len).map(|i| if i % 2 == 0 { 7 } else { self.below(256) as u8 }).collect()
    }
}

/// Capacities at which a few records of these tests fill a chunk, and a few dozen a segment.
pub const SMALL: Capacity = Capacity { chunk_bytes: 1000, segment_records: 37, chunks: 4096 };

pub const DENSE_BYTES: usize = 24;

pub fn options(capacity: Capacity, fs: &Fs) -> Options {
    Options { capacity, fs: fs.clone(), ..Options::default() }
}

pub fn reader(capacity: Capacity) -> Options {
    Options { mode: Mode::Read, capacity, ..Options::default() }
}

/// A store of either kind whose records are bytes.
pub enum Store {
    Dense(DenseStore),
    Ragged(RaggedStore),
}

macro_rules! either {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Store::Dense($store) => $call,
            Store::Ragged($store) => $call,
        }
    };
}

impl Store {
    pub fn create(path: &Path, dense: bool, codec: Codec, options: &Options) -> Result<Self> {
        let dictionary: Vec<u8> = Random::new(99).bytes(300);
        let dictionary = (codec == Codec::ZstdDict).then_some(dictionary.as_slice());
        let dtype = Dtype::Plain("|u1".into());
        Ok(if dense {
            let shape = [DENSE_BYTES as u64];
            Self::Dense(DenseStore::create(path, dtype, &shape, codec, dictionary, options)?)
        } else {
            Self::Ragged(RaggedStore::create(path, dtype, codec, dictionary, options)?)
        })
    }

    pub fn open(path: &Path, dense: bool, options: &Options) -> Result<Self> {
        Ok(if dense {
            Self::Dense(DenseStore::open(path, options)?)
        } else {
            Self::Ragged(RaggedStore::open(path, options)?)
        })
    }

    pub fn append(&self, records: &[Vec<u8>]) -> Result<u64> {
        match self {
            Self::Dense(store) => store.append(records.concat().as_slice()),
            Self::Ragged(store) => {
                let shapes: Vec<_> = records.iter().map(|record| [record.len() as u64]).collect();
                let batch: Vec<_> = records
                    .iter()
                    .zip(&shapes)
                    .map(|(record, shape)| RaggedRecord {
                        shape,
                        payload: Span::from(record.as_slice()),
                    })
                    .collect();
                store.append(&batch)
            }
        }
    }

    pub fn gather(&self, indices: &[u64]) -> Result<Vec<Vec<u8>>> {
        Ok(match self {
            Self::Dense(store) => {
                let mut batch = store.gather(indices)?;
                batch.bytes_mut().chunks(DENSE_BYTES).map(<[u8]>::to_vec).collect()
            }
            Self::Ragged(store) => {
                let mut batch = store.gather(indices)?;
                (0..indices.len()).map(|i| batch.payload(i).to_vec()).collect()
            }
        })
    }

    pub fn all(&self) -> Result<Vec<Vec<u8>>> {
        self.gather(&(0..self.len()).collect::<Vec<_>>())
    }

    pub fn len(&self) -> u64 {
        either!(self, store => store.len())
    }

    pub fn delete(&self, indices: &[u64]) -> Result<()> {
        either!(self, store => store.delete(indices))
    }

    pub fn compact(&self) -> Result<()> {
        either!(self, store => store.compact())
    }

    pub fn sync(&self) -> Result<()> {
        either!(self, store => store.sync())
    }

    pub fn close(&self) -> Result<()> {
        either!(self, store => store.close())
    }

    pub fn live_bytes(&self) -> u64 {
        either!(self, store => store.stats().unwrap().live_bytes)
    }

    pub fn chunk_bytes(&self) -> u64 {
        either!(self, store => store.stats().unwrap().chunk_bytes)
    }
}

/// Some records that fit a store of this kind.
pub fn records(random: &mut Random, dense: bool, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let len = if dense { DENSE_BYTES } else { 1 + random.below(120) };
            random.bytes(len)
        })
        .collect()
}

/// What deleting does to a list of records: from the highest index to the lowest, the last
/// record takes the place of the deleted one.
pub fn swap_delete(records: &mut Vec<Vec<u8>>, indices: &[u64]) {
    let mut holes = indices.to_vec();
    holes.sort_unstable();
    holes.dedup();
    for hole in holes.into_iter().rev() {
        records.swap_remove(hole as usize);
    }
}

/// Every kind of store: dense or ragged, and the codec.
pub fn kinds() -> impl Iterator<Item = (bool, Codec)> {
    [true, false].into_iter().flat_map(|dense| Codec::ALL.map(|codec| (dense, codec)))
}
