//! A folder of a test's own on a real disk, and what a test may have left beneath it: mounts and
//! bound loop devices. Nothing beyond the folder is ever touched.

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

/// The folder, removed with all that is in it when this is dropped.
pub(crate) struct Place {
    folder: TempDir,
    // The last to be dropped: the next test finds nothing of this one.
    _turn: MutexGuard<'static, ()>,
}

/// A loop device that is bound to a file beneath a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoopDevice {
    /// As in `/dev/loop<number>`.
    pub(crate) number: u32,
    /// The file behind it.
    pub(crate) file: PathBuf,
}

impl Place {
    /// A new empty folder, when it is this test's turn. One a test: a second would wait for ever.
    ///
    /// # Panics
    /// In the mount namespace of the machine itself: tests mount in one of their own.
    pub(crate) fn new() -> Self {
        assert!(
            is_isolated(),
            "mounts would show on the machine; run `make mounts`, or cargo below `unshare --mount \
             --propagation private`"
        );
        // A test that failed has cleaned up like any other.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new()
            .prefix("belay-test-")
            .tempdir_in(disk())
            .expect("a temporary folder");
        Place {
            folder,
            _turn: turn,
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A folder in it, made with its parents if need be.
    pub(crate) fn folder(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).expect("mkdir");
        path
    }

    /// What is mounted beneath it, in the order in which it was mounted.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        mount_points()
            .into_iter()
            .filter(|point| point.starts_with(self.path()))
            .collect()
    }

    /// The loop devices bound to files beneath it. Read from sysfs, since opening a device would
    /// keep it bound and so meddle with what the agents do.
    pub(crate) fn loops(&self) -> Vec<LoopDevice> {
        loops_beneath(self.path())
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

impl Drop for Place {
    fn drop(&mut self) {
        self.sweep();
    }
}

/// The loop devices bound to files beneath a folder.
pub(crate) fn loops_beneath(folder: &Path) -> Vec<LoopDevice> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").expect("/sys/block").flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        if let Some(file) = backing_file(number).filter(|file| file.starts_with(folder)) {
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

/// A folder for temporary files that is on a disk.
fn disk() -> PathBuf {
    let usual = std::env::temp_dir();
    let kind = statfs(&usual).expect("statfs").f_type;
    if u64::try_from(kind) == Ok(TMPFS_MAGIC) {
        PathBuf::from("/var/tmp")
    } else {
        usual
    }
}
