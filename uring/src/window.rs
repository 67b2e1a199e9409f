//! How much a ring keeps under way: as many reads as the depth allows and not too many bytes, and
//! fewer while the kernel is short of something. It only counts; the reader asks it and tells it.

/// Bytes that are under way at once, at most: enough for any disk, and a small part of what the
/// page cache can be asked to take in.
const BYTES_MAX: usize = 64 << 20;

/// The reads of a ring that may be under way at once.
#[derive(Debug)]
pub(crate) struct Window {
    /// Reads at most, as things are.
    limit: u32,
    depth: u32,
    reads: u32,
    bytes: usize,
}

impl Window {
    /// Nothing is under way, and up to `depth` reads may be.
    pub(crate) fn new(depth: u32) -> Self {
        Self { limit: depth, depth, reads: 0, bytes: 0 }
    }

    /// Begins a batch: nothing is under way. What was learned of the kernel stays.
    pub(crate) fn clear(&mut self) {
        (self.reads, self.bytes) = (0, 0);
    }

    /// Whether another read of `bytes` may begin. One read may always.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.reads == 0
            || (self.reads < self.limit && self.bytes.saturating_add(bytes) <= BYTES_MAX)
    }

    pub(crate) fn begin(&mut self, bytes: usize) {
        self.reads += 1;
        self.bytes += bytes;
    }

    /// A read of `bytes` came back. If the kernel had all that it needed for it, one more may be
    /// under way from now on, so the limit doubles while as many come back as it allows.
    pub(crate) fn end(&mut self, bytes: usize) {
        self.reads -= 1;
        self.bytes -= bytes;
        self.limit = (self.limit + 1).min(self.depth);
    }

    /// The kernel was short of something: half as many reads from now on.
    pub(crate) fn halve(&mut self) {
        self.limit = (self.limit / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many reads of `bytes` begin before there is no room.
    fn fill(window: &mut Window, bytes: usize) -> u32 {
        let before = window.reads;
        while window.has_room(bytes) {
            window.begin(bytes);
        }
        window.reads - before
    }

    #[test]
    fn reads_are_limited_by_their_number_and_by_their_bytes() {
        assert_eq!(fill(&mut Window::new(256), 4096), 256);
        assert_eq!(fill(&mut Window::new(256), 1 << 20), 64);
        assert_eq!(fill(&mut Window::new(256), 1 << 40), 1, "one read is always allowed");
        assert_eq!(fill(&mut Window::new(1), 1), 1);
    }

    #[test]
    fn a_shortage_halves_the_reads_and_progress_brings_them_back() {
        let mut window = Window::new(64);
        fill(&mut window, 1);
        for _ in 0..10 {
            window.halve();
        }
        assert!(!window.has_room(1), "those that are under way stay");
        window.clear();
        assert_eq!(fill(&mut window, 1), 1);
        let mut allowed = Vec::new();
        for _ in 0..7 {
            for _ in 0..window.reads {
                window.end(1);
            }
            allowed.push(fill(&mut window, 1));
        }
        assert_eq!(allowed, [2, 4, 8, 16, 32, 64, 64]);
    }
}
