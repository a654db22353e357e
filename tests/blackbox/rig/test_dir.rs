//! A test's own directory on a real disk, and its possible leftovers: mounts and bound loop
//! devices. Nothing outside the directory is ever touched.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belay_bed::devices;
use belay_bed::patience::until;
use belay_bed::scrape::status;
use rustix::fs::statfs;
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use super::mounts::mounts_of;

/// `f_type` of tmpfs (statfs(2)), on which files behave differently from files on a disk.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The lock of the running test: one test runs at a time. A process that a test starts has all
/// files of the test process open until its exec, and a mount or a device with an open file stays
/// busy.
static TURN: Mutex<()> = Mutex::new(());

/// The directory, which is removed with its content when this is dropped.
pub(crate) struct TestDir {
    directory: TempDir,
    // This is dropped last, so that the next test finds nothing of this one.
    _turn: MutexGuard<'static, ()>,
}

/// A loop device that is bound to a file in a test directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoopDevice {
    /// The number, as in `/dev/loop<number>`.
    pub(crate) number: u32,
    /// The file behind the device.
    pub(crate) file: PathBuf,
}

impl TestDir {
    /// Creates an empty directory, once it is this test's turn. Create only one per test: a second
    /// would wait forever.
    ///
    /// # Panics
    /// Panics in the mount namespace of the machine itself: tests must mount in a private one.
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

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a directory in it, created with its parents if necessary.
    pub(crate) fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).expect("mkdir");
        path
    }

    /// Returns the mounts in the directory, in mount order.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        mount_points()
            .into_iter()
            .filter(|point| point.starts_with(self.path()))
            .collect()
    }

    /// Returns the loop devices bound to files in the directory. Reads sysfs, since opening a
    /// device would keep it bound and so interfere with the agents.
    pub(crate) fn loops(&self) -> Vec<LoopDevice> {
        loops_below(self.path())
    }

    /// Binds all free loop devices with lower numbers. The kernel gives the lowest one to the next
    /// program, so that the device with this number follows, unless a test of another process takes
    /// it.
    pub(crate) fn fill_below(&self, number: u64) -> Fillers {
        let file = self.path().join("filler");
        fs::write(&file, [0; 512]).expect("a file");
        let mut fillers = Fillers(Vec::new());
        let is_below = |device: &Path| {
            let name = device
                .to_str()
                .and_then(|name| name.strip_prefix("/dev/loop"));
            name.and_then(|name| name.parse().ok())
                .is_some_and(|it: u64| it < number)
        };
        while is_below(&devices::free().expect("a free device")) {
            fillers.0.push(devices::bind_again(&file).expect("losetup"));
        }
        fillers
    }

    /// Fails if the agents left a mount or a loop device. The kernel releases a device a moment
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
            // A device that only waited for its mount to be removed is released by now.
            let now = backing_file(device.number);
            let is_its = |now: PathBuf| {
                let is_of_another = now.starts_with(disk()) && !now.starts_with(self.path());
                now.file_name() == device.file.file_name() && !is_of_another
            };
            if !now.is_some_and(is_its) {
                continue;
            }
            let node = format!("/dev/loop{}", device.number);
            let detached = devices::detach(Path::new(&node));
            eprintln!("detached {node} of {}: {detached:?}", device.file.display());
        }
    }
}

/// Waits while a test of another process needs a certain loop number, and keeps such tests waiting
/// until the file is dropped: it is this program, which all processes share.
pub(crate) fn loop_numbers() -> File {
    let program = env::current_exe()
        .and_then(File::open)
        .expect("this program");
    program.lock().expect("flock");
    program
}

/// Loop devices that are bound to one empty file, until this is dropped.
pub(crate) struct Fillers(Vec<PathBuf>);

impl Drop for Fillers {
    fn drop(&mut self) {
        for device in &self.0 {
            if let Err(error) = devices::detach(device) {
                eprintln!("{}: {error}", device.display());
            }
        }
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        self.sweep();
    }
}

/// Returns the loop devices bound to files in a directory.
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

/// Returns the backing file of a device; `None` if the device is unbound or does not exist.
fn backing_file(number: u32) -> Option<PathBuf> {
    let file = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    Some(PathBuf::from(file.trim_end_matches('\n')))
}

/// Returns every mount point of this namespace.
pub(super) fn mount_points() -> Vec<PathBuf> {
    let mounts = mounts_of("self").into_iter();
    mounts.map(|mount| mount.point).collect()
}

/// Whether an ancestor of this process is in another mount namespace.
fn is_isolated() -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = namespace("self");
    let mut pid = "self".to_owned();
    while let Some(parent) = parent(&pid) {
        match namespace(&parent) {
            // An ancestor that root cannot inspect belongs to a machine around this one.
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

/// Returns a directory for temporary files on a disk.
fn disk() -> PathBuf {
    let usual = std::env::temp_dir();
    let kind = statfs(&usual).expect("statfs").f_type;
    if u64::try_from(kind) == Ok(TMPFS_MAGIC) {
        PathBuf::from("/var/tmp")
    } else {
        usual
    }
}
