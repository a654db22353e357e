//! The backend `civo`: volumes of Civo, attached to the instances of a Kubernetes cluster. The
//! README of this directory describes the stored data.

mod access;
mod attach;
mod changes;
mod client;
mod create;
mod grow;
mod name;
mod nodes;
mod size;
mod snapshots;
mod wire;

pub use access::{ApiKey, Sources};

use super::cloud::ids;
use super::measured::{self, Verb, measured};
use super::{
    Answer, Attachments, Backend, Capacity, Expansion, Mark, Order, Page, Phase, Planned, Progress,
    Sizes, Snapshots, Traits, Usage, Volume,
};
use crate::http;
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Context, Name, Secrets, VolumeId};
use changes::Changes;
use client::Client;
use create::{All, Lists};
use nodes::Nodes;
use size::{GIB, Promise};
use std::sync::Arc;
use wire::{CivoVolume, Status};

/// The value of the label `cloud` in metrics.
const CLOUD: &str = "civo";

/// The StorageClass parameter that selects the volume type.
const TYPE: &str = "type";

/// The key of the volume context that records whether the volume was created empty ([`EMPTY`]) or
/// from a snapshot ([`COPY`]). Civo cannot store this information.
const BEGAN: &str = "belay.dev/began";
const EMPTY: &str = "empty";
const COPY: &str = "copy";

/// The prefix of a page token, before the ID of the last volume or snapshot of the previous page.
const AFTER: &str = "after:";

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// The sources of the API key, the region and the cluster.
    pub sources: Sources,
    /// The topology key for regions; `None` if volumes report no topology.
    pub topology_key: Option<&'static str>,
}

/// The backend for Civo. The secrets of calls are ignored.
pub struct Civo {
    client: Arc<Client>,
    lists: Lists,
    nodes: Nodes,
    changes: Changes,
    place: Option<Arc<Topology>>,
}

impl Civo {
    /// Reads the settings, without a call to Civo. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns `Precondition`, naming a missing setting.
    pub fn open(config: Config) -> Result<Self, Failure> {
        let access = config.sources.read()?;
        let http = http::Client::new(CLOUD, &http::TlsFiles::default());
        let http = http.map_err(|error| Failure::precondition(error.to_string()))?;
        http::describe();
        measured::describe();
        let place = config.topology_key.map(|key| {
            let region = &access.region;
            let bad = |error| Failure::precondition(format!("CIVO_REGION: {error}"));
            Topology::new(key, region).map(Arc::new).map_err(bad)
        });
        let client = Arc::new(Client::open(http, config.sources, access)?);
        Ok(Self {
            lists: Lists::new(All(Arc::clone(&client))),
            nodes: Nodes::new(Arc::clone(&client)),
            changes: Changes::default(),
            client,
            place: place.transpose()?,
        })
    }

    /// Returns the volume as Civo's API returns it; `None` if the volume does not exist.
    async fn read_volume(&self, id: &VolumeId) -> Result<Option<CivoVolume>, Failure> {
        self.client.volume(id).await
    }

    /// Converts a volume of the API to the type of the backend. A volume with the status
    /// `available` is treated as detached, even if the API still reports an instance.
    fn seen(&self, volume: &CivoVolume) -> Result<Volume, Failure> {
        let status = volume.status();
        let instance = match status {
            Status::Available => None,
            _ => volume.instance(),
        };
        let nodes = instance.map(|instance| self.nodes.node(instance));
        let hidden = self.changes.hidden(volume);
        let mark = self.changes.mark(volume);
        let phase = match status {
            Status::Available | Status::Attached => match hidden {
                None => Phase::Ready,
                Some(word) => Phase::Busy(word.to_owned()),
            },
            Status::Attaching => Phase::Busy("attaching".to_owned()),
            Status::Detaching => Phase::Busy("detaching".to_owned()),
            Status::Deleting => Phase::Deleting,
            Status::Failed(word) => Phase::Failed(match mark {
                Mark::None => failed(&word),
                _ => not_created(&volume.id, &word),
            }),
            Status::Other(word) => Phase::Busy(word),
        };
        Ok(Volume {
            mark,
            nodes: nodes.transpose()?.into_iter().collect(),
            bytes: volume.promise().bytes(volume.gib()),
            name: volume.name.clone(),
            ..self.volume(ids::volume(&volume.id, ids::is_uuid)?, phase)
        })
    }

    fn volume(&self, id: VolumeId, phase: Phase) -> Volume {
        Volume {
            place: self.place.clone(),
            ..Volume::new(id, phase)
        }
    }
}

impl CivoVolume {
    fn promise(&self) -> Promise {
        name::promise(self.name.as_deref().unwrap_or_default())
    }
}

/// Returns the ID in a page token.
fn after(token: Option<&str>) -> Result<Option<&str>, Failure> {
    let id = token.map(|token| token.strip_prefix(AFTER).ok_or(token));
    id.transpose().map_err(|token| {
        let message = format!("starting_token {token:?}: was not given out here");
        Failure::new(Kind::BadToken, message)
    })
}

/// Returns the first `limit` entries of a list that is sorted by ID, and the token of the next
/// page.
fn first_page<T>(
    mut list: Vec<T>,
    limit: usize,
    id: impl Fn(&T) -> String,
) -> (Vec<T>, Option<String>) {
    let has_more = list.len() > limit;
    list.truncate(limit);
    let last = list.last().filter(|_| has_more);
    let next = last.map(|last| format!("{AFTER}{}", id(last)));
    (list, next)
}

impl Backend for Civo {
    fn traits(&self) -> Traits {
        Traits {
            default_bytes: size::DEFAULT_BYTES,
            reports_status: true,
            reads_back: true,
            // The first of the three attempts may be spent on waiting until a different change has
            // ended.
            begins_max: 3,
            records_spec: false,
            ..Traits::default()
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &[TYPE, size::CAPACITY]
    }

    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        self.sizes_for(parameters, &Usage::Filesystem(String::new()))
    }

    fn sizes_for(&self, parameters: &Context, usage: &Usage) -> Result<Sizes, Failure> {
        Ok(Promise::of(parameters, usage)?.sizes())
    }

    fn inspect(&self) -> Answer<'_, ()> {
        measured(Verb::LogIn, async { self.client.cluster().await.map(drop) })
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        measured(Verb::Create, async move { self.made(&order, None).await })
    }

    fn complete(&self, mut volume: Volume, source: Option<&ContentSource>) -> Volume {
        volume.source = source.cloned();
        let began = source.map_or(EMPTY, |_| COPY);
        let entry = [(BEGAN.to_owned(), began.to_owned())];
        volume.context = Context::new("volume_context", entry).ok();
        volume
    }

    fn delete(&self, id: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Delete, async move {
            let Some(volume) = self.read_volume(&id).await? else {
                return Ok(Progress::Done(()));
            };
            // It is unknown how Civo handles the attached disk of a deleted volume.
            if let Some(instance) = volume.instance() {
                let message = format!(
                    "volume {id}: instance {instance} has it; detach it there first, and delete it \
                     then"
                );
                return Err(match volume.status() {
                    Status::Detaching => Failure::busy(message),
                    _ => Failure::precondition(message),
                });
            }
            match self.client.delete(&id).await {
                Ok(true) => Ok(Progress::Begun),
                Ok(false) => Ok(Progress::Done(())),
                Err(refused) => match self.read_volume(&id).await {
                    Ok(None) => Ok(Progress::Done(())),
                    Ok(Some(now)) if now.status() == Status::Deleting => Ok(Progress::Begun),
                    _ => Err(refused),
                },
            }
        })
    }

    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        measured(Verb::Find, async move {
            let found = self.named(&name).await?;
            let ours = found.iter().filter(|volume| self.is_ours(volume));
            ours.map(|volume| self.seen(volume)).collect()
        })
    }

    fn get(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        measured(Verb::Get, async move {
            let volume = self.read_volume(&id).await?;
            volume.map(|volume| self.seen(&volume)).transpose()
        })
    }

    fn list(&self, token: Option<String>, limit: usize, _: Secrets) -> Answer<'_, Page> {
        measured(Verb::List, async move {
            let after = after(token.as_deref())?;
            let all = self.lists.next(()).await?;
            let is_after = |volume: &&CivoVolume| after.is_none_or(|after| *volume.id > *after);
            let rest = all.iter().filter(is_after).collect();
            let (volumes, next) = first_page(rest, limit, |volume: &&CivoVolume| volume.id.clone());
            let volumes = volumes.into_iter();
            let volumes = volumes.filter_map(|volume| ids::listed(self.seen(volume)));
            let volumes = volumes.collect();
            Ok(Page { volumes, next })
        })
    }

    fn is_volume_id(&self, id: &VolumeId) -> bool {
        ids::is_uuid(id.as_str())
    }

    fn is_name(&self, shown: &str, asked: &Name) -> bool {
        name::of_any(asked).iter().any(|name| name == shown)
    }

    supports! {
        attachments: Attachments, expansion: Expansion, capacity: Capacity,
        snapshots: Snapshots
    }
}

impl Capacity for Civo {
    /// Returns the unused part of the account's quota. The quota limits the total size of Civo
    /// volumes in GiB; the disks of the volumes are smaller.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        measured(Verb::Available, async move {
            if let (Some(here), Some(asked)) = (&self.place, planned.topology)
                && here.segments() != asked
            {
                return Ok(0);
            }
            let free = self.client.quota().await?.free_gib();
            Ok(free.saturating_mul(GIB))
        })
    }
}

/// Returns the error for a volume with this status, which will not change.
pub(super) fn failed(word: &str) -> Failure {
    Failure::precondition(format!(
        "Civo reports the status {word:?}; ask Civo, or delete the volume if none of its data is \
         needed"
    ))
}

/// Returns the error for a volume whose creation ended with this status.
pub(super) fn not_created(id: &str, word: &str) -> Failure {
    let message =
        format!("volume {id}: Civo has not created it: its status was {word:?}; repeat the call");
    Failure::new(Kind::System, message)
}

/// Adds the volume's ID to the start of the message of a failure.
pub(super) fn about(id: &VolumeId, failure: Failure) -> Failure {
    Failure {
        message: format!("volume {id}: {}", failure.message),
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::request::SnapshotId;
    use serde_json::{Value, json};

    fn civo() -> Civo {
        let sources = Sources {
            key: Some(ApiKey::new("key")),
            // No server listens on this port.
            url: Some("http://127.0.0.1:1".to_owned()),
            region: Some("LON1".to_owned()),
            cluster: Some("cluster-1".to_owned()),
            ..Sources::default()
        };
        let topology_key = Some("region");
        let config = Config {
            sources,
            topology_key,
        };
        Civo::open(config).unwrap()
    }

    fn volume(status: &str, more: &Value) -> CivoVolume {
        let mut body = json!({
            "id": "506f78a4-e098-11e5-ad9f-000f53306ae1", "name": "pvc-1", "size_gb": 10,
            "instance_id": "i-1", "status": status,
        });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn a_status_is_a_phase_and_an_available_volume_is_attached_nowhere() {
        let civo = civo();
        let busy = |word: &str| Phase::Busy(word.to_owned());
        for (status, phase, nodes) in [
            ("available", Phase::Ready, 0),
            ("attached", Phase::Ready, 1),
            ("attaching", busy("attaching"), 1),
            ("detaching", busy("detaching"), 1),
            ("deleting", Phase::Deleting, 1),
            ("resizing", busy("resizing"), 1),
        ] {
            let seen = civo.seen(&volume(status, &json!({}))).unwrap();
            assert_eq!((seen.phase, seen.nodes.len()), (phase, nodes), "{status}");
            assert_eq!(seen.bytes, 10 * GIB);
            let place = Topology::new("region", "LON1").unwrap();
            assert_eq!(seen.place.unwrap().segments(), place.segments());
        }
        let failed = civo.seen(&volume("error", &json!({}))).unwrap();
        assert!(matches!(failed.phase, Phase::Failed(_)));
    }

    #[test]
    fn a_volume_without_a_cluster_is_ours_and_one_of_another_is_not() {
        let civo = civo();
        for (cluster, is_ours) in [("cluster-1", true), ("", true), ("cluster-2", false)] {
            let seen = volume("available", &json!({ "cluster_id": cluster }));
            assert_eq!(civo.is_ours(&seen), is_ours, "{cluster}");
        }
    }

    #[test]
    fn a_volume_says_how_it_began() {
        let civo = civo();
        let made = || civo.volume(VolumeId::new("v-1").unwrap(), Phase::Ready);
        let snapshot = ContentSource::Snapshot(SnapshotId::new("s-1").unwrap());
        for (source, began) in [(None, "empty"), (Some(&snapshot), "copy")] {
            let complete = civo.complete(made(), source);
            assert_eq!(complete.source.as_ref(), source);
            let context = complete.context.unwrap();
            assert_eq!(context.get("belay.dev/began"), Some(began));
        }
    }

    #[test]
    fn a_token_names_the_last_id_before_the_page() {
        assert_eq!(after(None), Ok(None));
        assert_eq!(after(Some("after:v-1")), Ok(Some("v-1")));
        let refused = after(Some("v-1")).unwrap_err();
        assert_eq!(refused.kind, Kind::BadToken);
        assert!(refused.message.contains("\"v-1\""), "{refused}");
    }
}
