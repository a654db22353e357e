//! Finds the volume or snapshot of a name, or creates it.

use super::contest::Contest;
use super::item::{Bid, ContestedVolumes};
use super::{Engine, at_rest};
use crate::backend::{Order, Snapshot, SnapshotOrder, Volume};
use belay_server::call::Failure;

impl Engine {
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
        let found = backend.find(order.name.clone(), secrets.clone());
        let found = found.await.map_err(Failure::may_be_running)?;
        let volume = match found.into_iter().next() {
            Some(volume) => volume,
            None => make.await?,
        };
        at_rest(&self.volumes, volume, secrets).await
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
        at_rest(&self.snapshots, make.await?, &order.secrets).await
    }
}
