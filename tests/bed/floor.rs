//! The floor of benches/BUDGET.md, for the benches and the demo: the calls of a volume's lifecycle
//! as bare system calls, without checks. `kind` is a filesystem type, or `block`.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::mount::MountPropagationFlags;

use crate::mounts::{bind, mount, unmount};

/// The mode with which the agent creates a target.
const TARGET_MODE: u32 = 0o750;

/// Mounts the filesystem of a bound device. For `block`, bind-mounts the device itself.
///
/// # Errors
/// Fails if a system call fails.
pub fn stage(kind: &str, device: &Path, staging: &Path) -> io::Result<()> {
    match kind {
        "block" => bind(device, staging),
        fs_type => mount(fs_type, device, staging),
    }
}

/// Creates the target, and a private bind mount on it.
///
/// # Errors
/// Fails if a system call fails.
pub fn publish(kind: &str, staging: &Path, target: &Path) -> io::Result<()> {
    match kind {
        "block" => drop(File::create(target)?),
        _ => DirBuilder::new().mode(TARGET_MODE).create(target)?,
    }
    bind(staging, target)?;
    let private = MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change(target, private)?)
}

/// Returns the size at the target, in bytes.
///
/// # Errors
/// Fails if a system call fails.
pub fn stats(kind: &str, target: &Path) -> io::Result<u64> {
    match kind {
        "block" => File::open(target)?.seek(SeekFrom::End(0)),
        _ => {
            let usage = rustix::fs::statfs(target)?;
            Ok(usage.f_blocks * usage.f_bsize.unsigned_abs())
        }
    }
}

/// Unmounts and removes the target.
///
/// # Errors
/// Fails if a system call fails.
pub fn unpublish(kind: &str, target: &Path) -> io::Result<()> {
    unmount(target)?;
    match kind {
        "block" => fs::remove_file(target),
        _ => fs::remove_dir(target),
    }
}

/// Unmounts the staging path.
///
/// # Errors
/// Returns the errors of umount2(2).
pub fn unstage(staging: &Path) -> io::Result<()> {
    unmount(staging)
}
