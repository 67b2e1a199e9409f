//! The few records of a block that do not lie on its line, as deletes leave them: the last record
//! of the store has come to where the deleted one was.

use super::block::{Line, fields};
use crate::format::Location;

/// At most one record in so many is a stray. With more, rows for all records take less.
const STRAY_SHARE: usize = 8;

/// Records of a block whose locations are kept as they are.
#[derive(Debug)]
pub(super) struct Strays {
    /// A bit for each record of the block, so that most are told from strays with one load.
    mask: Box<[u64]>,
    /// Their places in the block, ascending.
    places: Box<[u16]>,
    locations: Box<[Location]>,
}

impl Strays {
    /// The line on which most of `locations` lie, and those that do not; `None` if there is no
    /// such line.
    pub(super) fn new(locations: &[Location]) -> Option<(Line, Self)> {
        let count = locations.len();
        // One of these is likely to lie on the line, if most records do.
        let candidates = [count / 2, count / 3, count / 5];
        candidates.into_iter().find_map(|i| {
            let line = Line::through(locations.get(i)?, i as u32);
            Self::beside(&line, locations).map(|strays| (line, strays))
        })
    }

    fn beside(line: &Line, locations: &[Location]) -> Option<Self> {
        let strays_max = locations.len() / STRAY_SHARE;
        let mut mask = vec![0; locations.len().div_ceil(64)];
        let (mut places, mut strays) = (Vec::new(), Vec::new());
        for (i, location) in locations.iter().enumerate() {
            if line.at(i as u32) != fields(location) {
                if places.len() == strays_max {
                    return None;
                }
                mask[i / 64] |= 1 << (i % 64);
                places.push(u16::try_from(i).ok()?);
                strays.push(*location);
            }
        }
        Some(Self { mask: mask.into(), places: places.into(), locations: strays.into() })
    }

    /// The location of record `i` of the block, which has more, if it is a stray.
    pub(super) fn get(&self, i: usize) -> Option<Location> {
        if self.mask[i / 64] >> (i % 64) & 1 == 0 {
            return None;
        }
        let place = self.places.binary_search(&(i as u16));
        Some(self.locations[place.expect("what is in the mask is in the list")])
    }

    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let lists = size_of_val(&*self.mask) + size_of_val(&*self.places);
        lists + size_of_val(&*self.locations) + size_of::<Self>()
    }
}
