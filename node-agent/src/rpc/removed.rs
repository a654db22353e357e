//! Unstages volumes whose disk was removed and that no pod uses.
//!
//! A kubelet that was killed has forgotten such a volume, and the cloud detaches its disk. The next
//! stage would unmount the dead filesystem, but an xfs answers the kubelet's stat of the staging
//! path with EIO, so that the kubelet does not call NodeStageVolume.

use std::convert::Infallible;
use std::time::Duration;

use belay_server::call::{Failure, Rpc};
use belay_server::request::Unstage;
use belay_server::work::fingerprint;

use super::NodeService;
use super::flushing::refuse_flushing;
use super::jobs::change;
use crate::kernel::Kernel;
use crate::operation;
use crate::operation::Context;
use crate::work::Operation;

/// The pause before the next attempt, while a pod or a call uses such a volume: neither has an
/// event when it ends.
const PAUSE: Duration = Duration::from_secs(60);

impl<K: Kernel> NodeService<K> {
    /// Unstages such volumes after each change of the node's disks.
    ///
    /// # Errors
    /// Returns an error if the driver is not up.
    pub(crate) async fn unstage_removed(&self) -> Result<Infallible, Failure> {
        let node = self.node()?;
        let Some(mut arrivals) = node.arrivals() else {
            return std::future::pending().await;
        };
        loop {
            // Before the search, so that no change is missed.
            arrivals.mark_unchanged();
            let mut is_done = true;
            for unstage in operation::removed(&node) {
                is_done &= self.unstage_one(unstage).await;
            }
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

    /// Unstages one volume as a job of its own. Returns whether nothing remains to be done.
    async fn unstage_one(&self, unstage: Unstage) -> bool {
        let (id, call) = (
            unstage.id.clone(),
            (Rpc::NodeUnstageVolume, Operation::Unstage),
        );
        let mark = fingerprint(&(&unstage.id, &unstage.staging, "removed"));
        let work = move |cx: &Context<'_, K>| operation::unstage_removed(cx, &unstage);
        // An unstage would cancel a stage that waits for the disk.
        if self.jobs.view(&change(&id)).is_some() {
            return false;
        }
        let unstaged = match refuse_flushing(&self.jobs, &id) {
            Ok(()) => self.change(call, &id, mark, work).await,
            busy => busy,
        };
        if let Err(failure) = &unstaged {
            tracing::debug!(
                id = id.as_str(),
                "its disk was removed, and it stays staged: {failure}"
            );
            return false;
        }
        // Data that is not on the disk is still reported as lost.
        self.reads.forget(&id);
        self.volumes.unstaged(&id);
        true
    }
}
