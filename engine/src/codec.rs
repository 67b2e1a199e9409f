//! The three codecs: `raw`, `zstd` (level 3) and `zstd_dict` (level 19 against one trained
//! dictionary). Every record is compressed on its own, so any of them can be read alone.
//!
//! This owns what a codec is and what a dictionary is; `context` owns the zstd state that
//! compresses and decodes.

pub(crate) mod context;

use std::fmt;
use std::sync::OnceLock;

use zstd_safe::{CDict, DDict};

use crate::error::{Error, Result};

/// Level of the `zstd` codec.
pub const ZSTD_LEVEL: i32 = 3;
/// Level of the `zstd_dict` codec.
pub const ZSTD_DICT_LEVEL: i32 = 19;
/// The largest dictionary that a store may hold, in bytes. The largest tier makes 1 MiB; the
/// limit keeps a damaged store from asking for all memory.
pub const DICTIONARY_BYTES_MAX: u64 = 64 << 20;
/// No zstd frame expands more than this: a block gives at most 128 KiB from at least 4 bytes.
const ZSTD_EXPANSION_MAX: u64 = 1 << 15;

/// How the records of a store are stored. A store has one codec, fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    Raw = 0,
    /// Each a zstd frame of level 3.
    Zstd = 1,
    /// Each a zstd frame of level 19 against the store's dictionary.
    ZstdDict = 2,
}

impl Codec {
    /// Every codec, in the order of the tags.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Zstd, Self::ZstdDict];

    /// The codec with this tag in a header.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| *codec as u8 == tag)
    }

    /// The codec's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Zstd => "zstd",
            Self::ZstdDict => "zstd_dict",
        }
    }

    /// The codec of that name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "unknown codec {name:?}: expected 'raw', 'zstd' or 'zstd_dict'"
            ))
        })
    }

    /// Whether these stored and decoded lengths can belong to one record.
    pub(crate) fn check_lengths(self, phys: u32, logic: u32) -> Result<(), String> {
        let possible = match self {
            Self::Raw => phys == logic,
            Self::Zstd | Self::ZstdDict => u64::from(logic) <= u64::from(phys) * ZSTD_EXPANSION_MAX,
        };
        if possible {
            return Ok(());
        }
        Err(format!("{phys} stored bytes cannot be {logic} bytes of a {} record", self.name()))
    }

    /// The most bytes that a record of `logic` bytes can take in a chunk.
    pub(crate) fn phys_length_max(self, logic: u64) -> u64 {
        match self {
            Self::Raw => logic,
            Self::Zstd | Self::ZstdDict => zstd_safe::compress_bound(logic as usize) as u64,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The dictionary of a `zstd_dict` store, digested once and shared by all threads.
pub struct Dictionary {
    bytes: Vec<u8>,
    decoder: DDict<'static>,
    /// Digesting at level 19 takes long for a large dictionary, and readers never need it.
    encoder: OnceLock<CDict<'static>>,
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionary").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Dictionary {
    /// Digests dictionary bytes, or says why they are none.
    pub fn new(bytes: Vec<u8>) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the dictionary is empty".into());
        }
        if bytes.len() as u64 > DICTIONARY_BYTES_MAX {
            return Err(format!(
                "a dictionary of {} bytes is over the limit of {DICTIONARY_BYTES_MAX}",
                bytes.len()
            ));
        }
        let decoder = DDict::try_create(&bytes).ok_or("zstd does not accept the dictionary")?;
        Ok(Self { bytes, decoder, encoder: OnceLock::new() })
    }

    /// The bytes as they are in `dict.zr`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn encoder(&self) -> &CDict<'static> {
        self.encoder.get_or_init(|| {
            // `new` has seen zstd accept these bytes; what is left to fail is memory, and then
            // the allocator's own abort would be next.
            CDict::try_create(&self.bytes, ZSTD_DICT_LEVEL).expect("zstd digests the dictionary")
        })
    }
}

/// Trains a dictionary of at most `size` bytes on samples that lie one after another in
/// `samples`, with these `lengths`.
///
/// # Errors
/// [`Error::DictTraining`] if there are too few samples or they are too small, and
/// [`Error::InvalidArgument`] if the lengths do not add up.
pub fn train_dictionary(samples: &[u8], lengths: &[usize], size: usize) -> Result<Vec<u8>> {
    let total = lengths.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
    if total != Some(samples.len()) || u32::try_from(lengths.len()).is_err() {
        return Err(Error::InvalidArgument("sample lengths do not add up to the samples".into()));
    }
    let mut dictionary = Vec::with_capacity(size);
    match zstd_safe::train_from_buffer(&mut dictionary, samples, lengths) {
        Ok(_) => Ok(dictionary),
        Err(code) => Err(Error::DictTraining {
            reason: format!(
                "{} (from {} samples of {} bytes in all; give more or larger ones)",
                zstd_safe::get_error_name(code),
                lengths.len(),
                samples.len()
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_names_are_the_reference_s() {
        for (tag, name) in [(0, "raw"), (1, "zstd"), (2, "zstd_dict")] {
            assert_eq!(Codec::from_tag(tag), Some(Codec::from_name(name).unwrap()));
        }
        assert_eq!(Codec::from_tag(3), None);
        assert!(Codec::from_name("lz4").is_err());
    }

    #[test]
    fn the_expansion_limit_admits_the_most_compressible_record() {
        let zeros = vec![0u8; 64 << 20];
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(zeros.len()));
        zstd_safe::compress(&mut frame, &zeros, ZSTD_LEVEL).unwrap();
        let (phys, logic) = (frame.len() as u32, zeros.len() as u32);
        assert_eq!(Codec::Zstd.check_lengths(phys, logic), Ok(()));
        assert!(Codec::Zstd.check_lengths(20, 1 << 31).is_err());
    }

    #[test]
    fn training_on_too_little_says_so() {
        let error = train_dictionary(b"abc", &[3], 1024).unwrap_err();
        assert_eq!(error.code(), Some(-9));
    }
}
