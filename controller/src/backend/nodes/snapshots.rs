//! Snapshots, and volumes that are copies.

use super::create::refuse_other_name;
use super::item::{about, object_name, wanted};
use super::meaning::{LOST, Meaning, meaning};
use super::settle::Settled;
use super::{Front, Nodes, page, shown};
use crate::backend::Progress::{self, Done};
use crate::backend::local::id;
use crate::backend::measured::{Verb, measured};
use crate::backend::{
    Answer, Clones, Order, Snapshot, SnapshotOrder, SnapshotPage, Snapshots, Volume, no_volume,
};
use crate::kubernetes::{LocalSnapshot, LocalVolume, Object, SPEC_VERSION, SnapshotSpec, Written};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use tokio::time::Instant;

impl Front {
    /// Creates the snapshot, or returns the snapshot with its name, once its data is captured.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist, `Unreachable` if the store of its disk is
    /// silent or does not accept the order, and the errors of [`Self::settle`].
    async fn cut(&self, order: &SnapshotOrder) -> Result<Snapshot, Failure> {
        let ready = self.snapshots.ready().await;
        ready.map_err(Failure::may_be_running)?;
        let (name, until) = (object_name(&order.name), self.until());
        let known = self.client.get::<LocalSnapshot>(&name).await;
        let mut known = known.map_err(Failure::may_be_running)?.map(Arc::new);
        loop {
            let (object, is_own) = match known.take() {
                Some(object) => (object, false),
                None => match self.ordered(order, &name).await? {
                    Some(ordered) => ordered,
                    None => continue,
                },
            };
            refuse_other_name(&name, &order.name, wanted(&object).map(|it| it.name))?;
            match self.settle(object, until).await? {
                Settled::Usable(object) => return shown::snapshot(&object),
                // No caller has received this snapshot. Until the failure is final, neither it nor
                // its volume can be deleted.
                Settled::Lost(object) if self.is_gone(&object) => {
                    let gone = about(&object, "its disk is gone; delete it");
                    self.discard(object)
                        .await
                        .map_err(Failure::may_be_running)?;
                    return Err(Failure::precondition(gone).rolled_back());
                }
                // A final failure would make csi-snapshotter forget the snapshot.
                Settled::Lost(object) => {
                    let lost = Failure::precondition(about(&object, LOST));
                    return Err(lost.may_be_running());
                }
                Settled::Withdrawn if is_own => {
                    let why = "the store of its disk has not accepted the order for a snapshot";
                    let why = format!("volume {}: {why}; check its node", order.source);
                    return Err(Failure::new(Kind::Unreachable, why).rolled_back());
                }
                Settled::Refused(failure) if is_own => return Err(failure.rolled_back()),
                Settled::Withdrawn | Settled::Refused(_) | Settled::Gone => {}
            }
            if Instant::now() >= until {
                let name = order.name.as_str();
                let why = format!(
                    "name {name:?}: other calls are changing this snapshot; repeat the call"
                );
                return Err(Failure::busy(why).may_be_running());
            }
        }
    }

    /// Creates the object, or returns the object that has its name, and whether it is new. Returns
    /// `None` if another process has deleted that object.
    async fn ordered(
        &self,
        order: &SnapshotOrder,
        name: &str,
    ) -> Result<Option<(Arc<Object<LocalSnapshot>>, bool)>, Failure> {
        let id = &order.source;
        let volume = self.identified::<LocalVolume>(id.as_str()).await;
        let volume = volume.map_err(Failure::nothing_happened)?;
        let made = match volume {
            None => Written::Missing,
            Some(volume) => {
                let spec = self.snapshot_spec(order, &volume)?;
                self.client.create::<LocalSnapshot>(name, &spec).await?
            }
        };
        if let Written::Done(object) = made {
            return Ok(Some((Arc::new(object), true)));
        }
        // The snapshot may exist although the volume was deleted since.
        let read = self.client.get::<LocalSnapshot>(name).await;
        match (read.map_err(Failure::may_be_running)?, made) {
            (Some(object), _) => Ok(Some((Arc::new(object), false))),
            (None, Written::Missing) => Err(no_volume(id)),
            (None, _) => Ok(None),
        }
    }

    fn snapshot_spec(
        &self,
        order: &SnapshotOrder,
        volume: &Object<LocalVolume>,
    ) -> Result<SnapshotSpec, Failure> {
        match meaning(volume) {
            Meaning::Usable => {}
            Meaning::Lost => return Err(Failure::precondition(about(volume, LOST))),
            _ => return Err(Failure::busy(about(volume, "not ready; repeat the call"))),
        }
        self.reporting(volume)?;
        let source = wanted(volume).ok_or_else(|| no_volume(&order.source))?;
        Ok(SnapshotSpec {
            version: SPEC_VERSION,
            id: id::fresh(id::SNAPSHOT)?,
            name: order.name.as_str().to_owned(),
            place: source.place.to_owned(),
            disk: source.disk.to_owned(),
            node: source.node.to_owned(),
            volume: source.id.to_owned(),
            adopt: false,
            remove: None,
        })
    }
}

impl Snapshots for Nodes {
    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        measured(Verb::Cut, async move { self.front.cut(&order).await })
    }

    fn discard(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Discard, async move {
            if !self.is_snapshot_id(&id) {
                return Ok(Done(()));
            }
            let deleted = self.front.delete_identified::<LocalSnapshot>(id.as_str());
            deleted.await.map(Done)
        })
    }

    fn snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        measured(Verb::Snapshot, async move {
            if !self.is_snapshot_id(&id) {
                return Ok(None);
            }
            let front = &self.front;
            let object = front.identified::<LocalSnapshot>(id.as_str()).await?;
            object.map(|object| shown::snapshot(&object)).transpose()
        })
    }

    fn is_snapshot_id(&self, id: &SnapshotId) -> bool {
        id::is_ours(id::SNAPSHOT, id.as_str())
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        measured(Verb::ListSnapshots, async move {
            let all = self.front.shown(shown::snapshot).await?;
            let is_of = |it: &Snapshot| of.as_ref().is_none_or(|of| it.source == *of);
            let all = all
                .into_iter()
                .filter(|it| it.phase == crate::backend::Phase::Ready);
            let all = all.filter(is_of).collect();
            let id = |snapshot: &Snapshot| snapshot.id.as_str().to_owned();
            let (snapshots, next) = page(all, id::SNAPSHOT, after.as_deref(), limit, id)?;
            Ok(SnapshotPage { snapshots, next })
        })
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        measured(Verb::Restore, async move {
            let source = ContentSource::Snapshot(from);
            self.front.created(&order, Some(&source)).await
        })
    }
}

impl Clones for Nodes {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        measured(Verb::Clone, async move {
            let source = ContentSource::Volume(from);
            self.front.created(&order, Some(&source)).await
        })
    }
}
