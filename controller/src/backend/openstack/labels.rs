//! The names of Kubernetes in the metadata of volumes and snapshots, under the keys of the
//! sidecars, as cinder-csi-plugin keeps them.

use belay_server::request::Context;
use serde_json::Value;

/// Names of Kubernetes, from a sidecar with `--extra-create-metadata`.
const LABELS: [&str; 6] = [
    "csi.storage.k8s.io/pvc/name",
    "csi.storage.k8s.io/pvc/namespace",
    "csi.storage.k8s.io/pv/name",
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];

/// Adds the names of Kubernetes to the metadata.
pub(super) fn labels(metadata: &mut Value, parameters: &Context) {
    for label in LABELS {
        if let Some(name) = parameters.get(label) {
            metadata[label] = name.into();
        }
    }
}
