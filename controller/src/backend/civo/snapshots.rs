//! Snapshots of volumes. Civo does not document whether it accepts several snapshots with one name,
//! so this module searches for the name first. If two controllers create a snapshot with the same
//! name at the same time, the name refers to the snapshot with the lower ID. The other snapshot is
//! kept, since a caller may have received its ID.

use super::size::{CAPACITY, OF_DISK, Promise};
use super::wire::is_word;
use super::wire::{CivoSnapshot, CivoVolume, Status};
use super::{Civo, after, first_page, name};
use super::{about, failed};
use crate::backend::cloud::{ids, time};
use crate::backend::measured::{Verb, measured};
use crate::backend::no_volume;
use crate::backend::{
    Answer, Mark, Order, Phase, Progress, Snapshot, SnapshotOrder, SnapshotPage, Snapshots, Volume,
};
use belay_server::call::Failure;
use belay_server::request::{Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

impl Civo {
    /// Converts snapshots of volumes to the type of the backend, and sorts them by ID. If a
    /// snapshot lacks the size or the name of its volume, reads them from the volume. If the volume
    /// no longer exists either, the size is 0.
    async fn described(&self, found: Vec<CivoSnapshot>) -> Result<Vec<Snapshot>, Failure> {
        let is_whole = |of: &CivoSnapshot| of.gib().is_some() && of.volume_name().is_some();
        let volumes = match found.iter().all(is_whole) {
            true => Arc::default(),
            false => self.lists.next(()).await?,
        };
        let mut all = Vec::new();
        for snapshot in found {
            let (id, source) = snapshot.ids()?;
            let Some(source) = source else {
                continue;
            };
            let volume = volumes.iter().find(|volume| volume.id == source.as_str());
            let own = snapshot.volume_name();
            let own = own.or_else(|| volume.and_then(|volume| volume.name.as_deref()));
            let gib = snapshot.gib().or_else(|| volume.map(CivoVolume::gib));
            let damage = snapshot.damage().map(|word| {
                format!(
                    "Civo reports the state {word}; delete it at Civo: CreateSnapshot makes \
                     another one then"
                )
            });
            all.push(Snapshot {
                id,
                name: snapshot.name.clone(),
                phase: match snapshot.is_ready() || damage.is_some() {
                    true => Phase::Ready,
                    // Civo does not report the time at which the data is captured.
                    false => Phase::Busy("creating".to_owned()),
                },
                mark: Mark::None,
                source,
                bytes: name::promise(own.unwrap_or_default()).least_of_copy(gib.unwrap_or(0)),
                created: created(&snapshot),
                ready: snapshot.is_ready(),
                damage,
            });
        }
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Returns the snapshot to which the name refers; `None` if no snapshot has the name.
    async fn snapshot_named(&self, name: &str) -> Result<Option<Snapshot>, Failure> {
        let mut found = self.client.snapshots().await?;
        found.retain(|snapshot| snapshot.name.as_deref() == Some(name));
        Ok(self.described(found).await?.into_iter().next())
    }

    /// Refuses to restore a snapshot to a volume with fewer GiB than its source volume, since Civo
    /// does not document the effect of such a request. The new volume can have fewer GiB if its
    /// capacity is the size of the Civo volume, while the capacity of the source was the size of
    /// the disk.
    async fn refuse_smaller(&self, order: &Order, from: &SnapshotId) -> Result<(), Failure> {
        let promise = Promise::of(&order.parameters, &order.usage)?;
        if promise == Promise::Disk {
            // The new volume has at least as many GiB as the source.
            return Ok(());
        }
        let source = self.client.snapshot(from).await;
        let source = source.map_err(Failure::nothing_happened)?;
        let gib = source.and_then(|source| source.gib()).unwrap_or(0);
        match promise.gib(order.bytes) < gib {
            true => Err(Failure::range(format!(
                "capacity_range.required_bytes: snapshot {from} is of a volume of {gib} GiB; \
                 request at least that, or use a class with {CAPACITY}: {OF_DISK}"
            ))),
            false => Ok(()),
        }
    }

    async fn cut_now(&self, order: &SnapshotOrder) -> Result<Snapshot, Failure> {
        let (id, name) = (&order.source, name::of_snapshot(&order.name));
        let found = self.snapshot_named(&name).await;
        // If the search fails, an earlier call may have created the snapshot.
        if let Some(found) = found.map_err(Failure::may_be_running)? {
            return Ok(found);
        }
        let volume = self
            .read_volume(id)
            .await
            .map_err(Failure::may_be_running)?;
        let volume = volume.ok_or_else(|| no_volume(id))?;
        match volume.status() {
            Status::Available | Status::Attached => {}
            Status::Deleting => return Err(no_volume(id)),
            Status::Failed(word) => return Err(about(id, failed(&word))),
            Status::Attaching | Status::Detaching | Status::Other(_) => {
                let message = format!("volume {id}: is being changed; repeat the call");
                return Err(Failure::busy(message));
            }
        }
        let cut = self.client.cut(id, &name).await;
        // Another controller may have created the snapshot, or the response may have been lost.
        let listed = self.snapshot_named(&name).await;
        match (listed, cut) {
            (Ok(Some(listed)), _) => Ok(listed),
            (_, Ok(Some(made))) => {
                let made = self.described(vec![made]).await;
                let made = made.map_err(Failure::may_be_running)?.into_iter().next();
                made.ok_or_else(|| unlisted(id))
            }
            (_, Ok(None)) => Err(unlisted(id)),
            (_, Err(refused)) => Err(about(id, refused)),
        }
    }
}

fn unlisted(id: &VolumeId) -> Failure {
    let message = format!("volume {id}: Civo does not list its new snapshot yet; repeat the call");
    Failure::busy(message).may_be_running()
}

/// Returns the time of creation, by Civo's clock. Returns the current time for a snapshot without a
/// time, which was just created.
fn created(snapshot: &CivoSnapshot) -> SystemTime {
    let time = snapshot.creation_time.as_deref().and_then(time::seconds);
    let time = time.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    time.unwrap_or_else(SystemTime::now)
}

impl Snapshots for Civo {
    fn is_snapshot_id(&self, id: &SnapshotId) -> bool {
        is_word(id.as_str())
    }

    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        measured(Verb::Cut, async move { self.cut_now(&order).await })
    }

    fn discard(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Discard, async move {
            match self.client.discard(&id).await {
                Ok(true) => Ok(Progress::Begun),
                Ok(false) => Ok(Progress::Done(())),
                Err(refused) => match self.client.snapshot(&id).await {
                    Ok(None) => Ok(Progress::Done(())),
                    _ => Err(refused),
                },
            }
        })
    }

    fn snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        measured(Verb::Snapshot, async move {
            let found = self.client.snapshot(&id).await?;
            let found = self.described(found.into_iter().collect()).await?;
            Ok(found.into_iter().next())
        })
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        token: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        measured(Verb::ListSnapshots, async move {
            let after = after(token.as_deref())?;
            let mut found = self.client.snapshots().await?;
            let is_of = |snapshot: &CivoSnapshot| {
                let volume = snapshot.volume_id.as_deref();
                of.as_ref().is_none_or(|of| volume == Some(of.as_str()))
            };
            found.retain(|snapshot| {
                is_of(snapshot) && after.is_none_or(|after| snapshot.snapshot_id.as_str() > after)
            });
            found.retain(|snapshot| ids::listed(snapshot.ids()).is_some());
            let found = self.described(found).await?;
            let (snapshots, next) = first_page(found, limit, |last| last.id.to_string());
            Ok(SnapshotPage { snapshots, next })
        })
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        measured(Verb::Restore, async move {
            self.refuse_smaller(&order, &from).await?;
            self.made(&order, Some(&from)).await
        })
    }
}
