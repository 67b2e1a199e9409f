//! The backend that runs everywhere: positional reads, on the calling thread while they are
//! fast, and on a pool of I/O threads once they are not.
//!
//! Warm data is a memory copy, for which another thread only costs. Cold data waits for the
//! disk, which serves many reads at once faster than one after the other. Nothing portable
//! tells the two apart beforehand, so the time of the reads themselves does.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::process::PerProcess;
use crate::read::{BatchReader, Done, ReadError, ReadErrorKind, ReadOp};
use crate::sys;

/// Threads that wait for the disk. More than cores: in measurements 16 gave three times the cold
/// reads of two, and 64 gave fewer again.
const IO_THREADS: usize = 16;
/// A read that takes longer than this, beside its bytes at [`COLD_BYTES_PER_MICROSECOND`], was
/// not in memory: warm ones take one or two microseconds, disks at least fifty.
const COLD_LATENCY: Duration = Duration::from_micros(60);
/// A slow memory copy.
const COLD_BYTES_PER_MICROSECOND: u64 = 1000;

/// Reads batches with positional reads.
#[derive(Debug)]
pub struct PreadReader {
    cold_latency: Duration,
}

impl Default for PreadReader {
    fn default() -> Self {
        Self { cold_latency: COLD_LATENCY }
    }
}

impl BatchReader for PreadReader {
    fn read(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> Result<(), ReadError> {
        let mut started = Instant::now();
        for number in 0..ops.len() {
            let op = &mut ops[number];
            read_whole(op).map_err(|kind| ReadError { op: number, kind })?;
            if done(number, op.dst.as_span()).is_break() {
                return Ok(());
            }
            let ended = Instant::now();
            let copy = Duration::from_micros(op.dst.len() as u64 / COLD_BYTES_PER_MICROSECOND);
            if ended - started > self.cold_latency + copy
                && ops.len() - number > 2
                && let Some(pool) = io_pool()
            {
                return read_cold(pool, ops, number + 1, done);
            }
            started = ended;
        }
        Ok(())
    }
}

fn io_pool() -> Option<&'static ThreadPool> {
    static POOL: PerProcess<Option<ThreadPool>> = PerProcess::new();
    let make = || {
        let builder = ThreadPoolBuilder::new()
            .num_threads(IO_THREADS)
            .thread_name(|i| format!("ringloader-io-{i}"));
        builder
            .build()
            .inspect_err(|error| {
                log::warn!("cannot start I/O threads, reading one by one: {error}");
            })
            .ok()
    };
    POOL.get_or_init(make).as_ref()
}

/// Reads the operations from `first` on with many threads. `done` is called on this one.
fn read_cold(
    pool: &ThreadPool,
    ops: &mut [ReadOp<'_>],
    first: usize,
    done: &mut Done<'_>,
) -> Result<(), ReadError> {
    let stop = &AtomicBool::new(false);
    // The scope ends when every read has ended, also if `done` panics.
    pool.in_place_scope_fifo(|scope| {
        let (sender, completed) = mpsc::channel();
        for (number, op) in ops.iter_mut().enumerate().skip(first) {
            let sender = sender.clone();
            scope.spawn_fifo(move |_| {
                if !stop.load(Ordering::Relaxed) {
                    let read = read_whole(op);
                    // The receiver is gone only if nobody wants to know any more.
                    let _ = sender.send((number, op, read));
                }
            });
        }
        drop(sender);
        let _stop_on_return = SetOnDrop(stop);
        for (number, op, read) in completed {
            read.map_err(|kind| ReadError { op: number, kind })?;
            if done(number, op.dst.as_span()).is_break() {
                break;
            }
        }
        Ok(())
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fills the whole span: short reads are resumed and interrupted ones repeated.
fn read_whole(op: &mut ReadOp<'_>) -> Result<(), ReadErrorKind> {
    let len = op.dst.len();
    let mut filled = 0;
    while filled < len {
        let mut rest = op.dst.slice_mut(filled..len);
        match sys::read_at(op.file, &mut rest, op.offset + filled as u64) {
            Ok(0) => return Err(ReadErrorKind::Eof { filled }),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ReadErrorKind::Io(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[test]
    fn warm_reads_keep_the_contract() {
        conformance::check(&mut PreadReader { cold_latency: Duration::MAX / 2 });
    }

    #[test]
    fn cold_reads_keep_the_contract() {
        conformance::check(&mut PreadReader { cold_latency: Duration::ZERO });
    }
}
