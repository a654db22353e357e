//! The twin of Civo's API: volumes, snapshots, quota, a cluster and its instances, in regions. The
//! twin follows the facts in the README of this crate. If the behaviour of the real cloud is not
//! known, a switch in [`Settings`] selects the behaviour of the twin.

mod disks;
mod objects;
mod refusal;
mod snapshots;
mod state;
#[cfg(test)]
mod tests;
mod volumes;

pub use disks::MODEL;
pub use objects::{Instance, Snapshot, Status, Volume};
pub use refusal::Refusal;
pub use state::{Quota, State};

use crate::http::{Request, Response};
use crate::{Lag, Service, lock};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The API key that is accepted initially.
pub const KEY: &str = "canary-of-the-twin-of-civo";
/// The region of the cluster.
pub const REGION: &str = "LON1";
/// Another region.
pub const OTHER_REGION: &str = "FRA1";
/// The ID of the cluster.
pub const CLUSTER: &str = "c1u57e12-0000-4000-8000-000000000001";
/// The volume type of the cluster.
pub const VOLUME_TYPE: &str = "standard";

/// The settings of the twin, which a test can change at any time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The accepted key.
    pub key: String,
    /// The key of another account, which contains no objects.
    pub other_key: Option<String>,
    /// The duration of each change.
    pub delay: Duration,
    /// The limits of the account.
    pub quota: Quota,
    /// The usage that is reported and compared with the limits; `None` for the current usage.
    pub usage_seen: Option<Quota>,
    /// Whether a second volume with the same name is refused.
    pub has_unique_names: bool,
    /// Whether JSON members without a value are null, instead of "".
    pub has_nulls: bool,
    /// Whether a volume remains visible, unchanged, for [`Self::delay`] after its deletion.
    pub lingers: bool,
    /// The status of all refusals; `None` for the usual status of each refusal.
    pub refusal_status: Option<u16>,
    /// Whether every change of a volume remains in progress forever.
    pub is_stuck: bool,
    /// Whether the creation of a volume is accepted but ends with [`Status::Error`].
    pub creation_fails: bool,
    /// Maximum number of clusters in a page of the list.
    pub clusters_a_page: usize,
    /// Whether the API reports that an instance does not exist if it belongs to a cluster and is
    /// requested by its ID.
    pub hides_instances_of_clusters: bool,
    /// Maximum number of calls per second; further calls get 429.
    pub calls_per_second: Option<usize>,
}

/// The API of the twin.
pub struct Civo(Arc<Mutex<Twin>>);

/// The settings and state of the twin.
pub struct Twin {
    /// The settings.
    pub settings: Settings,
    state: Lag<State>,
    /// The IDs of the volumes that callers have created, and for which they have not requested the
    /// deletion.
    pub kept: BTreeSet<String>,
    /// For each volume that a caller has attached, the instance, until a caller requests to detach
    /// the volume.
    pub in_use: BTreeMap<String, String>,
    /// Violations of the rules by the code under test.
    pub broken: Vec<String>,
    served: VecDeque<Instant>,
    disks: Option<disks::Disks>,
}

impl Civo {
    /// Creates a twin with a cluster of `instances` instances, whose changes take `delay`.
    #[must_use]
    pub fn new(delay: Duration, instances: usize) -> Self {
        let settings = Settings {
            key: KEY.to_owned(),
            other_key: None,
            delay,
            quota: Quota {
                gib: 100_000,
                volumes: 100_000,
                snapshots: 1000,
            },
            usage_seen: None,
            has_unique_names: true,
            has_nulls: false,
            lingers: false,
            refusal_status: None,
            is_stuck: false,
            creation_fails: false,
            clusters_a_page: 100,
            hides_instances_of_clusters: false,
            calls_per_second: None,
        };
        Self(Arc::new(Mutex::new(Twin {
            settings,
            state: Lag::new(State::new(instances)),
            kept: BTreeSet::new(),
            in_use: BTreeMap::new(),
            broken: Vec::new(),
            served: VecDeque::new(),
            disks: None,
        })))
    }

    /// Returns the current settings and state.
    pub fn twin(&self) -> MutexGuard<'_, Twin> {
        let mut twin = lock(&self.0);
        twin.settle();
        twin
    }
}

impl Service for Civo {
    fn answer(&self, request: &Request) -> Response {
        self.twin().answer(request)
    }

    fn kind(&self, request: &Request) -> String {
        let words = request.path.trim_matches('/').split('/');
        let named: Vec<_> = words
            .map(
                |word| match word.chars().any(|char| char.is_ascii_digit()) {
                    true if word != "v2" => "ID",
                    _ => word,
                },
            )
            .collect();
        format!("{} /{}", request.method, named.join("/"))
    }
}

/// The JSON body of a response with status 200, or the reason for a refusal.
type Answer = Result<Value, Refusal>;

impl Twin {
    /// Returns the actual state, without lag.
    #[must_use]
    pub fn state(&self) -> &State {
        self.state.latest()
    }

    /// Returns the state for changes that bypass the API.
    pub fn change(&mut self) -> &mut State {
        self.state.change()
    }

    /// Sets the lag: from now on, readers see each change only after this delay.
    pub fn lag(&mut self, lag: Duration) {
        self.state.set(lag);
    }

    fn settle(&mut self) {
        let now = Instant::now();
        if !self.settings.is_stuck && self.state.latest().is_due(now) {
            self.state.change().settle(now);
        }
    }

    fn answer(&mut self, request: &Request) -> Response {
        if let Some(limited) = self.limited() {
            return limited;
        }
        let bearer = request.header("authorization").unwrap_or_default();
        let (scheme, key) = bearer.split_once(' ').unwrap_or_default();
        let is_other = self.settings.other_key.as_deref() == Some(key);
        if !scheme.eq_ignore_ascii_case("bearer") || key != self.settings.key && !is_other {
            return Refusal::Authentication.response(self.settings.refusal_status);
        }
        let region = match is_other {
            // In a region with this name, no object exists.
            true => "of another account".to_owned(),
            false => request.asked("region").unwrap_or(REGION).to_owned(),
        };
        match self.serve(request, &region) {
            Ok(body) => Response::json(200, &body),
            Err(refusal) => refusal.response(self.settings.refusal_status),
        }
    }

    fn limited(&mut self) -> Option<Response> {
        let most = self.settings.calls_per_second?;
        let now = Instant::now();
        let second = Duration::from_secs(1);
        self.served.retain(|at| now.duration_since(*at) < second);
        if self.served.len() < most {
            self.served.push_back(now);
            return None;
        }
        let mut response = Refusal::Rate.response(None);
        response.headers.push(("retry-after", "1".to_owned()));
        Some(response)
    }

    fn serve(&mut self, request: &Request, region: &str) -> Answer {
        let words: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let ["v2", path @ ..] = &words[..] else {
            return Err(Refusal::NoSuchPath);
        };
        let body = request.json();
        match (request.method.as_str(), path) {
            (_, ["volumes", id, "snapshots", rest @ ..]) => {
                self.snapshots_of(&request.method, id, rest, &body, region)
            }
            (method, ["snapshots", rest @ ..]) => {
                let is_asked = request.asked("resource_type") == Some("volume");
                self.snapshots(method, rest, is_asked || method == "DELETE", region)
            }
            (method, ["volumes", rest @ ..]) => self.volumes(method, rest, &body, region),
            ("GET", ["ping"]) => Ok(json!({"result": "success"})),
            ("GET", ["regions"]) => Ok(regions()),
            ("GET", ["volumetypes"]) => Ok(volume_types()),
            ("GET", ["quota"]) => Ok(self.quota()),
            ("GET", ["kubernetes", "clusters", id]) => self.cluster(id, region),
            ("GET", ["kubernetes", "clusters"]) => Ok(self.clusters(request, region)),
            ("GET", ["kubernetes", "clusters", id, "instances"])
                if self.state.seen().other_clusters.contains_key(*id) =>
            {
                Ok(self.state.seen().of(id))
            }
            ("GET", ["kubernetes", "clusters", id, "instances"]) => {
                self.cluster(id, region)?;
                Ok(self.state.seen().of(id))
            }
            ("GET", ["instances", id]) => {
                let state = self.state.seen();
                let is_hidden =
                    self.settings.hides_instances_of_clusters && state.is_of_cluster(id);
                let instance = state.instances.get(*id).filter(|_| !is_hidden);
                let instance = instance.ok_or(Refusal::NoInstance)?;
                let mut body = instance.described();
                let volumes = state.volumes.values();
                let own = volumes.filter(|volume| volume.instance.as_deref() == Some(*id));
                body["attached_volumes"] = own.map(|volume| json!({"id": volume.id})).collect();
                Ok(body)
            }
            _ => Err(Refusal::NoSuchPath),
        }
    }

    fn cluster(&self, id: &str, region: &str) -> Answer {
        if id != CLUSTER || region != REGION {
            return Err(Refusal::NoCluster);
        }
        Ok(json!({
            "id": CLUSTER, "name": "twin", "network_id": "n-1", "namespace": "twin",
            "volume_type": VOLUME_TYPE, "status": "ACTIVE", "ready": true,
            "instances": self.state.seen().of(id),
        }))
    }

    /// Returns the requested page of all clusters.
    fn clusters(&self, request: &Request, region: &str) -> Value {
        let number = |key: &str, default: usize| {
            let asked = request.asked(key).and_then(|text| text.parse().ok());
            asked.unwrap_or(default).max(1)
        };
        let (page, per_page) = (number("page", 1), number("per_page", 20));
        let per_page = per_page.min(self.settings.clusters_a_page);
        let state = self.state.seen();
        let others = state.other_clusters.keys().map(String::as_str);
        let all: Vec<_> = match region {
            REGION => others.chain([CLUSTER]).collect(),
            _ => Vec::new(),
        };
        let items = all.iter().skip((page - 1) * per_page).take(per_page);
        let described = |id: &&str| json!({"id": id, "name": "c", "instances": state.of(id)});
        let items: Vec<_> = items.map(described).collect();
        json!({
            "page": page, "per_page": per_page, "pages": all.len().div_ceil(per_page),
            "items": items,
        })
    }

    /// Returns the limits and the usage.
    fn quota(&self) -> Value {
        let limit = &self.settings.quota;
        let used = self.usage();
        json!({
            "id": "q-1",
            "disk_gb_limit": limit.gib, "disk_gb_usage": used.gib,
            "disk_volume_count_limit": limit.volumes, "disk_volume_count_usage": used.volumes,
            "disk_snapshot_count_limit": limit.snapshots,
            "disk_snapshot_count_usage": used.snapshots,
        })
    }

    fn usage(&self) -> Quota {
        let seen = self.settings.usage_seen.clone();
        seen.unwrap_or_else(|| self.state.latest().usage())
    }
}

fn regions() -> Value {
    let region = |code: &str| {
        json!({"code": code, "name": code, "type": "public",
               "features": {"volume": true, "kubernetes": true}})
    };
    [REGION, OTHER_REGION].map(region).into_iter().collect()
}

fn volume_types() -> Value {
    let named =
        |name: &str| json!({"name": name, "description": "a disk", "enabled": true, "labels": []});
    [VOLUME_TYPE, "encrypted-standard"]
        .map(named)
        .into_iter()
        .collect()
}
