//! Calls about snapshots of volumes. Two snapshots may have the same name, since no error code for
//! a duplicate name is known.

use super::objects::{Snapshot, Status};
use super::state::now;
use super::{Answer, Refusal, Twin};
use serde_json::{Value, json};
use std::time::Instant;

impl Twin {
    /// Handles `/v2/volumes/{id}/snapshots`.
    pub(super) fn snapshots_of(
        &mut self,
        method: &str,
        volume: &str,
        path: &[&str],
        body: &Value,
        region: &str,
    ) -> Answer {
        match (method, path) {
            ("POST", []) => self.cut(volume, body, region),
            ("GET", []) => Ok(self.listed(region, |snapshot| snapshot.volume == volume)),
            ("GET", [id]) => self.shown(id, region),
            _ => Err(Refusal::NoSuchPath),
        }
    }

    /// Handles `/v2/snapshots`. Without `resource_type=volume`, the list contains only snapshots of
    /// instances, and the twin has none of these.
    pub(super) fn snapshots(
        &mut self,
        method: &str,
        path: &[&str],
        is_of_volumes: bool,
        region: &str,
    ) -> Answer {
        match (method, path) {
            ("GET", []) => Ok(self.listed(region, |_| is_of_volumes)),
            ("GET", [id]) if is_of_volumes => self.shown(id, region),
            ("GET", [_]) => Err(Refusal::NoSnapshot),
            ("DELETE", [id]) => {
                let state = self.state.latest();
                let snapshot = state.snapshots.get(*id);
                snapshot
                    .filter(|snapshot| snapshot.region == region)
                    .ok_or(Refusal::NoSnapshot)?;
                let mut volumes = state.volumes.values();
                // The snapshot is in use while a volume is being created from it.
                let is_in_use = volumes.any(|volume| {
                    volume.from.as_deref() == Some(*id) && volume.status == Status::Creating
                });
                if is_in_use {
                    return Err(Refusal::SnapshotInUse);
                }
                self.disk("remove", |disks| disks.remove(id))?;
                self.state.change().snapshots.remove(*id);
                Ok(json!({"result": "success"}))
            }
            _ => Err(Refusal::NoSuchPath),
        }
    }

    fn listed(&self, region: &str, is_meant: impl Fn(&Snapshot) -> bool) -> Value {
        let now = Instant::now();
        let all = self.state.seen().snapshots.values();
        let found = all.filter(|snapshot| snapshot.region == region && is_meant(snapshot));
        found.map(|snapshot| snapshot.described(now)).collect()
    }

    fn shown(&self, id: &str, region: &str) -> Answer {
        let snapshot = self.state.seen().snapshots.get(id);
        let snapshot = snapshot.filter(|snapshot| snapshot.region == region);
        let snapshot = snapshot.ok_or(Refusal::NoSnapshot)?;
        Ok(snapshot.described(Instant::now()))
    }

    fn cut(&mut self, id: &str, body: &Value, region: &str) -> Answer {
        let state = self.state.latest();
        let volume = state.volumes.get(id).ok_or(Refusal::NoVolume)?;
        let at = Instant::now();
        let mut own = state.snapshots.values();
        if own.any(|snapshot| snapshot.volume == id && snapshot.ready > at) {
            return Err(Refusal::SnapshotInProcess);
        }
        if self.usage().snapshots >= self.settings.quota.snapshots {
            return Err(Refusal::Quota);
        }
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let mut snapshot = Snapshot {
            id: String::new(),
            name: text("name"),
            description: text("description"),
            volume: id.to_owned(),
            volume_name: volume.name.clone(),
            gib: volume.gib,
            region: region.to_owned(),
            created: now(),
            ready: at + self.settings.delay,
            is_available: state.snapshots.len() % 2 == 1,
        };
        snapshot.id = self.state.change().id();
        self.disk("cut", |disks| disks.copy(id, &snapshot.id))?;
        let state = self.state.change();
        let body = snapshot.described(at);
        state.snapshots.insert(snapshot.id.clone(), snapshot);
        Ok(body)
    }
}
