//! The traits of backends that support snapshots, and the types of snapshots.

use super::{Answer, Attempt, Mark, Order, Phase, Progress, Volume};
use belay_server::request::{Context, Name, Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::SystemTime;

/// A backend that captures the data of a volume at one instant (a snapshot), and creates volumes
/// from that data.
pub trait Snapshots: Send + Sync {
    /// Returns the keys of `CreateSnapshot` parameters that the backend knows. Other keys are
    /// refused.
    fn snapshot_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Creates a snapshot. If the backend has [`Self::snapshot_claims`], the new snapshot is marked
    /// with the ID of the attempt. A backend without [`Self::snapshot_claims`] returns an existing
    /// snapshot with the name, whatever its source; this check is atomic. The snapshot is in
    /// [`Phase::Busy`] until its data is captured. The snapshot may become restorable only later.
    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot>;

    /// Creates or finds the intermediate snapshot of the request. [`Self::cut`] copies the data
    /// from the intermediate snapshot once that is complete. Returns `None` if the request needs no
    /// intermediate snapshot.
    fn basis(&self, _order: SnapshotOrder) -> Answer<'_, Option<Snapshot>> {
        Box::pin(async { Ok(None) })
    }

    /// Deletes the intermediate snapshots that [`Self::basis`] created for this request. The engine
    /// calls this method once the requested snapshot can be restored.
    fn drop_basis(&self, _order: SnapshotOrder) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Deletes a snapshot; succeeds if the snapshot does not exist.
    fn discard(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Returns the snapshot with this ID, in any phase.
    fn snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>>;

    /// Whether `id` has the form of this storage's snapshot IDs. Responses with other IDs are
    /// refused.
    fn is_snapshot_id(&self, _id: &SnapshotId) -> bool {
        true
    }

    /// Returns the implementation of snapshot claims; `None` if the storage enforces unique names
    /// for snapshots like the requested snapshot.
    fn snapshot_claims(&self, _order: &SnapshotOrder) -> Option<&dyn SnapshotClaims> {
        None
    }

    /// Whether [`Self::list_snapshots`] is supported, and [`Self::snapshot`] reports the source
    /// volume of a snapshot.
    fn lists_snapshots(&self) -> bool {
        true
    }

    /// Lists snapshots page by page, as [`super::Backend::list`] lists volumes. If `of` is set,
    /// lists only the snapshots of this volume.
    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, SnapshotPage>;

    /// Creates a volume from a snapshot; otherwise like [`super::Backend::create`]. The volume is
    /// at least as large as the snapshot.
    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume>;
}

/// A backend whose storage accepts several snapshots with one name, and stores a mark with each.
pub trait SnapshotClaims: Send + Sync {
    /// Returns all snapshots with this name, in any phase.
    fn find_snapshots(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Snapshot>>;

    /// Claims a snapshot: records that its name refers to this snapshot. The rules of
    /// [`super::Claims::claim`] apply.
    fn claim_snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, ()>;
}

/// A request to create a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotOrder {
    /// The name, which identifies repeated requests.
    pub name: Name,
    /// The creation attempt, whose ID the mark of the new snapshot contains.
    pub attempt: Attempt,
    /// The volume to capture.
    pub source: VolumeId,
    /// The parameters: keys of [`Snapshots::snapshot_parameters`], and keys that csi-snapshotter
    /// adds.
    pub parameters: Context,
    /// The secrets of the request, which the VolumeSnapshotClass refers to.
    pub secrets: Secrets,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The ID, which never changes.
    pub id: SnapshotId,
    /// The name that the storage reports, in a form that [`super::Backend::is_name`] compares;
    /// `None` if the storage reports no name.
    pub name: Option<String>,
    /// The state of the snapshot: [`Phase::Ready`] once its data is captured.
    pub phase: Phase,
    /// The mark that is stored with the snapshot.
    pub mark: Mark,
    /// The volume from which the snapshot was taken. The source volume may have been deleted since.
    pub source: VolumeId,
    /// The minimum size of a volume restored from the snapshot, in bytes; 0 if the size is unknown.
    pub bytes: u64,
    /// The time at which the data of the snapshot was captured.
    pub created: SystemTime,
    /// Whether the snapshot can be restored now.
    pub ready: bool,
    /// A description of damage to the snapshot, which must be repaired before a restore; `None` if
    /// no damage is known.
    pub damage: Option<String>,
}

/// A page of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// The snapshots, in the order of the listing.
    pub snapshots: Vec<Snapshot>,
    /// The token of the next page; `None` on the last page.
    pub next: Option<String>,
}
