//! Finds the volume or snapshot of a name, or creates it.

use super::contest::Contest;
use super::item::{Bid, ContestedVolumes, Item, Store};
use super::poller::Poller;
use super::{Engine, at_rest, delete};
use crate::backend::{Mark, Order, Phase, Snapshot, SnapshotOrder, Volume, answered};
use belay_server::call::Failure;
use belay_server::request::{Name, Secrets};

impl Engine {
    /// Whether an earlier call may have created the volume, and only a creation finds out.
    pub(in crate::operation) fn may_exist(&self, name: &Name) -> bool {
        let begun = self.backend.begun();
        begun.is_some_and(|begun| begun.volumes.has(name.as_str()))
    }

    /// The volume of the order's name, ready or failed; `make` creates it if there is none.
    ///
    /// # Errors
    /// Those of the search, with an unknown state: an earlier call may have created the volume.
    /// Those of `make`; the reason why creating it failed, rolled back.
    pub(in crate::operation) async fn volume_of(
        &self,
        order: &Order,
        make: impl Future<Output = Result<Volume, Failure>>,
    ) -> Result<Volume, Failure> {
        let backend = self.backend.as_ref();
        if let Some(claims) = backend.claims() {
            let contested = ContestedVolumes { backend, claims };
            let contest = Contest::new(&self.volumes, contested, Bid::from(order));
            return contest.run(make).await;
        }
        let secrets = &order.secrets;
        if let Some(begun) = backend.begun() {
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

    /// A volume that has failed before a process could use it has no data, if this process has
    /// created it: it is deleted, so that the name is free for the next call.
    async fn unless_unfinished(&self, volume: Volume, order: &Order) -> Result<Volume, Failure> {
        match (&volume.phase, &volume.mark) {
            (Phase::Failed(why), Mark::Open(by)) if by.is_of_the_process_of(&order.attempt) => {
                delete(&self.volumes, &volume.id, Bid::from(order)).await?;
                Err(why.clone().rolled_back())
            }
            _ => Ok(volume),
        }
    }

    /// The snapshot of the order's name, cut or failed; `make` cuts it if there is none.
    ///
    /// # Errors
    /// Like [`Self::volume_of`].
    pub(in crate::operation) async fn snapshot_of(
        &self,
        order: &SnapshotOrder,
        make: impl Future<Output = Result<Snapshot, Failure>>,
    ) -> Result<Snapshot, Failure> {
        let snapshots = self.backend.snapshots();
        if let Some(claims) = snapshots.and_then(|it| it.snapshot_claims(order)) {
            let contest = Contest::new(&self.snapshots, claims, Bid::from(order));
            return contest.run(make).await;
        }
        let made = make.await;
        let made = match self.backend.begun() {
            Some(begun) => begun.snapshots.judge(&order.name, made),
            None => made,
        };
        self.settled_as(&order.name, &self.snapshots, made?, &order.secrets)
            .await
    }

    /// The item, once it is ready or failed. Some storage shows the name of a new one only then.
    ///
    /// # Errors
    /// Those of [`at_rest`] and of [`answered::named`].
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

/// Returns the item with that ID as the storage shows it now. If it shows none yet, the ID is at
/// least not another item's.
///
/// # Errors
/// Those of reading it, with an unknown state.
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
