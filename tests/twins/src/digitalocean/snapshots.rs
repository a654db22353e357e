//! Snapshots of volumes. A list of snapshots without a filter also contains one snapshot of a
//! droplet.

use super::state::{Snapshot, now};
use super::{Answer, DigitalOcean, given, not_found, refused, show, texts};
use crate::http::{Request, Response};
use serde_json::{Value, json};
use std::time::Instant;

/// Maximum number of snapshots of a volume.
const MOST: usize = 25;

/// The ID of the droplet's snapshot, which every list without a filter contains.
const OF_A_DROPLET: &str = "119192817";

impl DigitalOcean {
    pub(super) fn cut(&self, id: &str, body: &Value) -> Answer {
        let mut state = self.state();
        let Some(volume) = state.latest().volumes.get(id).cloned() else {
            return not_found();
        };
        let Some(name) = given(body, "name") else {
            return refused(422, "name is required");
        };
        let mut snapshots = state.latest().snapshots.values();
        if snapshots.any(|snapshot| snapshot.name == name && snapshot.region == volume.region) {
            return refused(409, "a snapshot with this name already exists");
        }
        let rest = self.settings().snapshot_rest;
        if volume
            .last_snapshot
            .is_some_and(|last| last.elapsed() < rest)
        {
            return refused(
                429,
                "failed to create snapshot: this operation is rate-limited - one request per \
                 10m0s",
            );
        }
        let snapshots = state.latest().snapshots.values();
        if snapshots.filter(|snapshot| snapshot.volume == id).count() >= MOST {
            return refused(422, "the volume has too many snapshots");
        }
        self.has_room(state.latest(), volume.size, "failed to create snapshot")?;
        let state = state.change();
        let (new, tags) = (state.uuid(), texts(&body["tags"]));
        let snapshot = Snapshot {
            name: name.to_owned(),
            volume: id.to_owned(),
            region: volume.region,
            size: volume.size,
            tags: tags.iter().map(|tag| state.tag(tag)).collect(),
            created_at: now(),
        };
        self.disk("cut", |disks| disks.copy(id, &new))?;
        if let Some(volume) = state.volumes.get_mut(id) {
            volume.last_snapshot = Some(Instant::now());
        }
        let shown = show::snapshot(&new, &snapshot);
        state.snapshots.insert(new, snapshot);
        Ok(Response::json(201, &json!({ "snapshot": shown })))
    }

    pub(super) fn list_snapshots(&self, request: &Request) -> Response {
        let (kind, region) = (request.asked("resource_type"), request.asked("region"));
        let state = self.state();
        let snapshots = state.seen().snapshots.iter();
        let snapshots = snapshots
            .filter(|(_, snapshot)| region.is_none_or(|region| snapshot.region == region))
            .filter(|_| kind != Some("droplet"));
        let mut shown: Vec<_> = snapshots
            .map(|(id, snapshot)| show::snapshot(id, snapshot))
            .collect();
        if kind != Some("volume") {
            shown.push(json!({
                "id": OF_A_DROPLET, "name": "of a droplet", "resource_id": "1",
                "resource_type": "droplet", "regions": self.regions, "min_disk_size": 25,
                "size_gigabytes": 2.34, "created_at": "2026-01-01T00:00:00Z", "tags": null,
            }));
        }
        show::page(request, "snapshots", shown)
    }

    pub(super) fn list_snapshots_of(&self, request: &Request, volume: &str) -> Answer {
        let state = self.state();
        if !state.seen().volumes.contains_key(volume) {
            return not_found();
        }
        let snapshots = state.seen().snapshots.iter();
        let snapshots = snapshots.filter(|(_, snapshot)| snapshot.volume == volume);
        let shown = snapshots.map(|(id, snapshot)| show::snapshot(id, snapshot));
        Ok(show::page(request, "snapshots", shown.collect()))
    }

    pub(super) fn snapshot(&self, id: &str) -> Answer {
        match self.state().seen().snapshots.get(id) {
            Some(snapshot) => Ok(Response::json(
                200,
                &json!({ "snapshot": show::snapshot(id, snapshot) }),
            )),
            None => not_found(),
        }
    }

    pub(super) fn delete_snapshot(&self, id: &str) -> Answer {
        if id == OF_A_DROPLET {
            return refused(400, "the resource is not a snapshot");
        }
        match self.state().change().snapshots.remove(id) {
            Some(_) => {
                self.disk("remove", |disks| disks.remove(id))?;
                Ok(Response::json(204, &Value::Null))
            }
            None => not_found(),
        }
    }
}
