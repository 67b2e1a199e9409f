//! zstd state that one thread reuses for every record it compresses or decodes.
//!
//! This is one of the rooms in which `unsafe` is allowed, for two things that zstd-safe's
//! lifetimes cannot say: that a context which is kept refers to a dictionary that is kept with
//! it, and that a record may be decoded into a span.
#![allow(unsafe_code)]

use std::sync::Arc;

use ringloader_fallback::SpanMut;
use zstd_safe::{CCtx, CDict, CParameter, DCtx, ResetDirective, WriteBuf};

use super::{Dictionary, ZSTD_LEVEL};

/// Decodes frames, whichever store they are of.
pub(crate) struct Decoder {
    dctx: DCtx<'static>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { dctx: DCtx::create() }
    }

    /// Decodes `frame` into all of `dst`.
    pub(crate) fn decode(
        &mut self,
        frame: &[u8],
        dictionary: Option<&Dictionary>,
        dst: SpanMut<'_>,
    ) -> Result<(), String> {
        let want = dst.len();
        let mut target = Target(dst);
        let decoded = match dictionary {
            Some(dict) => self.dctx.decompress_using_ddict(&mut target, frame, &dict.decoder),
            None => self.dctx.decompress(&mut target, frame),
        };
        match decoded {
            Ok(got) if got == want => Ok(()),
            Ok(got) => Err(format!("its frame has {got} bytes and its location says {want}")),
            Err(code) => Err(format!("zstd says {:?}", zstd_safe::get_error_name(code))),
        }
    }
}

/// A span as zstd's destination.
struct Target<'a>(SpanMut<'a>);

// SAFETY: `as_mut_ptr` is valid for `capacity` bytes as long as the span lives. No part of it is
// ever shown as a slice, so nothing is claimed about bytes that foreign code may write.
unsafe impl WriteBuf for Target<'_> {
    fn as_slice(&self) -> &[u8] {
        &[]
    }

    fn capacity(&self) -> usize {
        self.0.len()
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    unsafe fn filled_until(&mut self, _n: usize) {}
}

/// Compresses records with the settings of one codec at a time.
pub(crate) struct Encoder {
    cctx: CCtx<'static>,
    /// What `cctx` refers to, kept alive here. `None` is the plain codec.
    dictionary: Option<Arc<Dictionary>>,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        let mut cctx = CCtx::create();
        // A level and a checksum are accepted by every zstd since 1.4.
        cctx.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL)).expect("zstd takes a level");
        cctx.set_parameter(CParameter::ChecksumFlag(true)).expect("zstd takes a checksum flag");
        Self { cctx, dictionary: None }
    }

    /// Makes `dictionary`, or none, the one that following records are compressed against.
    pub(crate) fn select(&mut self, dictionary: Option<&Arc<Dictionary>>) -> Result<(), String> {
        let same = match (&self.dictionary, dictionary) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        };
        if same {
            return Ok(());
        }
        let selected = match dictionary {
            None => self.cctx.disable_dictionary(),
            Some(dict) => {
                let encoder: *const CDict<'static> = dict.encoder();
                // SAFETY: the digested dictionary lives in the heap allocation of `dict`, which
                // never moves or changes it. A clone of that Arc is kept in `self.dictionary`
                // until another dictionary is selected, which makes zstd forget this one, or
                // until `self` is dropped, where `cctx` is declared and so dropped first.
                self.cctx.ref_cdict(unsafe { &*encoder })
            }
        };
        selected.map_err(|code| zstd_safe::get_error_name(code).to_owned())?;
        // Only now: until zstd has switched, the old dictionary must live.
        self.dictionary = dictionary.cloned();
        Ok(())
    }

    /// Appends one frame of `record` to `out` and gives its length.
    pub(crate) fn encode(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<usize, String> {
        let start = out.len();
        out.reserve(zstd_safe::compress_bound(record.len()));
        let mut tail = Tail { out, start };
        let encoded = self.cctx.compress2(&mut tail, record);
        encoded.map_err(|code| {
            // A frame that failed is still open, and would refuse the next dictionary.
            let _ = self.cctx.reset(ResetDirective::SessionOnly);
            format!("zstd says {:?}", zstd_safe::get_error_name(code))
        })
    }
}

/// The spare capacity of a vector as zstd's destination.
struct Tail<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

// SAFETY: pointer and capacity describe the spare capacity of the vector past `start`, and
// `filled_until` makes exactly the bytes that were written part of the vector.
unsafe impl WriteBuf for Tail<'_> {
    fn as_slice(&self) -> &[u8] {
        &self.out[self.start..]
    }

    fn capacity(&self) -> usize {
        self.out.capacity() - self.start
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: `start` is at most the vector's length.
        unsafe { self.out.as_mut_ptr().add(self.start) }
    }

    unsafe fn filled_until(&mut self, n: usize) {
        // SAFETY: the caller has initialised `n` bytes from `start` on.
        unsafe { self.out.set_len(self.start + n) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(encoder: &mut Encoder, dictionary: Option<&Arc<Dictionary>>, record: &[u8]) {
        encoder.select(dictionary).unwrap();
        let mut frames = vec![1, 2, 3];
        let n = encoder.encode(record, &mut frames).unwrap();
        assert_eq!((&frames[..3], frames.len()), ([1, 2, 3].as_slice(), 3 + n));
        let mut back = vec![0; record.len()];
        let dst = SpanMut::from(back.as_mut_slice());
        Decoder::new().decode(&frames[3..], dictionary.map(Arc::as_ref), dst).unwrap();
        assert_eq!(back, record);
    }

    #[test]
    fn an_encoder_switches_dictionaries_and_outlives_them() {
        let mut encoder = Encoder::new();
        let record = b"the quick brown fox jumps over the lazy dog".repeat(3);
        for _ in 0..3 {
            // Any bytes serve as a dictionary of plain content.
            let dictionary = Arc::new(Dictionary::new(record[..90].to_vec()).unwrap());
            round_trip(&mut encoder, Some(&dictionary), &record);
            drop(dictionary);
            round_trip(&mut encoder, None, &record);
        }
    }

    #[test]
    fn every_bit_of_a_frame_is_protected() {
        let record: Vec<u8> = (0..600u32).flat_map(|i| (i * i).to_le_bytes()).collect();
        let mut frame = Vec::new();
        Encoder::new().encode(&record, &mut frame).unwrap();
        let mut decoder = Decoder::new();
        let mut back = vec![0; record.len()];
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = decoder.decode(&damaged, None, SpanMut::from(back.as_mut_slice()));
            assert!(decoded.is_err() || back == record, "bit {bit} changed the record silently");
        }
    }

    #[test]
    fn a_frame_of_another_size_is_refused() {
        let mut frame = Vec::new();
        Encoder::new().encode(&[7; 100], &mut frame).unwrap();
        for size in [99, 101] {
            let mut back = vec![0; size];
            let dst = SpanMut::from(back.as_mut_slice());
            assert!(Decoder::new().decode(&frame, None, dst).is_err());
        }
    }
}
