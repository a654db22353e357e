//! Everything that a refused call could have changed: mounts, loop devices, and all files in reach.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belay_bed::patience::until;

use super::test_dir::{LoopDevice, TestDir, mount_points};

/// The state of the world at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct World {
    mounts: Vec<PathBuf>,
    loops: Vec<LoopDevice>,
    files: BTreeSet<String>,
}

impl World {
    /// Reads the state, without the mounts of other tests.
    pub(crate) fn around(test_dir: &TestDir) -> Self {
        let top = test_dir.path();
        let others = top.parent().expect("a directory for temporary files");
        let is_of_this_test =
            |point: &PathBuf| point.starts_with(top) || !point.starts_with(others);
        let loops = test_dir.loops();
        let mut files = BTreeSet::new();
        walk(top, &loops, &mut files);
        World {
            mounts: mount_points().into_iter().filter(is_of_this_test).collect(),
            loops,
            files,
        }
    }

    /// Fails, with the difference, unless the state is unchanged.
    #[track_caller]
    pub(crate) fn expect_unchanged(&self, test_dir: &TestDir, when: &str) {
        // A device that another process has just opened stays bound until it is closed.
        until(
            &format!("the loop devices are {:?} again, {when}", self.loops),
            || test_dir.loops() == self.loops,
        );
        let now = World::around(test_dir);
        assert_eq!(self.mounts, now.mounts, "mounts, {when}");
        let changed: Vec<_> = self.files.symmetric_difference(&now.files).collect();
        assert!(
            changed.is_empty(),
            "files, before and after, {when}: {changed:#?}"
        );
    }
}

/// Adds a line for each file, except logs, which grow with every call. Omits the number of blocks
/// of a volume in use, since its filesystem may write at any time.
fn walk(directory: &Path, loops: &[LoopDevice], lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("readdir").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            continue;
        }
        let stat = entry.metadata().expect("stat");
        let is_in_use = loops.iter().any(|device| device.file == path);
        let blocks = (!is_in_use).then_some(stat.blocks());
        lines.insert(format!(
            "{} {:o} {} bytes, {blocks:?} blocks, inode {}",
            path.display(),
            stat.mode(),
            stat.len(),
            stat.ino()
        ));
        if stat.is_dir() {
            walk(&path, loops, lines);
        }
    }
}
