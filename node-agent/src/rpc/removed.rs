//! Unmounts staged volumes whose disk was removed and that no pod uses.
//!
//! A kubelet that was killed has forgotten such a volume, and the cloud detaches its disk. The next
//! stage would unmount the dead filesystem, but an xfs answers the kubelet's stat of the staging
//! path with EIO, so that the kubelet does not call NodeStageVolume.

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

/// The pause before the next attempt, while a pod or a call uses such a volume: neither has an
/// event when it ends.
const PAUSE: Duration = Duration::from_secs(60);

/// The reasons why volumes stay mounted, as logged.
type Reported = BTreeMap<VolumeId, String>;

impl<K: Kernel> NodeService<K> {
    /// Unmounts such volumes after each change of the node's disks.
    ///
    /// # Errors
    /// Returns an error if the driver is not up.
    pub(crate) async fn unmount_removed(&self) -> Result<Infallible, Failure> {
        let node = self.node()?;
        let Some(mut arrivals) = node.arrivals() else {
            return std::future::pending().await;
        };
        let mut reported = BTreeMap::new();
        loop {
            // Mark before the search, so that no change is missed.
            arrivals.mark_unchanged();
            let is_done = self.unmount_all(&node, &mut reported).await;
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

    /// Unmounts one after the other: a cloud may remove all disks of a node at once, and each may
    /// occupy a thread. Logs a reason only once, in `reported`. Returns whether none is left.
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
                // The message has the age of the call.
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

    /// Unmounts one volume as a separate job.
    async fn unmount_one(&self, unstage: Unstage) -> Result<(), Failure> {
        let id = unstage.id.clone();
        // An unstage would cancel a stage that waits for the disk.
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
