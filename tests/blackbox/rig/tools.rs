//! The system's own tools, for images like other users create them.

use std::fs;
use std::path::Path;

use belay_bed::tools::{run, text};

use super::test_dir::TestDir;

/// Mounts an image with mount(8), runs `act` in it, and unmounts it again.
pub(crate) fn mounted<T>(test_dir: &TestDir, image: &Path, act: impl FnOnce(&Path) -> T) -> T {
    let directory = test_dir.directory("by-hand");
    let (image, point) = (text(image), text(&directory));
    run("mount", &["-o", "loop", image, point]);
    let result = act(&directory);
    run("umount", &[point]);
    fs::remove_dir(&directory).expect("rmdir");
    result
}
