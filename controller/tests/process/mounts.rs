//! Real mounts for tests that run as root in a mount namespace of their own; each ends with its
//! test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Of the xfs; sparse, so that only what is written takes room.
const IMAGE_BYTES: u64 = 4 << 30;

/// A child that another test starts has copies of our descriptors until its exec.
const TRIES: u32 = 100;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// A mounted file; its loop device goes with the mount.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts the filesystem in that file at a folder that is made.
    pub(crate) fn new(image: &Path, at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        run("mount", &["-o", "loop"], &[image, &at]);
        Self { at }
    }

    /// Mounts a tmpfs at a folder that is made.
    pub(crate) fn tmpfs(at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs"], &[&at]);
        Self { at }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A failing test may still have files open there.
            run("umount", &["--lazy"], &[&self.at]);
            return;
        }
        let umount = || Command::new("umount").arg(&self.at).status();
        let ended = eventually(|| umount().unwrap().success());
        assert!(ended, "{} stays busy", self.at.display());
    }
}

/// Waits until it is so, for some seconds.
#[expect(
    clippy::disallowed_methods,
    reason = "no event tells that another process has closed a file or a device"
)]
pub(crate) fn eventually(is_so: impl Fn() -> bool) -> bool {
    (0..TRIES).any(|_| {
        let is_so = is_so();
        if !is_so {
            std::thread::sleep(BETWEEN_TRIES);
        }
        is_so
    })
}

/// A fresh xfs, which can share blocks between files.
pub(crate) struct Xfs {
    // In this order: first unmounted, then removed.
    mount: Mount,
    _dir: tempfile::TempDir,
}

impl Xfs {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
        run("mkfs.xfs", &["-q"], &[&image]);
        Self {
            mount: Mount::new(&image, dir.path().join("xfs")),
            _dir: dir,
        }
    }

    /// Its root, by which it is still reached, though nothing of it is seen any more; it ends when
    /// that is closed.
    pub(crate) fn hidden(self) -> File {
        let root = File::open(self.path()).unwrap();
        run("umount", &["--lazy"], &[self.path()]);
        std::mem::forget(self.mount);
        root
    }

    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }
}

/// Runs a program of the system to its end.
pub(crate) fn run(program: &str, flags: &[&str], paths: &[&Path]) {
    let status = Command::new(program).args(flags).args(paths).status();
    assert!(status.unwrap().success(), "{program} {flags:?} {paths:?}");
}
