//! The mounts of a namespace, from proc_pid_mountinfo(5), and the bare system calls that create and
//! remove a mount.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount ID.
    pub id: u64,
    /// The ID of the parent mount.
    pub parent: u64,
    /// The mount point.
    pub point: PathBuf,
    /// The mount's line in the table, for messages.
    pub line: String,
}

/// Returns all mounts in the mount namespace of a process (`self`, or its PID), in mount order.
/// Blanks in a path, which the kernel writes as `\040`, are not decoded, since no path here
/// contains blanks.
///
/// # Errors
/// Fails if the process has ended, or its table cannot be read.
pub fn mounts_of(pid: &str) -> io::Result<Vec<Mount>> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    Ok(table.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    Some(Mount {
        id: fields.next()?.parse().ok()?,
        parent: fields.next()?.parse().ok()?,
        point: PathBuf::from(fields.nth(2)?),
        line: line.to_owned(),
    })
}

/// Mounts the filesystem on `device`, with the mount API of Linux 5.2.
///
/// # Errors
/// Fails if a system call fails.
pub fn mount(fs_type: &str, device: &Path, point: &Path) -> io::Result<()> {
    mount_with(fs_type, &[("source", device)], point)
}

/// Mounts a filesystem with these parameters.
///
/// # Errors
/// Fails if a system call fails.
pub fn mount_with<V: AsRef<Path>>(
    fs_type: &str,
    parameters: &[(&str, V)],
    point: &Path,
) -> io::Result<()> {
    let context = rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in parameters {
        rustix::mount::fsconfig_set_string(&context, *key, value.as_ref())?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::empty();
    let tree = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, point, how)?)
}

/// Bind-mounts `from` at `to`.
///
/// # Errors
/// Fails if a system call fails.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, from, flags)?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, to, how)?)
}

/// Unmounts `point`; fails while a process has a file open there.
///
/// # Errors
/// Returns the errors of umount2(2).
pub fn unmount(point: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(point, UnmountFlags::NOFOLLOW)?)
}
