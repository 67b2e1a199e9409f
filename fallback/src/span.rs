//! Spans: memory that is read or written through raw pointers only.
//!
//! A batch may be gathered into memory that Python also sees, and records may be appended from
//! it, while another thread writes there. A `&mut [u8]` or `&[u8]` over such memory would be
//! undefined behaviour in Rust; copying through raw pointers, as the kernel does, is what a C
//! program does, and its worst outcome is torn data. [`SpanMut`] and [`Span`] carry the bounds
//! and the lifetime of a slice without the promise that nobody else touches it.
//!
//! This is one of the rooms in which `unsafe` is allowed: all of it is pointer arithmetic that
//! stays inside the bounds given at construction.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// Memory to fill: `len` writable bytes that no Rust reference covers.
#[derive(Debug)]
pub struct SpanMut<'a> {
    start: NonNull<u8>,
    len: usize,
    /// Whether it was made from a slice, so that nothing outside Rust can write it.
    exclusive: bool,
    life: PhantomData<&'a mut [u8]>,
}

/// Memory to read: `len` readable bytes, which somebody else may be writing.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    start: NonNull<u8>,
    len: usize,
    exclusive: bool,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a span is an exclusive (SpanMut) or shared (Span) view of bytes, and bytes have no
// thread affinity. All access goes through raw copies, so sharing `&Span` adds nothing.
unsafe impl Send for SpanMut<'_> {}
// SAFETY: as above; `&SpanMut` gives no access but `as_span`, which only reads.
unsafe impl Sync for SpanMut<'_> {}
// SAFETY: as above.
unsafe impl Send for Span<'_> {}
// SAFETY: as above.
unsafe impl Sync for Span<'_> {}

impl<'a> From<&'a mut [u8]> for SpanMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        Self { start: NonNull::from(bytes).cast(), len, exclusive: true, life: PhantomData }
    }
}

impl<'a> From<&'a [u8]> for Span<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            exclusive: true,
            life: PhantomData,
        }
    }
}

impl SpanMut<'_> {
    /// A span over memory that this process shares with code outside Rust.
    ///
    /// # Safety
    /// For all of `'a`, `start..start + len` must be writable memory of one allocation, and no
    /// Rust reference may cover any of it. Foreign code, and other spans over the same foreign
    /// memory, may touch the bytes: what they then hold is anybody's guess, as in C.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, exclusive: false, life: PhantomData }
    }

    /// Bytes in this span.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte, for a system call or a codec that fills the span.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The same bytes, to be read.
    pub fn as_span(&self) -> Span<'_> {
        Span { start: self.start, len: self.len, exclusive: self.exclusive, life: PhantomData }
    }

    /// A part of this span, for as long as it is borrowed.
    ///
    /// # Panics
    /// If `range` is not inside the span.
    pub fn slice_mut(&mut self, range: Range<usize>) -> SpanMut<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "span range out of bounds");
        // SAFETY: the range was just checked; `&mut self` makes the part exclusive.
        let start = unsafe { self.start.add(range.start) };
        SpanMut {
            start,
            len: range.end - range.start,
            exclusive: self.exclusive,
            life: PhantomData,
        }
    }

    /// The first `mid` bytes and the rest, as spans of their own.
    ///
    /// # Panics
    /// If the span is shorter.
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "span range out of bounds");
        // SAFETY: `mid` was just checked; the two parts do not overlap, and `self` is gone.
        let behind = unsafe { self.start.add(mid) };
        let part = |start, len| Self { start, len, ..self };
        (part(self.start, mid), part(behind, self.len - mid))
    }

    /// Copies `src` over the whole span.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from(&mut self, src: Span<'_>) {
        assert_eq!(self.len, src.len, "span lengths differ");
        // SAFETY: both are valid for `len` bytes; `copy` allows overlap, which two spans over
        // foreign memory could have.
        unsafe { ptr::copy(src.start.as_ptr(), self.start.as_ptr(), self.len) };
    }
}

impl<'a> Span<'a> {
    /// A span over memory that code outside Rust may write.
    ///
    /// # Safety
    /// For all of `'a`, `start..start + len` must be readable memory of one allocation, and no
    /// `&mut` of Rust may cover any of it. Foreign code may touch the bytes.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, exclusive: false, life: PhantomData }
    }

    /// Bytes in this span.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the span has no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first byte, for a system call or a codec that reads the span.
    pub fn as_ptr(self) -> *const u8 {
        self.start.as_ptr()
    }

    /// A part of this span.
    ///
    /// # Panics
    /// If `range` is not inside the span.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Span<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "span range out of bounds");
        // SAFETY: the range was just checked.
        let start = unsafe { self.start.add(range.start) };
        Span { start, len: range.end - range.start, ..self }
    }

    /// Copies the span to the end of `out`.
    pub fn append_to(self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        // SAFETY: `reserve` made room for `len` bytes past `out.len()`, all of which are
        // written before the length covers them. `out` is owned, so it overlaps no span.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.as_ptr(),
                out.as_mut_ptr().add(out.len()),
                self.len,
            );
            out.set_len(out.len() + self.len);
        }
    }

    /// The bytes as a slice, unless code outside Rust may be writing them.
    pub fn as_slice(self) -> Option<&'a [u8]> {
        // SAFETY: the span was made from a slice that is borrowed for `'a`, mutably if it is the
        // view of a `SpanMut`, which is itself borrowed and so cannot be written meanwhile.
        self.exclusive.then(|| unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// The little-endian number in the eight bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the span.
    pub fn u64_le_at(self, offset: usize) -> u64 {
        let bytes = self.slice(offset..offset + 8);
        // SAFETY: `slice` has checked the eight bytes; the read needs no alignment.
        u64::from_le_bytes(unsafe { ptr::read_unaligned(bytes.start.as_ptr().cast()) })
    }

    /// A copy of the bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out);
        out
    }
}

/// A destination divided into slots, one for each record of a batch, that are handed out once.
///
/// Records are read in the order of their place on disk and land in the order they were asked
/// for; this hands each read its part of the batch and makes sure that no two parts overlap.
#[derive(Debug)]
pub struct Slots<'a> {
    dst: SpanMut<'a>,
    bounds: Bounds<'a>,
    taken: Vec<bool>,
}

#[derive(Debug, Clone, Copy)]
enum Bounds<'a> {
    Uniform { stride: usize },
    Offsets(&'a [usize]),
}

impl<'a> Slots<'a> {
    /// Slots of `stride` bytes each.
    ///
    /// # Panics
    /// If `stride` is 0 or does not divide the length of `dst`.
    pub fn uniform(dst: SpanMut<'a>, stride: usize) -> Self {
        assert!(stride > 0 && dst.len.is_multiple_of(stride), "slots do not fill the span");
        let taken = vec![false; dst.len / stride];
        Self { dst, bounds: Bounds::Uniform { stride }, taken }
    }

    /// Slots between consecutive `offsets`, which begin with 0, do not fall, and end with the
    /// length of `dst`.
    ///
    /// # Panics
    /// If `offsets` is not like that.
    pub fn at_offsets(dst: SpanMut<'a>, offsets: &'a [usize]) -> Self {
        assert!(offsets.first() == Some(&0) && offsets.last() == Some(&dst.len));
        assert!(offsets.is_sorted(), "slot offsets fall");
        let taken = vec![false; offsets.len() - 1];
        Self { dst, bounds: Bounds::Offsets(offsets), taken }
    }

    /// The same slots, none of which is handed out yet, for as long as these are borrowed.
    pub fn reborrow(&mut self) -> Slots<'_> {
        let len = self.dst.len;
        Slots {
            dst: self.dst.slice_mut(0..len),
            bounds: self.bounds,
            taken: vec![false; self.taken.len()],
        }
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// The memory of the consecutive slots `range`, as one span.
    ///
    /// # Panics
    /// If a slot was handed out before, or there is no such slot.
    pub fn take(&mut self, range: Range<usize>) -> SpanMut<'a> {
        for taken in &mut self.taken[range.clone()] {
            assert!(!*taken, "a slot was handed out twice");
            *taken = true;
        }
        let bytes = match self.bounds {
            Bounds::Uniform { stride } => range.start * stride..range.end * stride,
            Bounds::Offsets(offsets) => offsets[range.start]..offsets[range.end],
        };
        // SAFETY: the bounds lie in `dst` by construction, and `taken` makes the parts disjoint,
        // so each may live as long as `dst` itself, which is never lent again.
        let start = unsafe { self.dst.start.add(bytes.start) };
        SpanMut {
            start,
            len: bytes.end - bytes.start,
            exclusive: self.dst.exclusive,
            life: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hand_out_disjoint_parts_in_any_order() {
        let mut memory = vec![0u8; 12];
        let mut slots = Slots::uniform(SpanMut::from(memory.as_mut_slice()), 3);
        let (mut last, mut first) = (slots.take(2..4), slots.take(0..2));
        last.copy_from(Span::from([7u8; 6].as_slice()));
        first.copy_from(Span::from([1u8; 6].as_slice()));
        assert_eq!(memory, [1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn slots_at_offsets_may_be_empty() {
        let mut memory = vec![0u8; 5];
        let offsets = [0, 2, 2, 5];
        let mut slots = Slots::at_offsets(SpanMut::from(memory.as_mut_slice()), &offsets);
        assert_eq!(slots.take(1..2).len(), 0);
        assert_eq!(slots.take(2..3).len(), 3);
        assert_eq!(slots.take(0..1).len(), 2);
    }

    #[test]
    #[should_panic(expected = "handed out twice")]
    fn a_slot_is_handed_out_once() {
        let mut memory = vec![0u8; 4];
        let mut slots = Slots::uniform(SpanMut::from(memory.as_mut_slice()), 2);
        let _first = slots.take(0..1);
        let _again = slots.take(0..2);
    }
}
