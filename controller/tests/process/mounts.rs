//! Real mounts for tests that run as root in a private mount namespace. Each is unmounted at the
//! end of its test.

use belay_bed::patience::until;
use belay_bed::tools::{run, text};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The size of the xfs in bytes; it is sparse, so only written data uses space.
const IMAGE_BYTES: u64 = 4 << 30;

/// A mounted file; unmounting it frees its loop device.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts the filesystem in a file on a directory that it creates.
    pub(crate) fn new(image: &Path, at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        run("mount", &["-o", "loop", text(image), text(&at)]);
        Self { at }
    }

    /// Mounts a tmpfs on a directory that it creates.
    pub(crate) fn tmpfs(at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs", text(&at)]);
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
            run("umount", &["--lazy", text(&self.at)]);
            return;
        }
        // A child process that another test starts has copies of all descriptors until its exec.
        until(&format!("{} is unmounted", self.at.display()), || {
            let umount = Command::new("umount").arg(&self.at).status();
            umount.unwrap().success()
        });
    }
}

/// A new xfs, which can share blocks between files.
pub(crate) struct Xfs {
    // The order of the fields matters: the filesystem is unmounted first, and then removed.
    mount: Mount,
    _dir: tempfile::TempDir,
}

impl Xfs {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
        run("mkfs.xfs", &["-q", text(&image)]);
        Self {
            mount: Mount::new(&image, dir.path().join("xfs")),
            _dir: dir,
        }
    }

    /// Returns the root of the filesystem, which can still be used although it is no longer
    /// visible. The filesystem ends when the root is closed.
    pub(crate) fn hidden(self) -> File {
        let root = File::open(self.path()).unwrap();
        run("umount", &["--lazy", text(self.path())]);
        std::mem::forget(self.mount);
        root
    }

    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }
}
