//! The state that processes see, and the part of it that is on the disk. A power loss may lose the
//! difference.
//!
//! The rule is what the manual pages promise, and no more. fsync(2) writes one file's data and its
//! inode to the disk, but not its name: that takes an fsync of the directory. Extended attributes
//! belong to the inode (xattr(7)). Every other change may or may not be on the disk, each
//! independently: no manual page promises an order, though the journals of ext4, xfs and btrfs
//! mostly keep one.

use std::ops::Deref;

/// A change that is applied twice: to the visible state, and to the state on the disk.
type Change<T> = Box<dyn Fn(&mut T) + Send>;

/// State that is kept on a disk.
#[derive(Default)]
pub(super) struct Kept<T> {
    now: T,
    on_disk: T,
    /// The unsynced changes, in the order in which they were made.
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

    /// The power is lost; `survives` decides each unsynced change.
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
