//! What everybody sees, and what of it the disk has: the difference may be lost with the power.
//!
//! The rule is what the manual promises, and nothing beyond. fsync(2) brings the data of one file
//! and what belongs to its inode to the disk, and not its name: that takes an fsync of the folder.
//! Extended attributes belong to the inode (xattr(7)). Every other change may be on the disk or
//! not, each by itself: no manual promises an order among them, though the journals of ext4, xfs
//! and btrfs mostly keep one.

use std::ops::Deref;

/// A change that can be made twice, to what is seen and to what is on the disk.
type Change<T> = Box<dyn Fn(&mut T) + Send>;

/// Something that is kept on a disk.
#[derive(Default)]
pub(super) struct Kept<T> {
    now: T,
    on_disk: T,
    /// In the order in which they were made.
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

    /// The power is lost; `survives` is asked of every change that was not synced.
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
