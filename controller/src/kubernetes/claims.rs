//! The objects of Kubernetes that have volumes and snapshots of a driver. Reads only.

use super::kinds::{Mode, Usage};
use super::pages::{Listing, Unlisted};
use super::{Client, quantity};
use belay_server::call::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The number of objects in a page of a list; a page takes about 2 MiB.
const PAGE: usize = 500;

/// A PersistentVolume of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentVolume {
    /// The name.
    pub name: String,
    /// The ID of the volume.
    pub handle: String,
    /// The context of the volume.
    pub attributes: BTreeMap<String, String>,
    /// The capacity in bytes; `None` if it is not a quantity.
    pub bytes: Option<u64>,
    /// The use of the volume.
    pub usage: Usage,
    /// The required labels of the volume's nodes: the key, and a permitted value.
    pub labels: Vec<(String, String)>,
}

/// A VolumeSnapshotContent of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotContent {
    /// The name.
    pub name: String,
    /// The ID of the snapshot.
    pub handle: String,
    /// The ID of the volume; `None` if the content was created for an existing snapshot.
    pub volume: Option<String>,
}

impl Client {
    /// Returns the PersistentVolumes of a driver, from a version that is not older than this call.
    ///
    /// # Errors
    /// Returns `Denied` if the account may not list them, and `Unreachable` if the server does not
    /// respond.
    pub async fn persistent_volumes(&self, driver: &str) -> Result<Vec<PersistentVolume>, Failure> {
        let listing = Listing {
            path: "/api/v1/persistentvolumes?",
            plural: "persistentvolumes",
            limit: PAGE,
        };
        let keep = |object: Volume| object.of(driver);
        Ok(self.pages(&listing, keep).await?.0)
    }

    /// Returns the VolumeSnapshotContents of a driver whose snapshots have IDs, from a version that
    /// is not older than this call. There are none if the server does not know the kind.
    ///
    /// # Errors
    /// Returns the errors of [`Self::persistent_volumes`].
    pub async fn snapshot_contents(&self, driver: &str) -> Result<Vec<SnapshotContent>, Failure> {
        let listing = Listing {
            path: "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents?",
            plural: "volumesnapshotcontents",
            limit: PAGE,
        };
        let keep = |object: Content| object.of(driver);
        match self.pages(&listing, keep).await {
            Ok((contents, _)) => Ok(contents),
            Err(Unlisted::UnknownKind(_)) => Ok(Vec::new()),
            Err(Unlisted::Failed(failure)) => Err(failure),
        }
    }
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Volume {
    metadata: Named,
    spec: VolumeSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeSpec {
    csi: Option<Csi>,
    #[serde(default)]
    capacity: BTreeMap<String, String>,
    volume_mode: Option<String>,
    node_affinity: Option<Affinity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
    fs_type: Option<String>,
    #[serde(default)]
    volume_attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Affinity {
    required: Option<Required>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Required {
    node_selector_terms: Vec<Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default)]
    match_expressions: Vec<Expression>,
}

#[derive(Deserialize)]
struct Expression {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl Volume {
    fn of(self, driver: &str) -> Option<PersistentVolume> {
        let spec = self.spec;
        let csi = spec.csi.filter(|csi| csi.driver == driver)?;
        let capacity = spec.capacity.get("storage");
        let mode = match spec.volume_mode.as_deref() {
            Some("Block") => Mode::Block,
            _ => Mode::Filesystem,
        };
        let fs_type = csi.fs_type.filter(|fs_type| !fs_type.is_empty());
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let terms = required.map_or_else(Vec::new, |required| required.node_selector_terms);
        let expressions = terms.into_iter().flat_map(|term| term.match_expressions);
        let labels = expressions.filter(|it| it.operator == "In").flat_map(|it| {
            let key = it.key;
            it.values.into_iter().map(move |value| (key.clone(), value))
        });
        Some(PersistentVolume {
            name: self.metadata.name,
            handle: csi.volume_handle,
            attributes: csi.volume_attributes,
            bytes: capacity.and_then(|capacity| quantity::bytes(capacity)),
            usage: Usage {
                mode,
                filesystem: fs_type.filter(|_| mode == Mode::Filesystem),
            },
            labels: labels.collect(),
        })
    }
}

#[derive(Deserialize)]
struct Content {
    metadata: Named,
    spec: ContentSpec,
    status: Option<Handles>,
}

#[derive(Deserialize)]
struct ContentSpec {
    driver: String,
    #[serde(default)]
    source: Handles,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Handles {
    snapshot_handle: Option<String>,
    volume_handle: Option<String>,
}

impl Content {
    fn of(self, driver: &str) -> Option<SnapshotContent> {
        let source = self.spec.source;
        let reported = self.status.and_then(|status| status.snapshot_handle);
        let handle = reported.or(source.snapshot_handle);
        Some(SnapshotContent {
            name: self.metadata.name,
            handle: handle.filter(|_| self.spec.driver == driver)?,
            volume: source.volume_handle,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn volume(spec: serde_json::Value) -> Option<PersistentVolume> {
        let object = json!({"metadata": {"name": "pv"}, "spec": spec});
        serde_json::from_value::<Volume>(object).unwrap().of("ours")
    }

    #[test]
    fn a_volume_of_the_driver_has_its_place_and_use() {
        let spec = json!({
            "csi": {"driver": "ours", "volumeHandle": "vol-1", "fsType": "xfs",
                    "volumeAttributes": {"disk": "fast"}},
            "capacity": {"storage": "1536Mi"}, "volumeMode": "Filesystem",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
                {"matchFields": []},
                {"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}]},
            ]}},
        });
        let expected = PersistentVolume {
            name: "pv".to_owned(),
            handle: "vol-1".to_owned(),
            attributes: BTreeMap::from([("disk".to_owned(), "fast".to_owned())]),
            bytes: Some(3 << 29),
            usage: Usage {
                mode: Mode::Filesystem,
                filesystem: Some("xfs".to_owned()),
            },
            labels: vec![("a".to_owned(), "b".to_owned())],
        };
        assert_eq!(volume(spec), Some(expected));
        for other in [
            json!({"csi": {"driver": "other", "volumeHandle": "vol-1"}}),
            json!({"hostPath": {"path": "/"}}),
        ] {
            assert_eq!(volume(other), None);
        }
        let plain = json!({
            "csi": {"driver": "ours", "volumeHandle": "vol-1", "fsType": ""},
            "capacity": {"storage": "much"}, "volumeMode": "Block",
        });
        let plain = volume(plain).unwrap();
        assert_eq!((plain.bytes, plain.labels), (None, Vec::new()));
        assert_eq!(plain.usage.mode, Mode::Block);
        assert_eq!(plain.usage.filesystem, None);
    }

    #[test]
    fn a_content_has_the_id_of_its_status_or_else_of_its_source() {
        let of = |driver: &str, source: serde_json::Value, status: serde_json::Value| {
            let spec = json!({"driver": driver, "source": source});
            let object = json!({"metadata": {"name": "c"}, "spec": spec, "status": status});
            let content = serde_json::from_value::<Content>(object).unwrap();
            content.of("ours").map(|it| (it.handle, it.volume))
        };
        let volume = || json!({"volumeHandle": "vol-1"});
        let status = || json!({"snapshotHandle": "snap-1"});
        let found = Some(("snap-1".to_owned(), Some("vol-1".to_owned())));
        assert_eq!(of("ours", volume(), status()), found);
        assert_eq!(of("ours", volume(), json!(null)), None);
        assert_eq!(of("other", volume(), status()), None);
        let found = Some(("snap-1".to_owned(), None));
        assert_eq!(of("ours", status(), json!({})), found);
    }
}
