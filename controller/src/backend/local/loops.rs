//! The loop devices of this machine, from sysfs, which does not query the storage behind them.
//! Opens no device.

use super::fault::at;
use belay_server::call::Failure;
use rustix::io::Errno;
use std::path::Path;
use std::{fs, io};

const SYSFS: &str = "/sys/block";

/// The suffix that sysfs adds to the name of a removed file.
pub(super) const DELETED: &str = " (deleted)";

/// A bound loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) path: String,
    /// The path of the backing file in sysfs. The directory may have another path in the mount
    /// namespace of the node agent.
    pub(super) file: String,
}

/// Returns the bound loop devices whose file has, or had, the name of the volume's file. IDs are
/// random, so no unrelated file has that name. An operator who replaces a file moves the old one
/// aside (`vol-….bad`) or removes it (`vol-… (deleted)`), and the device continues to use it.
/// Returns nothing without sysfs; then only the lock on the file shows that the file is in use.
///
/// # Errors
/// Returns `Unreachable` if sysfs cannot be read, which does not mean that there are no devices.
pub(super) fn named(id: &str) -> Result<Vec<Device>, Failure> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(SYSFS) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(found),
        Err(error) => return Err(at("opendir", Path::new(SYSFS), &error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| at("getdents64", Path::new(SYSFS), &error))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with("loop")
            && let Some(file) = backing_file(&name)?
            && is_named(id, &file)
        {
            let path = format!("/dev/{name}");
            found.push(Device { path, file });
        }
    }
    Ok(found)
}

/// Returns the backing file of a device, if it is bound.
fn backing_file(name: &str) -> Result<Option<String>, Failure> {
    let path = format!("{SYSFS}/{name}/loop/backing_file");
    match fs::read_to_string(&path) {
        Ok(shown) => Ok(Some(shown.trim_end_matches('\n').to_owned())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(at("read", Path::new(&path), &error)),
    }
}

/// Whether the entry is missing, or was removed while it was read.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO)
    )
}

fn is_named(id: &str, file: &str) -> bool {
    let name = Path::new(file).file_name();
    let name = name.and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix(id))
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_replaced_is_known_by_its_name() {
        for file in [
            "/v/vol-1",
            "/other/vol-1",
            "/v/vol-1 (deleted)",
            "/v/vol-1.bad",
            "/v/vol-1~ (deleted)",
        ] {
            assert!(is_named("vol-1", file), "{file}");
        }
        for file in ["/v/vol-12", "/vol-1/disk", "", "/v/vol-2", "/v/old-vol-1"] {
            assert!(!is_named("vol-1", file), "{file}");
        }
    }
}
