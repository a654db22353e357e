//! Unmounts staged volumes whose disk was removed, unless a pod uses them.
//!
//! A kubelet that was killed may have lost its record of a staged volume, so it never unstages the
//! volume, and the cloud detaches the disk. The next stage of the volume would unmount the dead
//! filesystem. On xfs, however, the kubelet's stat(2) of the staging path fails with EIO, so the
//! kubelet does not call NodeStageVolume.

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

/// The pause between two attempts while a pod or a call uses the volume. No event reports when the
/// use ends.
const PAUSE: Duration = Duration::from_secs(60);

/// For each volume that stays mounted, the reason that was logged.
type Reported = BTreeMap<VolumeId, String>;

impl<K: Kernel> NodeService<K> {
    /// Unmounts volumes on removed disks, now and after each change of the node's disks.
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
            // Mark the state as seen before the search, so that no change is missed.
            arrivals.mark_unchanged();
            let is_done = self.unmount_all(&node, &mut reported).await;
            let changed = async {
                if arrivals.changed().await.is_err() {
                    // The index of disks was dropped, so it will not change again.
                    std::future::pending().await
                }
            };
            match is_done {
                true => changed.await,
                false => drop(tokio::time::timeout(PAUSE, changed).await),
            }
        }
    }

    /// Unmounts all volumes on removed disks, one after the other: a cloud may remove all disks of
    /// a node at once, and each unmount may occupy a thread. Logs a reason unless `reported`
    /// already contains it. Returns whether no such volume remains mounted.
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
                // The failure's message contains the age of the call, so it differs each time and
                // would be logged each time.
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
        // Leave the volume to a running call: an unstage would cancel a stage that waits for the
        // disk.
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
