//! The backend `digitalocean`: volumes of DigitalOcean, attached to droplets. The README of this
//! directory describes the stored data.

mod attach;
mod client;
mod history;
mod names;
mod pages;
mod pending;
mod phases;
mod snapshots;
mod token;
mod wire;

use super::cloud::ids;
use super::measured::{self, Verb, measured};
use super::{
    Answer, Attachments, Backend, Expansion, Order, Page, Progress, Sizes, Snapshots, Traits,
    Volume, answered, no_volume,
};
use crate::http;
use belay_contract::topology::Topology;
use belay_server::call::{Certainty, Failure};
use belay_server::request::{Context, Name, Secrets, VolumeId};
use client::Client;
use names::About;
use pending::{Change, ChangeLookup, Pending, VolumeState};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
pub use token::TokenSource;
use wire::{DoVolume, GIB, Refusal};

/// The value of the label `cloud` in metrics.
const CLOUD: &str = "digitalocean";

/// The default URL of the API.
pub const URL: &str = "https://api.digitalocean.com";

/// The maximum size of a volume, in GiB. If the cloud's limit is lower, the cloud's error states
/// the reason.
const GIB_MAX: u64 = 16384;

/// The size of a volume without a requested size, in bytes, as in csi-digitalocean.
const DEFAULT_BYTES: u64 = 16 * GIB;

/// The start of the tag that names the cluster that owns a volume.
const CLUSTER: &str = "belay-cluster";

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// The URL of the API.
    pub url: String,
    /// The source of the API token.
    pub token: TokenSource,
    /// The region of the volumes.
    pub region: String,
    /// The name of the cluster, with which volumes and snapshots are tagged.
    pub cluster: String,
    /// An additional tag for volumes and snapshots, which the operator selects.
    pub tag: Option<String>,
    /// The topology key for regions.
    pub topology_key: &'static str,
}

/// The backend for DigitalOcean. The token determines the account; the secrets of calls are
/// ignored.
pub struct DigitalOcean {
    client: Client,
    pending: Pending,
    place: Topology,
    topology_key: &'static str,
    /// The tags of new volumes and snapshots.
    tags: Vec<String>,
    tag: Option<String>,
}

impl DigitalOcean {
    /// Reads the token, without a call to the cloud. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns `Precondition` if the token cannot be read, and `Invalid` for an invalid region or
    /// tag.
    pub fn open(config: Config) -> Result<Self, Failure> {
        let http = http::Client::new(CLOUD, &http::TlsFiles::default());
        let http = http.map_err(|error| Failure::precondition(error.to_string()))?;
        http::describe();
        measured::describe();
        let place = Topology::new(config.topology_key, &config.region);
        let place = place.map_err(|error| Failure::invalid("--region", error))?;
        let cluster: String = config.cluster.chars().map(of_tag).collect();
        let tags = [Some(format!("{CLUSTER}:{cluster}")), config.tag.clone()];
        let tags: Vec<_> = tags.into_iter().flatten().collect();
        if tags.iter().any(|tag| !is_tag(tag)) {
            let why = "use at most 255 letters, digits, '_', ':' and '-'";
            return Err(Failure::invalid("--tag", why));
        }
        Ok(Self {
            client: Client::open(http, &config.url, &config.region, config.token)?,
            pending: Pending::default(),
            place,
            topology_key: config.topology_key,
            tags,
            tag: config.tag,
        })
    }

    /// Returns the existing volume with the requested name; `None` if no volume has the name.
    /// Called if the cloud has refused the name, or if the response to the creation was lost.
    async fn taken(&self, order: &Order) -> Result<Option<DoVolume>, Failure> {
        let in_cloud = names::in_cloud(&order.name);
        let found = self.client.named(&in_cloud).await;
        let found = found.map_err(Failure::may_be_running)?;
        match found {
            Some(volume) if !is_of(&volume, &order.name) => {
                let (name, id) = (order.name.as_str(), &volume.id);
                Err(Failure::incompatible(format!(
                    "name {name:?}: is {in_cloud} in the cloud, and volume {id} has that name"
                )))
            }
            found => Ok(found),
        }
    }

    /// Creates a volume, or returns the existing volume with the name.
    async fn create_from(&self, order: &Order, about: About) -> Result<DoVolume, Failure> {
        if let Some(asked) = &order.topology
            && !self.place.satisfies(asked)
        {
            let place = self.place.describe();
            return Err(Failure::quota(format!(
                "accessibility_requirements: this driver creates volumes at {place} only"
            )));
        }
        let mut body = json!({
            "name": names::in_cloud(&order.name),
            "region": self.client.region(),
            "size_gigabytes": order.bytes.div_ceil(GIB),
            "description": about.text(),
            "tags": self.tags,
        });
        if let Some(snapshot) = &about.snapshot {
            body["snapshot_id"] = Value::from(snapshot.as_str());
        }
        let refused = match self.client.create(body).await {
            Ok(volume) => {
                // Check the name of the volume before a restore expands the volume.
                let seen = (volume.id.as_str(), Some(volume.name.as_str()));
                answered::named(self, &order.name, "volume", seen)?;
                return Ok(volume);
            }
            Err(refused) => refused,
        };
        let is_lost = refused.failure.certainty == Certainty::MayBeRunning;
        if refused.why != Refusal::NameTaken && !is_lost {
            return Err(refused.failure);
        }
        // The list may be stale, so the caller must retry.
        let failure = refused.failure.may_be_running();
        self.taken(order).await?.ok_or(failure)
    }
}

/// Whether the volume belongs to this CSI name. The caller has found the volume by its name in the
/// cloud.
fn is_of(volume: &DoVolume, name: &Name) -> bool {
    let recorded = volume.about().and_then(|about| about.name);
    // A volume whose name is a hash, and whose description does not contain the CSI name, matches
    // no CSI name.
    recorded.as_ref().unwrap_or(&volume.name) == name.as_str()
}

fn of_tag(char: char) -> char {
    match char.is_ascii_alphanumeric() || "_:-".contains(char) {
        true => char,
        false => '-',
    }
}

fn is_tag(tag: &str) -> bool {
    (1..=255).contains(&tag.len()) && tag.chars().all(|char| of_tag(char) == char)
}

impl Backend for DigitalOcean {
    fn traits(&self) -> Traits {
        Traits {
            default_bytes: DEFAULT_BYTES,
            reads_back: true,
            // Actions take seconds, and the API limits the rate of calls.
            poll_interval: Duration::from_secs(1),
            // [`pending`] counts the attempts, and waits longer after each.
            begins_max: u32::MAX,
            attaches_one_by_one: true,
            records_spec: false,
            ..Traits::default()
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        Ok(SIZES)
    }

    fn inspect(&self) -> Answer<'_, ()> {
        measured(Verb::LogIn, self.client.log_in())
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        measured(Verb::Create, async move {
            let about = About::new(&order);
            let made = self.create_from(&order, about).await?;
            self.shown(&made).map_err(Failure::may_be_running)
        })
    }

    fn delete(&self, id: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Delete, async move {
            self.client.delete(&id).await?;
            self.pending.forget(&id);
            Ok(Progress::Done(()))
        })
    }

    /// Omits a volume that was created from a snapshot and must still be expanded. A repeated call
    /// of the creation continues with the expansion.
    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        measured(Verb::Find, async move {
            let found = self.client.named(&names::in_cloud(&name)).await?;
            let found = found.filter(|volume| is_of(volume, &name) && !volume.is_incomplete());
            found.iter().map(|volume| self.shown(volume)).collect()
        })
    }

    fn get(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        measured(Verb::Get, async move {
            match self.client.volume(&id).await? {
                Some(volume) => self.judged(volume).await,
                None => {
                    self.pending.forget(&id);
                    Ok(None)
                }
            }
        })
    }

    fn list(&self, after: Option<String>, limit: usize, _: Secrets) -> Answer<'_, Page> {
        measured(Verb::List, async move {
            let slice = pages::Slice::new(after.as_deref(), limit)?;
            let get = |page| self.client.volumes(page, slice.entries);
            let (read, has_more) = pages::read(slice.pages(), get).await?;
            let (found, next) = slice.of_pages(read, has_more);
            let mut volumes = Vec::new();
            for volume in found {
                volumes.extend(ids::listed(self.listed(volume).await).flatten());
            }
            Ok(Page { volumes, next })
        })
    }

    fn is_volume_id(&self, id: &VolumeId) -> bool {
        ids::is_uuid(id.as_str())
    }

    fn is_name(&self, shown: &str, asked: &Name) -> bool {
        shown == names::in_cloud(asked)
    }

    supports! { attachments: Attachments, expansion: Expansion, snapshots: Snapshots }
}

const SIZES: Sizes = Sizes {
    step: GIB,
    min: GIB,
    max: GIB_MAX * GIB,
};

impl Expansion for DigitalOcean {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        SIZES
    }

    fn resize(&self, id: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        measured(Verb::Resize, async move {
            let gib = bytes.div_ceil(GIB);
            let change = Change::Resize(gib);
            let look = match self.pending.take(&id, change)? {
                ChangeLookup::Running => return Ok(Progress::Begun),
                ChangeLookup::Ended(look) => look,
                ChangeLookup::Nothing => self.read_volume(&id).await?,
            };
            if look.volume.bytes() >= bytes {
                return Ok(Progress::Done(look.volume.bytes()));
            }
            match self.client.resize(&look.volume, gib).await {
                Ok(action) => {
                    let began = action.began();
                    self.pending.begin(&id, change, action.id, began);
                    Ok(Progress::Begun)
                }
                Err(refused) => self.retry_later(refused, &id, change, look.tries),
            }
        })
    }
}

impl DigitalOcean {
    /// Reads the volume, and returns the state from which a change starts.
    async fn read_volume(&self, id: &VolumeId) -> Result<VolumeState, Failure> {
        let found = self.client.volume(id).await?;
        let volume = found.ok_or_else(|| no_volume(id))?;
        Ok(VolumeState {
            volume,
            began: None,
            tries: 0,
            is_first: false,
        })
    }

    /// Records that a change must be requested again after a pause: another change of the volume or
    /// its droplet was running, or the response to the request was lost.
    fn retry_later<T>(
        &self,
        refused: client::Refused,
        id: &VolumeId,
        change: Change,
        tries: u32,
    ) -> Result<Progress<T>, Failure> {
        let is_lost = refused.failure.certainty == Certainty::MayBeRunning;
        match refused.why {
            Refusal::Pending => {}
            Refusal::Other if is_lost && tries < LOST_MAX => {}
            _ => return Err(refused.failure),
        }
        self.pending.wait(id, change, tries);
        Ok(Progress::Begun)
    }
}

/// Maximum number of lost responses to one change, after which the caller receives an error.
const LOST_MAX: u32 = 3;
