//! Disks that are gone: a disk is gone if it has had no LocalDisk for some time. Its volumes and
//! snapshots can be deleted without its store. Their files, if the disk returns, have no objects.
//!
//! A store creates the LocalDisk of each of its disks again with its next report, so a disk becomes
//! gone only if no store reports it: a person has deleted the LocalDisk, or the Node was deleted.

use super::Front;
use super::follow::{Follow, Followed, Patched};
use super::item::{Item, about, disk_of, id, unreachable, wanted};
use crate::kubernetes::{LocalDisk, Metadata, Object, SPEC_VERSION, Written};
use belay_server::call::Failure;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::{Instant, sleep};

impl Front {
    /// Whether the disk of the object is gone.
    pub(super) fn is_gone<R: Item>(&self, object: &Object<R>) -> bool {
        let known = wanted(object).filter(|wanted| wanted.version <= SPEC_VERSION);
        known.is_some_and(|wanted| self.disks.lacks(&disk_of(&wanted), self.limits.silent))
    }

    /// Deletes an object whose disk is gone. The file, if the disk still has it, is kept.
    ///
    /// # Errors
    /// Returns `Unreachable` if the disk has returned or the server does not respond.
    pub(super) async fn give_up<R: Followed>(
        &self,
        follow: &mut Follow<'_, R>,
    ) -> Result<Patched, Failure> {
        let Some(disk) = wanted(&follow.object).map(|wanted| disk_of(&wanted)) else {
            return Ok(Patched::Conflict);
        };
        // The cache may be out of date.
        if self.client.get::<LocalDisk>(&disk).await?.is_some() {
            let why = "its disk has just returned; repeat the call";
            return Err(unreachable(&follow.object, why));
        }
        if follow.object.is_accepted() {
            match follow.release().await? {
                Patched::Done => {}
                other => return Ok(other),
            }
        }
        match follow.delete().await? {
            Written::Done(()) => {
                let (what, id) = (R::WHAT, id(&follow.object));
                tracing::warn!(
                    "{what} {id}: its object is deleted, since its disk {disk} has no LocalDisk"
                );
                Ok(Patched::Done)
            }
            Written::Missing => Ok(Patched::Gone),
            Written::Conflict => {
                follow.reread().await?;
                Ok(Patched::Conflict)
            }
        }
    }

    /// Deletes an object that CreateVolume or CreateSnapshot must not return: without its store if
    /// its disk is gone.
    ///
    /// # Errors
    /// Returns the errors of [`Self::remove`] and [`Self::give_up`].
    pub(super) async fn discard<R: Followed>(&self, object: Arc<Object<R>>) -> Result<(), Failure> {
        if !self.is_gone(&object) {
            return self.remove(object).await.map(drop);
        }
        // No attempt to remove is written, since the disk may have returned.
        let mut follow = Follow::new(self, object);
        match self.give_up(&mut follow).await? {
            Patched::Done | Patched::Gone => Ok(()),
            Patched::Conflict => {
                let why = "was changed by another process; repeat the call";
                Err(Failure::busy(about(&follow.object, why)))
            }
        }
    }

    /// Deletes the LocalDisks of Nodes that have been deleted for some time, until the task is
    /// aborted. A Node that is not ready keeps its disks.
    pub(super) async fn forget_departed(self: Arc<Self>) {
        let mut missing = HashMap::new();
        loop {
            sleep(self.limits.check).await;
            if let Err(failure) = self.forget_departed_once(&mut missing).await {
                tracing::warn!("the disks of deleted Nodes are not forgotten: {failure}");
            }
        }
    }

    /// Updates `missing`, the times since which Nodes do not exist.
    async fn forget_departed_once(
        &self,
        missing: &mut HashMap<String, Instant>,
    ) -> Result<(), Failure> {
        self.disks.current()?;
        let mut silent = HashMap::<String, Vec<Metadata>>::new();
        for seen in self.disks.all() {
            if let Some(spec) = seen.object.spec.known()
                && seen.changed.elapsed() >= self.limits.silent
            {
                let disks = silent.entry(spec.node.clone()).or_default();
                disks.push(seen.object.metadata.clone());
            }
        }
        missing.retain(|node, _| silent.contains_key(node));
        for (node, disks) in silent {
            if self.client.node(&node).await?.is_some() {
                missing.remove(&node);
                continue;
            }
            let since = *missing.entry(node.clone()).or_insert_with(Instant::now);
            if since.elapsed() < self.limits.departed {
                continue;
            }
            for disk in disks {
                // A report since would have changed the version.
                if self.client.delete::<LocalDisk>(&disk).await? == Written::Done(()) {
                    let name = &disk.name;
                    tracing::warn!("LocalDisk {name}: forgotten, since Node {node} was deleted");
                }
            }
        }
        Ok(())
    }
}
