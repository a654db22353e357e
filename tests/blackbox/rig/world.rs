//! All that a refused call could have changed: mounts, loop devices, and every file in sight.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belay_bed::patience::until;

use super::place::{LoopDevice, Place, mount_points};

/// What there is at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct World {
    mounts: Vec<PathBuf>,
    loops: Vec<LoopDevice>,
    files: BTreeSet<String>,
}

impl World {
    /// Looks around. What other tests mount at this very time does not count.
    pub(crate) fn around(place: &Place) -> Self {
        let top = place.path();
        let others = top.parent().expect("a folder for temporary files");
        let is_of_this_test =
            |point: &PathBuf| point.starts_with(top) || !point.starts_with(others);
        let loops = place.loops();
        let mut files = BTreeSet::new();
        walk(top, &loops, &mut files);
        World {
            mounts: mount_points().into_iter().filter(is_of_this_test).collect(),
            loops,
            files,
        }
    }

    /// Fails, and says what, unless everything is still as it was.
    #[track_caller]
    pub(crate) fn expect_unchanged(&self, place: &Place, when: &str) {
        // A device that somebody else has just looked into stays bound until he has done so.
        until(
            &format!("the loop devices are {:?} again, {when}", self.loops),
            || place.loops() == self.loops,
        );
        let now = World::around(place);
        assert_eq!(self.mounts, now.mounts, "mounts, {when}");
        let changed: Vec<_> = self.files.symmetric_difference(&now.files).collect();
        assert!(
            changed.is_empty(),
            "files, before and after, {when}: {changed:#?}"
        );
    }
}

/// One line a file, apart from the logs, which grow with every call. How many blocks a volume in
/// use has is its filesystem's affair, which writes when it pleases.
fn walk(folder: &Path, loops: &[LoopDevice], lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("readdir").flatten() {
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
