//! Implements the `World` of the tests on the machine on which the tests run, with real loop
//! devices, in a mount namespace that is removed at the end of the test.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;

use tempfile::TempDir;

use super::bench::World;
use crate::device::loop_path;
use crate::kernel::linux::Linux;
use crate::kernel::linux::real::in_own_namespace;
use crate::kernel::{Kernel as _, Open};

/// A timeout that is longer than udevd ever keeps a device open.
const DETACHED_AFTER: Duration = Duration::from_secs(20);

pub(super) struct Real {
    dir: TempDir,
}

/// Runs `body` with a separate test world.
pub(super) fn in_real_world(body: impl FnOnce(&Real) + Send) {
    in_own_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let world = Real { dir };
        world.make_dir(&world.volumes());
        body(&world);
    });
}

/// Detaches devices that a failed test has left bound. The mounts are removed together with the
/// mount namespace.
impl Drop for Real {
    fn drop(&mut self) {
        let kernel = self.kernel();
        for number in kernel.loop_bound().unwrap_or_default() {
            let file = kernel.loop_file(number).ok().flatten();
            if file.is_some_and(|file| file.path.starts_with(self.base()))
                && let Ok(device) = kernel.open(&loop_path(number), Open::DeviceRead)
            {
                drop(kernel.loop_clr_fd(&device));
            }
        }
    }
}

impl World for Real {
    type Kernel = Linux;

    fn kernel(&self) -> Linux {
        Linux::detect().unwrap()
    }

    fn base(&self) -> &Path {
        self.dir.path()
    }

    fn make_file(&self, path: &Path, bytes: u64) {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        file.unwrap().set_len(bytes).unwrap();
    }

    fn set_attribute(&self, path: &Path, name: &str, value: &[u8]) {
        rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
    }

    fn make_dir(&self, path: &Path) {
        std::fs::create_dir_all(path).unwrap();
    }

    fn move_file(&self, from: &Path, to: &Path) {
        std::fs::rename(from, to).unwrap();
    }

    fn remove_file(&self, path: &Path) {
        std::fs::remove_file(path).unwrap();
    }

    fn write_file(&self, path: &Path, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    }

    fn tries_max(&self) -> usize {
        1000
    }

    fn grows_ext4(&self) -> bool {
        let all = rustix::thread::capabilities(None).unwrap().effective;
        all.contains(rustix::thread::CapabilitySet::SYS_RESOURCE)
    }

    fn left(&self) -> Vec<String> {
        let base = self.base().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let mut left: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(base))
            .map(str::to_owned)
            .collect();
        left.extend(devices(base));
        for pod in std::fs::read_dir(self.base().join("pods")).unwrap() {
            left.push(pod.unwrap().path().display().to_string());
        }
        left
    }
}

/// Returns the loop devices of files in `base`. Waits for devices with AUTOCLEAR: such a device is
/// detached when the last program has closed it, and udevd opens each device for a moment.
fn devices(base: &str) -> Vec<String> {
    let since = Instant::now();
    loop {
        let mut left = Vec::new();
        let mut detaching = false;
        for device in std::fs::read_dir("/sys/block").unwrap() {
            let device = device.unwrap().path().join("loop");
            let attribute = |name| std::fs::read_to_string(device.join(name)).unwrap_or_default();
            let file = attribute("backing_file");
            if file.starts_with(base) {
                left.push(format!("loop of {file}"));
                detaching |= attribute("autoclear") == "1\n";
            }
        }
        if !detaching || since.elapsed() > DETACHED_AFTER {
            return left;
        }
        std::thread::yield_now();
    }
}
