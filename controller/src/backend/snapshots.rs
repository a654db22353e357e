//! What a backend must be able to do for snapshots, and what a snapshot is.

use super::{Answer, Attempt, Mark, Order, Phase, Progress, Volume};
use belay_server::request::{Context, Name, Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::SystemTime;

/// A backend that keeps what volumes held at one instant, and makes volumes from that.
pub trait Snapshots: Send + Sync {
    /// The keys of the `CreateSnapshot` parameters it understands; any other is refused.
    fn snapshot_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Makes a snapshot, with the mark of the order's attempt where it has
    /// [`Self::snapshot_claims`]. Without them it may find that the name is taken, decided in one
    /// step: then the snapshot of that name is the answer, whatever it is of. It is
    /// [`Phase::Busy`] until the instant is past whose data it holds, which may be before it can be
    /// restored.
    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot>;

    /// What must be complete before [`Self::cut`] of that order: a snapshot, made or found, that it
    /// copies. None = nothing.
    fn basis(&self, _order: SnapshotOrder) -> Answer<'_, Option<Snapshot>> {
        Box::pin(async { Ok(None) })
    }

    /// Removes every [`Self::basis`] of that order, whose snapshot can be restored now.
    fn drop_basis(&self, _order: SnapshotOrder) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Removes a snapshot. One that does not exist is removed already.
    fn discard(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// The snapshot with that id, in whatever phase it is shown.
    fn snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>>;

    /// Whether the storage can give a snapshot such an ID. Any other in an answer is refused.
    fn is_snapshot_id(&self, _id: &SnapshotId) -> bool {
        true
    }

    /// Whether it accepts the name of such a snapshot twice, and marks snapshots; none = it refuses
    /// a second snapshot of a name.
    fn snapshot_claims(&self, _order: &SnapshotOrder) -> Option<&dyn SnapshotClaims> {
        None
    }

    /// Whether [`Self::list_snapshots`] is supported, and [`Self::snapshot`] says of which volume a
    /// snapshot is.
    fn lists_snapshots(&self) -> bool {
        true
    }

    /// Like [`super::Backend::list`]; only those of the volume `of`, if one is named.
    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, SnapshotPage>;

    /// Like [`super::Backend::create`], with what the snapshot holds; the volume is at least as
    /// large.
    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume>;
}

/// A backend that accepts a snapshot's name twice, and stores marks with its snapshots.
pub trait SnapshotClaims: Send + Sync {
    /// The snapshots of that name, in whatever phase they are shown.
    fn find_snapshots(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Snapshot>>;

    /// Like [`super::Claims::claim`].
    fn claim_snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, ()>;
}

/// A snapshot to be made.
#[derive(Clone, Debug)]
pub struct SnapshotOrder {
    /// The name that makes a repeated order the same order.
    pub name: Name,
    /// Which attempt this is, for the mark of the new snapshot.
    pub attempt: Attempt,
    /// Of which volume.
    pub source: VolumeId,
    /// Those of [`Snapshots::snapshot_parameters`], and those that the snapshotter adds.
    pub parameters: Context,
    /// Credentials of the class.
    pub secrets: Secrets,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id, which never changes.
    pub id: SnapshotId,
    /// The name that the storage shows; `None` if it shows none. See [`super::Backend::is_name`].
    pub name: Option<String>,
    /// What state it is in: [`Phase::Ready`] once it is cut.
    pub phase: Phase,
    /// What its marks say.
    pub mark: Mark,
    /// The volume it was cut from, which may be gone.
    pub source: VolumeId,
    /// The smallest volume that it can be restored to, in bytes; 0 if that is not known.
    pub bytes: u64,
    /// The instant whose data it holds.
    pub created: SystemTime,
    /// Whether it can be restored now.
    pub ready: bool,
    /// Why it cannot be restored until it is repaired.
    pub damage: Option<String>,
}

/// A page of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// In the order of the listing.
    pub snapshots: Vec<Snapshot>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}
