//! The shortest `io_uring` program: one submission for each batch of random reads, sorted by
//! place, into memory that was touched.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::{IoUring, opcode, squeue, types};

use crate::{Outcome, Random, median};

/// The median seconds of a batch through one ring.
pub(crate) fn run(
    path: &Path,
    record_bytes: usize,
    batch: usize,
    batches: usize,
    fixed_files: bool,
    fixed_buffers: bool,
) -> Outcome<f64> {
    let file = File::open(path)?;
    // SAFETY: the call touches no memory of the process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let records = file.metadata()?.len() as usize / record_bytes;
    let mut memory = vec![1u8; record_bytes * batch];
    let mut ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(u32::try_from(batch)?)?;
    if fixed_files {
        ring.submitter().register_files(&[file.as_raw_fd()])?;
    }
    if fixed_buffers {
        let whole = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the memory outlives the ring's use of it: every batch waits for its reads.
        unsafe { ring.submitter().register_buffers(&[whole]) }?;
    }
    // Not the places of the run before: whatever is below the file may have kept those.
    let mut random = Random::from_clock();
    let mut times = Vec::new();
    for _ in 0..batches {
        let mut places: Vec<usize> = (0..batch).map(|_| random.below(records)).collect();
        let started = std::time::Instant::now();
        places.sort_unstable();
        for (place, dst) in places.iter().zip(memory.chunks_exact_mut(record_bytes)) {
            let offset = (place * record_bytes) as u64;
            let entry = read(&file, offset, dst, fixed_files, fixed_buffers);
            // SAFETY: `memory` and `file` live until the batch was waited for.
            unsafe { ring.submission().push(&entry) }?;
        }
        wait(&mut ring, batch, record_bytes)?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

fn read(
    file: &File,
    offset: u64,
    dst: &mut [u8],
    fixed_file: bool,
    fixed_buffer: bool,
) -> squeue::Entry {
    let (start, len) = (dst.as_mut_ptr(), dst.len() as u32);
    let fd = types::Fd(file.as_raw_fd());
    match (fixed_file, fixed_buffer) {
        (false, false) => opcode::Read::new(fd, start, len).offset(offset).build(),
        (true, false) => opcode::Read::new(types::Fixed(0), start, len).offset(offset).build(),
        (false, true) => opcode::ReadFixed::new(fd, start, len, 0).offset(offset).build(),
        (true, true) => {
            opcode::ReadFixed::new(types::Fixed(0), start, len, 0).offset(offset).build()
        }
    }
}

fn wait(ring: &mut IoUring, batch: usize, record_bytes: usize) -> Outcome<()> {
    ring.submit_and_wait(batch)?;
    for entry in ring.completion() {
        if entry.result() < 0 {
            return Err(io::Error::from_raw_os_error(-entry.result()).into());
        }
        if entry.result() as usize != record_bytes {
            return Err("a short read".into());
        }
    }
    Ok(())
}
