//! `belayctl where`: shows everything on this node that belongs to a volume.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::typed::with_id;
use crate::failure::Failure;
use crate::machine::device::{self, Device};
use crate::machine::kubelet::{self, Use};
use crate::machine::mounts::{self, Mount};
use crate::render::{Answer, Cell, Rows};
use crate::size;
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Where {
    /// Id of the volume, its name, or the name of its persistent volume
    id: String,
    /// The kubelet's directory
    #[arg(long, value_name = "DIR", default_value = kubelet::DIRECTORY)]
    kubelet_dir: PathBuf,
}

impl Where {
    /// Searches the kubelet's directory, mountinfo and sysfs. If nothing is found, requests from a
    /// controller the ID of the volume with this name, and searches again for that ID.
    ///
    /// # Errors
    /// Fails if /proc cannot be read, if nothing on this node belongs to the volume, or if several
    /// volumes have the name.
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut rows = self.rows(&self.id)?;
        if rows.is_empty()
            && let Ok(controller) = target.connect("controller").await
            && let Some(request) = with_id(&controller, &json!({"volume_id": self.id})).await?
        {
            rows = self.rows(request["volume_id"].as_str().unwrap_or_default())?;
        }
        if rows.is_empty() {
            let kubelet = self.kubelet_dir.display();
            let unread = match std::fs::read_dir(&self.kubelet_dir) {
                Err(error) => format!(" ({error}; --kubelet-dir names another)"),
                Ok(_) => String::new(),
            };
            return Err(Failure::Machine(format!(
                "nothing on this node belongs to a volume {}: it is not in {kubelet}{unread}, \
                 and no mount and no device has it; `belayctl volume list` shows the volumes",
                self.id
            )));
        }
        let columns = ["what", "name", "detail"];
        Ok(Answer::Rows(Rows::new("found", &columns, rows)))
    }

    /// Returns everything that belongs to a volume. `id` is its ID, or the name of its
    /// PersistentVolume.
    fn rows(&self, id: &str) -> Result<Vec<Vec<Cell>>, Failure> {
        let found = Found::of(id, &self.kubelet_dir)?;
        Ok(rows(&found.uses, &found.mounts, &found.devices))
    }
}

/// Returns the path of a volume's disk, or of its file. `id` is its ID, or the name of its
/// PersistentVolume.
///
/// # Errors
/// Fails if /proc cannot be read.
pub(super) fn device_of(id: &str, kubelet_dir: &Path) -> Result<Option<PathBuf>, Failure> {
    // The device of an encrypted volume is below its mapper.
    let mut devices = Found::of(id, kubelet_dir)?
        .devices
        .into_iter()
        .filter(|it| !it.name.starts_with("dm-"));
    let device = devices.next();
    // The number of a loop device may soon be that of another volume.
    Ok(device.map(|it| match it.file() {
        Some(file) => file.to_owned(),
        None => PathBuf::from("/dev").join(it.name),
    }))
}

/// The uses, the mounts and the devices of a volume on this node.
struct Found {
    uses: Vec<Use>,
    mounts: Vec<Mount>,
    devices: Vec<Device>,
}

impl Found {
    fn of(id: &str, kubelet_dir: &Path) -> Result<Self, Failure> {
        let uses = kubelet::uses(kubelet_dir);
        let is_meant = |found: &Use| found.volume_id == id || found.pv.as_deref() == Some(id);
        let uses: Vec<_> = uses.into_iter().filter(is_meant).collect();
        let id = uses.first().map_or(id, |found| found.volume_id.as_str());
        let (mounts, devices) = related(id, &uses, mounts::all()?, device::all());
        Ok(Found {
            uses,
            mounts,
            devices,
        })
    }
}

/// Returns the mounts and devices of a volume, by following mounts to devices and devices to
/// mounts.
fn related(
    id: &str,
    uses: &[Use],
    all: Vec<Mount>,
    devices: Vec<Device>,
) -> (Vec<Mount>, Vec<Device>) {
    let is_known = |mount: &Mount| uses.iter().any(|found| found.path == mount.point);
    let devices: Vec<_> = devices
        .into_iter()
        .filter(|device| {
            let mut known = all.iter().filter(|mount| is_known(mount));
            device.is_of(id) || known.any(|mount| device.is_on(mount))
        })
        .collect();
    let is_its = |mount: &Mount| {
        mount.volume().is_some_and(|(_, volume)| volume == id)
            || is_known(mount)
            || devices.iter().any(|device| device.is_on(mount))
    };
    let mounts = all.into_iter().filter(is_its).collect();
    (mounts, devices)
}

fn rows(uses: &[Use], mounts: &[Mount], devices: &[Device]) -> Vec<Vec<Cell>> {
    let text = |text: &str| Cell::Text(text.to_owned());
    let row = |what: &str, name: &str, detail: &str| vec![text(what), text(name), text(detail)];
    let mut rows = Vec::new();
    if let Some(pv) = uses.iter().find_map(|found| found.pv.as_deref()) {
        let driver = uses.first().map_or("", |found| found.driver.as_str());
        rows.push(row("pv", pv, &format!("driver {driver}")));
        // The external-provisioner names a PV after its claim, unless configured otherwise.
        if let Some(uid) = pv.strip_prefix("pvc-") {
            let how = "kubectl get pvc -A -o wide | grep PV";
            rows.push(row("pvc", &format!("uid {uid}"), &how.replace("PV", pv)));
        }
    }
    let names = kubelet::pod_names();
    for found in uses {
        let path = found.path.display().to_string();
        match &found.pod {
            None => rows.push(row("stage", &path, "")),
            Some(uid) => {
                let name = names.get(uid).map_or("", String::as_str);
                rows.push(row("pod", name, &format!("uid {uid}")));
            }
        }
    }
    for device in devices {
        let behind = device.file.as_ref().or(device.serial.as_ref());
        let detail = match behind {
            None => size::show(device.bytes),
            Some(behind) => format!("{}, {behind}", size::show(device.bytes)),
        };
        rows.push(row("device", &format!("/dev/{}", device.name), &detail));
    }
    for mount in mounts {
        let access = if mount.is_readonly { "ro" } else { "rw" };
        let detail = format!("{} {access}, from {}", mount.fs_type, mount.source);
        rows.push(row("mount", &mount.point.display().to_string(), &detail));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(dev: &str, root: &str, point: &str, fs_type: &str, source: &str) -> Mount {
        Mount {
            dev: dev.to_owned(),
            root: root.to_owned(),
            point: point.into(),
            is_readonly: false,
            is_shared: true,
            fs_type: fs_type.to_owned(),
            source: source.to_owned(),
        }
    }

    #[test]
    fn a_volume_is_followed_from_its_file_to_every_mount() {
        let device = Device::bound;
        let mounts = vec![
            mount("7:1", "/", "/ext4", "ext4", "/dev/loop1"),
            mount("0:40", "/", "/btrfs", "btrfs", "/dev/loop1"),
            mount("0:5", "/loop1", "/raw", "devtmpfs", "udev"),
            mount("0:5", "/", "/dev", "devtmpfs", "udev"),
            mount("7:2", "/", "/other", "ext4", "/dev/loop2"),
            mount("8:0", "/", "/disk", "ext4", "/dev/belay/d/vol-1@7"),
            mount("0:5", "/belay/d/vol-1@8", "/raw2", "devtmpfs", "udev"),
            mount("0:5", "/belay/d/vol-10@8", "/raw3", "devtmpfs", "udev"),
        ];
        let devices = vec![
            device("loop1", "7:1", "/v/vol-1"),
            device("loop2", "7:2", "/v/vol-10"),
        ];
        let (mounts, devices) = related("vol-1", &[], mounts, devices);
        let points: Vec<_> = mounts
            .iter()
            .map(|mount| mount.point.to_str().unwrap())
            .collect();
        assert_eq!(points, ["/ext4", "/btrfs", "/raw", "/disk", "/raw2"]);
        assert_eq!(devices.len(), 1);
    }

    #[test]
    fn a_volume_of_another_driver_is_followed_from_the_kubelet() {
        let found = Use {
            driver: "d".to_owned(),
            volume_id: "x".to_owned(),
            pv: Some("pvc-1-2".to_owned()),
            pod: Some("uid".to_owned()),
            path: "/pod/mount".into(),
        };
        let nfs = mount("0:50", "/", "/pod/mount", "nfs4", "server:/share");
        let (mounts, devices) = related("x", std::slice::from_ref(&found), vec![nfs], Vec::new());
        let rows = rows(&[found], &mounts, &devices);
        let kinds: Vec<_> = rows.iter().map(|row| row[0].shown(false)).collect();
        assert_eq!(kinds, ["pv", "pvc", "pod", "mount"]);
    }
}
