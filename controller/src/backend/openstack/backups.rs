//! Backups, which a snapshot class with `type: backup` creates instead of snapshots. Cinder copies
//! a backup from a snapshot of the volume, called its basis, so that the volume remains usable
//! during the copy. The basis snapshot has the same name as the backup, is never returned to a
//! caller, and is deleted when the backup is complete.

use super::client::Client;
use super::hints::labels;
use super::id as ids;
use super::wire::{self, CinderSnapshot, Restored};
use super::{CLUSTER, Cloud};
use crate::backend::measured::{Verb, measured};
use crate::backend::{
    Answer, Order, Phase, Progress, Snapshot, SnapshotClaims, SnapshotOrder, Volume, no_volume,
};
use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::{ContentSource, Name, Secrets, SnapshotId};
use serde_json::json;
use std::sync::Arc;

/// The parameter of cinder-csi-plugin's snapshot classes for the zone of the backup.
pub(super) const AVAILABILITY: &str = "availability";

/// Finds backups, and the snapshots from which they are copied (bases), by name.
pub(super) struct Backups(pub(super) Arc<Client>);

impl Backups {
    /// Returns the snapshots from which the backup with this name is copied (its bases).
    async fn bases(&self, name: &str, of: &str) -> Result<Vec<CinderSnapshot>, Failure> {
        let mut found = self.0.snapshots_named(name).await?;
        found.retain(|snapshot| snapshot.is_basis() && snapshot.volume_id == of);
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Deletes the snapshots from which the backup with this name is copied (its bases).
    ///
    /// # Errors
    /// Returns `Busy` while a backup is being copied from such a snapshot.
    async fn drop_bases(&self, name: &str, of: &str) -> Result<(), Failure> {
        for basis in self.bases(name, of).await? {
            let id = ids::snapshot(&basis.id)?;
            match self.0.delete_snapshot(&id).await {
                Err(refused) if refused.kind == Kind::Precondition => {
                    return Err(Failure::busy(format!(
                        "snapshot {id}: the basis of backup {name:?}: {refused}; repeat the call"
                    )));
                }
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }
}

impl Cloud {
    /// Returns the basis of the requested backup: the snapshot from which the backup is copied.
    /// Creates the snapshot if it does not exist.
    pub(super) async fn basis_of(
        &self,
        order: &SnapshotOrder,
        force: bool,
    ) -> Result<Snapshot, Failure> {
        let (name, of) = (&order.name, &order.source);
        for basis in self.backups.bases(name.as_str(), of.as_str()).await? {
            let basis = basis.snapshot()?;
            match basis.phase {
                Phase::Ready | Phase::Busy(_) => return Ok(basis),
                Phase::Deleting => {}
                // No caller knows the snapshot, and no backup can be created from it. If Cinder
                // refuses to delete the snapshot, the snapshot does not change.
                Phase::Failed(_) => drop(self.client.delete_snapshot(&basis.id).await),
            }
        }
        let mut metadata = json!({ wire::BASIS: name.as_str(), CLUSTER: self.cluster });
        labels(&mut metadata, &order.parameters);
        match self.client.create_snapshot(name, of, force, metadata).await {
            Ok(made) => made.snapshot(),
            Err(refused) => Err(self.uncut(order, refused).await),
        }
    }

    /// Begins to create the backup from its basis snapshot.
    pub(super) async fn back_up(
        &self,
        order: &SnapshotOrder,
        force: bool,
    ) -> Result<Snapshot, Failure> {
        let basis = self.basis_of(order, force).await?;
        if let Phase::Busy(what) = &basis.phase {
            let message = format!("snapshot {}: {what}; repeat the call", basis.id);
            return Err(Failure::busy(message));
        }
        let of = self.client.volume(&order.source).await?;
        let of = of.ok_or_else(|| no_volume(&order.source))?;
        let mut metadata = json!({
            wire::SNAPSHOT_ATTEMPT: order.attempt.as_str(),
            wire::CARRIED: of.carried(),
            CLUSTER: self.cluster,
        });
        labels(&mut metadata, &order.parameters);
        let zone = order.parameters.get(AVAILABILITY);
        let begun = self.client.create_backup(order, &basis.id, zone, metadata);
        match begun.await {
            Ok(made) => {
                let made = match self.client.backup(&made).await {
                    Ok(Some(made)) => made.snapshot(),
                    Ok(None) => Err(Failure::busy(format!(
                        "backup {made}: gone; repeat the call"
                    ))),
                    Err(failure) => Err(failure),
                };
                made.map_err(Failure::may_be_running)
            }
            Err(refused) => Err(self.not_begun(order, &basis.id, refused).await),
        }
    }

    /// Handles Cinder's refusal to create a backup. If the refusal is final, deletes the basis
    /// snapshot, which would otherwise prevent the deletion of the volume.
    async fn not_begun(
        &self,
        order: &SnapshotOrder,
        basis: &SnapshotId,
        refused: Failure,
    ) -> Failure {
        if refused.certainty == Certainty::MayBeRunning || refused.kind == Kind::Busy {
            return refused;
        }
        if let Ok(Some(basis)) = self.client.snapshot(basis).await
            && basis.is_at_work()
        {
            // A different controller is creating the backup.
            return Failure::busy(refused.message);
        }
        let name = order.name.as_str();
        if let Err(failure) = self.backups.drop_bases(name, order.source.as_str()).await {
            let cloud = self.client.label();
            tracing::warn!(cloud, %failure, "a snapshot that was made for a backup remains");
            // A repeated call deletes the snapshot.
            return refused.may_be_running();
        }
        refused
    }

    /// Deletes a backup, and the snapshot from which it is copied if that snapshot still exists.
    pub(super) async fn discard_backup(&self, id: &SnapshotId) -> Result<Progress<()>, Failure> {
        let Some(backup) = self.backup(id).await? else {
            return Ok(Progress::Done(()));
        };
        if let Some(name) = backup.name() {
            let dropped = self.backups.drop_bases(name, &backup.volume_id).await;
            match dropped {
                // A different backup with this name is being copied from the same snapshot.
                Err(busy) if busy.kind == Kind::Busy && !backup.is_at_work() => {}
                dropped => dropped?,
            }
        }
        match self.client.delete_backup(id).await {
            Ok(true) => Ok(Progress::Begun),
            Ok(false) => Ok(Progress::Done(())),
            Err(refused) => self.undeleted(id, refused).await,
        }
    }

    pub(super) async fn end_backup(&self, order: &SnapshotOrder) -> Result<(), Failure> {
        let (name, of) = (order.name.as_str(), order.source.as_str());
        self.backups.drop_bases(name, of).await
    }

    /// Creates a volume from a backup. Cinder replaces the volume's metadata with the metadata of
    /// the volume that was backed up, so Belay's marks are in the volume's description until the
    /// volume is claimed.
    pub(super) async fn restore_backup(
        &self,
        order: &Order,
        backup: &CinderSnapshot,
    ) -> Result<Volume, Failure> {
        let carried = match backup.carried() {
            Some(carried) => carried.to_owned(),
            // Another program has created the backup.
            None => {
                let of = ids::volume(&backup.volume_id)?;
                let of = self.client.volume(&of).await?;
                of.map_or_else(|| backup.volume_id.clone(), |of| of.carried().to_owned())
            }
        };
        let restored = Restored {
            attempt: order.attempt.as_str().to_owned(),
            backup: backup.id.clone(),
            carried,
        };
        let from = ContentSource::Snapshot(ids::snapshot(&backup.id)?);
        self.make(order, Some(&from), Some(&restored)).await
    }
}

impl SnapshotClaims for Backups {
    fn find_snapshots(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Snapshot>> {
        measured(Verb::Find, async move {
            let found = self.0.backups_named(&name).await?;
            found.iter().map(CinderSnapshot::snapshot).collect()
        })
    }

    fn claim_snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, ()> {
        measured(Verb::Claim, async move {
            self.0.mark_backup(&id, wire::SNAPSHOT_CLAIM).await
        })
    }
}
