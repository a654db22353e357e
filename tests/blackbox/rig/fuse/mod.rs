//! Filesystems that this process serves (include/uapi/linux/fuse.h): mounts them, reads their
//! requests, and unmounts them. Independent of the responses of a filesystem.

mod silent;
mod wire;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belay_bed::patience::pause;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

pub(crate) use silent::Fuse;
pub(crate) use wire::{Attributes, Reply, Request, op};

/// The maximum size of a request: a write of [`wire::WRITE_BYTES_MAX`] with its head.
const REQUEST_BYTES_MAX: usize = wire::WRITE_BYTES_MAX + 4096;

/// A filesystem.
pub(crate) trait Server: Send + 'static {
    /// Responds to a request; with `None`, the caller waits.
    fn answer(&mut self, request: Request<'_>) -> Option<Result<Vec<u8>, Errno>>;
}

/// A mounted filesystem. Unmounted when this is dropped; processes that still wait for it get an
/// error.
pub(crate) struct FuseMount {
    point: PathBuf,
    /// The number of the filesystem in fusectl.
    connection: u32,
    /// An open descriptor of the root, so that the number is not reused.
    _root: OwnedFd,
}

impl FuseMount {
    /// Mounts a filesystem at this directory.
    pub(crate) fn new(point: &Path, server: impl Server) -> Self {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .expect("/dev/fuse");
        let requests = device.try_clone().expect("dup");
        std::thread::spawn(move || serve(requests, server));
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        let mounted = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", options, "belay-test"])
            .arg(point)
            .stdin(Stdio::from(device))
            .status()
            .expect("mount of util-linux");
        assert!(mounted.success(), "mount -t fuse: {mounted}");
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(point, flags, Mode::empty()).expect("open");
        let connection = rustix::fs::fstat(&root).expect("stat").st_dev;
        FuseMount {
            point: point.to_owned(),
            connection: rustix::fs::minor(connection),
            _root: root,
        }
    }

    /// Returns the mount point.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the number in fusectl, for [`abort`].
    fn connection(&self) -> u32 {
        self.connection
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        abort(self.connection);
        match unmount(&self.point, UnmountFlags::DETACH) {
            // After a failed test, the test directory has already unmounted it.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => eprintln!("cannot unmount {}: {error}", self.point.display()),
        }
    }
}

/// Ends the connection, so that no process waits for it any longer.
fn abort(connection: u32) {
    let control = PathBuf::from("/sys/fs/fuse/connections");
    let abort = control.join(connection.to_string()).join("abort");
    if !abort.exists() {
        let fusectl = ["-t", "fusectl", "none"];
        // Another test may already have mounted it.
        drop(Command::new("mount").args(fusectl).arg(&control).output());
    }
    drop(fs::write(&abort, "1"));
}

fn serve(mut device: File, mut server: impl Server) {
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    loop {
        let length = match device.read(&mut bytes) {
            Ok(length) => length,
            // The filesystem is not mounted yet.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                pause();
                continue;
            }
            // A request was cancelled before it was read.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            // The filesystem is no longer mounted.
            Err(_) => return,
        };
        let request = Request::new(&bytes[..length]);
        let unique = request.unique();
        let answer = match request.op() {
            op::FORGET | op::INTERRUPT | op::BATCH_FORGET => None,
            op::INIT => Some(Ok(wire::init())),
            _ => server.answer(request),
        };
        if let Some(answer) = answer {
            // The caller may have been interrupted.
            drop(device.write(&wire::framed(unique, answer)));
        }
    }
}
