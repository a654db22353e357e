//! Calls about volumes. A change of a volume takes effect some time after the response.

use super::disks::Change;
use super::objects::{Status, Volume};
use super::{Answer, CLUSTER, Refusal, Twin, VOLUME_TYPE};
use serde_json::{Value, json};
use std::time::Instant;

fn success() -> Value {
    json!({"result": "success"})
}

/// Returns a member of a body if it is a non-empty text.
fn text(body: &Value, key: &str) -> Option<String> {
    let text = body[key].as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
}

impl Twin {
    pub(super) fn volumes(
        &mut self,
        method: &str,
        path: &[&str],
        body: &Value,
        region: &str,
    ) -> Answer {
        match (method, path) {
            ("GET", []) => {
                let volumes = self.state.seen().volumes.values();
                let here = volumes.filter(|volume| volume.region == region);
                let nulls = self.settings.has_nulls;
                Ok(here.map(|volume| volume.described(nulls)).collect())
            }
            ("GET", [id]) => {
                let volume = self.state.seen().volumes.get(*id);
                let volume = volume.filter(|volume| volume.region == region);
                let volume = volume.ok_or_else(|| no_volume(id))?;
                Ok(volume.described(self.settings.has_nulls))
            }
            ("POST", []) => self.create(body, region),
            ("DELETE", [id]) => self.delete(id, region),
            ("PUT", [id, "attach"]) => self.attach(id, body, region),
            ("PUT", [id, "detach"]) => self.detach(id, region),
            ("PUT", [id, "resize"]) => self.resize(id, body, region),
            _ => Err(Refusal::NoSuchPath),
        }
    }

    fn create(&mut self, body: &Value, region: &str) -> Answer {
        let name = text(body, "name").ok_or(Refusal::BadName)?;
        if name.contains(char::is_whitespace) {
            return Err(Refusal::BadName);
        }
        let gib = body["size_gb"].as_u64().ok_or(Refusal::NoSize)?;
        if gib == 0 {
            return Err(Refusal::BadSize);
        }
        let state = self.state.latest();
        let is_taken = |volume: &Volume| volume.name == name && volume.region == region;
        if self.settings.has_unique_names && state.volumes.values().any(is_taken) {
            return Err(Refusal::DuplicateName);
        }
        let from = text(body, "snapshot_id");
        if let Some(id) = &from {
            let snapshot = state.snapshots.get(id).ok_or(Refusal::NoSnapshot)?;
            if snapshot.gib > gib {
                return Err(Refusal::BadSize);
            }
        }
        let (used, limit) = (self.usage(), &self.settings.quota);
        if used.gib + gib > limit.gib || used.volumes >= limit.volumes {
            return Err(Refusal::Quota);
        }
        let cluster = text(body, "cluster_id").unwrap_or_default();
        // A request that does not name the twin's cluster must name a network.
        let network = match (text(body, "network_id"), cluster == CLUSTER) {
            (Some(network), _) => network,
            (None, true) => "n-1".to_owned(),
            (None, false) => return Err(Refusal::NoCluster),
        };
        let mut volume = Volume {
            name: name.clone(),
            gib,
            region: region.to_owned(),
            cluster,
            network,
            volume_type: text(body, "volume_type").unwrap_or_else(|| VOLUME_TYPE.to_owned()),
            bootable: body["bootable"] == true,
            from,
            fails: self.settings.creation_fails,
            ..Volume::default()
        };
        volume.begin(Status::Creating, Instant::now() + self.settings.delay, gib);
        let bytes = volume.disk_bytes();
        let from = volume.from.clone();
        let id = self.state.change().insert(volume);
        self.make_disk(&id, bytes, from.as_deref())?;
        // A response of the real API may have an empty result and a null status.
        Ok(json!({"id": id, "name": name, "result": "", "status": null}))
    }

    /// Creates the disk of a volume. Has no effect if the twin has no disks.
    fn make_disk(&mut self, id: &str, bytes: u64, from: Option<&str>) -> Result<(), Refusal> {
        let made = self.disk("create", |disks| match from {
            None => disks.create(id, bytes),
            Some(from) => {
                disks.copy(from, id)?;
                disks.grow(id, bytes)
            }
        });
        if made.is_err() {
            self.state.change().volumes.remove(id);
        }
        made
    }

    /// Returns the volume, if the volume is in this region and is not being removed.
    fn at_rest(&self, id: &str, region: &str) -> Result<Volume, Refusal> {
        let volume = self.state.latest().volumes.get(id);
        let volume = volume.filter(|volume| volume.region == region && volume.removed.is_none());
        volume.cloned().ok_or_else(|| no_volume(id))
    }

    fn put(&mut self, id: &str, change: impl FnOnce(&mut Volume, Instant)) {
        let at = self.end();
        if let Some(volume) = self.state.change().volumes.get_mut(id) {
            change(volume, at);
        }
    }

    fn delete(&mut self, id: &str, region: &str) -> Answer {
        let volume = self.at_rest(id, region)?;
        let is_at_rest = matches!(volume.status, Status::Available | Status::Error);
        if volume.instance.is_some() || !is_at_rest {
            return Err(Refusal::DeleteFailed);
        }
        if self.kept.contains(id) {
            let message = format!("{id} is deleted, and a caller has it");
            self.broken.push(message);
        }
        self.disk("remove", |disks| disks.remove(id))?;
        match self.settings.lingers {
            true => {
                let at = Instant::now() + self.settings.delay;
                self.put(id, |volume, _| volume.removed = Some(at));
            }
            false => drop(self.state.change().volumes.remove(id)),
        }
        Ok(success())
    }

    fn attach(&mut self, id: &str, body: &Value, region: &str) -> Answer {
        let volume = self.at_rest(id, region)?;
        let instance = text(body, "instance_id").ok_or(Refusal::NoInstance)?;
        let known = self.state.latest().instances.get(&instance);
        let hostname = known.ok_or(Refusal::NoInstance)?.hostname.clone();
        if body["attach_at_boot"] == true {
            self.broken.push(format!("{id} would wait for a reboot"));
        }
        if volume.status != Status::Available {
            return Err(Refusal::AttachedElsewhere);
        }
        self.put(id, |volume, at| {
            volume.instance = Some(instance);
            let gib = volume.gib;
            volume.begin(Status::Attaching, at, gib);
        });
        self.perform(id, Change::Plug(hostname));
        Ok(success())
    }

    /// Detaches the volume from its current instance; the request does not name an instance.
    fn detach(&mut self, id: &str, region: &str) -> Answer {
        let volume = self.at_rest(id, region)?;
        if volume.status != Status::Attached {
            return Err(Refusal::NotAttached);
        }
        // A delayed detach from an earlier instance would detach the volume from its current
        // instance.
        if let Some(instance) = self.in_use.get(id) {
            self.broken
                .push(format!("{id} is detached, and {instance} uses it"));
        }
        self.put(id, |volume, at| {
            let gib = volume.gib;
            volume.begin(Status::Detaching, at, gib);
        });
        self.perform(id, Change::Unplug);
        Ok(success())
    }

    fn resize(&mut self, id: &str, body: &Value, region: &str) -> Answer {
        let volume = self.at_rest(id, region)?;
        let gib = body["size_gb"].as_u64().ok_or(Refusal::NoSize)?;
        if volume.instance.is_some() {
            return Err(Refusal::StillAttached);
        }
        if volume.status != Status::Available {
            return Err(Refusal::CannotResize);
        }
        if gib <= volume.gib {
            return Err(Refusal::NotLarger);
        }
        if self.usage().gib + (gib - volume.gib) > self.settings.quota.gib {
            return Err(Refusal::Quota);
        }
        self.put(id, |volume, at| volume.begin(Status::Resizing, at, gib));
        self.perform(id, Change::Grow);
        Ok(success())
    }
}

/// Returns the refusal for an ID that no volume has. For an ID that is not a UUID, the refusal is a
/// different one.
fn no_volume(id: &str) -> Refusal {
    match id.split('-').map(str::len).eq([8, 4, 4, 4, 12]) {
        true => Refusal::NoVolume,
        false => Refusal::BadVolumeId,
    }
}
