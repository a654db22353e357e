//! A real filesystem on a recorded file: the writes and flushes of its block device are recorded,
//! and after a power loss the kernel replays its journal.

use std::path::PathBuf;

use super::disk::Recorded;
use super::life::Recording;
use super::tree::{Change, ROOT, Tree};
use crate::rig::{Drive, Place, run};

/// Sparse; room for some copies of the largest volume.
const IMAGE_BYTES: u64 = 4 << 30;
/// Its name.
const IMAGE: &str = "image";

/// The filesystem, mounted.
pub(super) struct Image {
    point: PathBuf,
    under: Recorded,
}

impl Image {
    /// Makes a filesystem. The record begins when it is mounted.
    pub(super) fn new(place: &Place, filesystem: &str) -> Self {
        let under = Recorded::mount(&place.folder("under"), blank());
        let image = place.path().join("under").join(IMAGE);
        let image = image.to_str().expect("UTF-8");
        run(&format!("mkfs.{filesystem}"), &["-q", image]);
        let image = Image::over(place, under);
        image.under.begin();
        image
    }

    fn over(place: &Place, under: Recorded) -> Self {
        let image = place.path().join("under").join(IMAGE);
        let point = place.folder("state");
        let paths = [&image, &point].map(|path| path.to_str().expect("UTF-8"));
        run("mount", &["-o", "loop", paths[0], paths[1]]);
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

    fn mount(place: &Place, tree: Tree) -> Self {
        let under = Recorded::mount(&place.folder("under"), tree);
        Image::over(place, under)
    }

    fn recorded(&self) -> &Recorded {
        &self.under
    }
}

/// A folder with an empty image in it.
fn blank() -> Tree {
    let mut tree = Tree::new();
    let ino = tree.free();
    let (folder, name) = (ROOT, IMAGE.to_owned());
    tree.apply(&Change::Make {
        ino,
        is_folder: false,
    });
    tree.apply(&Change::Name { folder, name, ino });
    tree.apply(&Change::Resize {
        ino,
        bytes: IMAGE_BYTES,
    });
    tree
}
