//! The backend that runs everywhere: positional reads, on the calling thread while they are
//! fast, and on a pool of I/O threads once they are not. It owns that pool. The engine's
//! executor calls it where there is no ring; it never knows what the bytes mean.
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
use crate::span::SpanMut;
use crate::sys::{self, Patience};

/// Threads that wait for the disk. More than cores: in measurements 16 gave three times the cold
/// reads of two, and 64 gave fewer again.
const IO_THREADS: usize = 16;
/// A read that takes longer than this, beside its bytes at [`COLD_BYTES_PER_MICROSECOND`], was
/// not in memory: warm ones take one or two microseconds, disks at least fifty.
const COLD_LATENCY: Duration = Duration::from_micros(60);
/// A slow memory copy.
const COLD_BYTES_PER_MICROSECOND: u64 = 1000;
/// Fewer reads than this gain nothing from other threads.
const COLD_READS_MIN: usize = 2;

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

impl PreadReader {
    /// A reader whose I/O threads run already. Otherwise the first slow read would start them,
    /// and a thread that was merely kept waiting looks like one: a process that has warmed up
    /// should start no threads later.
    pub fn with_threads_started() -> Self {
        io_pool();
        Self::default()
    }

    /// A reader that takes data for cold when a read takes longer than `latency` beside its
    /// bytes; with zero it reads in parallel always. For tests.
    #[doc(hidden)]
    pub fn with_cold_after(latency: Duration) -> Self {
        Self { cold_latency: latency }
    }

    /// Reads one operation, and says whether it was cold. What `done` does with the bytes takes
    /// time of its own, so only the read is timed.
    fn read_timed(&self, op: &mut ReadOp<'_>) -> Result<bool, ReadErrorKind> {
        let started = Instant::now();
        read_whole(op)?;
        let copy = Duration::from_micros(op.dst.len() as u64 / COLD_BYTES_PER_MICROSECOND);
        Ok(self.cold_latency.is_zero() || started.elapsed() > self.cold_latency + copy)
    }
}

impl BatchReader for PreadReader {
    fn read(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> Result<(), ReadError> {
        for number in 0..ops.len() {
            let op = &mut ops[number];
            let cold = self.read_timed(op).map_err(|kind| ReadError { op: number, kind })?;
            if done(number, op.dst.as_span()).is_break() {
                return Ok(());
            }
            let next = number + 1;
            if cold
                && ops.len() - next >= COLD_READS_MIN
                && let Some(pool) = io_pool()
            {
                return read_cold(pool, ops, next, done);
            }
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
                    if read.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
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

fn read_whole(op: &mut ReadOp<'_>) -> Result<(), ReadErrorKind> {
    let ReadOp { file, offset, dst } = op;
    fill(dst, *offset, |rest, offset| sys::read_at(file, rest, offset))
}

/// Fills the whole span with `read_at`: short reads are resumed and interrupted ones repeated.
fn fill(
    dst: &mut SpanMut<'_>,
    offset: u64,
    mut read_at: impl FnMut(&mut SpanMut<'_>, u64) -> io::Result<usize>,
) -> Result<(), ReadErrorKind> {
    let len = dst.len();
    let mut filled = 0;
    let mut patience = Patience::default();
    while filled < len {
        match read_at(&mut dst.slice_mut(filled..len), offset + filled as u64) {
            Ok(0) => return Err(ReadErrorKind::Eof { filled }),
            Ok(read) => {
                filled += read;
                patience.restore();
            }
            // Signals may come for as long as the disk takes: they are no lack of progress.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => patience.bear(error).map_err(ReadErrorKind::Io)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::ControlFlow;

    use super::*;
    use crate::conformance;
    use crate::span::Span;

    /// Longer than any read.
    const NEVER: Duration = Duration::from_secs(3600);

    fn warm() -> PreadReader {
        PreadReader::with_cold_after(NEVER)
    }

    fn cold() -> PreadReader {
        PreadReader::with_cold_after(Duration::ZERO)
    }

    #[test]
    fn warm_reads_keep_the_contract() {
        conformance::check(&mut warm());
    }

    #[test]
    fn cold_reads_keep_the_contract() {
        conformance::check(&mut cold());
    }

    #[test]
    fn threads_with_readers_of_their_own_keep_the_contract() {
        conformance::check_on_many_threads(PreadReader::default);
        conformance::check_on_many_threads(cold);
    }

    /// The time that `done` takes says nothing about where the data was. A batch that goes to
    /// the pool is read ahead of `done`, and would miss what `done` writes here.
    #[test]
    fn a_slow_done_does_not_make_data_cold() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        sys::write_all_at(&file, Span::from(&[0; 8][..]), 0).unwrap();
        let mut memory = [0xEE; 8];
        let mut ops: Vec<_> = memory
            .chunks_mut(1)
            .zip(0..)
            .map(|(dst, offset)| ReadOp { file: &file, offset, dst: SpanMut::from(dst) })
            .collect();
        let limit = Duration::from_millis(500);
        let read = PreadReader::with_cold_after(limit).read(&mut ops, &mut |number, _| {
            if number == 0 {
                std::thread::sleep(limit + Duration::from_millis(50));
            }
            if number < 7 {
                let mark = [number as u8 + 1];
                sys::write_all_at(&file, Span::from(&mark[..]), number as u64 + 1).unwrap();
            }
            ControlFlow::Continue(())
        });
        read.unwrap();
        assert_eq!(memory, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    /// The first read on the pool fails, long before the threads can have come to the last.
    #[test]
    fn after_an_error_the_rest_of_a_cold_batch_is_not_read() {
        const BYTES: usize = 16 << 10;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        std::fs::write(&path, [1; BYTES]).unwrap();
        let good = File::open(&path).unwrap();
        let write_only = File::options().append(true).open(&path).unwrap();
        let mut memory = vec![0; 3000 * BYTES];
        let mut ops: Vec<_> = memory
            .chunks_mut(BYTES)
            .map(|dst| ReadOp { file: &good, offset: 0, dst: SpanMut::from(dst) })
            .collect();
        ops[1].file = &write_only;
        let read = cold().read(&mut ops, &mut |_, _| ControlFlow::Continue(()));
        assert_eq!(read.unwrap_err().op, 1);
        assert_eq!(memory.last(), Some(&0));
    }

    /// Fills ten bytes with a system call that answers as the script says, and gives the result
    /// and the offsets that were asked for.
    fn scripted(script: Vec<io::Result<usize>>) -> (Result<(), ReadErrorKind>, Vec<u64>) {
        let mut memory = [0; 10];
        let mut script = script.into_iter();
        let mut offsets = Vec::new();
        let filled = fill(&mut SpanMut::from(&mut memory[..]), 100, |_, offset| {
            offsets.push(offset);
            script.next().expect("no call after the last answer")
        });
        (filled, offsets)
    }

    #[test]
    fn short_reads_are_resumed_where_they_ended() {
        let (filled, offsets) = scripted(vec![Ok(3), Ok(6), Ok(1)]);
        filled.unwrap();
        assert_eq!(offsets, [100, 103, 109]);
    }

    #[test]
    fn a_file_that_ends_says_how_far_it_went() {
        let (filled, _) = scripted(vec![Ok(3), Ok(0)]);
        assert!(matches!(filled, Err(ReadErrorKind::Eof { filled: 3 })));
    }

    #[test]
    fn interrupted_reads_are_repeated_without_limit() {
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        let (filled, offsets) =
            scripted((0..5000).map(|_| interrupted()).chain([Ok(10)]).collect());
        filled.unwrap();
        assert_eq!(offsets.len(), 5001);
    }

    #[test]
    fn reads_that_would_block_are_repeated_with_a_limit() {
        let blocked = || Err(io::ErrorKind::WouldBlock.into());
        scripted(vec![blocked(), Ok(4), blocked(), Ok(6)]).0.unwrap();
        let (filled, _) = scripted((0..300).map(|_| blocked()).collect());
        let Err(ReadErrorKind::Io(error)) = filled else { panic!("it gives up") };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
