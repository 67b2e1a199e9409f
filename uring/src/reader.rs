//! Batches through a ring: what is submitted next, what a completion means, and how a batch
//! ends. The engine's executor calls it; it never holds a pointer, that is the ring's part.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use ringloader_fallback::sys::Patience;
use ringloader_fallback::{BatchReader, Done, ReadError, ReadErrorKind, ReadOp, SpanMut};

use crate::ring::{Flight, Ring};
use crate::window::Window;
use crate::{DEPTH_MAX, Features, SetupError};

/// Reads batches through a ring of its own.
///
/// A ring belongs to the thread that made it. Where a reader was moved to another thread, or a
/// process was forked, its next batch makes a ring anew.
#[derive(Debug)]
pub struct RingReader {
    ring: Ring,
    window: Window,
    /// Bytes of each operation of the batch that were read. Kept for its memory.
    filled: Vec<usize>,
    /// Operations to submit again. Kept for its memory.
    again: Vec<usize>,
}

impl RingReader {
    /// Makes a ring for this thread and reads with it, `depth` reads at once at most.
    ///
    /// # Errors
    /// [`SetupError`] says which step failed and what to change.
    ///
    /// # Panics
    /// Unless `depth` is from 1 to [`DEPTH_MAX`](crate::DEPTH_MAX).
    pub fn new(depth: u32) -> Result<Self, SetupError> {
        assert!((1..=DEPTH_MAX).contains(&depth), "a ring of {depth} reads");
        let mut reader = Self {
            ring: Ring::new(depth)?,
            window: Window::new(depth),
            filled: Vec::new(),
            again: Vec::new(),
        };
        reader.try_out().map_err(SetupError::at("a first read through io_uring"))?;
        Ok(reader)
    }

    /// What the ring uses.
    pub fn features(&self) -> Features {
        self.ring.features()
    }

    /// Makes sure that the next batch has a ring: the one that it has may belong to another thread
    /// or process, and is made anew then.
    ///
    /// # Errors
    /// [`SetupError`] says which step failed and what to change.
    pub fn make_ready(&mut self) -> Result<(), SetupError> {
        self.ring.make_ready()
    }

    fn begin<'r, 'op>(
        &'r mut self,
        ops: &'r mut [ReadOp<'op>],
    ) -> Result<Batch<'r, 'op>, ReadError> {
        self.filled.clear();
        self.filled.resize(ops.len(), 0);
        self.again.clear();
        self.window.clear();
        let flight = Flight::new(&mut self.ring, ops);
        Ok(Batch {
            flight: flight.map_err(|error| failed(0, io::Error::other(error)))?,
            window: &mut self.window,
            filled: &mut self.filled,
            again: &mut self.again,
            next: 0,
            patience: Patience::default(),
        })
    }

    /// Reads a byte from a pipe: a filter may allow the set-up and refuse the use.
    fn try_out(&mut self) -> io::Result<()> {
        let (source, mut sink) = io::pipe()?;
        sink.write_all(&[1])?;
        let file = File::from(OwnedFd::from(source));
        let mut byte = [0];
        let mut ops = [ReadOp { file: &file, offset: 0, dst: SpanMut::from(&mut byte[..]) }];
        let read = self.read(&mut ops, &mut |_, _| ControlFlow::Continue(()));
        read.map_err(|error| match error.kind {
            ReadErrorKind::Io(error) => error,
            ReadErrorKind::Eof { .. } => io::ErrorKind::UnexpectedEof.into(),
        })
    }
}

impl BatchReader for RingReader {
    fn read(&mut self, ops: &mut [ReadOp<'_>], done: &mut Done<'_>) -> Result<(), ReadError> {
        self.begin(ops)?.run(done)
    }
}

fn failed(op: usize, error: io::Error) -> ReadError {
    ReadError { op, kind: ReadErrorKind::Io(error) }
}

/// A batch on its way.
struct Batch<'r, 'op> {
    flight: Flight<'r, 'op>,
    window: &'r mut Window,
    filled: &'r mut [usize],
    again: &'r mut Vec<usize>,
    /// The first operation that was not submitted yet.
    next: usize,
    patience: Patience,
}

impl Batch<'_, '_> {
    fn run(&mut self, done: &mut Done<'_>) -> Result<(), ReadError> {
        loop {
            if self.submit(done)?.is_break() || self.flight.is_empty() {
                return Ok(());
            }
            self.wait()?;
            if self.take_completions(done)?.is_break() {
                return Ok(());
            }
        }
    }

    /// Pushes operations up to the depth, those that must go on first. Breaks where `done` broke
    /// off at one that needs no reading.
    fn submit(&mut self, done: &mut Done<'_>) -> Result<ControlFlow<()>, ReadError> {
        while let Some(number) = self.peek_next()
            && self.window.has_room(self.left(number))
        {
            self.take_next();
            if self.left(number) > 0 {
                let pushed = self.flight.push(number, self.filled[number]);
                pushed.map_err(|error| failed(number, error))?;
                self.window.begin(self.left(number));
            } else if done(number, self.flight.span(number)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn peek_next(&self) -> Option<usize> {
        self.again.last().copied().or((self.next < self.flight.len()).then_some(self.next))
    }

    fn take_next(&mut self) {
        if self.again.pop().is_none() {
            self.next += 1;
        }
    }

    /// Submits and waits for a completion. That fails for no one operation, so the error names
    /// the first that is not complete.
    fn wait(&mut self) -> Result<(), ReadError> {
        let waited = self.flight.wait().or_else(|error| {
            self.window.halve();
            self.patience.bear(error)
        });
        waited.map_err(|error| {
            let first = (0..self.next).find(|number| self.left(*number) > 0);
            failed(first.unwrap_or(0), error)
        })
    }

    /// Bytes of an operation that are still to be read.
    fn left(&self, number: usize) -> usize {
        self.flight.bytes_of(number) - self.filled[number]
    }

    fn take_completions(&mut self, done: &mut Done<'_>) -> Result<ControlFlow<()>, ReadError> {
        let mut shortage = None;
        while let Some((number, result)) = self.flight.completion() {
            self.window.end(self.left(number));
            let advanced = self.advance(number, result, &mut shortage);
            let is_complete = advanced.map_err(|kind| ReadError { op: number, kind })?;
            if is_complete && done(number, self.flight.span(number)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.bear(shortage)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Counts the bytes of one completion. Says whether the operation is complete; if it is not,
    /// it will be submitted again. What the kernel was short of is left in `shortage`.
    fn advance(
        &mut self,
        number: usize,
        result: i32,
        shortage: &mut Option<ReadError>,
    ) -> Result<bool, ReadErrorKind> {
        let filled = &mut self.filled[number];
        match result {
            0 => return Err(ReadErrorKind::Eof { filled: *filled }),
            1.. => {
                *filled += result as usize;
                self.patience.restore();
            }
            _ => {
                let error = io::Error::from_raw_os_error(-result);
                if !Patience::may_pass(&error) {
                    return Err(ReadErrorKind::Io(error));
                }
                shortage.get_or_insert(failed(number, error));
            }
        }
        if *filled == self.flight.bytes_of(number) {
            return Ok(true);
        }
        self.again.push(number);
        Ok(false)
    }

    /// Waits before what was put off is submitted again, once for all that came back together.
    fn bear(&mut self, shortage: Option<ReadError>) -> Result<(), ReadError> {
        let Some(ReadError { op, kind: ReadErrorKind::Io(error) }) = shortage else {
            return Ok(());
        };
        self.window.halve();
        self.patience.bear(error).map_err(|error| failed(op, error))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use ringloader_fallback::conformance;

    use super::*;
    use crate::DEPTH;

    /// Long enough for a reader to wait before something happens.
    const A_WHILE: Duration = Duration::from_millis(50);

    fn reader() -> RingReader {
        RingReader::new(DEPTH).expect("io_uring works here")
    }

    /// A pipe whose end to read is a file. Unlike a disk it answers when a test wants it to.
    fn pipe() -> (File, io::PipeWriter) {
        let (source, sink) = io::pipe().unwrap();
        (File::from(OwnedFd::from(source)), sink)
    }

    fn op<'a>(file: &'a File, dst: &'a mut [u8]) -> ReadOp<'a> {
        ReadOp { file, offset: 0, dst: SpanMut::from(dst) }
    }

    fn read_magic(reader: &mut RingReader) {
        let file = File::open("/proc/self/exe").unwrap();
        let mut memory = [0; 4];
        let mut ops = [op(&file, &mut memory)];
        reader.read(&mut ops, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(&memory, b"\x7fELF");
    }

    #[test]
    fn the_ring_keeps_the_contract() {
        conformance::check(&mut reader());
    }

    #[test]
    fn a_ring_of_any_depth_keeps_the_contract() {
        for depth in [1, 2, 7, DEPTH_MAX] {
            conformance::check(&mut RingReader::new(depth).expect("io_uring works here"));
        }
    }

    #[test]
    fn threads_with_readers_of_their_own_keep_the_contract() {
        conformance::check_on_many_threads(reader);
    }

    #[test]
    fn a_reader_may_move_to_another_thread() {
        let mut reader = reader();
        read_magic(&mut reader);
        let mut reader = thread::spawn(move || {
            read_magic(&mut reader);
            reader
        })
        .join()
        .unwrap();
        read_magic(&mut reader);
    }

    #[test]
    fn short_reads_are_resumed() {
        let (file, mut sink) = pipe();
        let mut memory = [0; 6];
        let mut ops = [op(&file, &mut memory)];
        thread::scope(|scope| {
            scope.spawn(move || {
                for part in [b"abc", b"def"] {
                    sink.write_all(part).unwrap();
                    thread::sleep(A_WHILE);
                }
            });
            reader().read(&mut ops, &mut |_, _| ControlFlow::Continue(())).unwrap();
        });
        assert_eq!(&memory, b"abcdef");
    }

    /// A wave of completions in which every read is put off, as a kernel without memory answers.
    #[test]
    fn reads_that_the_kernel_puts_off_are_repeated_with_a_limit() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut memory = [0; 2 * DEPTH as usize];
        let mut ops: Vec<_> = memory.chunks_mut(1).map(|dst| op(&file, dst)).collect();
        let count = ops.len();
        let mut reader = reader();
        let mut batch = reader.begin(&mut ops).unwrap();
        let error = (0..1000).find_map(|_| {
            let mut shortage = None;
            for number in 0..count {
                let advanced = batch.advance(number, -libc::EAGAIN, &mut shortage).unwrap();
                assert!(!advanced && batch.again.contains(&number));
            }
            batch.again.clear();
            batch.bear(shortage).err()
        });
        let Some(ReadError { op: 0, kind: ReadErrorKind::Io(error) }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let refused = batch.advance(1, -libc::EIO, &mut None).unwrap_err();
        assert!(matches!(refused, ReadErrorKind::Io(error) if error.raw_os_error() == Some(5)));
    }

    #[test]
    fn an_end_after_a_short_read_says_how_far_it_went() {
        let (file, mut sink) = pipe();
        sink.write_all(b"abc").unwrap();
        drop(sink);
        let mut memory = [0; 6];
        let mut ops = [op(&file, &mut memory)];
        let read = reader().read(&mut ops, &mut |_, _| ControlFlow::Continue(()));
        let Err(ReadError { op: 0, kind: ReadErrorKind::Eof { filled: 3 } }) = read else {
            panic!("{read:?}")
        };
    }

    /// Runs a batch whose second read is answered late, while `done` or an error ends it at
    /// the first. When the reader is back, the second must have been written to.
    fn ends_while_a_read_is_under_way(
        first: &File,
        done: &mut Done<'_>,
    ) -> thread::Result<Result<(), ReadError>> {
        let (file, mut sink) = pipe();
        let (mut early, mut late) = ([0; 1], [0; 1]);
        let mut ops = [op(&file, &mut late), op(first, &mut early)];
        let mut reader = reader();
        let answered = AtomicBool::new(false);
        let ended = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(A_WHILE);
                answered.store(true, Ordering::SeqCst);
                sink.write_all(b"!").unwrap();
            });
            let ended = catch_unwind(AssertUnwindSafe(|| reader.read(&mut ops, done)));
            assert!(answered.load(Ordering::SeqCst), "the reader waits for the kernel");
            ended
        });
        assert_eq!(&late, b"!");
        read_magic(&mut reader);
        ended
    }

    #[test]
    fn however_a_batch_ends_no_read_is_under_way() {
        let file = File::open("/proc/self/exe").unwrap();
        let ended = ends_while_a_read_is_under_way(&file, &mut |_, _| ControlFlow::Break(()));
        ended.unwrap().unwrap();
        let ended = ends_while_a_read_is_under_way(&file, &mut |_, _| panic!("enough"));
        ended.unwrap_err();
        let empty = File::open("/dev/null").unwrap();
        let ended = ends_while_a_read_is_under_way(&empty, &mut |_, _| ControlFlow::Continue(()));
        let error = ended.unwrap().unwrap_err();
        assert!(matches!(error, ReadError { op: 1, kind: ReadErrorKind::Eof { filled: 0 } }));
    }
}
