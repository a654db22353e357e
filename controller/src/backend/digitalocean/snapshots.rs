//! Snapshots, which are full copies of volumes, and volumes that are created from snapshots. A
//! volume from a snapshot may have to be expanded before it is complete.

use super::client::PAGE_ENTRIES_MAX;
use super::names::About;
use super::pages::{self, Slice};
use super::pending::Change;
use super::wire::{DoSnapshot, GIB, Refusal};
use super::{DigitalOcean, Verb, measured, names};
use crate::backend::cloud::ids;
use crate::backend::{
    Answer, Order, Progress, Snapshot, SnapshotOrder, SnapshotPage, Snapshots, Volume, answered,
};
use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::{ContentSource, Secrets, SnapshotId, VolumeId};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of pages that are read from one list.
const PAGES_MAX: usize = 500;

impl Snapshots for DigitalOcean {
    fn is_snapshot_id(&self, id: &SnapshotId) -> bool {
        ids::is_uuid(id.as_str())
    }

    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        measured(Verb::Cut, async move {
            let (name, source) = (names::in_cloud(&order.name), &order.source);
            // Search for the name first. For ten minutes after a snapshot, the cloud refuses
            // another snapshot of the volume because of a rate limit, even if the names of the
            // snapshots differ.
            let of_source = self.all_snapshots(Some(source)).await;
            let of_source = of_source.map_err(Failure::may_be_running)?;
            let is_named = |snapshot: &&DoSnapshot| snapshot.name == name;
            if let Some(snapshot) = of_source.iter().find(is_named) {
                return known(snapshot);
            }
            let body = json!({ "name": name, "tags": self.tags });
            let refused = match self.client.cut(source, body).await {
                Ok(snapshot) => return known(&snapshot),
                Err(refused) => refused,
            };
            let is_lost = refused.failure.certainty == Certainty::MayBeRunning;
            let found = match refused.why {
                // The name belongs to a snapshot of another volume.
                Refusal::NameTaken => self.all_snapshots(None).await,
                Refusal::Other if is_lost => self.all_snapshots(Some(source)).await,
                _ => return Err(refused.failure),
            };
            let found = found.map_err(Failure::may_be_running)?;
            match found.iter().find(is_named) {
                Some(snapshot) => known(snapshot),
                None => Err(refused.failure.may_be_running()),
            }
        })
    }

    fn discard(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Discard, async move {
            let discarded = self.client.discard(&id).await;
            discarded.map(Progress::Done)
        })
    }

    fn snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        measured(Verb::Snapshot, async move {
            match self.client.snapshot(&id).await? {
                Some(snapshot) => snapshot.snapshot(),
                None => Ok(None),
            }
        })
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        measured(Verb::ListSnapshots, async move {
            let slice = Slice::new(after.as_deref(), limit)?;
            let (found, next) = match &of {
                // The cloud's list for one volume does not contain the snapshots of deleted
                // volumes.
                Some(of) => {
                    let mut all = self.all_snapshots(None).await?;
                    all.retain(|snapshot| snapshot.resource_id == of.as_str());
                    slice.of_all(all)
                }
                None => {
                    let get = |page| self.client.snapshots(None, page, slice.entries);
                    let (read, has_more) = pages::read(slice.pages(), get).await?;
                    slice.of_pages(read, has_more)
                }
            };
            let mut snapshots = Vec::new();
            for snapshot in found {
                snapshots.extend(ids::listed(snapshot.snapshot()).flatten());
            }
            Ok(SnapshotPage { snapshots, next })
        })
    }

    /// Creates a volume from a snapshot. The cloud may create the volume with the size of the
    /// snapshot. In this case, the volume is incomplete until it is expanded to the requested size.
    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        measured(Verb::Restore, async move {
            let gib = order.bytes.div_ceil(GIB);
            let about = About {
                snapshot: Some(from.clone()),
                gib: Some(gib),
                ..About::new(&order)
            };
            let made = self.create_from(&order, about).await?;
            let source = made.about().and_then(|about| about.source());
            let is_its = source == Some(ContentSource::Snapshot(from));
            if !is_its || made.size_gigabytes >= gib {
                return self.shown(&made).map_err(Failure::may_be_running);
            }
            let id = made.id().map_err(Failure::may_be_running)?;
            self.refuse_other(&order, &id).await?;
            let action = self.client.resize(&made, gib).await;
            let action = action.map_err(|refused| refused.failure.may_be_running())?;
            let change = Change::Resize(gib);
            self.pending.begin(&id, change, action.id, action.began());
            let growing = self.busy(&made, change).map_err(Failure::may_be_running)?;
            let bytes = order.bytes;
            Ok(Volume { bytes, ..growing })
        })
    }
}

impl DigitalOcean {
    /// Refuses the volume if a read by its ID returns a volume with another name: the response to
    /// the creation may have contained the ID of another volume, which must not be expanded.
    async fn refuse_other(&self, order: &Order, id: &VolumeId) -> Result<(), Failure> {
        let read = self.client.volume(id).await;
        let read = read.map_err(Failure::may_be_running)?;
        let name = read.as_ref().map(|read| read.name.as_str());
        answered::named(self, &order.name, "volume", (id.as_str(), name))
    }

    /// Returns all snapshots of one volume, or of all volumes of the account. Removes duplicates,
    /// which occur if the list changes between two pages.
    async fn all_snapshots(&self, of: Option<&VolumeId>) -> Result<Vec<DoSnapshot>, Failure> {
        let get = |page| self.client.snapshots(of, page, PAGE_ENTRIES_MAX);
        let (mut all, has_more) = pages::read(1..=PAGES_MAX, get).await?;
        if has_more {
            let message = format!("the list of snapshots has more than {PAGES_MAX} pages");
            return Err(Failure::new(Kind::System, message));
        }
        let mut ids = BTreeSet::new();
        all.retain(|snapshot| ids.insert(snapshot.id.clone()));
        Ok(all)
    }
}

/// Converts the snapshot in the response to a create request.
fn known(snapshot: &DoSnapshot) -> Result<Snapshot, Failure> {
    let known = snapshot.snapshot()?;
    known.ok_or_else(|| Failure::bug(format!("snapshot {}: of no volume", snapshot.id)))
}
