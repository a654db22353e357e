//! Block devices in sysfs (sysfs(5)): the file or disk behind a device, and its size.

use std::fs;
use std::path::Path;

use super::mounts::Mount;

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// The name in /dev.
    pub(crate) name: String,
    /// The device number, as `major:minor`.
    pub(crate) dev: String,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The file behind a loop device.
    pub(crate) file: Option<String>,
    /// The serial number of a disk.
    pub(crate) serial: Option<String>,
}

/// The maximum length of the serial number that a virtio disk reports (VIRTIO_BLK_ID_BYTES of
/// linux/virtio_blk.h).
const VIRTIO_SERIAL: usize = 20;

impl Device {
    /// Returns the path of the file behind a loop device. The file may have been deleted.
    pub(crate) fn file(&self) -> Option<&Path> {
        let file = self.file.as_deref()?;
        Some(Path::new(file.trim_end_matches(" (deleted)")))
    }

    /// Whether the device is mounted by this mount: either the filesystem on the device, or the
    /// device node itself.
    pub(crate) fn is_on(&self, mount: &Mount) -> bool {
        let node = mount.source.rsplit('/').next().unwrap_or_default();
        let raw = mount.fs_type == "devtmpfs" && mount.root == format!("/{}", self.name);
        // Also compare the names of the devices: on some filesystems, such as btrfs, a mount has a
        // device number that differs from that of the block device.
        let by_name = mount.source.starts_with("/dev/") && node == self.name;
        raw || by_name || (mount.fs_type != "devtmpfs" && mount.dev == self.dev)
    }

    /// Whether the device belongs to the volume with this ID: the ID is either the name of the file
    /// behind the device, or the serial number of the device. For a virtio disk, the beginning of
    /// the ID suffices, because virtio cuts serial numbers.
    pub(crate) fn is_of(&self, id: &str) -> bool {
        let name = self.file().and_then(Path::file_name);
        let by_file = name.is_some_and(|name| name == id);
        let start: String = id.chars().take(VIRTIO_SERIAL).collect();
        let by_serial = |serial: &String| !serial.is_empty() && (serial == id || *serial == start);
        by_file || self.serial.as_ref().is_some_and(by_serial)
    }
}

/// Returns all block devices that have a size, except partitions.
pub(crate) fn all() -> Vec<Device> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut devices: Vec<_> = entries
        .filter_map(|entry| read(&entry.path(), entry.file_name().to_str()?))
        .filter(|device| device.bytes > 0)
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

fn read(directory: &Path, name: &str) -> Option<Device> {
    let text = |file: &str| {
        let text = fs::read_to_string(directory.join(file)).ok()?;
        Some(text.trim_end().to_owned())
    };
    // The size is in units of 512 bytes, regardless of the block size.
    let sectors: u64 = text("size")?.parse().ok()?;
    Some(Device {
        name: name.to_owned(),
        dev: text("dev")?,
        bytes: sectors * 512,
        file: text("loop/backing_file"),
        serial: text("serial").or_else(|| text("device/serial")),
    })
}

#[cfg(test)]
impl Device {
    /// A loop device of one sector that is bound to a file.
    pub(crate) fn bound(name: &str, dev: &str, file: &str) -> Self {
        Self {
            name: name.to_owned(),
            dev: dev.to_owned(),
            bytes: 512,
            file: Some(file.to_owned()),
            serial: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_recognised_by_file_or_serial() {
        let device = |file: Option<&str>, serial: Option<&str>| Device {
            name: "x".to_owned(),
            dev: "7:0".to_owned(),
            bytes: 512,
            file: file.map(str::to_owned),
            serial: serial.map(str::to_owned),
        };
        let id = "0123456789-0123456789-0123";
        assert!(device(Some(&format!("/v/{id}")), None).is_of(id));
        assert!(device(Some(&format!("/v/{id} (deleted)")), None).is_of(id));
        assert!(device(None, Some("0123456789-012345678")).is_of(id));
        assert!(!device(Some(&format!("/v/{id}.old")), Some("")).is_of(id));
        assert!(!device(None, None).is_of(id));
    }
}
