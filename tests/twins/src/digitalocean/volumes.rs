//! Volumes: list, create, get, delete.

use super::state::{State, Volume, now};
use super::{Answer, DigitalOcean, Refusal, given, not_found, refused, show, texts};
use crate::http::{Request, Response};
use serde_json::{Value, json};

const NAME_MAX: usize = 64;

/// Whether the name is a lower-case letter followed by lower-case letters, digits and dashes. Until
/// 2019, underscores were allowed, too.
fn is_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(is_fine)
}

impl DigitalOcean {
    pub(super) fn list_volumes(&self, request: &Request) -> Response {
        let (name, region) = (request.asked("name"), request.asked("region"));
        let at_accept = self.settings().shows_at_accept;
        let state = self.state();
        let state = state.seen();
        let volumes = state.volumes.iter().filter(|(_, volume)| {
            name.is_none_or(|name| volume.name == name)
                && region.is_none_or(|region| volume.region == region)
        });
        let shown = volumes.map(|(id, volume)| state.volume(id, volume, at_accept));
        show::page(request, "volumes", shown.collect())
    }

    pub(super) fn volume(&self, id: &str) -> Answer {
        let at_accept = self.settings().shows_at_accept;
        let state = self.state();
        let state = state.seen();
        let Some(volume) = state.volumes.get(id) else {
            return not_found();
        };
        let shown = state.volume(id, volume, at_accept);
        Ok(Response::json(200, &json!({ "volume": shown })))
    }

    pub(super) fn create_volume(&self, body: &Value) -> Answer {
        let settings = self.settings().clone();
        let Some(name) = given(body, "name").filter(|name| is_name(name)) else {
            return refused(
                422,
                "failed to create volume: invalid volume name. names must be lowercase and \
                 alphanumeric",
            );
        };
        let mut state = self.state();
        let source = given(body, "snapshot_id");
        let from = source.map(|id| state.latest().snapshots.get(id).cloned());
        let from = match from {
            Some(None) => return refused(404, "snapshot not found"),
            from => from.flatten(),
        };
        let asked = given(body, "region").or(from.as_ref().map(|it| it.region.as_str()));
        let Some(region) = asked.filter(|slug| self.regions.contains(slug)) else {
            return refused(422, "region is not valid");
        };
        if from.as_ref().is_some_and(|from| from.region != region) {
            return refused(422, "the snapshot is not available in this region");
        }
        let size = body["size_gigabytes"].as_u64().unwrap_or(0);
        let size = match &from {
            Some(from) if !settings.restores_larger || size == 0 => from.size,
            Some(from) => size.max(from.size),
            None => size,
        };
        if !(1..=settings.size_max).contains(&size) {
            return refused(422, "failed to create volume: invalid size specified");
        }
        let mut volumes = state.latest().volumes.values();
        if volumes.any(|volume| volume.name == name && volume.region == region) {
            return refused(409, "a volume with this name already exists");
        }
        let count = state.latest().volumes.len();
        if settings.volume_limit > 0 && count >= settings.volume_limit {
            return refused(
                settings.capacity_status,
                "failed to create volume: volume/snapshot capacity limit exceeded",
            );
        }
        self.has_room(state.latest(), size, "failed to create volume")?;
        let state = state.change();
        let id = state.uuid();
        let volume = new_volume(state, body, (name, region, size));
        self.make_disk(&id, size, source)?;
        let shown = state.volume(&id, &volume, false);
        state.volumes.insert(id, volume);
        Ok(Response::json(201, &json!({ "volume": shown })))
    }

    fn make_disk(&self, id: &str, size: u64, source: Option<&str>) -> Result<(), Refusal> {
        self.disk("create", |disks| match source {
            None => disks.create(id, size << 30),
            Some(source) => {
                disks.copy(source, id)?;
                disks.grow(id, size << 30)
            }
        })
    }

    pub(super) fn delete_volume(&self, id: &str) -> Answer {
        let mut state = self.state();
        let is_busy = state.latest().running(id).is_some();
        match state.latest().volumes.get(id) {
            None => not_found(),
            Some(volume) if volume.droplet.is_some() || is_busy => {
                refused(409, "attached volume cannot be deleted")
            }
            Some(_) => {
                self.disk("remove", |disks| disks.remove(id))?;
                state.change().volumes.remove(id);
                Ok(Response::json(204, &Value::Null))
            }
        }
    }
}

/// Creates a volume as the client requests it, with this name, region and size in GiB.
fn new_volume(state: &mut State, body: &Value, (name, region, size): (&str, &str, u64)) -> Volume {
    let text = |key| given(body, key).unwrap_or_default().to_owned();
    Volume {
        name: name.to_owned(),
        region: region.to_owned(),
        size,
        description: text("description"),
        filesystem: (text("filesystem_type"), text("filesystem_label")),
        tags: texts(&body["tags"])
            .iter()
            .map(|tag| state.tag(tag))
            .collect(),
        droplet: None,
        created_at: now(),
        last_snapshot: None,
    }
}
