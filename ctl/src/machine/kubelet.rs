//! The kubelet's directory: the volumes that the kubelet has staged, and the pods for which it has
//! published them. The kubelet writes one vol_data.json for each use of a volume. belayctl takes
//! the names of pods from the names of the pods' log directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::children;

/// The default of the kubelet's `--root-dir`.
pub(crate) const DIRECTORY: &str = "/var/lib/kubelet";
const LOGS: &str = "/var/log/pods";

/// A use of a volume on this node: the volume is staged, or it is published for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The name of the driver.
    pub(crate) driver: String,
    /// The ID of the volume.
    pub(crate) volume_id: String,
    /// The name of the PersistentVolume, if vol_data.json has it.
    pub(crate) pv: Option<String>,
    /// The UID of the pod; `None` for a staged volume.
    pub(crate) pod: Option<String>,
    /// The path at which the volume is staged or published.
    pub(crate) path: PathBuf,
}

/// Returns all uses of CSI volumes. Skips unreadable entries.
pub(crate) fn uses(kubelet: &Path) -> Vec<Use> {
    let csi = kubelet.join("plugins/kubernetes.io/csi");
    let mut found = Vec::new();
    // The path of a staged volume's file is <driver>/<hash>/vol_data.json, or
    // pv/<name>/vol_data.json with older kubelets.
    for directory in children(&csi).iter().flat_map(|driver| children(driver)) {
        let staged = directory.join("globalmount");
        found.extend(read(&directory.join("vol_data.json"), None, staged));
    }
    let raw = csi.join("volumeDevices");
    for device in children(&raw) {
        let Some(name) = device.file_name() else {
            continue;
        };
        let data = device.join("data/vol_data.json");
        found.extend(read(&data, None, raw.join("staging").join(name)));
        for target in children(&raw.join("publish").join(name)) {
            let pod = last(&target);
            found.extend(read(&data, pod, target));
        }
    }
    for pod in children(&kubelet.join("pods")) {
        for volume in children(&pod.join("volumes/kubernetes.io~csi")) {
            let data = volume.join("vol_data.json");
            found.extend(read(&data, last(&pod), volume.join("mount")));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns `namespace/name` of pods by their UID, from the names of their log directories,
/// `<namespace>_<name>_<uid>`; none of the three parts contains an underscore.
pub(crate) fn pod_names() -> BTreeMap<String, String> {
    let names = children(Path::new(LOGS))
        .into_iter()
        .filter_map(|directory| {
            let name = last(&directory)?;
            let mut parts = name.split('_');
            let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
            Some((uid.to_owned(), format!("{namespace}/{name}")))
        });
    names.collect()
}

/// The fields of vol_data.json that belayctl reads.
#[derive(Deserialize)]
struct VolumeData {
    #[serde(rename = "driverName")]
    driver: String,
    #[serde(rename = "volumeHandle")]
    volume_id: String,
    #[serde(rename = "specVolID")]
    pv: Option<String>,
}

fn read(file: &Path, pod: Option<String>, path: PathBuf) -> Option<Use> {
    let data: VolumeData = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    Some(Use {
        driver: data.driver,
        volume_id: data.volume_id,
        pv: data.pv,
        pod,
        path,
    })
}

fn last(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_pods_and_raw_devices_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, json: &str| {
            let file = dir.path().join(path).join("vol_data.json");
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, json).unwrap();
        };
        let of = |id: &str| {
            format!(r#"{{"driverName": "d", "volumeHandle": "{id}", "specVolID": "pvc-{id}"}}"#)
        };
        put("plugins/kubernetes.io/csi/d/0a1b", &of("1"));
        put("pods/uid-1/volumes/kubernetes.io~csi/pvc-1", &of("1"));
        put(
            "plugins/kubernetes.io/csi/volumeDevices/pvc-2/data",
            &of("2"),
        );
        put("pods/uid-2/volumes/kubernetes.io~csi/broken", "{");
        let target = "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-2/uid-2";
        fs::create_dir_all(dir.path().join(target)).unwrap();
        let uses = uses(dir.path());
        let found: Vec<_> = uses
            .iter()
            .map(|found| {
                (
                    found.volume_id.as_str(),
                    found.pod.as_deref(),
                    last(&found.path),
                )
            })
            .map(|(id, pod, path)| (id, pod, path.unwrap()))
            .collect();
        assert_eq!(
            found,
            [
                ("1", None, "globalmount".to_owned()),
                ("2", Some("uid-2"), "uid-2".to_owned()),
                ("2", None, "pvc-2".to_owned()),
                ("1", Some("uid-1"), "mount".to_owned()),
            ]
        );
    }
}
