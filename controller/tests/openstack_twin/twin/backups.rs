//! The backups of the twin: each is copied from a snapshot, and restored into a new volume, which
//! then has the metadata of the backup's volume.

use super::{Answer, Next, Refusal, Request, Twin, list, ok, settle, texts};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

pub(super) struct Backup {
    name: String,
    of: String,
    basis: String,
    gib: u64,
    metadata: BTreeMap<String, String>,
    /// The metadata of the backup's volume.
    carries: BTreeMap<String, String>,
    status: &'static str,
    /// The end of the change in progress, and whether the backup is deleted then.
    next: Option<(Instant, bool)>,
}

impl Backup {
    /// Whether it still exists.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        settle(&mut self.next, &mut self.status, now)
    }

    fn described(&self, id: &str) -> Value {
        json!({
            "id": id, "name": self.name, "size": self.gib, "status": self.status,
            "volume_id": self.of, "snapshot_id": self.basis, "metadata": self.metadata,
            "description": "Created by Belay", "fail_reason": null, "is_incremental": false,
            "created_at": "2026-01-01T00:00:00.000000",
            "data_timestamp": "2026-01-01T00:00:00.000000",
        })
    }
}

impl Twin {
    /// Returns the IDs of all backups.
    pub(crate) fn backups(&mut self) -> BTreeSet<String> {
        self.settle();
        self.backups.keys().cloned().collect()
    }

    pub(super) fn backup(
        &mut self,
        request: &Request<'_>,
        path: &[&str],
    ) -> Result<Answer, Refusal> {
        let at = Instant::now() + self.delay;
        match (request.method, path) {
            ("GET", ["detail"]) => {
                let seen = |(id, backup): (&String, &Backup)| {
                    (id.clone(), (backup.name.clone(), backup.described(id)))
                };
                let all = self.backups.iter().map(seen).collect();
                Ok(list("backups", &all, request.query))
            }
            ("GET", [id]) => {
                let backup = self.backups.get(*id).ok_or((404, "not found"))?;
                Ok(ok(200, json!({ "backup": backup.described(id) })))
            }
            ("POST", []) => {
                let id = self.back_up(&request.body["backup"], at)?;
                Ok(ok(202, json!({ "backup": {"id": id} })))
            }
            ("PUT", [id]) => {
                let backup = self.backups.get_mut(*id).ok_or((404, "not found"))?;
                backup.metadata = texts(&request.body["backup"]["metadata"]);
                Ok(ok(200, json!({ "backup": {"id": id} })))
            }
            ("DELETE", [id]) => {
                let backup = self.at_rest_backup(id)?;
                backup.status = "deleting";
                backup.next = Some((at, true));
                if self.answered.contains(*id) {
                    self.broken
                        .push(format!("{id} is deleted, and a caller has it"));
                }
                Ok(ok(202, Value::Null))
            }
            _ => Err((404, "no such resource")),
        }
    }

    /// Returns the backup, if it is not being changed.
    fn at_rest_backup(&mut self, id: &str) -> Result<&mut Backup, Refusal> {
        let backup = self.backups.get_mut(id).ok_or((404, "not found"))?;
        match backup.next {
            None => Ok(backup),
            Some(_) => Err((400, "Invalid backup: it is being changed")),
        }
    }

    fn back_up(&mut self, order: &Value, at: Instant) -> Result<String, Refusal> {
        let of = order["volume_id"].as_str().unwrap().to_owned();
        let basis = order["snapshot_id"].as_str().unwrap().to_owned();
        let snapshot = self.snapshots.get_mut(&basis).ok_or((404, "not found"))?;
        if snapshot.next.is_some() || snapshot.of != of {
            return Err((400, "Invalid snapshot: must be available"));
        }
        snapshot.status = "backing-up";
        snapshot.next = Some((at, false));
        let backup = Backup {
            name: order["name"].as_str().unwrap().to_owned(),
            gib: snapshot.gib,
            metadata: texts(&order["metadata"]),
            carries: self.volumes[&of].metadata.clone(),
            status: "creating",
            next: Some((at, false)),
            of,
            basis,
        };
        let id = self.new_id();
        self.backups.insert(id.clone(), backup);
        Ok(id)
    }

    /// Creates a volume, empty or from an existing snapshot.
    pub(super) fn copy(&mut self, order: &Value) -> Result<String, Refusal> {
        let from = order["snapshot_id"].as_str();
        if from.is_some_and(|id| !self.snapshots.contains_key(id)) {
            return Err((404, "no such snapshot"));
        }
        Ok(self.create(order, self.delay))
    }

    /// Creates a volume from a backup, which cannot be restored again meanwhile.
    pub(super) fn restore(&mut self, order: &Value, backup: &str) -> Result<String, Refusal> {
        let at = Instant::now() + self.delay;
        let from = self.at_rest_backup(backup)?;
        from.status = "restoring";
        from.next = Some((at, false));
        let mut carries = from.carries.clone();
        carries.insert("src_backup_id".to_owned(), backup.to_owned());
        let id = self.create(order, self.delay);
        let volume = self.volumes.get_mut(&id).unwrap();
        volume.begin("restoring-backup", at, Next::Restored(carries));
        Ok(id)
    }
}
