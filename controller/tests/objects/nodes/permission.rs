//! The permission to use an empty directory as a disk, with a real store.

use super::{DRIVER, Front, LONG};
use crate::server::Server;
use crate::store::{Node, is_served, problem};
use belay_contract::drivers::LOCAL;
use belay_controller::backend::nodes::Limits;
use serde_json::{Value, json};
use std::time::Duration;

/// Creates a PersistentVolume of 16 MiB on the default disk of a place.
pub(super) fn persistent(server: &Server, name: &str, handle: &str, place: &str) {
    let expression = json!({"key": LOCAL.topology_key, "operator": "In", "values": [place]});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"},
            "volumeMode": "Block", "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": DRIVER, "volumeHandle": handle},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [expression]},
            ]}},
        },
    });
    let create = ["create", "--filename", "-"];
    server.kubectl_with(&create, &volume.to_string());
}

/// Deletes a PersistentVolume. No controller runs that would remove its finalizer.
pub(super) fn delete_persistent(server: &Server, name: &str) {
    let none = json!({"metadata": {"finalizers": Value::Null}}).to_string();
    server.kubectl(&["patch", "pv", name, "--type=merge", "--patch", &none]);
    server.kubectl(&["delete", "pv", name]);
}

pub(crate) async fn an_empty_directory_is_used_unless_a_volume_names_it(server: &Server) {
    let quick = Limits {
        check: Duration::from_millis(300),
        ..LONG
    };
    persistent(server, "claims-1", "vol-of-another-life", "fresh");
    let _front = Front::start(server, quick).await;
    let mut node = Node::new(server, "fresh");
    node.start();
    node.disk_shows("fast", is_served).await;
    // The volume is on the other disk, whose store has waited as long.
    node.disk_shows("default", |it| problem(it).contains("permission"))
        .await;
    assert!(node.is_empty("default"));
    let disk = node.disk_named("default").await;
    assert_eq!(disk.spec.known().unwrap().begin, None);
    delete_persistent(server, "claims-1");
    node.disk_shows("default", is_served).await;
}
