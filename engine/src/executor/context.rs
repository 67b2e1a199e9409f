//! What a thread keeps from one batch to the next: its readers, its zstd state and its staging
//! memory. Nothing in it belongs to a store.

use std::time::{Duration, Instant};

use ringloader_fallback::{BatchReader, PreadReader};
use ringloader_uring::{RingReader, SetupError};

use crate::backend::{self, Backend, Reader};
use crate::codec::context::{Decoder, Encoder};
use crate::error::{Error, Result};

/// A thread that could not have a ring tries again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(10);
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
    /// The reader of this thread.
    pub(crate) fn reader(&mut self, reader: Reader) -> Result<&mut dyn BatchReader> {
        self.readers.get(reader)
    }

    /// A reader with a decoder and `len` bytes of staging memory, to be used together.
    pub(crate) fn decoding(
        &mut self,
        reader: Reader,
        len: usize,
    ) -> Result<(&mut dyn BatchReader, &mut Decoder, &mut [u8])> {
        let Self { readers, decoder, staging, .. } = self;
        let reader = readers.get(reader)?;
        Ok((reader, decoder.get_or_insert_with(Decoder::new), stage(staging, len)?))
    }

    /// A decoder and `len` bytes of staging memory, to be used together.
    pub(crate) fn staged(&mut self, len: usize) -> Result<(&mut Decoder, &mut [u8])> {
        let Self { decoder, staging, .. } = self;
        Ok((decoder.get_or_insert_with(Decoder::new), stage(staging, len)?))
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

/// The first `len` bytes of `staging`, which grows if it has fewer.
fn stage(staging: &mut Vec<u8>, len: usize) -> Result<&mut [u8]> {
    if let Some(more @ 1..) = len.checked_sub(staging.len()) {
        let out_of_memory =
            |_| Error::OutOfMemory { what: "staging compressed records", bytes: len as u64 };
        staging.try_reserve(more).map_err(out_of_memory)?;
        staging.resize(len, 0);
    }
    Ok(&mut staging[..len])
}

#[derive(Default)]
struct Readers {
    ring: Option<RingReader>,
    /// When this thread could not have a ring and began to read with pread instead.
    refused: Option<Instant>,
    pread: Option<PreadReader>,
}

impl Readers {
    fn get(&mut self, reader: Reader) -> Result<&mut dyn BatchReader> {
        if let Reader::Uring { required, depth } = reader {
            match self.make_ring_ready(required, depth) {
                Ok(()) => {}
                Err(why) if required => {
                    let (name, reason) = (Backend::Uring.name(), why.to_string());
                    return Err(Error::BackendUnavailable { name, reason });
                }
                Err(why) => {
                    backend::note_refusal(&why);
                    self.refused = Some(Instant::now());
                }
            }
        }
        match (reader, &mut self.ring) {
            (Reader::Uring { .. }, Some(ring)) => Ok(ring),
            _ => Ok(self.pread.get_or_insert_with(PreadReader::with_threads_started)),
        }
    }

    /// Sees to a ring that can be used now. Unless it is `required`, none is tried for some time
    /// after one was refused.
    fn make_ring_ready(&mut self, required: bool, depth: u32) -> Result<(), SetupError> {
        if let Some(ring) = &mut self.ring {
            let ready = ring.make_ready();
            if ready.is_err() {
                self.ring = None;
            }
            return ready;
        }
        if required || self.refused.is_none_or(|since| since.elapsed() > RETRY_AFTER) {
            self.ring = Some(RingReader::new(depth)?);
        }
        Ok(())
    }
}
