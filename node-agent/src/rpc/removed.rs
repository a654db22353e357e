//! Unmounts staged volumes whose disk was removed, unless a pod uses them.
//!
//! A kubelet that was killed may no longer know a staged volume. The kubelet then never unstages
//! the volume, and the cloud detaches the disk. The next NodeStageVolume call for the volume would
//! unmount the filesystem of the removed disk. For an xfs, however, the kubelet's stat(2) of the
//! staging path fails with EIO, so the kubelet does not call NodeStageVolume.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use belay_server::call::{Failure, Kind, Rpc};
use belay_server::request::{Unstage, VolumeId};
use belay_server::work::fingerprint;

use super::NodeService;
use super::flushing::refuse_flushing;
use super::jobs::{Done, change, mixed_up};
use crate::kernel::Kernel;
use crate::operation;
use crate::operation::{Context, Node};
use crate::work::Operation;

/// The pause between two attempts while a pod or a call uses the volume. The agent receives no
/// event when the volume is no longer used.
const PAUSE: Duration = Duration::from_secs(60);

/// The reason that was logged for each volume that is still mounted.
type Reported = BTreeMap<VolumeId, String>;

impl<K: Kernel> NodeService<K> {
    /// Unmounts volumes whose disk was removed, now and after each change of the node's disks.
    ///
    /// # Errors
    /// Returns an error if the driver is not ready.
    pub(crate) async fn unmount_removed(&self) -> Result<Infallible, Failure> {
        let node = self.node()?;
        let Some(mut arrivals) = node.arrivals() else {
            return std::future::pending().await;
        };
        let mut reported = BTreeMap::new();
        loop {
            // Mark the current state of the disks as seen before the search, so that no later
            // change is missed.
            arrivals.mark_unchanged();
            let is_done = self.unmount_all(&node, &mut reported).await;
            let changed = async {
                if arrivals.changed().await.is_err() {
                    // The index of disks no longer exists, so no further change is reported.
                    std::future::pending().await
                }
            };
            match is_done {
                true => changed.await,
                false => drop(tokio::time::timeout(PAUSE, changed).await),
            }
        }
    }

    /// Unmounts all volumes whose disk was removed, one after the other: a cloud may remove all
    /// disks of a node at once, and each unmount may block a thread. Logs the reason why a volume
    /// is still mounted, unless `reported` already contains the same reason. Returns `true` if no
    /// such volume is left.
    async fn unmount_all(&self, node: &Node<K>, reported: &mut Reported) -> bool {
        let removed = match operation::removed(node) {
            Ok(removed) => removed,
            Err(failure) => {
                tracing::debug!("volumes on removed disks may stay staged: {failure}");
                return false;
            }
        };
        let mut left = Reported::new();
        for unstage in removed {
            let id = unstage.id.clone();
            let Err(failure) = self.unmount_one(unstage).await else {
                continue;
            };
            let why = match failure.kind {
                // Use a fixed text: the message of the failure contains the age of the call, so it
                // would differ, and would be logged, each time.
                Kind::Busy => "a call for it is in progress".to_owned(),
                _ => failure.message,
            };
            if reported.get(&id) != Some(&why) {
                let id = id.as_str();
                tracing::warn!(
                    id,
                    "the disk of the volume was removed, and it stays staged: {why}"
                );
            }
            left.insert(id, why);
        }
        *reported = left;
        reported.is_empty()
    }

    /// Unmounts one volume, in a separate job.
    async fn unmount_one(&self, unstage: Unstage) -> Result<(), Failure> {
        let id = unstage.id.clone();
        // Do not interfere with a call that is in progress: an unstage would cancel a
        // NodeStageVolume call that waits for the disk.
        if let Some(running) = self.jobs.view(&change(&id)) {
            return Err(Failure::busy(running.to_string()));
        }
        refuse_flushing(&self.jobs, &id)?;
        let mark = fingerprint(&(&unstage.id, &unstage.staging, "removed"));
        let call = (Rpc::NodeUnstageVolume, mark);
        let work =
            move |cx: &Context<'_, K>| operation::unmount_if_removed(cx, &unstage).map(Done::Freed);
        match self
            .run(change(&id), call, Operation::Unstage, work)
            .await?
        {
            Done::Freed(true) => {
                self.reads.forget(&id);
                self.volumes.unstaged(&id);
                Ok(())
            }
            Done::Freed(false) => Ok(()),
            _ => Err(mixed_up()),
        }
    }
}
