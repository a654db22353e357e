//! The loop devices of this machine, as sysfs shows them, which does not ask the storage behind
//! them. Opens no device.

use std::fs;
use std::path::Path;

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
/// (deleted)`), and the device goes on to use it.
pub(super) fn named(id: &str) -> impl Iterator<Item = Device> {
    // Without sysfs, the lock on the file must do.
    let devices = fs::read_dir(SYSFS).into_iter().flatten();
    let names = devices.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let bound = names
        .filter(|name| name.starts_with("loop"))
        .filter_map(|name| {
            Some(Device {
                file: backing_file(&name)?,
                path: format!("/dev/{name}"),
            })
        });
    bound.filter(move |device| is_named(id, &device.file))
}

/// The backing file of a bound device.
fn backing_file(name: &str) -> Option<String> {
    let shown = fs::read_to_string(format!("{SYSFS}/{name}/loop/backing_file")).ok()?;
    Some(shown.trim_end_matches('\n').to_owned())
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
