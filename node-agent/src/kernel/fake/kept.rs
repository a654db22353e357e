//! State that is cached in memory and stored on a disk. A power loss may lose the changes that are
//! not on the disk yet.
//!
//! The simulation keeps only the promises of the manual pages. fsync(2) writes a file's data and
//! inode to the disk, but not the file's name: that needs an fsync of the directory. Extended
//! attributes belong to the inode (xattr(7)). After a power loss, every other change may or may not
//! be on the disk, independently of all others. No manual page promises an order, though the
//! journals of ext4, xfs and btrfs mostly keep the order.

use std::ops::Deref;

/// A change that is applied twice: to the cached state, and to the state on the disk.
type Change<T> = Box<dyn Fn(&mut T) + Send>;

/// State with a cached version, which processes see, and a version on the disk.
#[derive(Default)]
pub(super) struct Kept<T> {
    now: T,
    on_disk: T,
    /// The unsynced changes, oldest first.
    unsynced: Vec<Change<T>>,
}

impl<T: Clone> Kept<T> {
    pub(super) fn change<A>(&mut self, change: impl Fn(&mut T) -> A + Send + 'static) -> A {
        let answer = change(&mut self.now);
        self.unsynced.push(Box::new(move |kept| drop(change(kept))));
        answer
    }

    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change(&mut self.on_disk);
        }
    }

    /// Simulates a power loss; `survives` decides for each unsynced change whether it is on the
    /// disk.
    pub(super) fn lose(&mut self, mut survives: impl FnMut() -> bool) {
        for change in self.unsynced.drain(..) {
            if survives() {
                change(&mut self.on_disk);
            }
        }
        self.now = self.on_disk.clone();
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.now
    }
}
