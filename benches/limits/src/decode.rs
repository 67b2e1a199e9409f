//! Decoding frames that are in memory, each thread with a context that it keeps.

use std::fs;
use std::path::Path;

use zstd_safe::{DCtx, DDict};

use crate::{Outcome, Random, time, together};

/// A compressed record: its frame, and the bytes it decodes to.
struct Frame {
    bytes: Vec<u8>,
    len: usize,
}

/// The median seconds in which `threads` threads decode a random batch of a store's records.
pub(crate) fn run(store: &Path, batch: usize, batches: usize, threads: usize) -> Outcome<f64> {
    let frames = read_frames(store)?;
    let dictionary = fs::read(store.join("dict.zr")).ok();
    Ok(together(threads, |number| {
        let dictionary = dictionary.as_deref().map(DDict::create);
        let mut context = DCtx::create();
        let mut random = Random(number as u64);
        let most = frames.iter().map(|frame| frame.len).max().unwrap_or(0);
        let mut part = vec![0u8; most * (batch / threads)];
        time(batches, || {
            let mut rest = part.as_mut_slice();
            for _ in 0..batch / threads {
                let frame = &frames[random.below(frames.len())];
                let (dst, later) = rest.split_at_mut(frame.len);
                rest = later;
                let decoded = match &dictionary {
                    Some(dictionary) => {
                        context.decompress_using_ddict(dst, &frame.bytes, dictionary)
                    }
                    None => context.decompress(dst, &frame.bytes),
                };
                assert_eq!(decoded, Ok(frame.len));
            }
        })
    }))
}

/// Every frame of the store, by its table: docs/format.md says what is in the files.
fn read_frames(store: &Path) -> Outcome<Vec<Frame>> {
    let (table, chunk) = (fs::read(store.join("0.loc"))?, fs::read(store.join("0.chunk"))?);
    let frames = table.chunks_exact(16).map(|entry| {
        let field = |i: usize| {
            let bytes = entry[4 * i..][..4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        };
        let (offset, phys_length, logic_length) = (field(0), field(1), field(2));
        let bytes = chunk.get(offset..offset + phys_length).ok_or("more than one chunk")?;
        Ok(Frame { bytes: bytes.to_vec(), len: logic_length })
    });
    frames.collect()
}
