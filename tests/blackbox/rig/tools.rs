//! The system's own tools, for images that other hands might have made.

use std::fs;
use std::path::Path;

use belay_bed::tools::{run, text};

use super::place::Place;

/// Mounts an image by the system's own mount, lets `act` work in it, and unmounts it again.
pub(crate) fn mounted<T>(place: &Place, image: &Path, act: impl FnOnce(&Path) -> T) -> T {
    let folder = place.folder("by-hand");
    let (image, point) = (text(image), text(&folder));
    run("mount", &["-o", "loop", image, point]);
    let result = act(&folder);
    run("umount", &[point]);
    fs::remove_dir(&folder).expect("rmdir");
    result
}
