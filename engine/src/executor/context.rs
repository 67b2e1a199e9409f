//! What a thread keeps from one batch to the next: its readers, its zstd state and its staging
//! memory. Nothing in it belongs to a store.

use ringloader_fallback::{BatchReader, PreadReader};
use ringloader_uring::RingReader;

use crate::codec::context::{Decoder, Encoder};
use crate::error::{Error, Result};
use crate::runtime::Backend;

/// Staging memory that a thread keeps; a batch of larger records has more while it runs.
const STAGING_KEPT_BYTES: usize = 8 << 20;

/// A thread's working equipment. Each part is made when it is first needed.
#[derive(Default)]
pub(crate) struct Context {
    ring: Option<RingReader>,
    pread: Option<PreadReader>,
    decoder: Option<Decoder>,
    encoder: Option<Encoder>,
    staging: Vec<u8>,
}

impl Context {
    /// Readers for `backend`. Where `fallback` is allowed, a thread that cannot have a ring
    /// (descriptors or locked memory ran out) reads with pread.
    pub(crate) fn reader(
        &mut self,
        backend: Backend,
        fallback: bool,
    ) -> Result<&mut dyn BatchReader> {
        if backend == Backend::Uring {
            // Not `if let` on the slot: the borrow checker would keep it for the pread path.
            if self.ring.is_none() {
                match RingReader::new() {
                    Ok(ring) => self.ring = Some(ring),
                    Err(why) if fallback => {
                        log::warn!("a thread reads with pread instead of io_uring: {why}");
                    }
                    Err(why) => {
                        let reason = why.to_string();
                        return Err(Error::BackendUnavailable { name: backend.name(), reason });
                    }
                }
            }
            if self.ring.is_some() {
                return Ok(self.ring.as_mut().expect("it was just found"));
            }
        }
        Ok(self.pread.get_or_insert_with(PreadReader::default))
    }

    /// A reader with a decoder and `len` bytes of staging memory, to be used together.
    pub(crate) fn decoding(
        &mut self,
        backend: Backend,
        fallback: bool,
        len: usize,
    ) -> Result<(&mut dyn BatchReader, &mut Decoder, &mut [u8])> {
        // Taken out and put back, because `reader` borrows the whole context.
        let mut staging = std::mem::take(&mut self.staging);
        if staging.len() < len {
            staging.resize(len, 0);
        }
        self.staging = staging;
        self.decoder.get_or_insert_with(Decoder::new);
        self.reader(backend, fallback)?;
        let reader: &mut dyn BatchReader = match (backend, &mut self.ring) {
            (Backend::Uring, Some(ring)) => ring,
            _ => self.pread.get_or_insert_with(PreadReader::default),
        };
        let decoder = self.decoder.as_mut().expect("it was just made");
        Ok((reader, decoder, &mut self.staging[..len]))
    }

    /// An encoder with an empty staging buffer, to be used together.
    pub(crate) fn encoding(&mut self) -> (&mut Encoder, &mut Vec<u8>) {
        self.staging.clear();
        (self.encoder.get_or_insert_with(Encoder::new), &mut self.staging)
    }

    /// Gives back staging memory that an unusually large batch needed.
    pub(crate) fn shrink(&mut self) {
        if self.staging.capacity() > STAGING_KEPT_BYTES {
            self.staging = Vec::new();
        }
    }
}
