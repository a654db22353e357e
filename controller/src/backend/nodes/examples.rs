//! Objects for unit tests, and responses of an API server.

use super::{Limits, Nodes};
use crate::http::tests::{Act, Server};
use crate::kubernetes::{
    Client, Event, FINALIZER, LocalDisk, LocalSnapshot, LocalVolume, Object, Resource,
};
use belay_contract::drivers::LOCAL;
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::TempDir;

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
            "version": 1, "id": ID, "name": "pvc-1", "place": "place1", "disk": "default",
            "node": "node1", "bytes": 2, "usage": {"mode": "Block"},
        },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// Returns an accepted snapshot of the volume with this status, in JSON.
pub(super) fn snapshot(status: &str) -> Object<LocalSnapshot> {
    let status: Value = serde_json::from_str(status).unwrap();
    let object = json!({
        "metadata": {"name": "snap-1", "uid": "uid-s", "finalizers": [FINALIZER]},
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

/// Returns the object in JSON, without an empty list of finalizers, as the server does.
pub(super) fn encoded<R: Resource>(of: &Object<R>) -> Value {
    let metadata = &of.metadata;
    let mut object = json!({
        "metadata": {
            "name": metadata.name, "uid": metadata.uid, "generation": metadata.generation,
            "resourceVersion": metadata.resource_version,
        },
        "spec": of.spec, "status": of.status,
    });
    if !metadata.finalizers.is_empty() {
        object["metadata"]["finalizers"] = json!(metadata.finalizers);
    }
    object
}

/// Returns the object with these fields, in JSON, added to a part of it.
pub(super) fn changed<R: Resource>(of: &Object<R>, part: &str, fields: &str) -> Object<R> {
    let mut object = encoded(of);
    let fields: Value = serde_json::from_str(fields).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        object[part][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// Responds with this object, whose version is 2.
pub(super) fn shows(volume: &Object<LocalVolume>) -> Act {
    let volume = changed(volume, "metadata", r#"{"resourceVersion": "2"}"#);
    Act::answer("200 OK", &encoded(&volume).to_string())
}

/// Responds that the object has changed.
pub(super) fn conflict() -> Act {
    let status = r#"{"kind": "Status", "reason": "Conflict"}"#;
    Act::answer("409 Conflict", status)
}

/// Responds that the object does not exist.
pub(super) fn missing() -> Act {
    let status = r#"{"kind": "Status", "reason": "NotFound",
        "details": {"name": "pvc-1", "kind": "localvolumes"}}"#;
    Act::answer("404 Not Found", status)
}

/// Returns a backend that makes no calls, with empty caches.
pub(super) fn unused() -> (Nodes, TempDir) {
    let (client, dir) = Client::unused();
    let nodes = Nodes::new(Arc::new(client), LOCAL.name, Limits::default());
    (nodes, dir)
}

/// Returns a backend whose API server responds like this. Its cache contains the volume, and the
/// volume's disk.
pub(super) async fn nodes(
    limits: Limits,
    volume: Object<LocalVolume>,
    acts: Vec<Act>,
) -> (Nodes, Server, TempDir) {
    let server = Server::start(acts).await;
    let (client, dir) = Client::example(&server);
    let nodes = Nodes::new(Arc::new(client), LOCAL.name, limits);
    let reports = disk(r#"{"promisable": 100}"#);
    nodes.front.disks.apply(Ok(Event::Listed(vec![reports])));
    nodes.front.volumes.apply(Ok(Event::Listed(vec![volume])));
    (nodes, server, dir)
}
