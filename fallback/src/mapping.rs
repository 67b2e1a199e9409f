//! A file's bytes as memory, shared with the page cache: the way to read small records that are
//! in memory, for which a system call costs more than the copy. A mapping of a file that someone
//! cuts, or whose disk fails, never ends the process: [`Mapping::is_intact`] says so instead.
//!
//! This is one of the rooms in which `unsafe` is allowed: the memory is the file's, whose bytes
//! anybody may change at any time, so it is only ever copied, through raw pointers.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use memmap2::{Mmap, MmapOptions};

use crate::sigbus::{self, Guard};
use crate::span::{Span, SpanMut};

/// Whether a fault of this thread in a mapping would be caught now: somebody may have replaced the
/// handler of SIGBUS, or have blocked it. Ask before a batch is copied, and read in another way if
/// it is not so.
pub fn faults_are_caught_here() -> bool {
    sigbus::catches_faults_here()
}

/// Lets faults of this thread be caught although it has inherited a mask of signals that blocks
/// them. For threads of one's own.
pub fn unblock_faults_here() {
    sigbus::unblock_here();
}

/// A mapped file. It may reach past the end of the file, which then can grow into it.
#[derive(Debug)]
pub struct Mapping {
    /// Dropped before the memory that it guards.
    guard: Guard,
    memory: Mmap,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`. Bytes that are not in memory are read as they are
    /// touched, without reading ahead.
    ///
    /// # Errors
    /// What the system says, also if it has no more room for mappings.
    pub fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the bytes may change at any time, so no slice of them is ever made; a file that
        // becomes shorter is what the guard is for.
        let memory = unsafe { MmapOptions::new().len(len).map(file) }?;
        memory.advise(memmap2::Advice::Random)?;
        Ok(Self { guard: Guard::new(memory.as_ptr(), len)?, memory })
    }

    /// Bytes in the mapping.
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Copies the bytes from `offset` on over the whole of `dst`. They are those of the file only
    /// if the mapping [is intact](Self::is_intact) afterwards and the file still reaches there.
    ///
    /// # Panics
    /// If they lie outside the mapping.
    pub fn copy_to(&self, offset: u64, dst: &mut SpanMut<'_>) {
        dst.copy_from(self.span(offset, dst.len()));
    }

    /// Begins to bring the first of `len` bytes at `offset` closer to the processor, which a copy of
    /// them would otherwise wait for.
    pub fn prefetch(&self, offset: u64, len: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            const LINE_BYTES: usize = 64;
            const LINES_MAX: usize = 8;
            let bytes = self.span(offset, len);
            for line in (0..len).step_by(LINE_BYTES).take(LINES_MAX) {
                // SAFETY: a prefetch has no effect that can be seen, even of what is not there.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(line).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, len);
    }

    fn span(&self, offset: u64, len: usize) -> Span<'_> {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len()), "bytes outside the mapping");
        let start = NonNull::new(self.memory.as_ptr().cast_mut()).expect("mappings have addresses");
        // SAFETY: the bytes were just checked to lie in the mapping, which lives as long as the
        // span, and which no `&mut` covers.
        unsafe { Span::from_raw(start.add(offset as usize), len) }
    }

    /// Whether everything that was copied so far was there to be copied. Once it is not, it
    /// stays so.
    pub fn is_intact(&self) -> bool {
        self.guard.is_intact()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    fn file() -> (tempfile::TempDir, File, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let bytes: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        (directory, File::options().read(true).write(true).open(path).unwrap(), bytes)
    }

    fn copy(mapping: &Mapping, offset: usize, len: usize) -> Vec<u8> {
        let mut memory = vec![0xEE; len];
        mapping.copy_to(offset as u64, &mut SpanMut::from(&mut memory[..]));
        memory
    }

    #[test]
    fn bytes_are_copied_from_any_place() {
        let (_directory, file, bytes) = file();
        let mapping = Mapping::new(&file, BYTES as u64).unwrap();
        for (offset, len) in [(0, BYTES), (1, 7), (4095, 2), (BYTES - 1, 1), (BYTES, 0)] {
            assert_eq!(copy(&mapping, offset, len), bytes[offset..offset + len]);
        }
        assert!(mapping.is_intact());
    }

    #[test]
    fn a_file_that_was_cut_damages_the_mapping_and_nothing_else() {
        let (_directory, cut, _) = file();
        let (_other_directory, whole, bytes) = file();
        let (cut_mapping, whole_mapping) =
            [&cut, &whole].map(|file| Mapping::new(file, BYTES as u64).unwrap()).into();
        cut.set_len(4096).unwrap();
        assert!(faults_are_caught_here());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    copy(&cut_mapping, 8000, 40_000);
                    assert!(!cut_mapping.is_intact());
                    assert_eq!(copy(&whole_mapping, 0, BYTES), bytes);
                });
            }
        });
        assert!(whole_mapping.is_intact());
        // The place that a damaged mapping has left can guard another.
        drop(cut_mapping);
        assert!(Mapping::new(&cut, BYTES as u64).unwrap().is_intact());
    }

    #[test]
    fn a_file_may_grow_into_its_mapping() {
        let (_directory, file, _) = file();
        let mapping = Mapping::new(&file, 2 * BYTES as u64).unwrap();
        crate::sys::write_all_at(&file, Span::from(&vec![7; BYTES][..]), BYTES as u64).unwrap();
        assert_eq!(copy(&mapping, BYTES, BYTES), vec![7; BYTES]);
        assert!(mapping.is_intact());
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn what_lies_outside_is_refused() {
        let (_directory, file, _) = file();
        copy(&Mapping::new(&file, BYTES as u64).unwrap(), BYTES - 1, 2);
    }
}
