//! Volume statistics: requested every minute for every volume, they must neither pile up on a hung
//! volume nor stop the kubelet's housekeeping for it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use belay_contract::reason::volume;
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::VolumeId;
use belay_server::work::JobView;

use crate::operation::{Thread, VolumeStats, VolumeUsage};

/// The maximum number of volumes with kept results: some MiB at worst, and more than any node has.
const KEPT_MAX: usize = 16_384;

/// The last results.
#[derive(Default)]
pub(super) struct Reads {
    answered: Mutex<Answered>,
}

/// The last results for each path of a volume.
type Answered = HashMap<VolumeId, Vec<Kept>>;

/// The last result for a path.
struct Kept {
    path: PathBuf,
    then: Instant,
    usage: VolumeUsage,
    /// Where to read it the next time.
    thread: Thread,
}

impl Reads {
    /// Keeps the result of a call.
    pub(super) fn keep(&self, id: &VolumeId, path: &Path, (usage, thread): (VolumeUsage, Thread)) {
        let mut answered = self.answered();
        if answered.len() >= KEPT_MAX && !answered.contains_key(id) {
            return;
        }
        let then = Instant::now();
        let paths = answered.entry(id.clone()).or_default();
        match paths.iter_mut().find(|kept| kept.path == path) {
            Some(kept) => (kept.then, kept.usage, kept.thread) = (then, usage, thread),
            None => {
                // Most volumes have one path, and a push would make room for four.
                paths.reserve_exact(1);
                let path = path.to_owned();
                paths.push(Kept {
                    path,
                    then,
                    usage,
                    thread,
                });
            }
        }
    }

    /// Where to read first: on the pool, unless the last result allows the other.
    pub(super) fn thread(&self, id: &VolumeId, path: &Path) -> Thread {
        let thread = |kept: &Kept| kept.thread;
        self.kept(id, path, thread).unwrap_or(Thread::Pool)
    }

    /// The volume's last result, for a volume that hangs as in `look`.
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
        let mut conditions = conditions(look);
        let seconds = then.elapsed().as_secs();
        let message = format!("the usage is {seconds} s old: the storage does not answer");
        conditions.add(volume::STATISTICS_OLD, message);
        Ok(VolumeStats { usage, conditions })
    }

    fn kept<T>(&self, id: &VolumeId, path: &Path, of: impl FnOnce(&Kept) -> T) -> Option<T> {
        let answered = self.answered();
        let mut paths = answered.get(id)?.iter();
        paths.find(|kept| kept.path == path).map(of)
    }

    /// Drops the results of a volume that was unmounted from a path.
    pub(super) fn forget(&self, id: &VolumeId) {
        self.answered().remove(id);
    }

    fn answered(&self) -> MutexGuard<'_, Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The health reason of a volume that hangs as in `look`.
pub(super) fn conditions(look: &JobView) -> Conditions {
    let mut conditions = Conditions::default();
    let message = format!(
        "the storage is slow or does not answer: {look}; see the node's kernel log for the disk \
         or server behind it; the volume recovers when it answers"
    );
    conditions.add(volume::OPERATION_HUNG, message);
    conditions
}
