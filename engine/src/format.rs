//! The bytes of `meta.zr` and of the `.loc` segments, and the limits of the format. Pure
//! functions from bytes to values and back; nothing here touches a file.
//!
//! docs/format.md draws the layout. Everything is little-endian.

use crate::codec::Codec;

/// Bytes of `meta.zr`, always exactly these many.
pub const HEADER_BYTES: usize = 32;
/// Bytes of one entry of the record table.
pub const LOCATION_BYTES: usize = 16;
/// The largest record, in bytes, before compression and with a ragged record's shape prefix.
pub const MAX_RECORD_BYTES: u64 = 1 << 31;

/// File names inside a store.
pub mod names {
    /// The header.
    pub const META: &str = "meta.zr";
    /// The type identity.
    pub const IDENTITY: &str = "store.zr";
    /// The zstd dictionary of a `zstd_dict` store.
    pub const DICTIONARY: &str = "dict.zr";

    /// A chunk of record data.
    pub fn chunk(id: u32) -> String {
        format!("{id}.chunk")
    }

    /// A segment of the record table.
    pub fn segment(id: u64) -> String {
        format!("{id}.loc")
    }
}

/// How much a chunk, a segment and a store hold.
///
/// The format fixes these; tests use smaller ones to reach a roll-over with few bytes. A store
/// must be opened with the capacity that it was written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The largest end of a record in a chunk, in bytes. Offsets are `u32`, and an end of
    /// exactly 2^32 rolls over, as in the reference.
    pub chunk_bytes: u64,
    /// Entries of one `.loc` segment.
    pub segment_records: u64,
    /// Chunks of a store.
    pub chunks: u64,
}

impl Capacity {
    /// The capacity of every real store.
    pub const FORMAT: Self =
        Self { chunk_bytes: u32::MAX as u64, segment_records: 1 << 28, chunks: 1 << 32 };
}

/// Where the next record goes: the published end of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frontier {
    /// Records in the store.
    pub length: u64,
    /// The last chunk.
    pub tail_chunk: u32,
    /// Bytes written to the last chunk.
    pub tail_offset: u32,
}

/// The whole of `meta.zr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Records and write position.
    pub frontier: Frontier,
    /// The store's one codec.
    pub codec: Codec,
    /// Bytes that this version has no meaning for; kept as they were found.
    pub reserved: [u8; 15],
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.frontier.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.frontier.tail_chunk.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.frontier.tail_offset.to_le_bytes());
        bytes[16] = self.codec as u8;
        bytes[17..32].copy_from_slice(&self.reserved);
        bytes
    }

    /// The header that `bytes` are, or what is wrong with them.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let (length, rest) = bytes.split_first_chunk().expect("32 bytes hold 8");
        let (tail_chunk, rest) = rest.split_first_chunk().expect("24 bytes hold 4");
        let (tail_offset, rest) = rest.split_first_chunk().expect("20 bytes hold 4");
        let ([tag], reserved) = rest.split_first_chunk().expect("16 bytes hold 1");
        let codec = Codec::from_tag(*tag).ok_or_else(|| {
            format!("codec tag {tag} is none of 0 (raw), 1 (zstd), 2 (zstd_dict)")
        })?;
        Ok(Self {
            frontier: Frontier {
                length: u64::from_le_bytes(*length),
                tail_chunk: u32::from_le_bytes(*tail_chunk),
                tail_offset: u32::from_le_bytes(*tail_offset),
            },
            codec,
            reserved: reserved.try_into().expect("15 bytes are left"),
        })
    }
}

/// An entry of the record table as it is on disk: sixteen bytes that nobody has checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Where the record begins in its chunk.
    pub offset: u32,
    /// Bytes that it takes there.
    pub phys_length: u32,
    /// Bytes that it has when decoded.
    pub logic_length: u32,
    /// The chunk.
    pub chunk: u32,
}

impl Location {
    /// The entry's bytes.
    pub fn encode(&self) -> [u8; LOCATION_BYTES] {
        let mut bytes = [0; LOCATION_BYTES];
        let fields = [self.offset, self.phys_length, self.logic_length, self.chunk];
        for (slot, field) in bytes.chunks_exact_mut(4).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The entry that `bytes` are.
    pub fn decode(bytes: &[u8; LOCATION_BYTES]) -> Self {
        let field = |i: usize| {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        };
        Self { offset: field(0), phys_length: field(1), logic_length: field(2), chunk: field(3) }
    }

    /// One number that orders locations by their place on disk.
    pub fn place(&self) -> u64 {
        u64::from(self.chunk) << 32 | u64::from(self.offset)
    }

    /// Where the record ends in its chunk.
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.phys_length)
    }

    /// Whether `next` begins where this record ends.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.chunk == next.chunk && self.end() == u64::from(next.offset)
    }

    /// Checks what can be checked without the chunk: that lengths are possible for `codec` and
    /// that the record lies before `frontier`.
    pub fn check(
        &self,
        codec: Codec,
        frontier: &Frontier,
        capacity: &Capacity,
    ) -> Result<(), String> {
        if self.phys_length == 0 || self.logic_length == 0 {
            return Err("it has no bytes".into());
        }
        if u64::from(self.logic_length) > MAX_RECORD_BYTES {
            return Err(format!("{} bytes are over the record limit", self.logic_length));
        }
        if self.chunk > frontier.tail_chunk {
            return Err(format!("chunk {} is past the last, {}", self.chunk, frontier.tail_chunk));
        }
        let limit = if self.chunk == frontier.tail_chunk {
            u64::from(frontier.tail_offset)
        } else {
            capacity.chunk_bytes
        };
        if self.end() > limit {
            return Err(format!(
                "it ends at byte {} of chunk {}, which ends at {limit}",
                self.end(),
                self.chunk
            ));
        }
        codec.check_lengths(self.phys_length, self.logic_length)
    }
}

/// Encodes consecutive table entries.
pub fn encode_locations(locations: &[Location]) -> Vec<u8> {
    locations.iter().flat_map(Location::encode).collect()
}

/// Decodes consecutive table entries; a part of one at the end is left out.
pub fn decode_locations(bytes: &[u8]) -> Vec<Location> {
    let (entries, _) = bytes.as_chunks::<LOCATION_BYTES>();
    entries.iter().map(Location::decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_reference_layout() {
        let header = Header {
            frontier: Frontier { length: 8, tail_chunk: 3, tail_offset: 200 },
            codec: Codec::Zstd,
            reserved: [9; 15],
        };
        let mut bytes = [9u8; HEADER_BYTES];
        bytes[..17].copy_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 200, 0, 0, 0, 1]);
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn an_unknown_codec_is_refused() {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[16] = 3;
        assert!(Header::decode(&bytes).unwrap_err().contains("codec tag 3"));
    }

    #[test]
    fn locations_keep_their_order_of_fields() {
        let location = Location { offset: 1, phys_length: 2, logic_length: 3, chunk: 4 };
        let bytes = encode_locations(&[location]);
        assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(decode_locations(&bytes), [location]);
    }

    #[test]
    fn a_location_past_the_frontier_is_refused() {
        let frontier = Frontier { length: 1, tail_chunk: 1, tail_offset: 100 };
        let check = |offset, phys, logic, chunk| {
            Location { offset, phys_length: phys, logic_length: logic, chunk }.check(
                Codec::Raw,
                &frontier,
                &Capacity::FORMAT,
            )
        };
        assert_eq!(check(90, 10, 10, 1), Ok(()));
        assert_eq!(check(u32::MAX - 10, 10, 10, 0), Ok(()));
        assert!(check(91, 10, 10, 1).is_err());
        assert!(check(u32::MAX - 9, 10, 10, 0).is_err());
        assert!(check(0, 10, 10, u32::MAX).is_err());
        assert!(check(0, 0, 0, 0).is_err());
        assert!(check(0, 10, 11, 0).is_err());
    }
}
