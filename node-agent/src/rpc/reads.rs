//! Volume statistics: requested every minute for every volume, they must neither pile up on a hung
//! volume nor stop the kubelet's housekeeping for it.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belay_contract::reason::volume;
use belay_server::call::{Failure, Rpc};
use belay_server::health::Complaints;
use belay_server::request::VolumeId;
use belay_server::work::{JobView, Jobs, Ticket};

use crate::operation::{VolumeStats, VolumeUsage};

/// How long a call may take: the kubelet queries all its volumes once a minute.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// The maximum number of volumes with kept results: some MiB at worst, and more than any node has.
const KEPT_MAX: usize = 16_384;

/// The running calls, and the last results.
pub(super) struct Reads {
    /// Callers that repeat the same call share one thread.
    asking: Jobs<VolumeStats>,
    answered: Mutex<Answered>,
}

/// The last result for each path of a volume, and its time.
type Answered = HashMap<VolumeId, Vec<(PathBuf, Instant, VolumeUsage)>>;

impl Reads {
    pub(super) fn new() -> Self {
        Reads {
            asking: Jobs::new(DEADLINE),
            answered: Mutex::default(),
        }
    }

    /// The usage of the volume at that path, by the job `read`.
    pub(super) async fn stats<F>(
        &self,
        id: &VolumeId,
        path: &Path,
        read: impl FnOnce(Ticket) -> F,
    ) -> Result<VolumeStats, Failure>
    where
        F: Future<Output = Result<VolumeStats, Failure>> + Send + 'static,
    {
        let key = key(id, path.display());
        let stats = self.asking.run(&key, Rpc::NodeGetVolumeStats, 0, read);
        let stats = stats.await?;
        self.keep(id, path, stats.usage);
        Ok(stats)
    }

    fn keep(&self, id: &VolumeId, path: &Path, usage: VolumeUsage) {
        let mut answered = self.answered();
        if answered.len() >= KEPT_MAX && !answered.contains_key(id) {
            return;
        }
        let now = Instant::now();
        let paths = answered.entry(id.clone()).or_default();
        match paths.iter_mut().find(|(known, ..)| known == path) {
            Some(known) => (known.1, known.2) = (now, usage),
            None => {
                // Most volumes have one path, and a push would make room for four.
                paths.reserve_exact(1);
                paths.push((path.to_owned(), now, usage));
            }
        }
    }

    /// The volume's last result, for a volume that hangs as in `look`.
    pub(super) fn last(
        &self,
        id: &VolumeId,
        path: &Path,
        look: &JobView,
    ) -> Result<VolumeStats, Failure> {
        let Some((then, usage)) = self.kept(id, path) else {
            return Err(Failure::timeout(format!(
                "volume {id}: the storage is slow or does not answer: {look}; retry later"
            )));
        };
        let mut complaints = complaints(look);
        let seconds = then.elapsed().as_secs();
        let message = format!("the usage was read {seconds} s ago, before it hung");
        complaints.add(volume::STATISTICS_OLD, message);
        Ok(VolumeStats { usage, complaints })
    }

    fn kept(&self, id: &VolumeId, path: &Path) -> Option<(Instant, VolumeUsage)> {
        let answered = self.answered();
        let mut paths = answered.get(id)?.iter();
        let (_, then, usage) = paths.find(|(known, ..)| known == path)?;
        Some((*then, *usage))
    }

    /// A hung call for this volume.
    pub(super) fn hung(&self, id: &VolumeId) -> Option<JobView> {
        self.asking.hung(|key| concerns(key, id))
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
pub(super) fn complaints(look: &JobView) -> Complaints {
    let mut complaints = Complaints::default();
    let message = format!(
        "the storage is slow or does not answer: {look}; see the node's kernel log for the disk \
         or server behind it; the volume recovers when it answers"
    );
    complaints.add(volume::OPERATION_HUNG, message);
    complaints
}

/// The key of a call for this volume. Neither an id nor a path contains a NUL.
pub(super) fn key(id: &VolumeId, what: impl fmt::Display) -> String {
    format!("{id}\0{what}")
}

/// Whether the key is of this volume.
pub(super) fn concerns(key: &str, id: &VolumeId) -> bool {
    let rest = key.strip_prefix(id.as_str());
    rest.is_some_and(|rest| rest.starts_with('\0'))
}
