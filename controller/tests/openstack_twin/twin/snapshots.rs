//! The snapshots of the twin. Unlike Cinder's, they do not prevent the deletion of their volume.

use super::{Answer, Refusal, Request, Twin, list, ok, settle, texts};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

pub(super) struct Snapshot {
    name: String,
    pub(super) of: String,
    pub(super) gib: u64,
    metadata: BTreeMap<String, String>,
    pub(super) status: &'static str,
    /// The end of the change in progress, and whether the snapshot is deleted then.
    pub(super) next: Option<(Instant, bool)>,
}

impl Snapshot {
    /// Whether it still exists.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        settle(&mut self.next, &mut self.status, now)
    }

    fn described(&self, id: &str) -> Value {
        json!({
            "id": id, "name": self.name, "size": self.gib, "status": self.status,
            "volume_id": self.of, "metadata": self.metadata, "description": "Created by Belay",
            "created_at": "2026-01-01T00:00:00.000000", "updated_at": null,
            "os-extended-snapshot-attributes:progress": "100%",
            "os-extended-snapshot-attributes:project_id": "0123456789abcdef0123456789abcdef",
        })
    }
}

impl Twin {
    /// Returns the IDs of all snapshots.
    pub(crate) fn snapshots(&mut self) -> BTreeSet<String> {
        self.settle();
        self.snapshots.keys().cloned().collect()
    }

    pub(super) fn snapshot(
        &mut self,
        request: &Request<'_>,
        path: &[&str],
    ) -> Result<Answer, Refusal> {
        let at = Instant::now() + self.delay;
        let body = &request.body;
        match (request.method, path) {
            ("GET", ["detail"]) => {
                let seen = |(id, snapshot): (&String, &Snapshot)| {
                    (id.clone(), (snapshot.name.clone(), snapshot.described(id)))
                };
                let all = self.snapshots.iter().map(seen).collect();
                Ok(list("snapshots", &all, request.query))
            }
            ("GET", [id]) => {
                let snapshot = self.snapshots.get(*id).ok_or((404, "not found"))?;
                Ok(ok(200, json!({ "snapshot": snapshot.described(id) })))
            }
            ("POST", []) => {
                let order = &body["snapshot"];
                let of = order["volume_id"].as_str().unwrap().to_owned();
                let is_forced = order["force"] == true;
                let volume = self.at_rest(&of)?;
                if volume.server.is_some() && !is_forced {
                    return Err((400, "Invalid volume: it is attached"));
                }
                let snapshot = Snapshot {
                    name: order["name"].as_str().unwrap().to_owned(),
                    gib: volume.gib,
                    metadata: texts(&order["metadata"]),
                    status: "creating",
                    next: Some((at, false)),
                    of,
                };
                let id = self.new_id();
                let described = snapshot.described(&id);
                self.snapshots.insert(id, snapshot);
                Ok(ok(202, json!({ "snapshot": described })))
            }
            ("POST", [id, "metadata"]) => {
                let snapshot = self.snapshots.get_mut(*id).ok_or((404, "not found"))?;
                let added = texts(&body["metadata"]);
                if added.keys().any(|key| key.contains('/')) {
                    return Err((400, "Additional properties are not allowed"));
                }
                snapshot.metadata.extend(added);
                Ok(ok(200, json!({ "metadata": snapshot.metadata })))
            }
            ("DELETE", [id]) => {
                let snapshot = self.snapshots.get_mut(*id).ok_or((404, "not found"))?;
                if snapshot.next.is_some() {
                    return Err((400, "Invalid snapshot: it is being changed"));
                }
                snapshot.status = "deleting";
                snapshot.next = Some((at, true));
                if self.answered.contains(*id) {
                    self.broken
                        .push(format!("{id} is deleted, and a caller has it"));
                }
                Ok(ok(202, Value::Null))
            }
            _ => Err((404, "no such resource")),
        }
    }
}
