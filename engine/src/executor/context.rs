//! What a thread keeps from one batch to the next: its readers, its zstd state and its staging
//! memory. Nothing in it belongs to a store.

use ringloader_fallback::{BatchReader, PreadReader};
use ringloader_uring::RingReader;

use crate::backend::Backend;
use crate::codec::context::{Decoder, Encoder};
use crate::error::{Error, Result};

/// Staging memory that a thread keeps; a batch of larger records has more while it runs.
const STAGING_KEPT_BYTES: usize = 8 << 20;

/// A thread's working equipment. Each part is made when it is first needed.
#[derive(Default)]
pub(crate) struct Context {
    readers: Readers,
    decoder: Option<Decoder>,
    encoder: Option<Encoder>,
    staging: Vec<u8>,
}

impl Context {
    /// The reader for `backend`. Where `fallback` is allowed, a thread that cannot have a ring
    /// (descriptors or locked memory ran out) reads with pread.
    pub(crate) fn reader(
        &mut self,
        backend: Backend,
        fallback: bool,
    ) -> Result<&mut dyn BatchReader> {
        self.readers.get(backend, fallback)
    }

    /// A reader with a decoder and `len` bytes of staging memory, to be used together.
    pub(crate) fn decoding(
        &mut self,
        backend: Backend,
        fallback: bool,
        len: usize,
    ) -> Result<(&mut dyn BatchReader, &mut Decoder, &mut [u8])> {
        let Self { readers, decoder, staging, .. } = self;
        if let Some(more @ 1..) = len.checked_sub(staging.len()) {
            let out_of_memory =
                |_| Error::OutOfMemory { what: "staging compressed records", bytes: len as u64 };
            staging.try_reserve(more).map_err(out_of_memory)?;
            staging.resize(len, 0);
        }
        let reader = readers.get(backend, fallback)?;
        Ok((reader, decoder.get_or_insert_with(Decoder::new), &mut staging[..len]))
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

#[derive(Default)]
struct Readers {
    ring: Option<RingReader>,
    /// Set when this thread could not have a ring and reads with pread instead.
    ring_refused: bool,
    pread: Option<PreadReader>,
}

impl Readers {
    fn get(&mut self, backend: Backend, fallback: bool) -> Result<&mut dyn BatchReader> {
        if backend == Backend::Uring && self.ring.is_none() && !(self.ring_refused && fallback) {
            match RingReader::new() {
                Ok(ring) => self.ring = Some(ring),
                Err(why) if fallback => {
                    log::warn!("a thread reads with pread instead of io_uring: {why}");
                    self.ring_refused = true;
                }
                Err(why) => {
                    let reason = why.to_string();
                    return Err(Error::BackendUnavailable { name: backend.name(), reason });
                }
            }
        }
        match (backend, &mut self.ring) {
            (Backend::Uring, Some(ring)) => Ok(ring),
            _ => Ok(self.pread.get_or_insert_with(PreadReader::with_threads_started)),
        }
    }
}
