//! A test's own disk: a sparse file with a filesystem of choice, mounted in the test directory.

use std::fs::File;
use std::path::{Path, PathBuf};

use belay_bed::tools::{run, text};

use super::test_dir::TestDir;
use super::tools::mount_image;

/// The size of the file, which is sparse.
const DISK_BYTES: u64 = 64 << 30;

/// The mounted disk. If a test fails, the test directory unmounts it.
pub(crate) struct Disk {
    point: PathBuf,
}

impl Disk {
    /// Creates a disk and mounts it at this directory of the test directory.
    pub(crate) fn new(test_dir: &TestDir, filesystem: &str, directory: &str) -> Self {
        Self::of(test_dir, filesystem, directory, DISK_BYTES)
    }

    /// Creates a disk of this size, like [`Disk::new`].
    pub(crate) fn of(test_dir: &TestDir, filesystem: &str, directory: &str, bytes: u64) -> Self {
        let (image, point) = (test_dir.path().join("disk"), test_dir.directory(directory));
        File::create_new(&image)
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file");
        run(&format!("mkfs.{filesystem}"), &["-q", text(&image)]);
        mount_image(&image, &point, "loop");
        Disk { point }
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// Unmounts the disk; fails while a process has a file open in it.
    pub(crate) fn unmount(self) {
        run("umount", &[text(&self.point)]);
    }
}
