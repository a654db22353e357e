//! A test's own directory on a real disk, and its possible leftovers: mounts and bound loop
//! devices. Nothing outside the directory is ever touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belay_bed::devices;
use belay_bed::patience::until;
use belay_bed::scrape::status;
use rustix::fs::statfs;
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use super::mounts::mounts_of;

/// `f_type` of tmpfs (statfs(2)): files on it behave unlike those on a disk.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Tests take turns. While one of them starts a process, that has every file open that any other
/// has open, until it runs its program; and a mount or a device with an open file stays busy.
static TURN: Mutex<()> = Mutex::new(());

/// The directory, removed with all that is in it when this is dropped.
pub(crate) struct TestDir {
    directory: TempDir,
    // The last to be dropped: the next test finds nothing of this one.
    _turn: MutexGuard<'static, ()>,
}

/// A loop device that is bound to a file in a test directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoopDevice {
    /// As in `/dev/loop<number>`.
    pub(crate) number: u32,
    /// The file behind it.
    pub(crate) file: PathBuf,
}

impl TestDir {
    /// A new empty directory, when it is this test's turn. One per test: a second would wait
    /// forever.
    ///
    /// # Panics
    /// In the mount namespace of the machine itself: tests mount in a private one.
    pub(crate) fn new() -> Self {
        assert!(
            is_isolated(),
            "mounts would show on the machine; run `make mounts`, or cargo below `unshare --mount \
             --propagation private`"
        );
        // A test that failed has cleaned up like any other.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::Builder::new()
            .prefix("belay-test-")
            .tempdir_in(disk())
            .expect("a temporary directory");
        TestDir {
            directory,
            _turn: turn,
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A directory in it, made with its parents if need be.
    pub(crate) fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).expect("mkdir");
        path
    }

    /// The mounts in it, in mount order.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        mount_points()
            .into_iter()
            .filter(|point| point.starts_with(self.path()))
            .collect()
    }

    /// The loop devices bound to files in it. Read from sysfs, since opening a device would keep it
    /// bound and so interfere with the agents.
    pub(crate) fn loops(&self) -> Vec<LoopDevice> {
        loops_below(self.path())
    }

    /// Fails if the agents left a mount or a loop device. The kernel lets go of a device a moment
    /// after its last user.
    pub(crate) fn expect_nothing_left(&self) {
        let mounts = self.mounts();
        assert!(mounts.is_empty(), "left mounted: {mounts:?}");
        until("no loop device is left bound", || self.loops().is_empty());
    }

    fn sweep(&self) {
        // Without the mount of a disk, the files on it have other paths.
        let bound = self.loops();
        for point in self.mounts().iter().rev() {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            if let Err(error) = unmount(point, flags) {
                eprintln!("cannot unmount {}: {error}", point.display());
            }
        }
        for device in bound {
            // One that had only waited for its mount is gone by now.
            let now = backing_file(device.number);
            if now.is_none_or(|now| now.file_name() != device.file.file_name()) {
                continue;
            }
            let node = format!("/dev/loop{}", device.number);
            let detached = devices::detach(Path::new(&node));
            eprintln!("detached {node} of {}: {detached:?}", device.file.display());
        }
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        self.sweep();
    }
}

/// The loop devices bound to files in a directory.
pub(crate) fn loops_below(directory: &Path) -> Vec<LoopDevice> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").expect("/sys/block").flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        if let Some(file) = backing_file(number).filter(|file| file.starts_with(directory)) {
            found.push(LoopDevice { number, file });
        }
    }
    found.sort();
    found
}

/// None where the device is unbound, or gone.
fn backing_file(number: u32) -> Option<PathBuf> {
    let file = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    Some(PathBuf::from(file.trim_end_matches('\n')))
}

/// Every mount point of this namespace.
pub(super) fn mount_points() -> Vec<PathBuf> {
    let mounts = mounts_of("self").into_iter();
    mounts.map(|mount| mount.point).collect()
}

/// Whether some process that this one descends from is in another mount namespace.
fn is_isolated() -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = namespace("self");
    let mut pid = "self".to_owned();
    while let Some(parent) = parent(&pid) {
        match namespace(&parent) {
            // What is closed to root is of a machine around this one.
            None => return false,
            other if other != own => return true,
            _ => pid = parent,
        }
    }
    false
}

fn parent(pid: &str) -> Option<String> {
    let parent = status(pid, "PPid").ok()?;
    (parent != 0).then(|| parent.to_string())
}

/// A directory for temporary files that is on a disk.
fn disk() -> PathBuf {
    let usual = std::env::temp_dir();
    let kind = statfs(&usual).expect("statfs").f_type;
    if u64::try_from(kind) == Ok(TMPFS_MAGIC) {
        PathBuf::from("/var/tmp")
    } else {
        usual
    }
}
