//! The cores that this process may use: those of its affinity mask, and of these its share
//! where a launcher has started several processes like it on the machine.

use std::env;
use std::thread;

/// The cores for the workers, and how many of them may be busy at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cores {
    /// By the system's numbers; empty where the system does not tell.
    pub(crate) ids: Vec<usize>,
    /// At most as many as there are cores; fewer where a control group limits the time.
    pub(crate) busy_max: usize,
    /// This process's number among those that share the machine, and how many they are.
    pub(crate) rank: Option<(usize, usize)>,
}

impl Cores {
    pub(crate) fn of_this_process() -> Self {
        let mask = core_affinity::get_core_ids().unwrap_or_default();
        let ids: Vec<usize> = mask.into_iter().map(|core| core.id).collect();
        // Unlike the mask it knows the quota of a control group.
        let parallelism = thread::available_parallelism().map_or(1, usize::from);
        Self::shared(&ids, parallelism, local_rank())
    }

    fn shared(ids: &[usize], parallelism: usize, rank: Option<(usize, usize)>) -> Self {
        let (rank_number, ranks) = rank.unwrap_or((0, 1));
        let ids = share(ids, rank_number, ranks).to_vec();
        let busy = (parallelism / ranks).max(1);
        let busy_max = if ids.is_empty() { busy } else { busy.min(ids.len()) };
        Self { ids, busy_max, rank }
    }
}

/// Part number `rank` of `ids` that are shared by `ranks`; a single one where there are too few.
fn share(ids: &[usize], rank: usize, ranks: usize) -> &[usize] {
    if ids.is_empty() {
        return ids;
    }
    if ids.len() < ranks {
        let own = rank % ids.len();
        return &ids[own..=own];
    }
    &ids[rank * ids.len() / ranks..(rank + 1) * ids.len() / ranks]
}

/// What torchrun and other launchers tell each of the processes that they start on a machine.
fn local_rank() -> Option<(usize, usize)> {
    let number = |name| env::var(name).ok()?.parse::<usize>().ok();
    let (rank, ranks) = (number("LOCAL_RANK")?, number("LOCAL_WORLD_SIZE")?);
    (rank < ranks).then_some((rank, ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_cores_and_none_is_left_without() {
        let ids: Vec<usize> = (10..20).collect();
        for ranks in 1..=10 {
            let shares: Vec<_> = (0..ranks).flat_map(|rank| share(&ids, rank, ranks)).collect();
            assert!(shares.into_iter().eq(&ids), "{ranks} ranks");
        }
        assert_eq!(share(&ids[..2], 5, 8), [11]);
        assert!(share(&[], 1, 2).is_empty());
    }

    #[test]
    fn a_quota_limits_the_busy_cores_and_not_their_choice() {
        let ids: Vec<usize> = (0..8).collect();
        let alone = Cores::shared(&ids, 3, None);
        assert_eq!((alone.ids.len(), alone.busy_max), (8, 3));
        let second = Cores::shared(&ids, 8, Some((1, 2)));
        assert_eq!((second.ids, second.busy_max), (vec![4, 5, 6, 7], 4));
        assert_eq!(Cores::shared(&ids, 1, Some((0, 4))).busy_max, 1);
        assert_eq!(Cores::shared(&[], 6, None).busy_max, 6);
    }
}
