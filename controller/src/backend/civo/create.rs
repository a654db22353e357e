//! Creates volumes. Creates volumes. Civo enforces unique names: if a volume with the name exists,
//! the existing volume is returned.

use super::changes::Change;
use super::client::Client;
use super::size::Promise;
use super::wire::CivoVolume;
use super::{Civo, TYPE, name};
use crate::backend::cloud::ids;
use crate::backend::cloud::rounds::{Caller, Reads, Rounds, answer_all};
use crate::backend::{Order, Phase, Volume};
use belay_server::call::Failure;
use belay_server::request::{Name, SnapshotId, TopologyRequirement};
use serde_json::json;
use std::sync::Arc;

/// Reads of the list of all volumes, shared by concurrent calls. Civo's API has no search for
/// volumes.
pub(super) type Lists = Rounds<All>;

/// Reads the list of all volumes, sorted by ID.
pub(super) struct All(pub(super) Arc<Client>);

impl Reads for All {
    type Of = ();
    type Output = Arc<Vec<CivoVolume>>;

    async fn serve(self: Arc<Self>, callers: Vec<Caller<Self>>) {
        let list = self.0.volumes().await.map(|mut list| {
            list.sort_unstable_by(|a, b| a.id.cmp(&b.id));
            list.dedup_by(|a, b| a.id == b.id);
            Arc::new(list)
        });
        answer_all(callers, &list);
    }
}

impl Civo {
    /// Returns the volumes that a request with this name may have created, sorted by ID. The name
    /// of a volume in Civo depends on its [`Promise`], which selects the size that is its capacity.
    pub(super) async fn named(&self, name: &Name) -> Result<Vec<CivoVolume>, Failure> {
        let names = name::of_any(name);
        let all = self.lists.next(()).await?;
        let is_named = |volume: &&CivoVolume| {
            let own = volume.name.as_ref();
            own.is_some_and(|own| names.contains(own))
        };
        Ok(all.iter().filter(is_named).cloned().collect())
    }

    pub(super) fn is_ours(&self, volume: &CivoVolume) -> bool {
        let ours = &self.client.access().cluster;
        volume.cluster().is_none_or(|cluster| cluster == ours)
    }

    pub(super) async fn made(
        &self,
        order: &Order,
        from: Option<&SnapshotId>,
    ) -> Result<Volume, Failure> {
        self.refuse_topology(order.topology.as_ref())?;
        let promise = Promise::of(&order.parameters, &order.usage)?;
        let usual = self.client.cluster().await?.volume_type.as_deref();
        let volume_type = order.parameters.get(TYPE).or(usual);
        let name = name::of_volume(&order.name, promise);
        let mut volume = json!({
            "name": name,
            "size_gb": promise.gib(order.bytes),
            // An empty ID selects the cluster's network.
            "network_id": "",
            "bootable": false,
            "volume_type": volume_type.unwrap_or_default(),
        });
        if let Some(id) = from {
            volume["snapshot_id"] = id.as_str().into();
        }
        let Some(made) = self.client.create(volume).await? else {
            return self.owner_of(&order.name).await;
        };
        // The status in the response may be null and the name empty, so the engine reads the volume
        // again.
        let id = ids::volume(&made.id, ids::is_uuid)?;
        let change = Change::Create(name, order.attempt.clone());
        self.changes.accepted(&id, change);
        Ok(Volume {
            name: made.name(),
            ..self.volume(id, Phase::Busy("creating".to_owned()))
        })
    }

    /// Returns the volume that already has this name.
    async fn owner_of(&self, name: &Name) -> Result<Volume, Failure> {
        let found = self.named(name).await.map_err(Failure::may_be_running)?;
        let shown = name.as_str();
        match found.iter().find(|volume| self.is_ours(volume)) {
            Some(volume) => self.seen(volume),
            None => Err(match found.first() {
                Some(other) => Failure::incompatible(format!(
                    "name {shown:?}: belongs to volume {} of another cluster",
                    other.id
                )),
                // The list may be stale.
                None => Failure::busy(format!(
                    "name {shown:?}: Civo has a volume of that name, and does not list it yet; \
                     repeat the call"
                ))
                .may_be_running(),
            }),
        }
    }

    /// Refuses a topology outside of the configured region.
    fn refuse_topology(&self, asked: Option<&TopologyRequirement>) -> Result<(), Failure> {
        match (&self.place, asked) {
            (Some(here), Some(asked)) if !here.satisfies(asked) => Err(Failure::quota(format!(
                "accessibility_requirements: volumes are created at {} only",
                here.describe()
            ))),
            _ => Ok(()),
        }
    }
}
