//! The floor of benches/BUDGET.md: the calls of a volume's lifecycle by the bare system calls, for
//! the benches and the demo alike. No checks. `kind` is a filesystem's type, or `block`.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::mount::MountPropagationFlags;

use crate::mounts::{bind, mount, unmount};

/// The agent's mode for a target that it creates.
const TARGET_MODE: u32 = 0o750;

/// Mounts the filesystem of a bound device; a device itself is bind-mounted.
///
/// # Errors
/// A system call fails.
pub fn stage(kind: &str, device: &Path, staging: &Path) -> io::Result<()> {
    match kind {
        "block" => bind(device, staging),
        fs_type => mount(fs_type, device, staging),
    }
}

/// Creates the target, and makes a private bind mount at it.
///
/// # Errors
/// A system call fails.
pub fn publish(kind: &str, staging: &Path, target: &Path) -> io::Result<()> {
    match kind {
        "block" => drop(File::create(target)?),
        _ => DirBuilder::new().mode(TARGET_MODE).create(target)?,
    }
    bind(staging, target)?;
    let private = MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change(target, private)?)
}

/// The size at the target, in bytes.
///
/// # Errors
/// A system call fails.
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
/// A system call fails.
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
/// As umount2(2).
pub fn unstage(staging: &Path) -> io::Result<()> {
    unmount(staging)
}
