//! Objects for unit tests.

use crate::kubernetes::{LocalDisk, LocalSnapshot, LocalVolume, Object, Resource};
use serde_json::{Value, json};

/// The ID of the volume.
pub(super) const ID: &str = "vol-00000000000000000000000000000001";

/// Returns a volume of 2 bytes with these finalizers and this status, in JSON.
pub(super) fn volume(finalizers: &[&str], status: &str) -> Object<LocalVolume> {
    let status: Value = serde_json::from_str(status).unwrap();
    let object = json!({
        "metadata": {
            "name": "pvc-1", "uid": "uid", "resourceVersion": "1", "generation": 3,
            "finalizers": finalizers,
        },
        "spec": {
            "version": 1, "id": ID, "name": "pvc-1", "place": "place1", "disk": "default", "node": "node1",
            "bytes": 2, "usage": {"mode": "Block"},
        },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// Returns an accepted snapshot of the volume with this status, in JSON.
pub(super) fn snapshot(status: &str) -> Object<LocalSnapshot> {
    let status: Value = serde_json::from_str(status).unwrap();
    let object = json!({
        "metadata": {"name": "snap-1", "uid": "uid-s", "finalizers": ["belay.dev/store"]},
        "spec": {
            "version": 1, "id": "snap-1", "name": "snap-1", "place": "place1", "disk": "default",
            "node": "node1", "volume": ID,
        },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// Returns the disk of the volume with this status, in JSON.
pub(super) fn disk(status: &str) -> Object<LocalDisk> {
    let status: Value = serde_json::from_str(status).unwrap();
    let object = json!({
        "metadata": {"name": "node1.default", "uid": "uid-d"},
        "spec": {"place": "place1", "disk": "default", "node": "node1"},
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// Returns the object with these fields, in JSON, added to a part of it.
pub(super) fn changed<R: Resource>(of: &Object<R>, part: &str, fields: &str) -> Object<R> {
    let metadata = &of.metadata;
    let mut object = json!({
        "metadata": {
            "name": metadata.name, "uid": metadata.uid, "generation": metadata.generation,
            "resourceVersion": metadata.resource_version, "finalizers": metadata.finalizers,
        },
        "spec": of.spec, "status": of.status,
    });
    let fields: Value = serde_json::from_str(fields).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        object[part][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}
