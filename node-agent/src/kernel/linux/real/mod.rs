//! Tests of the kernel's calls on real loop devices and mounts. Needs root.
//!
//! Every test has its own mount namespace, and detaches its own loop device, even if the test
//! fails.

#![expect(
    unsafe_code,
    reason = "rustix calls unshare unsafe, for the flags not used here"
)]

mod btrfs;
mod grow;
mod loops;
mod mounts;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use super::Linux;
use crate::kernel::{Cause, Child, ChildEnd, Kernel, LoopMode, MountAttrs, Open, Result, Stat};

const MIB: u64 = 1 << 20;

/// Maximum number of attempts to bind a loop device, because other processes may bind the free
/// device first.
const ATTEMPTS_MAX: usize = 50;

const WRITABLE: LoopMode = LoopMode {
    read_only: false,
    autoclear: true,
};

/// Runs `body` on a thread with its own mount namespace, which ends with the thread, so that no
/// mount of a failed test remains. The thread also has its own descriptor table: otherwise a child
/// that another test forks would have copies of the descriptors until it execs, and umount would
/// find the mount busy.
pub(crate) fn in_own_namespace(body: impl FnOnce(&Linux) + Send) {
    let isolated = move || {
        let (first, flags) = (3_u32, libc::CLOSE_RANGE_UNSHARE);
        // SAFETY: this closes this thread's copy of the descriptors; `body` captures no descriptor.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
        assert_eq!(closed, 0);
        // SAFETY: only a mount namespace is created.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).unwrap();
        body(&Linux::detect().unwrap());
    };
    let ended = std::thread::scope(|scope| scope.spawn(isolated).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// A sparse file in its own directory.
struct Image {
    dir: TempDir,
    file: OwnedFd,
}

impl Image {
    fn new(kernel: &Linux, bytes: u64) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let file = kernel.open(&path, Open::FileWrite).unwrap();
        Image { dir, file }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn set_len(&self, bytes: u64) {
        File::options()
            .write(true)
            .open(self.path())
            .unwrap()
            .set_len(bytes)
            .unwrap();
    }
}

/// A bound loop device; unbound on drop.
struct Loop<'a> {
    kernel: &'a Linux,
    number: u32,
    fd: OwnedFd,
}

impl<'a> Loop<'a> {
    fn attach(kernel: &'a Linux, file: &OwnedFd, mode: LoopMode) -> Loop<'a> {
        for _ in 0..ATTEMPTS_MAX {
            let number = kernel.loop_get_free().unwrap();
            let fd = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
            let by = match mode.read_only {
                true => Open::DeviceRead,
                false => Open::DeviceWrite,
            };
            let by = kernel.reopen(&fd, by).unwrap();
            match kernel.loop_configure(&by, file, mode, "test") {
                Ok(()) => return Loop { kernel, number, fd },
                Err(error) if error.cause() == Cause::Busy => {}
                Err(error) => panic!("{error}"),
            }
        }
        panic!("{ATTEMPTS_MAX} free loop devices were taken by others");
    }

    fn path(&self) -> PathBuf {
        loop_path(self.number)
    }

    /// Opens the device again, for writing.
    fn writer(&self) -> OwnedFd {
        self.kernel.reopen(&self.fd, Open::DeviceWrite).unwrap()
    }

    fn mkfs(&self, program: &'static str, args: &[&str]) -> ChildEnd {
        let mut args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        args.push("/proc/self/fd/0".to_owned());
        let deadline = Duration::from_secs(300);
        let child = Child {
            program,
            args,
            device: Some(&self.fd),
            deadline,
            is_given_up: &|| false,
            keys: &[],
            is_fsck: false,
        };
        self.kernel.run(&child).unwrap()
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        // The descriptor was open until now, so no other process has bound the device meanwhile:
        // with AUTOCLEAR set, closing the descriptor unbinds it.
        self.kernel.loop_set_autoclear(&self.fd, true).ok();
    }
}

/// A mount on a path; unmounted on drop.
struct Mounted<'a> {
    kernel: &'a Linux,
    path: PathBuf,
}

impl<'a> Mounted<'a> {
    /// Attaches a detached mount to `path`, and closes the mount's descriptor, which would keep the
    /// mount busy.
    fn attach(kernel: &'a Linux, mount: OwnedFd, path: &Path) -> Mounted<'a> {
        kernel
            .move_mount(&mount, &kernel.open_path(path).unwrap())
            .unwrap();
        Mounted {
            kernel,
            path: path.to_owned(),
        }
    }

    /// Mounts a new tmpfs on `path`.
    fn tmpfs(kernel: &'a Linux, path: &Path, attrs: MountAttrs) -> Mounted<'a> {
        let mount = detached(kernel, "tmpfs", &[], attrs).unwrap();
        Mounted::attach(kernel, mount, path)
    }

    fn stat(&self) -> Stat {
        self.kernel.look(&self.path).unwrap().unwrap()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.kernel.umount(&self.path)
            && !std::thread::panicking()
        {
            panic!("{error}");
        }
    }
}

/// Creates a detached mount: fsopen, fsconfig and fsmount.
fn detached(
    kernel: &Linux,
    fs_type: &str,
    options: &[(&str, Option<&str>)],
    attrs: MountAttrs,
) -> Result<OwnedFd> {
    let context = kernel.fsopen(fs_type)?;
    for (key, value) in options {
        kernel.fsconfig_set(&context, key, *value)?;
    }
    kernel.fsconfig_create(&context, false)?;
    kernel.fsmount(&context, attrs)
}

fn loop_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}
