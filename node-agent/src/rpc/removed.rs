//! Volumes whose disk was removed while they were staged are unmounted without a call.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belay_server::call::{Failure, Kind, Rpc};
use belay_server::request::VolumeId;
use belay_server::work::{Key, Ticket, fingerprint};
use metrics::counter;

use super::NodeService;
use super::flushing::refuse_flushing;
use super::jobs::{Done, change, mixed_up};
use crate::kernel::Kernel;
use crate::operation::{self, Cleared, Node, Removed};
use crate::work::{Class, Operation, Progress};

/// Counts staged volumes that were unmounted since their disk was removed, by `outcome`.
const CLEARED: &str = "belay_removed_disk_unmounts_total";

/// The pause before another attempt, while a volume cannot be unmounted or the disks cannot be
/// checked. No event reports that a call has ended, or that a pod no longer uses the volume; and
/// the kubelet goes first.
const PAUSE: Duration = Duration::from_secs(60);

/// Describes the metrics of this module. Call it once, before the first call.
pub(super) fn announce() {
    metrics::describe_counter!(
        CLEARED,
        "Attempts to unmount staged volumes without pods after their disks were removed."
    );
}

/// Why mounts were left the last time, so that no reason is logged each time.
pub(super) type Left = HashMap<PathBuf, String>;

impl<K: Kernel> NodeService<K> {
    /// Unmounts such volumes while the agent serves: after each change of the node's disks. The
    /// driver must be up.
    ///
    /// # Errors
    /// If the driver is not up.
    pub(crate) async fn look_after_removed(self: Arc<Self>) -> Result<Infallible, Failure> {
        let Some(mut arrivals) = self.node()?.arrivals() else {
            return std::future::pending().await;
        };
        let mut left = Left::new();
        loop {
            // Before the check, so that no change is missed.
            arrivals.mark_unchanged();
            let is_done = self.clear_all(&mut left).await;
            let changed = async {
                if arrivals.changed().await.is_err() {
                    // The index will not change again.
                    std::future::pending().await
                }
            };
            match is_done {
                true => changed.await,
                false => drop(tokio::time::timeout(PAUSE, changed).await),
            }
        }
    }

    /// One attempt for each such mount. One after the other, since a cloud may remove all disks of
    /// a node at once. Whether none is left.
    pub(super) async fn clear_all(self: &Arc<Self>, left: &mut Left) -> bool {
        let removed = self.removed().await.unwrap_or_else(|failure| Removed {
            mounts: Vec::new(),
            unchecked: Some(failure),
        });
        let is_known = removed.unchecked.is_none();
        if let Some(failure) = removed.unchecked {
            tracing::debug!("volumes on removed disks may stay staged: {failure}");
        }
        let mut still = Left::new();
        for (volume, path) in removed.mounts {
            if let Some(why) = self.clear_one(&volume, &path).await {
                let before = left.get(&path);
                if before.is_none_or(|before| *before != why) {
                    counter!(CLEARED, "outcome" => "failed").increment(1);
                    let (id, at) = (volume.as_str(), path.display());
                    tracing::warn!(
                        id,
                        "the disk of the volume was removed, and it stays staged at {at}: {why}"
                    );
                }
                still.insert(path, why);
            }
        }
        *left = still;
        is_known && left.is_empty()
    }

    /// Attempts until one has ended; why the mount is left, if it is.
    async fn clear_one(self: &Arc<Self>, volume: &VolumeId, path: &Path) -> Option<String> {
        loop {
            let failure = match self.clear(volume, path).await {
                Ok(Cleared::Nothing | Cleared::Unmounted { .. }) => return None,
                Ok(Cleared::Used(other)) => {
                    return Some(format!(
                        "it is mounted at {} as well; delete the pods that use it here",
                        other.display()
                    ));
                }
                Err(failure) => failure,
            };
            match failure.kind {
                // The message has the age of the call.
                Kind::Busy => return Some("a call for it is in progress".to_owned()),
                Kind::Timeout => {
                    let id = volume.as_str();
                    tracing::warn!(id, "the disk of the volume was removed: {failure}");
                    // A thread for each would hang otherwise.
                    while self.jobs.view(&change(volume)).is_some() {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                _ => return Some(failure.to_string()),
            }
        }
    }

    /// The volumes that are staged on a removed disk.
    async fn removed(&self) -> Result<Removed, Failure> {
        let key = Key::new(Class::Storage, "removed");
        let call = (Rpc::NodeUnstageVolume, 0);
        let work = |node: &Node<K>| Ok(Done::Removed(operation::removed(node)));
        match self.query(key, call, work).await? {
            Done::Removed(removed) => Ok(removed),
            _ => Err(mixed_up()),
        }
    }

    /// One attempt, as a job of the volume.
    ///
    /// # Errors
    /// `ABORTED` while another call for the volume is in progress, also one that only waits; those
    /// of [`operation::clear`].
    pub(super) async fn clear(
        self: &Arc<Self>,
        id: &VolumeId,
        path: &Path,
    ) -> Result<Cleared, Failure> {
        // An unstage would cancel a stage that waits for the volume's disk.
        if let Some(running) = self.jobs.view(&change(id)) {
            return Err(Failure::busy(running.to_string()));
        }
        refuse_flushing(&self.jobs, id)?;
        let (service, node) = (Arc::clone(self), self.node()?);
        let mark = fingerprint(&(id, path, "removed"));
        let at = Arc::new((id.clone(), path.to_owned()));
        let job = |ticket: Ticket| async move {
            let of = Arc::clone(&at);
            let work = move |progress: &Progress| {
                operation::run(&node, progress, Operation::Unstage, |cx| {
                    operation::clear(cx, &of.0, &of.1)
                })
            };
            let lane = Class::Change.lane();
            let cleared = service.pool.run(&ticket, lane, work).await?;
            // Before another call for the volume can begin.
            if let Cleared::Unmounted { was_last } = cleared {
                service.account(&at.0, &at.1, was_last);
            }
            Ok(Done::Cleared(cleared))
        };
        let rpc = Rpc::NodeUnstageVolume;
        match self.jobs.run(change(id), rpc, mark, job).await? {
            Done::Cleared(cleared) => Ok(cleared),
            _ => Err(mixed_up()),
        }
    }

    /// The mount was unmounted.
    fn account(&self, volume: &VolumeId, path: &Path, was_last: bool) {
        let (id, path) = (volume.as_str(), path.display());
        let is_lost = self.unsynced.removed(volume);
        let outcome = if is_lost { "lost" } else { "ok" };
        counter!(CLEARED, "outcome" => outcome).increment(1);
        tracing::warn!(
            id,
            "unmounted {path}, where the volume was staged: its disk was removed, and no pod used \
             it"
        );
        if is_lost {
            tracing::error!(
                id,
                "data that a pod wrote to the volume may be lost: the disk was removed before all \
                 of it was written"
            );
        }
        if was_last {
            self.reads.forget(volume);
            self.volumes.unstaged(volume);
        }
    }
}
