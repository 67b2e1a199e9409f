//! Consecutive locations in little memory, for the cache of the table.
//!
//! A block is kept as a line through it, on which the offsets rise evenly and the other fields
//! stand still, and what it has beside that line. Records of one size that lie one behind the
//! other have nothing beside it and cost nothing. If a few records do not lie on it, those are
//! kept as they are ([`Strays`]). Otherwise every record has a row with what each field has
//! beyond the line, in as few bytes as the largest takes: two to four for compressed records one
//! behind the other, of sixteen. All arithmetic wraps, so whatever the fields are, they come back.

use super::strays::Strays;
use crate::format::Location;

/// Behind the last row, so that every row can be read with one load.
const PADDING_BYTES: usize = 16;
/// What a block costs beside its rows: itself, its share of the map, and the allocation.
const OVERHEAD_BYTES: usize = size_of::<Block>() * 2 + 16;

/// The fields of a location, in their order on disk.
pub(super) type Fields = [u32; 4];

/// The locations of `count` consecutive records.
#[derive(Debug)]
pub(super) struct Block {
    line: Line,
    count: u32,
    beside: Beside,
}

/// What the locations of a block have beside its line.
#[derive(Debug)]
enum Beside {
    Nothing,
    Strays(Box<Strays>),
    Rows(Rows),
}

impl Block {
    pub(super) fn new(locations: &[Location]) -> Self {
        let count = locations.len() as u32;
        let (line, widths) = closest_line(locations);
        if widths == [0; 4] {
            return Self { line, count, beside: Beside::Nothing };
        }
        let rows_bytes = row_bytes(widths) * locations.len();
        match Strays::new(locations) {
            Some((line, strays)) if strays.bytes() < rows_bytes => {
                Self { line, count, beside: Beside::Strays(Box::new(strays)) }
            }
            _ => {
                let beside = Beside::Rows(Rows::new(locations, &line, widths));
                Self { line, count, beside }
            }
        }
    }

    /// How many records it has.
    pub(super) fn count(&self) -> u64 {
        self.count.into()
    }

    /// The location of its record `i`.
    #[inline]
    pub(super) fn get(&self, i: u64) -> Option<Location> {
        if i >= self.count() {
            return None;
        }
        let i = i as u32;
        match &self.beside {
            Beside::Nothing => Some(self.line.location(i)),
            Beside::Strays(strays) => {
                strays.get(i as usize).or_else(|| Some(self.line.location(i)))
            }
            Beside::Rows(rows) => Some(rows.location(&self.line, i)),
        }
    }

    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let beside = match &self.beside {
            Beside::Nothing => 0,
            Beside::Strays(strays) => strays.bytes(),
            Beside::Rows(rows) => rows.bytes.len(),
        };
        beside + OVERHEAD_BYTES
    }
}

pub(super) fn fields(location: &Location) -> Fields {
    [location.offset, location.phys_length, location.logic_length, location.chunk]
}

fn row_bytes(widths: [u8; 4]) -> usize {
    widths.iter().map(|width| usize::from(*width)).sum()
}

/// A line through a block: fields that stand still, but for offsets that rise evenly.
#[derive(Debug)]
pub(super) struct Line {
    base: Fields,
    stride: u32,
}

impl Line {
    /// The line of records of one size that has `location` for record `i`.
    pub(super) fn through(location: &Location, i: u32) -> Self {
        let stride = location.phys_length;
        let mut base = fields(location);
        base[0] = base[0].wrapping_sub(stride.wrapping_mul(i));
        Self { base, stride }
    }

    pub(super) fn at(&self, i: u32) -> Fields {
        let mut fields = self.base;
        fields[0] = fields[0].wrapping_add(self.stride.wrapping_mul(i));
        fields
    }

    /// The same, built field by field: an array that is changed in part and then copied whole
    /// costs ten nanoseconds more.
    #[inline]
    fn location(&self, i: u32) -> Location {
        let [offset, phys_length, logic_length, chunk] = self.base;
        let offset = offset.wrapping_add(self.stride.wrapping_mul(i));
        Location { offset, phys_length, logic_length, chunk }
    }

    /// The line of this stride below all of `locations` and closest to them, and the bytes that
    /// the largest rest of each field takes.
    fn below(locations: &[Location], stride: u32) -> (Self, [u8; 4]) {
        let base = locations.first().map_or([0; 4], fields);
        let mut line = Self { base, stride };
        // Signed, so that values on both sides of the first one's line are near it.
        let (mut least, mut most) = ([0i32; 4], [0i32; 4]);
        for (i, location) in locations.iter().enumerate() {
            let (on_line, fields) = (line.at(i as u32), fields(location));
            for field in 0..4 {
                let above = fields[field].wrapping_sub(on_line[field]).cast_signed();
                least[field] = least[field].min(above);
                most[field] = most[field].max(above);
            }
        }
        let widths = std::array::from_fn(|field| {
            line.base[field] = line.base[field].wrapping_add_signed(least[field]);
            let range = most[field].wrapping_sub(least[field]).cast_unsigned();
            (u32::BITS - range.leading_zeros()).div_ceil(8) as u8
        });
        (line, widths)
    }
}

/// The line that leaves the least: with the mean rise of the offsets, or with none.
fn closest_line(locations: &[Location]) -> (Line, [u8; 4]) {
    let offset = |location: Option<&Location>| location.map_or(0, |location| location.offset);
    let rise = offset(locations.last()).saturating_sub(offset(locations.first()));
    let mean = rise / (locations.len() as u32).saturating_sub(1).max(1);
    let rising = Line::below(locations, mean);
    if mean == 0 || rising.1[0] == 0 {
        return rising;
    }
    let level = Line::below(locations, 0);
    if rising.1[0] <= level.1[0] { rising } else { level }
}

/// What each field of each record has beyond the line.
#[derive(Debug)]
struct Rows {
    /// Bytes of each field in a row.
    widths: [u8; 4],
    /// The rows, little-endian, and padding.
    bytes: Box<[u8]>,
}

impl Rows {
    fn new(locations: &[Location], line: &Line, widths: [u8; 4]) -> Self {
        let row_bytes = row_bytes(widths);
        let mut bytes = vec![0; locations.len() * row_bytes + PADDING_BYTES];
        for (i, location) in locations.iter().enumerate() {
            let (mut row, mut bits) = (0, 0);
            let on_line = line.at(i as u32);
            for (field, value) in fields(location).into_iter().enumerate() {
                row |= u128::from(value.wrapping_sub(on_line[field])) << bits;
                bits += u32::from(widths[field]) * 8;
            }
            // What lies behind the row is zero, and is written with the next.
            bytes[i * row_bytes..][..PADDING_BYTES].copy_from_slice(&row.to_le_bytes());
        }
        Self { widths, bytes: bytes.into() }
    }

    fn location(&self, line: &Line, i: u32) -> Location {
        let row = self.bytes[i as usize * row_bytes(self.widths)..].first_chunk::<PADDING_BYTES>();
        let mut row = u128::from_le_bytes(*row.expect("every row is followed by padding"));
        let mut fields = line.at(i);
        for (field, width) in fields.iter_mut().zip(self.widths) {
            let bits = u32::from(width) * 8;
            let rest = row as u64 & ((1 << bits) - 1);
            *field = field.wrapping_add(rest as u32);
            row >>= bits;
        }
        let [offset, phys_length, logic_length, chunk] = fields;
        Location { offset, phys_length, logic_length, chunk }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Random, hostile, raw, shuffled, zstd};
    use super::*;

    fn bytes_per_record(locations: &[Location]) -> usize {
        let block = Block::new(locations);
        for (i, location) in locations.iter().enumerate() {
            assert_eq!(block.get(i as u64), Some(*location), "{i} of {locations:?}");
        }
        assert_eq!(block.get(locations.len() as u64), None);
        assert_eq!(block.get(u64::MAX), None);
        (block.bytes() - OVERHEAD_BYTES).saturating_sub(PADDING_BYTES) / locations.len().max(1)
    }

    #[test]
    fn every_location_comes_back_and_regular_ones_cost_nothing() {
        assert_eq!(bytes_per_record(&[]), 0);
        assert_eq!(bytes_per_record(&raw(1, 0, 8)), 0);
        assert_eq!(bytes_per_record(&raw(4096, 0, 8)), 0);
        assert_eq!(bytes_per_record(&raw(4096, 77, 150_528)), 0);
        assert_eq!(bytes_per_record(&zstd(&mut Random(5), 4096)), 3);
        assert_eq!(bytes_per_record(&shuffled(&mut Random(6), raw(4096, 0, 8))), 2);
    }

    #[test]
    fn a_few_strays_cost_little_and_come_back() {
        let mut random = Random(8);
        for strays in [1, 2, 41, 511, 512, 513, 2000] {
            let mut locations = raw(4096, 4096 * 8, 8);
            for _ in 0..strays {
                let stray = hostile(&mut random, 1)[0];
                locations[random.below(4096)] = stray;
            }
            let bytes = bytes_per_record(&locations);
            assert!(strays > 41 || bytes == 0, "{bytes}");
        }
        // Where the line is looked for, at the ends, and in short blocks.
        let places = [0, 4095, 2048, 1365, 819];
        for count in 1..=places.len() {
            let mut locations = raw(4096, 0, 150);
            for place in &places[..count] {
                locations[*place] = Location { offset: 77, chunk: 9, ..locations[*place] };
            }
            bytes_per_record(&locations);
            bytes_per_record(&locations[..70]);
        }
    }

    #[test]
    fn a_run_that_ends_with_its_chunk_comes_back() {
        let end = u32::MAX;
        for bytes in [1, 8, 4097, 1 << 20] {
            let mut locations = raw(1000, end - 1000 * bytes, bytes);
            assert_eq!(bytes_per_record(&locations), 0);
            // The next record has rolled over.
            locations.push(Location { offset: 0, chunk: 1, ..locations[0] });
            bytes_per_record(&locations);
        }
    }

    #[test]
    fn whatever_the_fields_are_they_come_back() {
        let mut random = Random(7);
        for _ in 0..3000 {
            let count = random.below(300);
            bytes_per_record(&hostile(&mut random, count));
        }
        let all_ones = Location { offset: !0, phys_length: !0, logic_length: !0, chunk: !0 };
        let zeros = Location { offset: 0, phys_length: 0, logic_length: 0, chunk: 0 };
        bytes_per_record(&[all_ones; 300]);
        bytes_per_record(&[zeros; 300]);
        bytes_per_record(&[zeros, all_ones]);
        bytes_per_record(&[all_ones, zeros]);
    }
}
