//! The loop devices of this machine, as sysfs shows them, which does not ask the storage behind
//! them. Opens no device.

use super::fault::at;
use belay_server::call::Failure;
use rustix::io::Errno;
use std::path::Path;
use std::{fs, io};

const SYSFS: &str = "/sys/block";

/// What sysfs adds to the name of a file that was removed.
pub(super) const DELETED: &str = " (deleted)";

/// A bound loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) path: String,
    /// What sysfs calls its file. The folder may have another path in the mount namespace of the
    /// node's agent.
    pub(super) file: String,
}

/// The loop devices whose files may be or have been the one of that volume, by their names. Ids are
/// random; who replaces a file moves the old one away (`vol-….bad`), or removes it (`vol-…
/// (deleted)`), and the device goes on to use it. Without sysfs there are none, and the lock on the
/// file must do.
///
/// # Errors
/// `Unreachable`: sysfs cannot be read, which does not mean that there are none.
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

/// The backing file of a device, if it is bound.
fn backing_file(name: &str) -> Result<Option<String>, Failure> {
    let path = format!("{SYSFS}/{name}/loop/backing_file");
    match fs::read_to_string(&path) {
        Ok(shown) => Ok(Some(shown.trim_end_matches('\n').to_owned())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(at("read", Path::new(&path), &error)),
    }
}

/// Not there, or gone while it was read.
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
