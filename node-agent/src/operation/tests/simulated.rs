//! The simulated machine as a world.

use std::path::Path;

use super::bench::World;
use crate::kernel::fake::{Call, Fake, Machine};

pub(crate) struct Simulated {
    pub(crate) machine: Machine,
}

impl Simulated {
    pub(crate) fn new() -> Simulated {
        let machine = Machine::new();
        machine.make_dir(Path::new("/base/volumes"));
        Simulated { machine }
    }
}

impl Simulated {
    /// The number, counted from 1, of the first such call in what `act` does.
    pub(super) fn first_call(&self, act: impl FnOnce(), is_it: impl Fn(&Call) -> bool) -> usize {
        self.machine.begin(None);
        act();
        self.machine.end().iter().position(is_it).unwrap() + 1
    }
}

impl World for Simulated {
    type Kernel = Fake;

    fn kernel(&self) -> Fake {
        self.machine.process()
    }

    fn base(&self) -> &Path {
        Path::new("/base")
    }

    fn make_file(&self, path: &Path, bytes: u64) {
        self.machine.make_file(path, bytes);
    }

    fn make_dir(&self, path: &Path) {
        self.machine.make_dir(path);
    }

    fn move_file(&self, from: &Path, to: &Path) {
        self.machine.move_file(from, to);
    }

    fn remove_file(&self, path: &Path) {
        self.machine.delete_file(path);
    }

    fn write_file(&self, path: &Path, at: u64, bytes: &[u8]) {
        self.machine.write_file(path, at, bytes);
    }

    fn left(&self) -> Vec<String> {
        let mut left = self.machine.violations();
        left.extend(self.machine.picture().beginning_with(&[
            "mount /base",
            "mount :",
            "loop",
            "lock of inode",
            "lock of /base/volumes/",
            "file /base/staging",
            "file /base/pods",
            "folder /base/pods/",
        ]));
        left
    }
}
