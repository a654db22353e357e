//! A real filesystem on a recorded file: the writes and flushes of its block device are recorded,
//! and after a power loss the kernel replays its journal.

use std::path::PathBuf;

use super::disk::Recorded;
use super::life::Recording;
use super::tree::{Change, ROOT, Tree};
use crate::rig::{Drive, TestDir, mount_image, run};

/// The size of the image, which is sparse; it has room for some copies of the largest volume.
const IMAGE_BYTES: u64 = 4 << 30;
/// The name of the image.
const IMAGE: &str = "image";

/// The mounted filesystem.
pub(super) struct Image {
    point: PathBuf,
    under: Recorded,
}

impl Image {
    /// Creates a filesystem. The record begins when the filesystem is mounted.
    pub(super) fn new(test_dir: &TestDir, filesystem: &str) -> Self {
        let under = Recorded::mount(&test_dir.directory("under"), blank());
        let image = test_dir.path().join("under").join(IMAGE);
        let image = image.to_str().expect("UTF-8");
        run(&format!("mkfs.{filesystem}"), &["-q", image]);
        let image = Image::over(test_dir, under);
        image.under.begin();
        image
    }

    fn over(test_dir: &TestDir, under: Recorded) -> Self {
        let image = test_dir.path().join("under").join(IMAGE);
        let point = test_dir.directory("state");
        mount_image(&image, &point, "loop");
        Image { point, under }
    }
}

impl Drive for Image {
    fn unmount(self) {
        run("umount", &[self.point.to_str().expect("UTF-8")]);
    }
}

impl Recording for Image {
    const TEARS: bool = false;

    fn mount(test_dir: &TestDir, tree: Tree) -> Self {
        let under = Recorded::mount(&test_dir.directory("under"), tree);
        Image::over(test_dir, under)
    }

    fn recorded(&self) -> &Recorded {
        &self.under
    }
}

/// Returns a directory that contains an empty image.
fn blank() -> Tree {
    let mut tree = Tree::new();
    let ino = tree.free();
    let (directory, name) = (ROOT, IMAGE.to_owned());
    tree.apply(&Change::Make {
        ino,
        is_directory: false,
    });
    tree.apply(&Change::Name {
        directory,
        name,
        ino,
    });
    tree.apply(&Change::Resize {
        ino,
        bytes: IMAGE_BYTES,
    });
    tree
}
