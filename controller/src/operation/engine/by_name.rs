//! Finds or creates the volume or snapshot with a name.

use super::contest::Contest;
use super::item::{ContestedVolumes, Item, NameRequest, Store};
use super::poller::Poller;
use super::{Engine, at_rest, delete};
use crate::backend::{Mark, Order, Phase, Snapshot, SnapshotOrder, Volume, answered};
use belay_server::call::Failure;
use belay_server::request::{Name, Secrets};

impl Engine {
    /// Whether an earlier call may have created the volume, although no search can find it. Always
    /// false for storage that can search for a name. Only the backend `nfs` cannot search, so it
    /// must repeat the creation.
    pub(in crate::operation) fn may_exist(&self, name: &Name) -> bool {
        let begun = self.backend.started_creations();
        begun.is_some_and(|begun| begun.volumes.has(name.as_str()))
    }

    /// Returns the volume with the requested name, ready or failed. If there is no volume with the
    /// name, calls `make` to create it.
    ///
    /// # Errors
    /// Returns the errors of the search with an unknown state, since an earlier call may have
    /// created the volume. Returns the errors of `make`, and the reason why the creation failed, as
    /// rolled back.
    pub(in crate::operation) async fn volume_of(
        &self,
        order: &Order,
        make: impl Future<Output = Result<Volume, Failure>>,
    ) -> Result<Volume, Failure> {
        let backend = self.backend.as_ref();
        if let Some(claims) = backend.claims() {
            let contested = ContestedVolumes { backend, claims };
            let contest = Contest::new(&self.volumes, contested, NameRequest::from(order));
            return contest.run(make).await;
        }
        let secrets = &order.secrets;
        if let Some(begun) = backend.started_creations() {
            let made = begun.volumes.judge(&order.name, make.await)?;
            return self
                .settled_as(&order.name, &self.volumes, made, secrets)
                .await;
        }
        let found = backend.find(order.name.clone(), secrets.clone());
        let found = found.await.map_err(Failure::may_be_running)?;
        let volume = match found.into_iter().next() {
            Some(volume) => volume,
            None => make.await?,
        };
        let volume = self
            .settled_as(&order.name, &self.volumes, volume, secrets)
            .await?;
        self.unless_unfinished(volume, order).await
    }

    /// Deletes a failed volume if this process has created it and no process could have used it
    /// yet, so that it has no data. Afterwards, the next call can use the name.
    async fn unless_unfinished(&self, volume: Volume, order: &Order) -> Result<Volume, Failure> {
        match (&volume.phase, &volume.mark) {
            (Phase::Failed(why), Mark::Open(by)) if by.is_of_the_process_of(&order.attempt) => {
                delete(&self.volumes, &volume.id, NameRequest::from(order)).await?;
                Err(why.clone().rolled_back())
            }
            _ => Ok(volume),
        }
    }

    /// Returns the snapshot with the requested name, complete or failed. If there is no snapshot
    /// with the name, calls `make` to create it.
    ///
    /// # Errors
    /// Returns the errors of [`Self::volume_of`], for the snapshot.
    pub(in crate::operation) async fn snapshot_of(
        &self,
        order: &SnapshotOrder,
        make: impl Future<Output = Result<Snapshot, Failure>>,
    ) -> Result<Snapshot, Failure> {
        let snapshots = self.backend.snapshots();
        if let Some(claims) = snapshots.and_then(|it| it.snapshot_claims(order)) {
            let contest = Contest::new(&self.snapshots, claims, NameRequest::from(order));
            return contest.run(make).await;
        }
        let made = make.await;
        let made = match self.backend.started_creations() {
            Some(begun) => begun.snapshots.judge(&order.name, made),
            None => made,
        };
        self.settled_as(&order.name, &self.snapshots, made?, &order.secrets)
            .await
    }

    /// Waits until the item is ready or failed, checks its name, and returns it. Some storage does
    /// not report the name of a new item before the item is ready.
    ///
    /// # Errors
    /// Returns the errors of [`at_rest`] and of [`answered::named`].
    async fn settled_as<S: Store>(
        &self,
        name: &Name,
        poller: &Poller<S>,
        item: S::Item,
        secrets: &Secrets,
    ) -> Result<S::Item, Failure> {
        let item = match self.backend.traits().reads_back && *item.phase() == Phase::Ready {
            true => read_back(poller, &item, secrets).await?,
            false => item,
        };
        let item = at_rest(poller, item, secrets).await?;
        let id = item.id().to_string();
        let seen = (id.as_str(), item.name());
        answered::named(self.backend.as_ref(), name, S::Item::WHAT, seen)?;
        Ok(item)
    }
}

/// Reads the item by its ID, and returns the item in its current state. If the storage does not
/// list the item yet, returns the item from the response to the creation, since no other item has
/// this ID.
///
/// # Errors
/// Returns the errors of reading the item, with an unknown state.
async fn read_back<S: Store>(
    poller: &Poller<S>,
    answered: &S::Item,
    secrets: &Secrets,
) -> Result<S::Item, Failure> {
    let id = answered.id();
    let read = poller.store().get(id.clone(), secrets.clone()).await;
    let Some(mut read) = read.map_err(Failure::may_be_running)? else {
        return Ok(answered.clone());
    };
    read.complete(answered);
    Ok(read)
}
