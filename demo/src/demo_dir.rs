//! The demo's temporary directory, the disk image in the directory, and all paths below the
//! directory. The cleanup removes only known names, and never walks a tree that may be mounted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belay_bed::devices::{self, Loop};
use belay_bed::mounts::mounts_of;

pub(crate) const CONTROLLER: &str = "belay-controller";
pub(crate) const NODE: &str = "belay-node";
/// The two programs in the order in which the demo starts them: the controller creates the
/// directory that the node agent needs.
pub(crate) const BINARIES: [&str; 2] = [CONTROLLER, NODE];

/// The filesystem of the controller's state directory. This filesystem can share blocks between
/// files, so the controller can copy volumes that are in use.
pub(crate) const STATE_FS: &str = "xfs";
/// The size of the disk image in bytes; it is sparse.
const DISK_BYTES: u64 = 1 << 40;

/// Maximum time for releasing the loop devices.
const CLEAR_MAX: Duration = Duration::from_secs(20);
/// The pause between two checks of the loop devices, because the kernel sends no event when a loop
/// device is unbound.
const CHECK_PAUSE: Duration = Duration::from_millis(20);

/// The name of the sparse file that serves as the disk, in the demo's directory.
const IMAGE: &str = "disk";
/// The mount point of the disk.
pub(crate) const STATE: &str = "state";
/// The `--state-dir` of the controller.
pub(crate) const CONTROLLER_STATE: &str = "state/controller";
/// The `--loop-dir` of the node agent: the directory in which the controller keeps the files of
/// volumes.
pub(crate) const VOLUMES: &str = "state/controller/volumes";
/// The directory of all pods, laid out as a kubelet lays it out.
pub(crate) const POD: &str = "state/pods";
/// The directory in which the demo makes the system calls of Belay's node agent directly, to
/// compare the times.
pub(crate) const BARE: &str = "state/bare";

/// Creates a directory with a unique name in `temporary`. Only the current user can access it.
///
/// # Errors
/// Fails if `temporary` is not writable.
pub(crate) fn create(temporary: &Path) -> Result<PathBuf> {
    let mut builder = tempfile::Builder::new();
    Ok(builder.prefix("belay-demo.").tempdir_in(temporary)?.keep())
}

pub(crate) fn socket(demo_dir: &Path, binary: &str) -> PathBuf {
    demo_dir.join(format!("{binary}.sock"))
}

pub(crate) fn log(demo_dir: &Path, binary: &str) -> PathBuf {
    demo_dir.join(format!("{binary}.log"))
}

/// Creates the disk and binds it to a loop device.
///
/// # Errors
/// Fails if a system call or a tool fails.
pub(crate) fn make_disk(demo_dir: &Path) -> Result<()> {
    let image = demo_dir.join(IMAGE);
    fs::create_dir(demo_dir.join(STATE))?;
    File::create_new(&image)?.set_len(DISK_BYTES)?;
    // Give the filesystem a small log, since the default log for this size would allocate half a
    // gigabyte.
    mkfs(STATE_FS, &["-q", "-K", "-l", "size=64m"], &image)?;
    devices::bind(&image, &["--nooverlap"], Stdio::null())?;
    Ok(())
}

/// Returns the loop device of the disk.
///
/// # Errors
/// Fails if the disk is not bound to a loop device.
pub(crate) fn disk(demo_dir: &Path) -> Result<PathBuf> {
    let disk = loops(demo_dir)?.0.pop();
    Ok(disk.context("the disk is not bound")?.device)
}

/// Formats a device or file in a separate process that does not receive the SIGINT of Ctrl-C.
///
/// # Errors
/// Fails if the tool is missing or fails.
pub(crate) fn mkfs(fs_type: &str, options: &[&str], device: &Path) -> Result<()> {
    let tool = format!("mkfs.{fs_type}");
    let mut mkfs = Command::new(&tool);
    mkfs.args(options).arg(device).stdin(Stdio::null());
    let output = mkfs.process_group(0).output().context(tool.clone())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let device = device.display();
    ensure!(output.status.success(), "{tool} {device}: {}", said.trim());
    Ok(())
}

/// Returns the loop devices bound to the disk's file, and the loop devices bound to files on the
/// disk.
fn loops(demo_dir: &Path) -> Result<(Vec<Loop>, Vec<Loop>)> {
    let all = devices::list()?;
    let disks = devices::bound_to(&all, &demo_dir.join(IMAGE))?;
    let nested = devices::bound_on(&all, &disks);
    Ok((disks, nested))
}

/// Releases every loop device of the demo and removes its directory. Returns the number of devices
/// that were still bound, not counting the disk.
///
/// # Errors
/// Fails if a file or device could not be removed; the error names it.
pub(crate) async fn clear(demo_dir: &Path) -> Result<usize> {
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + CLEAR_MAX;
    loop {
        let (disks, nested) = loops(demo_dir)?;
        let Some(disk) = disks.first() else { break };
        let last = nested.first().unwrap_or(disk).device.display();
        ensure!(Instant::now() < deadline, "{last}: still in use");
        for ours in nested.iter().chain(&disks) {
            devices::release(ours)?;
        }
        seen.extend(nested.into_iter().map(|nested| nested.device));
        tokio::time::sleep(CHECK_PAUSE).await;
    }
    remove(demo_dir)?;
    Ok(seen.len())
}

/// Removes the files that the demo creates, and then the directory. Fails if the directory contains
/// anything else.
fn remove(demo_dir: &Path) -> Result<()> {
    let files = BINARIES.map(|name| [socket(demo_dir, name), log(demo_dir, name)]);
    for file in files.as_flattened().iter().chain([&demo_dir.join(IMAGE)]) {
        forgive_absence(fs::remove_file(file), file)?;
    }
    for directory in [&demo_dir.join(STATE), demo_dir] {
        forgive_absence(fs::remove_dir(directory), directory)?;
    }
    Ok(())
}

fn forgive_absence(result: io::Result<()>, path: &Path) -> Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.with_context(|| path.display().to_string()),
    }
}

/// Proves that no mount or loop device of a volume is left.
///
/// # Errors
/// Fails with the name of a mount or loop device that is left.
pub(crate) fn has_no_volume_in_use(demo_dir: &Path) -> Result<()> {
    let state = demo_dir.join(STATE);
    for mount in mounts_of("self")? {
        let is_below = mount.point != state && mount.point.starts_with(&state);
        ensure!(!is_below, "{}: still mounted", mount.point.display());
    }
    none_is_bound(&loops(demo_dir)?.1)
}

/// Proves that no loop device is left. A single check suffices: losetup reads a device by a single
/// ioctl, and the NodeUnstageVolume call and the last umount return only after the device is
/// unbound.
///
/// # Errors
/// Fails with the names of the bound loop devices.
pub(crate) fn none_is_bound(left: &[Loop]) -> Result<()> {
    let names: Vec<_> = left.iter().map(|l| l.device.to_string_lossy()).collect();
    ensure!(names.is_empty(), "{}: still bound", names.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_removed_with_everything_that_the_demo_creates() {
        let temporary = tempfile::tempdir().unwrap();
        let demo_dir = create(temporary.path()).unwrap();
        fs::write(demo_dir.join(IMAGE), "x").unwrap();
        fs::write(log(&demo_dir, NODE), "x").unwrap();
        fs::create_dir(demo_dir.join(STATE)).unwrap();
        remove(&demo_dir).unwrap();
        assert!(!demo_dir.exists());
        remove(&demo_dir).unwrap();
    }

    #[test]
    fn a_foreign_file_in_the_directory_is_kept_and_named() {
        let temporary = tempfile::tempdir().unwrap();
        let demo_dir = create(temporary.path()).unwrap();
        let stranger = demo_dir.join(STATE).join("precious");
        fs::create_dir(demo_dir.join(STATE)).unwrap();
        fs::write(&stranger, "x").unwrap();
        let error = format!("{:#}", remove(&demo_dir).unwrap_err());
        assert!(error.contains("state"), "{error}");
        assert!(stranger.exists());
    }

    #[test]
    fn two_demos_never_share_a_directory() {
        let temporary = tempfile::tempdir().unwrap();
        let [first, second] = [0, 1].map(|_| create(temporary.path()).unwrap());
        assert_ne!(first, second);
    }
}
