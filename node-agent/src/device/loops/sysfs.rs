//! Loop devices in sysfs. No device is queried.
//!
//! A query to a device queries the filesystem of the device's backing file. The query hangs if
//! another program has bound a file on a server that does not respond. The directory in a device's
//! path is unreliable, because an agent in a container may have bound the device by a path of a
//! mount namespace that no longer exists. The name of the file is reliable.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use belay_server::request::VolumeId;

use crate::kernel::{Dev, Ext4Errors, Kernel, LoopFile, Result};

/// Returns the path of the node of loop device `number`.
pub(crate) fn loop_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Whether the device is a loop device.
pub(crate) fn carries_volumes<K: Kernel>(kernel: &K, dev: Dev) -> bool {
    kernel.loop_number(dev).is_some()
}

/// Returns the path of the node of a loop device.
pub(crate) fn node_of<K: Kernel>(kernel: &K, dev: Dev) -> Option<PathBuf> {
    kernel.loop_number(dev).map(loop_path)
}

/// Returns the loop device whose node is named like the last component of `path`, which may have
/// the suffix of a removed node.
pub(crate) fn dev_named<K: Kernel>(kernel: &K, path: &Path) -> Option<Dev> {
    number_in(path).map(|number| kernel.loop_dev(number))
}

fn number_in(path: &Path) -> Option<u32> {
    let path = path.to_str()?;
    let path = path.strip_suffix("//deleted").unwrap_or(path);
    let (_, name) = path.rsplit_once('/')?;
    name.strip_prefix("loop")?.parse().ok()
}

/// Returns the size of the device in bytes; `None` if the device is not a loop device, or does not
/// exist.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn size_of<K: Kernel>(kernel: &K, dev: Dev) -> Result<Option<u64>> {
    let number = kernel.loop_number(dev);
    number.map_or(Ok(None), |number| kernel.loop_bytes(number))
}

/// Returns the errors that the ext4 on the device has counted; `None` if no ext4 is mounted from
/// the device.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn ext4_errors<K: Kernel>(kernel: &K, dev: Dev) -> Result<Option<Ext4Errors>> {
    match carries_volumes(kernel, dev) {
        true => kernel.ext4_errors(dev),
        false => Ok(None),
    }
}

/// Returns the partitions that another process has added to a bound device. For a raw device
/// (`is_raw`) with `loop.max_part`, returns no partitions, because the kernel shows the partitions
/// in the device's content.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn partitions<K: Kernel>(kernel: &K, dev: Dev, is_raw: bool) -> Result<Vec<String>> {
    let has_max_part = kernel.loop_dev(1).minor > 1;
    match kernel.loop_number(dev) {
        Some(number) if !(is_raw && has_max_part) => kernel.loop_partitions(number, true),
        _ => Ok(Vec::new()),
    }
}

/// Returns the bound devices whose files have or had the name of the file at `path`, by number.
/// Devices with exactly that path come first, because another file with the name may be on a hung
/// disk.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn candidates<K: Kernel>(kernel: &K, path: &Path) -> Result<Vec<(u32, LoopFile)>> {
    let mut found = Vec::new();
    for number in kernel.loop_bound()? {
        let file = kernel.loop_file(number)?;
        found.extend(file.map(|file| (number, file)));
    }
    let name = path.file_name().unwrap_or_default();
    found.retain(|(_, file)| file.path.file_name().is_some_and(|it| may_be(name, it)));
    found.sort_by_key(|(_, file)| file.path != path);
    Ok(found)
}

/// Whether the device belongs or belonged to the volume, judged by the name of the device's file.
/// Does not query any device.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn may_be_of<K: Kernel>(kernel: &K, volume: &VolumeId, dev: Dev) -> Result<bool> {
    let Some(number) = kernel.loop_number(dev) else {
        return Ok(false);
    };
    let name = kernel.loop_file_name(number)?;
    Ok(name.is_some_and(|name| may_be(OsStr::new(volume.as_str()), &name)))
}

/// Whether a file whose present name is `found` may have been named `name`.
fn may_be(name: &OsStr, found: &OsStr) -> bool {
    found == name || is_old_name(name, found)
}

/// Whether `found` is the name of a file that was renamed (`vol-1.bad`) or removed (`vol-1
/// (deleted)`).
fn is_old_name(name: &OsStr, found: &OsStr) -> bool {
    let (name, found) = (name.as_bytes(), found.as_bytes());
    let next = found.strip_prefix(name).and_then(|rest| rest.first());
    next.is_some_and(|next| !next.is_ascii_alphanumeric())
}

/// Returns the path without the suffix of a removed file.
pub(super) fn unmarked(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_begins_with_the_volumes_and_is_not_that_of_another_volume() {
        let is_old = |name: &str| is_old_name("vol-1".as_ref(), name.as_ref());
        for old in ["vol-1.bad", "vol-1~", "vol-1 (deleted)"] {
            assert!(is_old(old), "{old}");
        }
        for other in ["vol-1", "vol-12", "vol-12 (deleted)", "old-vol-1", ""] {
            assert!(!is_old(other), "{other}");
        }
    }

    #[test]
    fn the_number_of_a_device_is_in_the_last_name_alone() {
        for (path, number) in [
            ("/loop7", Some(7)),
            ("/dev/loop12", Some(12)),
            ("/loop7//deleted", Some(7)),
            ("/loop7/file", None),
            ("/loop7p1", None),
            ("/loop-control", None),
            ("/part", None),
            ("/", None),
            ("none", None),
        ] {
            assert_eq!(number_in(Path::new(path)), number, "{path}");
        }
    }
}
