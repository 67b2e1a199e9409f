//! Deleting records: the last record of the table moves into each hole, from the highest index
//! to the lowest, so the live records stay exactly `0..length`. Only the table changes; the
//! bytes of the deleted records stay in their chunks until a compaction.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::Storage;
use crate::error::{Error, Result};
use crate::format::{Frontier, Location};

impl Storage {
    /// Deletes the records `indices`, each once however often it is named.
    pub(crate) fn delete(&self, indices: &[u64]) -> Result<()> {
        let mut holes = indices.to_vec();
        holes.sort_unstable_by(|a, b| b.cmp(a));
        holes.dedup();

        let _inside = self.enter_alone()?;
        let mut writer = self.writer()?;
        let frontier = self.frontier();
        let Some(&highest) = holes.first() else { return Ok(()) };
        if highest >= frontier.length {
            return Err(Error::IndexOutOfRange {
                path: self.path.clone(),
                index: highest.into(),
                length: frontier.length,
            });
        }

        let (moves, length) =
            swap_last(&holes, frontier.length, |first, count| self.table.read(first, count))?;
        self.reorders.fetch_add(1, Ordering::AcqRel);
        for (first, locations) in consecutive(moves) {
            self.table.write(first, &locations)?;
        }
        self.publish(&mut writer, Frontier { length, ..frontier })
    }
}

/// What swapping the last record into each of `holes` (descending) leaves changed below the
/// new length: slot and location. `read` gives the locations of consecutive records.
fn swap_last(
    holes: &[u64],
    length: u64,
    read: impl FnOnce(u64, usize) -> Result<Vec<Location>>,
) -> Result<(BTreeMap<u64, Location>, u64)> {
    let new_length = length - holes.len() as u64;
    // Only records at or past the new length move, so they are all that must be known.
    let tail = read(new_length, holes.len())?;
    let mut moved = BTreeMap::new();
    let mut last = length;
    for &hole in holes {
        last -= 1;
        let location = moved.remove(&last).unwrap_or_else(|| tail[(last - new_length) as usize]);
        if hole != last {
            moved.insert(hole, location);
        }
    }
    Ok((moved, new_length))
}

/// Joins moves into consecutive slots to runs.
pub(super) fn consecutive(moves: BTreeMap<u64, Location>) -> Vec<(u64, Vec<Location>)> {
    let mut runs: Vec<(u64, Vec<Location>)> = Vec::new();
    for (slot, location) in moves {
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() as u64 == slot => run.push(location),
            _ => runs.push((slot, vec![location])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(offset: u32) -> Location {
        Location { offset, phys_length: 1, logic_length: 1, chunk: 0 }
    }

    /// The reference's algorithm, one swap at a time.
    fn model(holes: &[u64], length: u64) -> Vec<Location> {
        let mut table: Vec<_> = (0..length as u32).map(location).collect();
        for &hole in holes {
            table.swap_remove(hole as usize);
        }
        table
    }

    #[test]
    fn swaps_give_what_one_at_a_time_gives() {
        let length = 12;
        for set in 0u64..1 << length {
            let holes: Vec<u64> = (0..length).rev().filter(|i| set >> i & 1 == 1).collect();
            let mut table: Vec<_> = (0..length as u32).map(location).collect();
            let read = |first: u64, count| Ok(table[first as usize..][..count].to_vec());
            let (moves, new_length) = swap_last(&holes, length, read).unwrap();
            for (first, run) in consecutive(moves) {
                table[first as usize..][..run.len()].copy_from_slice(&run);
            }
            table.truncate(new_length as usize);
            assert_eq!(table, model(&holes, length), "{holes:?}");
        }
    }
}
