//! Stores the last result of the statistics of each volume. The kubelet requests the statistics of
//! every volume once a minute. If a volume hangs, this last result is returned again, so that calls
//! do not accumulate and the kubelet's housekeeping continues.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belay_contract::reason::volume;
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use belay_server::work::JobView;

use crate::operation::{VolumeStats, VolumeUsage};

/// Maximum number of volumes whose last results are stored, far more than a node has. The results
/// need a few MiB at most.
const KEPT_MAX: usize = 16_384;

/// The last results of volume statistics.
#[derive(Default)]
pub(super) struct Reads {
    answered: Lock<Answered>,
}

/// The last result of each volume for each path.
type Answered = HashMap<VolumeId, Vec<Kept>>;

/// The last result for one path.
struct Kept {
    path: PathBuf,
    then: Instant,
    usage: VolumeUsage,
}

impl Reads {
    /// Stores the usage that a call has returned, and the current time.
    pub(super) fn keep(&self, id: &VolumeId, path: &Path, usage: VolumeUsage) {
        let mut answered = self.answered.lock();
        if answered.len() >= KEPT_MAX && !answered.contains_key(id) {
            return;
        }
        let then = Instant::now();
        let paths = answered.entry(id.clone()).or_default();
        match paths.iter_mut().find(|kept| kept.path == path) {
            Some(kept) => (kept.then, kept.usage) = (then, usage),
            None => {
                // Reserve space for one path, because most volumes have only one. Without this, the
                // vector would allocate space for four.
                paths.reserve_exact(1);
                let path = path.to_owned();
                paths.push(Kept { path, then, usage });
            }
        }
    }

    /// Returns the last usage of a volume, and a health reason that describes the hung job `look`.
    ///
    /// # Errors
    /// Returns `DEADLINE_EXCEEDED` if no earlier usage is stored.
    pub(super) fn last(
        &self,
        id: &VolumeId,
        path: &Path,
        look: &JobView,
    ) -> Result<VolumeStats, Failure> {
        let Some((then, usage)) = self.kept(id, path, |kept| (kept.then, kept.usage)) else {
            return Err(Failure::timeout(format!(
                "volume {id}: the storage is slow or does not answer: {look}; retry later"
            )));
        };
        Ok(old((then, usage), conditions(look)))
    }

    /// Returns the last usage of a volume, and `conditions` as its health; `None` if no earlier
    /// usage is stored.
    pub(super) fn old(
        &self,
        id: &VolumeId,
        path: &Path,
        conditions: Conditions,
    ) -> Option<VolumeStats> {
        let kept = self.kept(id, path, |kept| (kept.then, kept.usage))?;
        Some(old(kept, conditions))
    }

    fn kept<T>(&self, id: &VolumeId, path: &Path, of: impl FnOnce(&Kept) -> T) -> Option<T> {
        let answered = self.answered.lock();
        let mut paths = answered.get(id)?.iter();
        paths.find(|kept| kept.path == path).map(of)
    }

    /// Removes the stored results of a volume.
    pub(super) fn forget(&self, id: &VolumeId) {
        self.answered.lock().remove(id);
    }
}

/// Returns an earlier result, and adds a condition that states the age of this result.
fn old((then, usage): (Instant, VolumeUsage), mut conditions: Conditions) -> VolumeStats {
    let seconds = then.elapsed().as_secs();
    let message = format!("the usage is {seconds} s old: the storage does not answer");
    conditions.add(volume::STATISTICS_OLD, message);
    VolumeStats { usage, conditions }
}

/// Returns the health reason of a volume whose job `look` hangs.
pub(super) fn conditions(look: &JobView) -> Conditions {
    let mut conditions = Conditions::default();
    let message = format!(
        "the storage is slow or does not answer: {look}; see the node's kernel log for the disk \
         or server behind it; the volume recovers when it answers"
    );
    conditions.add(volume::OPERATION_HUNG, message);
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> VolumeId {
        VolumeId::new(format!("vol-{n}")).unwrap()
    }

    fn keep(reads: &Reads, n: usize, path: &str, bytes: u64) {
        reads.keep(&id(n), Path::new(path), VolumeUsage::Block(bytes));
    }

    fn kept(reads: &Reads, n: usize, path: &str) -> Option<u64> {
        reads.kept(&id(n), Path::new(path), |kept| match kept.usage {
            VolumeUsage::Block(bytes) => bytes,
            VolumeUsage::Filesystem(usage) => usage.total_bytes,
        })
    }

    #[test]
    fn the_last_result_is_kept_for_each_path_until_the_volume_is_forgotten() {
        let reads = Reads::default();
        for (path, bytes) in [("/a", 1), ("/b", 2), ("/a", 3)] {
            keep(&reads, 1, path, bytes);
        }
        keep(&reads, 2, "/a", 4);
        let all = [(1, "/a"), (1, "/b"), (1, "/c"), (2, "/a")];
        let found = || all.map(|(n, path)| kept(&reads, n, path));
        assert_eq!(found(), [Some(3), Some(2), None, Some(4)]);
        reads.forget(&id(1));
        assert_eq!(found(), [None, None, None, Some(4)]);
    }

    #[test]
    fn no_more_volumes_are_kept_than_a_node_can_have_and_those_are_kept_up_to_date() {
        let reads = Reads::default();
        (0..=KEPT_MAX).for_each(|n| keep(&reads, n, "/a", 1));
        keep(&reads, 0, "/a", 2);
        let found = [0, KEPT_MAX - 1, KEPT_MAX].map(|n| kept(&reads, n, "/a"));
        assert_eq!(found, [Some(2), Some(1), None]);
    }
}
