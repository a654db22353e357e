//! The mounts of this namespace, from mountinfo (proc_pid_mountinfo(5)).

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The device number of the filesystem, as `major:minor`. On some filesystems, such as btrfs,
    /// this is not the number of a block device.
    pub(crate) dev: String,
    /// The directory within the filesystem that is mounted; for a bind mount of a device node, its
    /// path in devtmpfs.
    pub(crate) root: String,
    /// The mount point.
    pub(crate) point: PathBuf,
    /// Whether the mount is read-only.
    pub(crate) is_readonly: bool,
    /// Whether mounts below the mount point propagate to other namespaces.
    pub(crate) is_shared: bool,
    /// The type of the filesystem.
    pub(crate) fs_type: String,
    /// The mounted device, or another source such as `server:/share`.
    pub(crate) source: String,
}

impl Mount {
    /// Returns the driver and the volume from Belay's name for the volume's device,
    /// `/dev/belay/<driver>/<volume>@<diskseq>`. This name is the source of the mount or, if a raw
    /// device is mounted, the root. Returns `None` for other mounts.
    pub(crate) fn volume(&self) -> Option<(&str, &str)> {
        let source = self.source.strip_prefix("/dev");
        let root = (self.fs_type == "devtmpfs").then_some(self.root.as_str());
        [source, root].into_iter().flatten().find_map(|node| {
            let (volume, _) = node.strip_prefix("/belay/")?.rsplit_once('@')?;
            volume.split_once('/')
        })
    }
}

/// Returns all mounts of this namespace, in mount order.
///
/// # Errors
/// Fails if /proc cannot be read.
pub(crate) fn all() -> Result<Vec<Mount>, Failure> {
    of(std::process::id())
}

/// Returns all mounts in the namespace of a process, in mount order.
///
/// # Errors
/// Fails if the process has exited, or /proc cannot be read.
pub(crate) fn of(pid: u32) -> Result<Vec<Mount>, Failure> {
    let path = format!("/proc/{pid}/mountinfo");
    let table = fs::read(&path)
        .map_err(|error| Failure::Machine(format!("{path}: {error}; is /proc mounted?")))?;
    Ok(parse_all(&table))
}

/// Parses mountinfo. Invalid UTF-8 in a path is replaced, since CSI paths are valid UTF-8.
fn parse_all(table: &[u8]) -> Vec<Mount> {
    let text = String::from_utf8_lossy(table);
    text.lines().filter_map(parse).collect()
}

/// Returns the innermost mount that contains a path.
pub(crate) fn holder<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // If two mounts have the same mount point, choose the later one, which hides the other.
    above.max_by_key(|mount| mount.point.components().count())
}

fn parse(line: &str) -> Option<Mount> {
    let (fields, after) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(2);
    let (dev, root, point, options) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    let mut after = after.split(' ');
    Some(Mount {
        dev: dev.to_owned(),
        root: unescape(root),
        point: PathBuf::from(unescape(point)),
        is_readonly: options.split(',').any(|option| option == "ro"),
        is_shared: fields.any(|field| field.starts_with("shared:")),
        fs_type: after.next()?.to_owned(),
        source: unescape(after.next()?),
    })
}

/// Decodes the escapes of mountinfo: space, tab, newline and backslash are written as `\` and three
/// octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).map(|digits| u8::from_str_radix(digits, 8)) {
            Some(Ok(byte)) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            _ => plain.push_str(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_its_escapes_and_optional_fields() {
        let line = "36 35 7:3 / /mnt/a\\040b ro,noatime shared:1 master:2 - ext4 /dev/loop3 rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert!(mount.is_readonly && mount.is_shared);
        assert_eq!(
            (mount.fs_type.as_str(), mount.dev.as_str()),
            ("ext4", "7:3")
        );
        assert_eq!(mount.source, "/dev/loop3");
        let private = parse("1 2 0:5 /loop3 /t rw - devtmpfs udev rw").unwrap();
        assert!(!private.is_shared && !private.is_readonly);
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn a_path_that_is_not_utf8_does_not_hide_the_others() {
        let table = b"1 2 0:5 / /a\xff\\040b rw - tmpfs \xfe rw\n1 2 0:5 / /c rw - tmpfs t rw\n";
        let points: Vec<_> = parse_all(table).into_iter().map(|it| it.point).collect();
        assert_eq!(points, [Path::new("/a\u{fffd} b"), Path::new("/c")]);
    }

    #[test]
    fn a_path_is_in_the_deepest_mount_above_it() {
        let mount = |point: &str| parse(&format!("1 2 0:5 / {point} rw - tmpfs t rw")).unwrap();
        let mounts = ["/", "/var", "/var/lib/x"].map(mount);
        let found = |path: &str| holder(&mounts, Path::new(path)).unwrap().point.clone();
        assert_eq!(found("/var/lib"), Path::new("/var"));
        assert_eq!(found("/variable"), Path::new("/"));
    }
}
