//! A disk of a test's own: a sparse file with a filesystem of choice, mounted in the test's folder.

use std::fs::File;
use std::path::{Path, PathBuf};

use belay_bed::tools::{run, text};

use super::place::Place;

/// Sparse, so that only what is written takes room.
const DISK_BYTES: u64 = 64 << 30;

/// The mounted disk. On a failure the place takes it back.
pub(crate) struct Disk {
    point: PathBuf,
}

impl Disk {
    /// Makes one and mounts it at that folder of the place.
    pub(crate) fn new(place: &Place, filesystem: &str, folder: &str) -> Self {
        let (image, point) = (place.path().join("disk"), place.folder(folder));
        File::create_new(&image)
            .and_then(|file| file.set_len(DISK_BYTES))
            .expect("a sparse file");
        run(&format!("mkfs.{filesystem}"), &["-q", text(&image)]);
        run("mount", &["-o", "loop", text(&image), text(&point)]);
        Disk { point }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// Unmounts it, which fails while anybody has a file open in it.
    pub(crate) fn unmount(self) {
        run("umount", &[text(&self.point)]);
    }
}
