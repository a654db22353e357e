//! The twin of DigitalOcean's API: volumes, their actions and snapshots, droplets, tags and the
//! account (API v2, docs.digitalocean.com/reference/api), and the metadata service of a droplet.

mod actions;
mod disks;
mod limits;
mod show;
mod snapshots;
mod state;
mod tags;
#[cfg(test)]
mod tests;
mod volumes;

use crate::http::{Request, Response};
use crate::{Hypervisor, Lag, Service, lock};
pub use disks::MODEL;
use limits::{Limits, Window};
use serde_json::{Value, json};
use state::State;
use state::{Change, Droplet, after};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The ID of the team to which the token belongs.
const TEAM: &str = "5df3e3004a17e242b7c20ca6c9fc25b701a47ece";
/// The token that is accepted initially.
pub const TOKEN: &str = "dop_v1_token-of-the-twin";

/// The settings of the twin, which a test may change at any time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The duration of an action.
    pub delay: Duration,
    /// Maximum number of volumes of a droplet.
    pub droplet_volumes: usize,
    /// Maximum number of volumes of the account; 0 means unlimited.
    pub volume_limit: usize,
    /// Maximum total size of volumes and snapshots, in GiB.
    pub capacity: u64,
    /// The status code of refusals due to exhausted capacity: 403 or 429.
    pub capacity_status: u16,
    /// The maximum size of a volume, in GiB.
    pub size_max: u64,
    /// The minimum time between two snapshots of a volume.
    pub snapshot_rest: Duration,
    /// Whether the API reports the droplet of a volume as soon as an attach is accepted, rather
    /// than when the attach is complete.
    pub shows_at_accept: bool,
    /// Whether a volume that is created from a smaller snapshot has the requested size, rather than
    /// the size of the snapshot.
    pub restores_larger: bool,
    /// The number of further actions that end as `errored`.
    pub errored: usize,
    /// Whether new actions never end.
    pub is_stuck: bool,
    /// The accepted token.
    pub token: String,
    /// The token of another team, which owns no objects.
    pub other_token: Option<String>,
    /// Whether tokens have the scope `account:read`.
    pub shows_account: bool,
    /// Whether the account has teams.
    pub has_teams: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            droplet_volumes: 15,
            volume_limit: 0,
            capacity: u64::MAX,
            capacity_status: 403,
            size_max: 16384,
            snapshot_rest: Duration::from_secs(600),
            shows_at_accept: false,
            restores_larger: false,
            errored: 0,
            is_stuck: false,
            token: TOKEN.to_owned(),
            other_token: None,
            shows_account: true,
            has_teams: true,
        }
    }
}

/// The twin of DigitalOcean.
pub struct DigitalOcean {
    regions: &'static [&'static str],
    state: Arc<Mutex<Lag<State>>>,
    disks: Option<Arc<Hypervisor>>,
    settings: Mutex<Settings>,
    limits: Mutex<Limits>,
}

/// The status code and the message of an error response.
type Refusal = (u16, String);
type Answer = Result<Response, Refusal>;

fn refused<T>(status: u16, message: impl Into<String>) -> Result<T, Refusal> {
    Err((status, message.into()))
}

fn not_found<T>() -> Result<T, Refusal> {
    refused(404, "The resource you were accessing could not be found.")
}

impl DigitalOcean {
    /// Creates a twin with droplets of these IDs in the first region.
    #[must_use]
    pub fn new(regions: &'static [&'static str], droplets: &[u64]) -> Self {
        let mut state = State::default();
        for id in droplets {
            let droplet = Droplet {
                name: format!("node-{id}"),
                region: regions.first().unwrap_or(&"").to_string(),
                is_on: true,
                foreign: None,
            };
            state.droplets.insert(*id, droplet);
        }
        Self {
            regions,
            state: Arc::new(Mutex::new(Lag::new(state))),
            disks: None,
            settings: Mutex::default(),
            limits: Mutex::new(Limits::new()),
        }
    }

    /// Returns the settings, which can be changed.
    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Sets the maximum numbers of calls and their periods, in place of 250 per minute and 5000 per
    /// hour.
    pub fn limit(&self, minute: (usize, Duration), hour: (usize, Duration)) {
        *lock(&self.limits) = Limits {
            minute: Window::new(minute.0, minute.1),
            hour: Window::new(hour.0, hour.1),
        };
    }

    /// Sets the lag: from now on, GET requests return each change only after this delay.
    pub fn lag(&self, lag: Duration) {
        self.state().set(lag);
    }

    /// Turns the droplet on or off, as the user does.
    pub fn power(&self, droplet: u64, is_on: bool) {
        if let Some(droplet) = self.state().change().droplets.get_mut(&droplet) {
            droplet.is_on = is_on;
        }
    }

    /// Deletes the droplet, as the user does, and thereby detaches its volumes.
    pub fn delete_droplet(&self, id: u64) {
        let mut state = self.state();
        let state = state.change();
        state.droplets.remove(&id);
        for volume in state.volumes.values_mut() {
            volume.droplet = volume.droplet.filter(|droplet| *droplet != id);
        }
    }

    /// Keeps the droplet busy for this time with an event that another program has caused.
    pub fn occupy(&self, droplet: u64, time: Duration) {
        if let Some(droplet) = self.state().change().droplets.get_mut(&droplet) {
            droplet.foreign = after(time);
        }
    }

    /// Attaches or detaches the volume at once, as if another program had done so.
    pub fn interfere(&self, volume: &str, droplet: Option<u64>) {
        if let Some(volume) = self.state().change().volumes.get_mut(volume) {
            volume.droplet = droplet;
        }
    }

    /// Adds an attach action to the volume's actions, as if another program had attached the volume
    /// to the droplet and later detached it.
    pub fn pass_by(&self, volume: &str, droplet: u64) {
        let mut state = self.state();
        let Some(region) = state
            .latest()
            .volumes
            .get(volume)
            .map(|it| it.region.clone())
        else {
            return;
        };
        let change = state::Change::Attach(droplet);
        let state = state.change();
        let action = self.begin(state, volume, &region, change);
        if let Some(action) = state.actions.get_mut(&action) {
            action.status = state::Status::Completed;
            action.completed_at = Some(state::now());
        }
    }

    /// Returns the droplet of each volume, by volume ID.
    #[must_use]
    pub fn attached(&self) -> BTreeMap<String, Option<u64>> {
        let state = self.state();
        let volumes = state.latest().volumes.iter();
        volumes
            .map(|(id, volume)| (id.clone(), volume.droplet))
            .collect()
    }

    /// Returns the name, size in GiB, description and tags of each volume.
    #[must_use]
    pub fn volumes(&self) -> Vec<(String, u64, String, Vec<String>)> {
        let state = self.state();
        let volumes = state.latest().volumes.values();
        let seen = |volume: &state::Volume| {
            let volume = volume.clone();
            (volume.name, volume.size, volume.description, volume.tags)
        };
        volumes.map(seen).collect()
    }

    /// Adds volumes as if another program had created them.
    pub fn fill(&self, count: usize) {
        for n in 0..count {
            let body = json!({
                "name": format!("other-{n}"), "region": self.regions.first(), "size_gigabytes": 1,
            });
            // Ignore the error if the volume already exists.
            drop(self.create_volume(&body));
        }
    }

    /// Changes the volume as if csi-digitalocean had created it.
    pub fn make_foreign(&self, volume: &str) {
        if let Some(volume) = self.state().change().volumes.get_mut(volume) {
            volume.description = "Created by DigitalOcean CSI driver".to_owned();
            volume.tags.clear();
        }
    }

    /// Ends all running actions now.
    pub fn end_actions(&self) {
        for action in self.state().change().actions.values_mut() {
            action.due = after(Duration::ZERO);
        }
    }

    /// Returns the number of snapshots of volumes.
    #[must_use]
    pub fn snapshots(&self) -> usize {
        self.state().latest().snapshots.len()
    }

    /// Returns the state, after applying actions that have ended.
    fn state(&self) -> MutexGuard<'_, Lag<State>> {
        let mut state = lock(&self.state);
        if state.latest().is_due() {
            state.change().settle();
        }
        state
    }

    fn begin(&self, state: &mut State, volume: &str, region: &str, change: Change) -> u64 {
        let mut settings = self.settings();
        let fails = settings.errored > 0;
        settings.errored = settings.errored.saturating_sub(1);
        let action = state::Action {
            volume: volume.to_owned(),
            change,
            region: region.to_owned(),
            // If the twin has disks, the action ends when the disk has changed.
            due: after(settings.delay).filter(|_| !settings.is_stuck && self.disks.is_none()),
            fails,
            status: state::Status::Running,
            started_at: state::now(),
            completed_at: None,
        };
        let id = state.number();
        state.actions.insert(id, action);
        id
    }

    /// Refuses a request for `more` GiB if it would exceed the account's capacity.
    fn has_room(&self, state: &State, more: u64, what: &str) -> Result<(), Refusal> {
        let settings = self.settings();
        let sizes = state.volumes.values().map(|volume| volume.size);
        let used = sizes.chain(state.snapshots.values().map(|snapshot| snapshot.size));
        match used.sum::<u64>().saturating_add(more) > settings.capacity {
            true => refused(
                settings.capacity_status,
                format!("{what}: volume/snapshot capacity limit exceeded"),
            ),
            false => Ok(()),
        }
    }

    fn route(&self, request: &Request) -> Answer {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let body = request.json();
        match (request.method.as_str(), &parts[1..]) {
            ("GET", ["volumes"]) => Ok(self.list_volumes(request)),
            ("POST", ["volumes"]) => self.create_volume(&body),
            ("GET", ["volumes", id]) => self.volume(id),
            ("DELETE", ["volumes", id]) => self.delete_volume(id),
            ("POST", ["volumes", id, "actions"]) => self.act(id, &body),
            ("GET", ["volumes", id, "actions"]) => self.list_actions(request, id),
            ("GET", ["volumes", id, "actions", action]) => self.action(id, action),
            ("POST", ["volumes", id, "snapshots"]) => self.cut(id, &body),
            ("GET", ["volumes", id, "snapshots"]) => self.list_snapshots_of(request, id),
            ("GET", ["snapshots"]) => Ok(self.list_snapshots(request)),
            ("GET", ["snapshots", id]) => self.snapshot(id),
            ("DELETE", ["snapshots", id]) => self.delete_snapshot(id),
            ("GET", ["droplets", id]) => self.droplet(id),
            ("GET", ["account"]) => self.account(TEAM),
            ("POST", ["tags"]) => self.create_tag(&body),
            ("POST", ["tags", tag, "resources"]) => self.tag_resources(tag, &body),
            _ => not_found(),
        }
    }

    fn droplet(&self, id: &str) -> Answer {
        let state = self.state();
        let state = state.seen();
        let found = id.parse().ok();
        let found = found.and_then(|id| Some((id, state.droplets.get(&id)?)));
        match found {
            Some((id, droplet)) => Ok(Response::json(
                200,
                &json!({ "droplet": state.droplet(id, droplet) }),
            )),
            None => not_found(),
        }
    }

    fn account(&self, team: &str) -> Answer {
        let settings = self.settings();
        if !settings.shows_account {
            return refused(403, "You do not have permission to perform this action.");
        }
        let mut account = json!({
            "droplet_limit": 25, "floating_ip_limit": 3, "volume_limit": settings.volume_limit,
            "email": "twin@example.com", "uuid": format!("user-of-{team}"),
            "email_verified": true, "status": "active", "status_message": "",
        });
        if settings.has_teams {
            account["team"] = json!({ "uuid": team, "name": "My Team" });
        }
        Ok(Response::json(200, &json!({ "account": account })))
    }

    /// Responds to a token of another team, for which no object exists.
    fn route_of_others(&self, request: &Request) -> Answer {
        let path = request.path.trim_matches('/');
        match (request.method.as_str(), path) {
            ("GET", "v2/account") => self.account("another-team"),
            ("GET", "v2/volumes" | "v2/snapshots") => {
                let empty = json!({ "volumes": [], "snapshots": [], "meta": { "total": 0 } });
                Ok(Response::json(200, &empty))
            }
            _ => not_found(),
        }
    }
}

/// Returns the response of the droplet's metadata service for a path.
#[must_use]
pub fn metadata(droplet: u64, region: &str, path: &str) -> Option<String> {
    match path {
        "/metadata/v1/id" => Some(droplet.to_string()),
        "/metadata/v1/region" => Some(region.to_owned()),
        "/metadata/v1.json" => {
            let about = json!({
                "droplet_id": droplet, "hostname": format!("node-{droplet}"), "region": region,
                "interfaces": {}, "dns": { "nameservers": [] },
            });
            Some(about.to_string())
        }
        _ => None,
    }
}

/// Returns the `id` in the body of an error response with this status.
fn word(status: u16) -> &'static str {
    match status {
        400 => "bad_request",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "not_found",
        409 => "conflict",
        422 => "unprocessable_entity",
        429 => "too_many_requests",
        _ => "server_error",
    }
}

/// Returns an error response in the API's format.
#[must_use]
pub fn refusal(status: u16, message: &str) -> Response {
    Response::json(
        status,
        &json!({ "id": word(status), "message": message, "request_id": "twin-1" }),
    )
}

impl Service for DigitalOcean {
    fn answer(&self, request: &Request) -> Response {
        let scheme = request.header("authorization").unwrap_or_default();
        let token = scheme.split_once(' ');
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let token = token.map_or("", |(_, token)| token);
        let (is_own, is_other) = {
            let settings = self.settings();
            let other = settings.other_token.as_deref();
            (token == settings.token, Some(token) == other)
        };
        let early = lock(&self.limits).take();
        let response = match (is_own, is_other, early) {
            (false, false, _) => Err((401, "Unable to authenticate you.".to_owned())),
            (_, _, Some(early)) => Ok(early),
            (_, true, None) => self.route_of_others(request),
            (_, false, None) => self.route(request),
        };
        let response = response.unwrap_or_else(|(status, message)| refusal(status, &message));
        self.dress(response)
    }

    fn kind(&self, request: &Request) -> String {
        let words = [
            "v2",
            "volumes",
            "actions",
            "snapshots",
            "droplets",
            "account",
            "tags",
        ];
        let parts = request.path.trim_matches('/').split('/');
        let parts = parts.map(|part| match words.contains(&part) || part == "resources" {
            true => part,
            false => "ID",
        });
        let path = parts.collect::<Vec<_>>().join("/");
        let mut kind = format!("{} /{path}", request.method);
        if let Some(action) = request.json()["type"].as_str() {
            kind.push_str(&format!(" {action}"));
        }
        kind
    }

    fn dress(&self, mut response: Response) -> Response {
        response.headers.extend(lock(&self.limits).headers());
        response.headers.push(("x-request-id", "twin-1".to_owned()));
        response
    }
}

/// Returns a text of the body; `None` if it is missing, empty or null.
fn given<'a>(body: &'a Value, key: &str) -> Option<&'a str> {
    body[key].as_str().filter(|text| !text.is_empty())
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}
