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
        // Masks are of threads: whoever comes first may be bound to one core. What is asked is
        // asked by a thread with the mask of the process's first thread, which is the one that
        // launchers and `taskset` have set.
        let asked = thread::Builder::new().spawn(|| {
            bind_like_the_first_thread();
            ask()
        });
        let answer = asked.ok().and_then(|thread| thread.join().ok());
        let (ids, parallelism) = answer.unwrap_or_else(ask);
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

/// The cores of this thread's mask, and how many threads can be busy on them: unlike the mask that
/// knows the quota of a control group.
fn ask() -> (Vec<usize>, usize) {
    let mask = core_affinity::get_core_ids().unwrap_or_default();
    let parallelism = thread::available_parallelism().map_or(1, usize::from);
    (mask.into_iter().map(|core| core.id).collect(), parallelism)
}

/// Gives this thread the mask of the process's first one, where threads have masks.
fn bind_like_the_first_thread() {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{sched_getaffinity, sched_setaffinity};
        let first = rustix::process::getpid();
        // Where it is refused, this thread keeps the mask of the one that started it.
        let _ = sched_getaffinity(Some(first)).and_then(|mask| sched_setaffinity(None, &mask));
    }
}

/// Lets this thread run on any of `ids`, where threads have masks.
pub(super) fn bind_to_all(ids: &[usize]) {
    #[cfg(target_os = "linux")]
    if !ids.is_empty() {
        let mut mask = rustix::thread::CpuSet::new();
        let known = |id: &&usize| **id < rustix::thread::CpuSet::MAX_CPU;
        ids.iter().filter(known).for_each(|id| mask.set(*id));
        // Where it is refused, the thread keeps the mask of the one that started it.
        let _ = rustix::thread::sched_setaffinity(None, &mask);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = ids;
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
    let (rank, ranks) = (env::var("LOCAL_RANK").ok()?, env::var("LOCAL_WORLD_SIZE").ok()?);
    let share = rank.parse().ok().zip(ranks.parse().ok()).filter(|(rank, ranks)| rank < ranks);
    if share.is_none() {
        log::warn!(
            "LOCAL_RANK={rank} of LOCAL_WORLD_SIZE={ranks} means nothing: every core is used"
        );
    }
    share
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
