//! Parameters that Kubernetes or its sidecars define. Scheduler hints place the storage of a new
//! volume relative to other volumes; their keys are the annotations of PersistentVolumeClaims for
//! cinder-csi-plugin. As in cinder-csi-plugin, the metadata of volumes and snapshots contains the
//! names of Kubernetes objects under the sidecars' keys.

use super::{Cloud, id};
use belay_server::call::Failure;
use belay_server::request::{Context, Name, VolumeId};
use serde_json::{Map, Value};

pub(super) const AFFINITY: &str = "cinder.csi.openstack.org/affinity";
pub(super) const ANTI_AFFINITY: &str = "cinder.csi.openstack.org/anti-affinity";

impl Cloud {
    /// Returns the hints for Cinder's scheduler, or `None` if the parameters contain no hints.
    ///
    /// # Errors
    /// Returns `Invalid` if a volume does not exist, and the errors of the search for the volume.
    pub(super) async fn hints(&self, parameters: &Context) -> Result<Option<Value>, Failure> {
        let mut hints = Map::new();
        for (key, hint) in [(AFFINITY, "same_host"), (ANTI_AFFINITY, "different_host")] {
            if let Some(listed) = parameters.get(key) {
                hints.insert(hint.to_owned(), self.ids(key, listed).await?.into());
            }
        }
        Ok((!hints.is_empty()).then_some(Value::Object(hints)))
    }

    /// Returns the IDs of volumes from a list of names and IDs, separated by commas.
    async fn ids(&self, key: &str, listed: &str) -> Result<Vec<String>, Failure> {
        let field = format!("parameters[{key}]");
        let mut ids = Vec::new();
        for name in listed.split(',').map(str::trim) {
            let found = self.named_so(name).await?;
            if found.is_empty() {
                let why = format_args!("there is no volume with the ID or name {name:?}");
                return Err(Failure::invalid(&field, why));
            }
            ids.extend(found);
        }
        Ok(ids)
    }

    async fn named_so(&self, name: &str) -> Result<Vec<String>, Failure> {
        if id::is_own(name)
            && let Ok(id) = VolumeId::new(name)
            && let Some(volume) = self.client.volume(&id).await?
        {
            return Ok(vec![volume.id]);
        }
        let Ok(name) = Name::new(name) else {
            return Ok(Vec::new());
        };
        let named = self.client.named(&name).await?;
        Ok(named.into_iter().map(|volume| volume.id).collect())
    }
}

/// The keys under which a sidecar with `--extra-create-metadata` passes names of Kubernetes
/// objects.
const LABELS: [&str; 6] = [
    "csi.storage.k8s.io/pvc/name",
    "csi.storage.k8s.io/pvc/namespace",
    "csi.storage.k8s.io/pv/name",
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];

/// Adds the names of Kubernetes objects to the metadata.
pub(super) fn labels(metadata: &mut Value, parameters: &Context) {
    for label in LABELS {
        if let Some(name) = parameters.get(label) {
            metadata[label] = name.into();
        }
    }
}
