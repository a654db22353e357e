//! The traits of backends with snapshots, and the types of snapshots.

use super::{Answer, Attempt, Mark, Order, Phase, Progress, Volume};
use belay_server::request::{Context, Name, Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::SystemTime;

/// A backend that captures the data of volumes at one instant, and creates volumes from it.
pub trait Snapshots: Send + Sync {
    /// Returns the known keys of the parameters of `CreateSnapshot`; others are refused.
    fn snapshot_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Creates a snapshot, with the mark of the order's attempt if the backend has
    /// [`Self::snapshot_claims`]. A backend without claims may find that the name exists, in one
    /// atomic step. Then it returns the snapshot with the name, whatever its source is. The
    /// snapshot is [`Phase::Busy`] until its data is captured, which may be before it can be
    /// restored.
    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot>;

    /// Returns the intermediate snapshot, created or found, from which [`Self::cut`] of this
    /// request copies, and which must be complete first. Returns `None` if no intermediate snapshot
    /// is needed.
    fn basis(&self, _order: SnapshotOrder) -> Answer<'_, Option<Snapshot>> {
        Box::pin(async { Ok(None) })
    }

    /// Deletes every [`Self::basis`] of this request, whose snapshot can now be restored.
    fn drop_basis(&self, _order: SnapshotOrder) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Deletes a snapshot; succeeds if it does not exist.
    fn discard(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Returns the snapshot with this ID, in any phase.
    fn snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>>;

    /// Whether `id` has the form of the storage's snapshot IDs. Responses with other IDs are
    /// refused.
    fn is_snapshot_id(&self, _id: &SnapshotId) -> bool {
        true
    }

    /// Returns the support for storage that allows several such snapshots with one name; `None` if
    /// the storage enforces unique names.
    fn snapshot_claims(&self, _order: &SnapshotOrder) -> Option<&dyn SnapshotClaims> {
        None
    }

    /// Whether [`Self::list_snapshots`] is supported, and [`Self::snapshot`] returns the volume of
    /// a snapshot.
    fn lists_snapshots(&self) -> bool {
        true
    }

    /// Lists snapshots, in pages as [`super::Backend::list`] does. If `of` is set, lists only the
    /// snapshots of this volume.
    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, SnapshotPage>;

    /// Creates a volume like [`super::Backend::create`], with the data of the snapshot. The volume
    /// is at least as large as the snapshot.
    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume>;
}

/// A backend that accepts several snapshots with one name, and stores marks with them.
pub trait SnapshotClaims: Send + Sync {
    /// Returns all snapshots with this name, in any phase.
    fn find_snapshots(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Snapshot>>;

    /// Claims a snapshot, as [`super::Claims::claim`] does a volume.
    fn claim_snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, ()>;
}

/// A request to create a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotOrder {
    /// The name, by which a repeated request is recognised.
    pub name: Name,
    /// The attempt, for the mark of the new snapshot.
    pub attempt: Attempt,
    /// The volume to capture.
    pub source: VolumeId,
    /// The parameters: keys of [`Snapshots::snapshot_parameters`], and those that the snapshotter
    /// adds.
    pub parameters: Context,
    /// The credentials of the class.
    pub secrets: Secrets,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The ID, which never changes.
    pub id: SnapshotId,
    /// The name that the storage shows, if it shows one; [`super::Backend::is_name`] compares it.
    pub name: Option<String>,
    /// The state of the snapshot: [`Phase::Ready`] once its data is captured.
    pub phase: Phase,
    /// The mark of the snapshot.
    pub mark: Mark,
    /// The volume of which the snapshot was taken; it may have been deleted.
    pub source: VolumeId,
    /// The minimum size of a volume restored from the snapshot, in bytes; 0 if it is unknown.
    pub bytes: u64,
    /// The time at which the data was captured.
    pub created: SystemTime,
    /// Whether the snapshot can be restored now.
    pub ready: bool,
    /// The damage that prevents a restore until it is repaired; `None` if there is none.
    pub damage: Option<String>,
}

/// A page of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// The snapshots, in the order of the listing.
    pub snapshots: Vec<Snapshot>,
    /// The token of the next page, if there is one.
    pub next: Option<String>,
}
