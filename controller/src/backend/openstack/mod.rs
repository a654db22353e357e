//! The backend `openstack`: volumes of Cinder, attached to servers by Nova. The README of this
//! directory lists all data that Belay stores in the cloud.

mod attach;
mod backups;
mod catalog;
mod causes;
mod client;
mod conf;
mod copies;
mod hints;
mod id;
mod open;
mod search;
mod session;
#[cfg(test)]
mod tests;
mod types;
mod wire;
mod zones;

use super::cloud::ids::listed;
use super::measured::{Verb, measured};
use super::{
    Answer, Attachments, Backend, Capacity, Claims, Clones, DroppedChange, Expansion, Modification,
    Order, Page, Parameter, Phase, Planned, Progress, Sizes, Snapshots, Traits, Volume, no_volume,
};
use backups::Backups;
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Context, Name, Secrets, VolumeId};
use client::Client;
use copies::RecentSnapshots;
use hints::{AFFINITY, ANTI_AFFINITY, labels};
pub use open::Config;
pub(super) use open::open;
use search::Searches;
use serde_json::json;
use std::sync::Arc;
use wire::{AVAILABILITY, CinderVolume, GIB, Restored, TYPE};
use zones::Zones;

/// The value of the label `cloud` in metrics.
const CLOUD: &str = "openstack";

/// The metadata key under which cinder-csi-plugin records the cluster.
const CLUSTER: &str = "cinder.csi.openstack.org/cluster";

/// Maximum number of entries of a page: the default of `osapi_max_limit` in Cinder.
const PAGE_ENTRIES_MAX: usize = 1000;

/// Maximum size of a volume, in bytes. The cloud's own limit is lower; the error of the cloud then
/// states the reason.
const BYTES_MAX: u64 = (1 << 30) * GIB;

/// A cloud, with an account in `cloud.conf`.
pub(super) struct Cloud {
    client: Arc<Client>,
    searches: Searches,
    backups: Backups,
    recent_snapshots: RecentSnapshots,
    cluster: String,
    zones: Zones,
    /// The value of `node-volume-attach-limit` in `cloud.conf`.
    attach_limit: Option<String>,
}

impl Cloud {
    fn seen(&self, volume: &CinderVolume) -> Result<Volume, Failure> {
        volume.volume(self.zones.key())
    }

    /// Creates a volume, empty or from a source. If the source is a backup, `restored` contains the
    /// marks for the volume's description.
    async fn make(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
        restored: Option<&Restored>,
    ) -> Result<Volume, Failure> {
        let of_class = order.parameters.get(AVAILABILITY);
        if let Some(zone) = of_class {
            self.zones.check(zone, order.topology.as_ref()).await?;
        }
        if order.shared {
            self.check_shareable(order, source).await?;
        }
        let mut metadata = json!({
            wire::ATTEMPT: order.attempt.as_str(),
            CLUSTER: self.cluster,
        });
        if let Some(source) = source {
            metadata[wire::SOURCE] = wire::source_mark(source).into();
        }
        if let Some(zone) = of_class {
            metadata[wire::ZONE] = zone.into();
        }
        labels(&mut metadata, &order.parameters);
        // The zone in the storage class takes precedence over the requested topology.
        let asked = match of_class {
            Some(_) => None,
            None => self.zones.asked(order.topology.as_ref()).await?,
        };
        let zone = of_class.or(asked.as_deref());
        let hints = self.hints(&order.parameters).await?;
        let made = self
            .client
            .create(order, source, restored, zone, metadata, hints)
            .await;
        let made = made.map_err(|refused| zones::unless_of_zone(refused, asked.as_deref()))?;
        self.zones.report_another(&made, zone);
        self.seen(&made).map_err(Failure::may_be_running)
    }

    /// Returns the volume both as the type of the backend and as Cinder's type.
    async fn read_volume(&self, id: &VolumeId) -> Result<Option<(Volume, CinderVolume)>, Failure> {
        let Some(volume) = self.client.volume(id).await? else {
            return Ok(None);
        };
        let mut seen = self.seen(&volume)?;
        self.explain(id.as_str(), &mut seen.phase).await;
        Ok(Some((seen, volume)))
    }

    /// Determines the result of a change that Cinder or Nova has refused. Cinder and Nova return
    /// 400 for a volume that they are changing, for a change that another call has already made
    /// (which `done` detects), and for a change that is impossible.
    async fn unless<T>(
        &self,
        id: &VolumeId,
        refused: Failure,
        done: impl FnOnce(&Volume) -> Option<T> + Send,
    ) -> Result<T, Failure> {
        if refused.kind != Kind::Precondition {
            return Err(refused);
        }
        let Ok(Some((volume, _))) = self.read_volume(id).await else {
            return Err(refused);
        };
        match volume.phase {
            Phase::Busy(_) | Phase::Deleting => Err(Failure::busy(refused.message)),
            Phase::Ready | Phase::Failed(_) => done(&volume).ok_or(refused),
        }
    }
}

impl Backend for Cloud {
    fn traits(&self) -> Traits {
        Traits {
            reports_status: true,
            // Nova locks a server during each change; calls that must wait until the lock is free
            // time out.
            attaches_one_by_one: true,
            records_spec: false,
            reaches_preferred: self.zones.are_ignored(),
            elsewhere: Some(zones::ELSEWHERE),
            where_to_look: Some(causes::WHERE_TO_LOOK),
            ..Traits::default()
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &[TYPE, AVAILABILITY, AFFINITY, ANTI_AFFINITY]
    }

    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        let (step, min, max) = (GIB, GIB, BYTES_MAX);
        Ok(Sizes { step, min, max })
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        measured(
            Verb::Create,
            async move { self.make(&order, None, None).await },
        )
    }

    fn delete(&self, id: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Delete, async move {
            let begun = |exists| match exists {
                true => Progress::Begun,
                false => Progress::Done(()),
            };
            let refused = match self.client.delete(&id).await {
                Err(refused) if refused.kind == Kind::Precondition => refused,
                answered => return answered.map(begun),
            };
            let Ok(seen) = self.read_volume(&id).await else {
                return Err(refused);
            };
            let Some((volume, _)) = seen else {
                return Ok(Progress::Done(()));
            };
            match volume.phase {
                // A retry finds that an earlier call has begun the deletion.
                Phase::Deleting => Ok(Progress::Begun),
                Phase::Busy(_) => Err(Failure::busy(refused.message)),
                // Cinder was changing the volume, for example because another controller was
                // detaching the volume.
                Phase::Ready | Phase::Failed(_) if volume.nodes.is_empty() => {
                    match self.client.delete(&id).await {
                        Err(refused) => Err(self.deletion_refused(&volume, refused).await),
                        Ok(exists) => Ok(begun(exists)),
                    }
                }
                Phase::Ready | Phase::Failed(_) => {
                    Err(self.deletion_refused(&volume, refused).await)
                }
            }
        })
    }

    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        measured(Verb::Find, async move {
            let found = self.searches.next(name).await?;
            let found = found.iter().map(|volume| self.seen(volume));
            let mut found = found.collect::<Result<Vec<_>, _>>()?;
            for Volume { id, phase, .. } in &mut found {
                self.explain(id.as_str(), phase).await;
            }
            Ok(found)
        })
    }

    fn get(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        measured(Verb::Get, async move {
            Ok(self.read_volume(&id).await?.map(|(volume, _)| volume))
        })
    }

    fn list(&self, after: Option<String>, limit: usize, _: Secrets) -> Answer<'_, Page> {
        measured(Verb::List, async move {
            let limit = limit.clamp(1, PAGE_ENTRIES_MAX);
            let (volumes, next) = self.client.volumes(after.as_deref(), limit).await?;
            let volumes = volumes.iter();
            let volumes = volumes.filter_map(|volume| listed(self.seen(volume)));
            let volumes = volumes.collect();
            Ok(Page { volumes, next })
        })
    }

    fn is_volume_id(&self, id: &VolumeId) -> bool {
        id::is_own(id.as_str())
    }

    fn why_dropped(
        &self,
        id: VolumeId,
        dropped: DroppedChange,
        _: Secrets,
    ) -> Answer<'_, Option<Failure>> {
        Box::pin(async move { self.cause(&id, dropped).await })
    }

    fn inspect(&self) -> Answer<'_, ()> {
        measured(Verb::LogIn, async {
            self.client.log_in().await?;
            self.zones.inspect().await;
            Ok(())
        })
    }

    fn meets(&self, parameter: Parameter, _: Secrets) -> Answer<'_, bool> {
        measured(Verb::Find, async move { self.may_be(parameter).await })
    }

    supports! {
        claims: Claims, attachments: Attachments, expansion: Expansion, modification: Modification,
        capacity: Capacity, snapshots: Snapshots, clones: Clones
    }
}

impl Claims for Cloud {
    fn claim(&self, id: VolumeId, _: Secrets) -> Answer<'_, ()> {
        measured(Verb::Claim, async move {
            self.client.mark(&id, wire::CLAIM).await
        })
    }
}

impl Expansion for Cloud {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        let (step, min, max) = (GIB, GIB, BYTES_MAX);
        Sizes { step, min, max }
    }

    fn resize(&self, id: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        measured(Verb::Resize, async move {
            let (volume, _) = self.read_volume(&id).await?.ok_or_else(|| no_volume(&id))?;
            if volume.bytes >= bytes {
                return Ok(Progress::Done(volume.bytes));
            }
            match self.client.extend(&id, bytes).await {
                Ok(()) => Ok(Progress::Begun),
                Err(refused) => {
                    let done = |volume: &Volume| {
                        let is_large = volume.bytes >= bytes;
                        is_large.then_some(Progress::Done(volume.bytes))
                    };
                    self.unless(&id, refused, done).await
                }
            }
        })
    }
}

impl Capacity for Cloud {
    /// Returns the free part of the quota for all volume types, in bytes. Snapshots also count
    /// towards the quota, unless `no_snapshot_gb_quota` is set in `cinder.conf`. The project cannot
    /// see the quotas of volume types or the free space of the storage.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        measured(Verb::Available, async move {
            if !self.zones.may_be(planned.topology.as_ref()).await? {
                return Ok(0);
            }
            let free = self.client.limits().await?.free_gib();
            Ok(free.saturating_mul(GIB))
        })
    }
}
