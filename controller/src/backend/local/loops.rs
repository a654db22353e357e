//! The loop devices of this machine, read from sysfs. Reading sysfs does not access the storage
//! behind the devices, and opens no device. This module detects that a node is still using an
//! earlier file of a volume. The file that replaced the earlier file is a different inode, so the
//! lock of the new file does not reveal this use.

use super::fault::at;
use super::files::{Backing, patiently};
use super::store::Store;
use belay_contract::reason::volume;
use belay_server::call::Failure;
use rustix::io::Errno;
use std::path::Path;
use std::{fs, io};

const SYSFS: &str = "/sys/block";

/// A loop device that is bound to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    path: String,
    /// The path of the backing file, read from sysfs. The same directory may have a different path
    /// in the mount namespace of the node agent.
    file: String,
}

impl Device {
    /// Whether the device's file has exactly this name, in any directory.
    fn has_name(&self, id: &str) -> bool {
        Path::new(&self.file).file_name() == Some(id.as_ref())
    }
}

impl Store {
    /// Refuses `present` as the file of a volume while a loop device is bound to another file of
    /// the volume: pods write to that other file. Finds the device by the volume's ID in the name
    /// of the device's backing file. If the node agent has bound `present` itself, `present` is
    /// locked. `is_held` states whether the caller holds the lock of `present`.
    ///
    /// # Errors
    /// Returns `Precondition`, naming the device.
    pub(super) fn refuse_replaced(
        &self,
        id: &str,
        present: &Backing,
        is_held: bool,
    ) -> Result<(), Failure> {
        let mut found = Ok(None);
        // A loop device that is being unbound is listed for a moment after it has released the lock
        // of its file.
        patiently(|| {
            found = other_file(id, present, is_held);
            matches!(found, Ok(Some(_)))
        });
        let Some(Device { path, file }) = found? else {
            return Ok(());
        };
        Err(Failure::precondition(format!(
            "volume {id}: {path} of this node is bound to {file:?}, an earlier file of the volume \
             that {} has replaced, or was bound by another program; if pods use the volume, copy \
             its data out of them, and delete them, so that it is unstaged; only if none does: \
             losetup --detach {path} (docs/health.md, {})",
            present.path().display(),
            volume::BACKING_FILE_GONE.name()
        )))
    }
}

/// Returns a device that is bound to another file of the volume than `present`; `None` if there is
/// none.
fn other_file(id: &str, present: &Backing, is_held: bool) -> Result<Option<Device>, Failure> {
    let devices = named(id)?;
    let is_present_bound = match devices.iter().any(|device| device.has_name(id)) {
        true => !is_held && present.is_locked()?,
        false => false,
    };
    let mut devices = devices.into_iter();
    Ok(devices.find(|device| !(is_present_bound && device.has_name(id))))
}

/// Returns the loop devices whose file has, or had, a name that begins with the volume's ID. IDs
/// are random, so no unrelated file has such a name. If an operator moves a file aside
/// (`vol-….bad`) or removes it (`vol-… (deleted)`), the device continues to use it. Returns no
/// devices if the machine has no sysfs; use of a file is then visible only by its lock.
///
/// # Errors
/// Returns `Unreachable` if sysfs cannot be read, since there may be devices.
fn named(id: &str) -> Result<Vec<Device>, Failure> {
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

/// Returns the backing file of a device; `None` if the device is not bound.
fn backing_file(name: &str) -> Result<Option<String>, Failure> {
    let path = format!("{SYSFS}/{name}/loop/backing_file");
    match fs::read_to_string(&path) {
        Ok(shown) => Ok(Some(shown.trim_end_matches('\n').to_owned())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(at("read", Path::new(&path), &error)),
    }
}

/// Whether the error means that the sysfs entry is missing, or was removed while it was being read.
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
