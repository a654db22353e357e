//! The system's own tools, for images like other users create them.

use std::fs;
use std::path::Path;
use std::process::Command;

use belay_bed::devices;
use belay_bed::patience::pause;
use belay_bed::tools::{run, text};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::test_dir::TestDir;

/// Maximum number of loop devices that mount(8) may get without a result.
const ATTEMPTS_MAX: u32 = 100;

/// Mounts an image with mount(8), for writing. A test of another process may just have set the loop
/// device read-only that mount(8) gets, which then mounts the image read-only.
#[track_caller]
pub(crate) fn mount_image(image: &Path, point: &Path, options: &str) {
    let args = ["-o", options, text(image), text(point)];
    for _ in 0..ATTEMPTS_MAX {
        let output = Command::new("mount").args(args).output().expect("mount");
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        } else if statvfs(point)
            .expect("statvfs")
            .f_flag
            .contains(StatVfsMountFlags::RDONLY)
        {
            run("umount", &[text(point)]);
        } else {
            return;
        }
        pause();
    }
    panic!("mount {args:?} fails");
}

/// Binds a loop device with losetup(8), and returns its path.
#[track_caller]
pub(crate) fn bind_loop(file: &Path) -> String {
    let device = devices::bind_again(file).expect("losetup");
    text(&device).to_owned()
}

/// Mounts an image with mount(8), runs `act` in it, and unmounts it again.
pub(crate) fn mounted<T>(test_dir: &TestDir, image: &Path, act: impl FnOnce(&Path) -> T) -> T {
    let directory = test_dir.directory("by-hand");
    mount_image(image, &directory, "loop");
    let result = act(&directory);
    run("umount", &[text(&directory)]);
    fs::remove_dir(&directory).expect("rmdir");
    result
}
