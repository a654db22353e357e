//! Snapshots, and volumes created from snapshots or other volumes. The IDs of backups have the same
//! form as the IDs of snapshots, and the same CSI calls find, restore and delete both.

use super::backups::AVAILABILITY;
use super::hints::labels;
use super::id::is_own;
use super::wire::{self, CinderSnapshot};
use super::{CLUSTER, Cloud};
use crate::backend::cloud::ids::listed;
use crate::backend::measured::{Verb, measured};
use crate::backend::{
    Answer, Clones, Order, Phase, Progress, Snapshot, SnapshotClaims, SnapshotOrder, SnapshotPage,
    Snapshots, Volume, no_volume,
};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use belay_server::request::{ContentSource, Context, Name, Secrets, SnapshotId, VolumeId};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Parameters of cinder-csi-plugin's snapshot classes.
const TYPE: &str = "type";
const FORCE: &str = "force-create";
/// The time for which cinder-csi-plugin waits for a backup. This driver ignores the value, since
/// its calls do not wait until a backup is complete.
const BACKUP_SECONDS: &str = "backup-max-duration-seconds-per-gb";

fn is_backup(parameters: &Context) -> bool {
    parameters.get(TYPE) == Some("backup")
}

/// Returns whether the parameters allow snapshots of a volume in use.
///
/// # Errors
/// Returns `Invalid` for an unknown value.
fn force(parameters: &Context) -> Result<bool, Failure> {
    match parameters.get(TYPE) {
        None | Some("snapshot" | "backup") => {}
        Some(other) => {
            let why = format!("{other:?} is unknown; use snapshot or backup");
            return Err(Failure::invalid("parameters[type]", why));
        }
    }
    match parameters.get(FORCE) {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => {
            let why = format!("{other:?} is neither true nor false");
            Err(Failure::invalid("parameters[force-create]", why))
        }
    }
}

impl Cloud {
    /// Returns the snapshot or backup with this ID, and whether it is a backup.
    pub(super) async fn kept(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<(CinderSnapshot, bool)>, Failure> {
        if let Some(snapshot) = self.client.snapshot(id).await? {
            self.recent_snapshots.add(id);
            return Ok(Some((snapshot, false)));
        }
        let backup = self.backup(id).await?;
        Ok(backup.map(|backup| (backup, true)))
    }

    /// Returns the backup with this ID. Returns `None` if the ID belongs to a known snapshot, even
    /// if the cloud denies this account access to backups.
    pub(super) async fn backup(&self, id: &SnapshotId) -> Result<Option<CinderSnapshot>, Failure> {
        match self.client.backup(id).await {
            Err(hidden) if hidden.kind == Kind::Denied && self.recent_snapshots.has(id) => Ok(None),
            answer => answer,
        }
    }

    /// Returns the error for a snapshot that Cinder refuses to create. Cinder returns 400 for a
    /// volume that is being changed, for a failed volume, and for an invalid ID.
    pub(super) async fn uncut(&self, order: &SnapshotOrder, refused: Failure) -> Failure {
        let id = &order.source;
        match refused.kind {
            Kind::NotFound => return no_volume(id),
            Kind::Precondition => {}
            _ => return refused,
        }
        match self.read_volume(id).await {
            Err(_) => refused,
            Ok(None) => no_volume(id),
            Ok(Some((volume, _))) => match volume.phase {
                Phase::Busy(_) | Phase::Deleting => Failure::busy(refused.message),
                Phase::Ready | Phase::Failed(_) => refused,
            },
        }
    }

    /// Returns the result of a deletion that Cinder has refused.
    pub(super) async fn undeleted(
        &self,
        id: &SnapshotId,
        refused: Failure,
    ) -> Result<Progress<()>, Failure> {
        if refused.kind != Kind::Precondition {
            return Err(refused);
        }
        let Ok(kept) = self.kept(id).await else {
            return Err(refused);
        };
        let Some((snapshot, _)) = kept else {
            return Ok(Progress::Done(()));
        };
        match snapshot.snapshot()?.phase {
            // A retry finds that an earlier call has begun the deletion.
            Phase::Deleting => Ok(Progress::Begun),
            _ if snapshot.is_at_work() => Err(Failure::busy(refused.message)),
            Phase::Busy(_) => Err(Failure::busy(refused.message)),
            Phase::Ready | Phase::Failed(_) => Err(refused),
        }
    }
}

impl Snapshots for Cloud {
    fn is_snapshot_id(&self, id: &SnapshotId) -> bool {
        is_own(id.as_str())
    }

    fn snapshot_parameters(&self) -> &'static [&'static str] {
        &[TYPE, FORCE, AVAILABILITY, BACKUP_SECONDS]
    }

    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        measured(Verb::Cut, async move {
            let force = force(&order.parameters)?;
            if is_backup(&order.parameters) {
                return self.back_up(&order, force).await;
            }
            let mut metadata = json!({
                wire::SNAPSHOT_ATTEMPT: order.attempt.as_str(),
                CLUSTER: self.cluster,
            });
            labels(&mut metadata, &order.parameters);
            let (name, of) = (&order.name, &order.source);
            match self.client.create_snapshot(name, of, force, metadata).await {
                Ok(made) => made.snapshot().map_err(Failure::may_be_running),
                Err(refused) => Err(self.uncut(&order, refused).await),
            }
        })
    }

    fn basis(&self, order: SnapshotOrder) -> Answer<'_, Option<Snapshot>> {
        measured(Verb::Cut, async move {
            let force = force(&order.parameters)?;
            match is_backup(&order.parameters) {
                true => self.basis_of(&order, force).await.map(Some),
                false => Ok(None),
            }
        })
    }

    fn drop_basis(&self, order: SnapshotOrder) -> Answer<'_, ()> {
        measured(Verb::Discard, async move {
            match is_backup(&order.parameters) {
                true => self.end_backup(&order).await,
                false => Ok(()),
            }
        })
    }

    fn discard(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Discard, async move {
            match self.client.delete_snapshot(&id).await {
                Ok(true) => {
                    self.recent_snapshots.add(&id);
                    return Ok(Progress::Begun);
                }
                Ok(false) => {}
                Err(refused) => return self.undeleted(&id, refused).await,
            }
            // No snapshot has this ID, but the ID may belong to a backup.
            self.discard_backup(&id).await
        })
    }

    fn snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        measured(Verb::Snapshot, async move {
            let kept = self.kept(&id).await?;
            let mut kept = kept.map(|(kept, _)| kept.snapshot()).transpose()?;
            if let Some(Snapshot { id, phase, .. }) = &mut kept {
                self.explain(id.as_str(), phase).await;
            }
            Ok(kept)
        })
    }

    fn snapshot_claims(&self, order: &SnapshotOrder) -> Option<&dyn SnapshotClaims> {
        match is_backup(&order.parameters) {
            true => Some(&self.backups),
            false => Some(self),
        }
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        measured(Verb::ListSnapshots, async move {
            let limit = limit.clamp(1, super::PAGE_ENTRIES_MAX);
            let page = self.client.snapshots(of.as_ref(), after.as_deref(), limit);
            let (snapshots, next) = page.await?;
            // An entry without a time cannot be returned, but the other entries must still be
            // listed.
            let snapshots = snapshots.iter().filter(|shown| !shown.is_basis());
            let snapshots = snapshots.filter_map(|shown| listed(shown.snapshot()));
            let snapshots = snapshots.collect();
            Ok(SnapshotPage { snapshots, next })
        })
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        measured(Verb::Restore, async move {
            let source = ContentSource::Snapshot(from.clone());
            let refused = match self.make(&order, Some(&source), None).await {
                // Cinder has no snapshot with this ID, but the ID may belong to a backup.
                Err(refused) if refused.kind == Kind::Invalid => refused,
                made => return made,
            };
            match self.kept(&from).await {
                Ok(Some((backup, true))) => self.restore_backup(&order, &backup).await,
                Ok(_) => Err(refused),
                Err(unknown) => Err(unknown.nothing_happened()),
            }
        })
    }
}

impl SnapshotClaims for Cloud {
    fn find_snapshots(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Snapshot>> {
        measured(Verb::Find, async move {
            let mut found = self.client.snapshots_named(name.as_str()).await?;
            found.retain(|snapshot| !snapshot.is_basis());
            let found = found.iter().map(CinderSnapshot::snapshot);
            let mut found = found.collect::<Result<Vec<_>, _>>()?;
            for Snapshot { id, phase, .. } in &mut found {
                self.explain(id.as_str(), phase).await;
            }
            Ok(found)
        })
    }

    fn claim_snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, ()> {
        measured(Verb::Claim, async move {
            self.client.mark_snapshot(&id, wire::SNAPSHOT_CLAIM).await
        })
    }
}

impl Clones for Cloud {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        measured(Verb::Clone, async move {
            let source = ContentSource::Volume(from);
            self.make(&order, Some(&source), None).await
        })
    }
}

/// Maximum number of remembered IDs. If the ID of a snapshot has been dropped, the deletion of the
/// snapshot may be denied, but no data is at risk.
const IDS_MAX: usize = 4096;

/// The snapshots, without backups, that this process has seen recently. Old releases of Cinder deny
/// the lookup of a backup without checking whether the backup exists. With the recorded IDs, Belay
/// can delete snapshots even if the lookup of backups is denied.
#[derive(Default)]
pub(super) struct RecentSnapshots(Lock<BTreeSet<SnapshotId>>);

impl RecentSnapshots {
    /// Records that Cinder has a snapshot with this ID.
    pub(super) fn add(&self, id: &SnapshotId) {
        let mut ids = self.0.lock();
        if ids.contains(id) {
            return;
        }
        if ids.len() >= IDS_MAX {
            ids.clear();
        }
        ids.insert(id.clone());
    }

    pub(super) fn has(&self, id: &SnapshotId) -> bool {
        self.0.lock().contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_last_ids_and_no_more_than_its_maximum() {
        let recent_snapshots = RecentSnapshots::default();
        let nth = |n: usize| SnapshotId::new(format!("{n}")).unwrap();
        for n in 0..=IDS_MAX {
            recent_snapshots.add(&nth(n));
            recent_snapshots.add(&nth(n));
            assert!(recent_snapshots.has(&nth(n)));
        }
        assert!(!recent_snapshots.has(&nth(0)));
        assert_eq!(recent_snapshots.0.lock().len(), 1);
    }
}
