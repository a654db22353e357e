//! The system's own tools, for images that other hands might have made.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::place::Place;

/// Runs a tool to its end and returns what it printed.
///
/// # Panics
/// When it fails, with what it said.
#[track_caller]
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error}; `make setup` installs it"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A path as an argument of these.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

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
