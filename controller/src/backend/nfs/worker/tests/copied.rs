//! Tests copies of volumes whose worker is killed before each change, that are slow, that are
//! refused, or whose source is deleted.

use super::super::super::call::{Copying, Source};
use super::killed::until;
use super::slow::slow_at_each;
use super::*;
use std::time::SystemTime;

const ID: &str = "filer#share#from#pvc-1#";

/// Returns the call that copies the volume `from`.
pub(super) fn copying(volume: NewVolume) -> Copying {
    Copying {
        volume,
        from: Source {
            at: adopting(super::volume("from", "pvc-1")).at,
            id: ID.to_owned(),
            share: None,
        },
    }
}

/// Returns the request for a copy that most tests use.
pub(super) fn order() -> Copying {
    copying(volume("ns/copy", "pvc-2"))
}

impl Share {
    pub(super) fn copy(&self, order: &Copying) -> Result<ExistingVolume, Failure> {
        match self.perform(&Work::Copy(order.clone()))? {
            Done::Volume(Some(seen)) => Ok(seen),
            other => panic!("{other:?}"),
        }
    }

    /// Creates a volume with files.
    pub(super) fn make_source(&self) {
        self.create(&volume("from", "pvc-1")).unwrap();
        self.fill_source();
    }

    fn fill_source(&self) {
        self.write("from/a/b/file");
        self.write("from/file");
        fs::hard_link(self.path("from/file"), self.path("from/other")).unwrap();
        std::os::unix::fs::symlink(self.outside(), self.path("from/link")).unwrap();
    }

    pub(super) fn assert_copied(&self) {
        assert_eq!(names(&self.path("ns/copy")), ["a", "file", "link", "other"]);
        let file = fs::read(self.path("ns/copy/a/b/file")).unwrap();
        assert_eq!(file, b"from/a/b/file");
        self.assert_no_content();
        assert_eq!(names(&self.path("from")), ["a", "file", "link", "other"]);
        self.assert_outside();
    }
}

/// Sets the times of all of Belay's own files to more than an hour ago.
pub(super) fn age(directory: &Path) {
    let old = SystemTime::now() - Duration::from_secs(2 * 3600);
    for name in names(directory) {
        let path = directory.join(name);
        match path.is_dir() {
            true => age(&path),
            false => {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(old).unwrap();
            }
        }
    }
}

/// Kills the copy before each of its changes in turn, each time in a new share. Returns the number
/// of kills.
fn killed_at_each(after: impl Fn(&Share, bool)) -> usize {
    let copy = |share: &Share| share.copy(&order()).map(drop);
    killed::killed_at_each(Share::make_source, copy, after)
}

#[test]
fn a_copy_that_was_killed_is_made_by_the_next_call() {
    let killed = killed_at_each(|share, is_done| {
        let found = share.lookup(&order().volume.at);
        assert!(found.is_some() || !is_done);
        if found.is_some() || share.path("ns/copy").exists() {
            share.assert_whole();
        }
        for _ in 0..2 {
            let seen = share.copy(&order()).unwrap();
            assert_eq!((seen.bytes, seen.source.as_deref()), (7, Some(ID)));
        }
        share.assert_copied();
        share
            .delete(&old(&order().volume, OnDelete::Delete))
            .unwrap();
        assert_eq!(names(&share.path("")), [".belay", "from"]);
        share
            .delete(&old(&volume("from", "pvc-1"), OnDelete::Delete))
            .unwrap();
        share.assert_clean();
    });
    assert!(killed > 45, "{killed}");
}

impl Share {
    /// Asserts that no file in the trash takes up space. If a call was killed, an empty file with
    /// the inode number of a copy may be left.
    fn assert_no_content(&self) {
        let trash = self.path(".belay/trash");
        for name in names(&trash) {
            let left = names(&trash.join(name));
            let is_note = |name: &String| name.starts_with("copy.is.");
            assert!(left.iter().all(is_note), "{left:?}");
        }
    }

    /// Asserts that the copy contains all files.
    fn assert_whole(&self) {
        assert_eq!(names(&self.path("ns/copy")), ["a", "file", "link", "other"]);
        assert!(self.path("ns/copy/a/b/file").exists());
    }
}

/// The call is not repeated, and a different volume is created in the directory.
#[test]
fn a_copy_that_was_killed_can_be_deleted_or_is_removed_after_an_hour() {
    for is_deleted in [true, false] {
        killed_at_each(|share, is_done| {
            if is_done || share.lookup(&order().volume.at).is_some() {
                return;
            }
            match is_deleted {
                true => share
                    .delete(&old(&order().volume, OnDelete::Retain))
                    .unwrap(),
                false => age(&share.path(".belay/claims")),
            }
            let other = volume("ns/copy", "pvc-3");
            assert_eq!(share.create(&other).unwrap().source, None);
            assert_eq!(names(&share.path("ns/copy")), [""; 0]);
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
            share.delete(&old(&other, OnDelete::Delete)).unwrap();
            share
                .delete(&old(&volume("from", "pvc-1"), OnDelete::Delete))
                .unwrap();
            share.assert_clean();
        });
    }
}

#[test]
fn the_space_of_an_abandoned_copy_is_freed_by_the_next_copy_of_the_share() {
    killed_at_each(|share, is_done| {
        let has_files = !names(&share.path(".belay/trash")).is_empty();
        if is_done || !has_files || share.lookup(&order().volume.at).is_some() {
            return;
        }
        let other = copying(volume("other", "pvc-3"));
        share.copy(&other).unwrap();
        assert_eq!(
            names(&share.path(".belay/trash")).len(),
            1,
            "it is in progress"
        );
        share.delete(&old(&other.volume, OnDelete::Delete)).unwrap();
        age(&share.path(".belay/claims"));
        share.copy(&other).unwrap();
        assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        assert!(!share.path("ns/copy").exists());
    });
}

/// The directory was created by another program, and must not be used as the copy, or deleted.
#[test]
fn a_directory_that_another_program_makes_meanwhile_is_left_alone() {
    let mut refusals = 0;
    let refusals = std::cell::RefCell::new(&mut refusals);
    killed_at_each(|share, is_done| {
        if is_done || share.path("ns/copy").exists() {
            return;
        }
        share.write("ns/copy/foreign");
        let words = "is not known to be this volume's";
        refused(share.copy(&order()), Kind::Incompatible, words);
        **refusals.borrow_mut() += 1;
        assert_eq!(names(&share.path("ns/copy")), ["foreign"]);
        assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    });
    assert!(refusals.into_inner() > &mut 40);
}

/// The server executes a request of a killed worker late: after the next worker has completed the
/// copy, after the volume was deleted, or after a later volume was created.
#[test]
fn a_late_request_of_a_copy_changes_nothing_that_is_newer() {
    type Meanwhile = fn(&Share);
    let again: Meanwhile = |share| {
        share.copy(&order()).unwrap();
        share.write("ns/copy/new");
    };
    let deleted: Meanwhile = |share| {
        share.copy(&order()).unwrap();
        share
            .delete(&old(&order().volume, OnDelete::Delete))
            .unwrap();
    };
    let abandoned: Meanwhile = |share| {
        share
            .delete(&old(&order().volume, OnDelete::Delete))
            .unwrap();
        share.create(&volume("ns/copy", "pvc-3")).unwrap();
        share.write("ns/copy/new");
    };
    for (meanwhile, expected) in [
        (again, &["a", "file", "link", "new", "other"][..]),
        (deleted, &[]),
        (abandoned, &["new"]),
    ] {
        let changes = slow_at_each(
            Share::make_source,
            |share| match share.copy(&order()) {
                Err(failure) if failure.kind == Kind::Incompatible => Ok(()),
                result => result.map(drop),
            },
            meanwhile,
            |share| {
                let found = names(&share.path("ns/copy"));
                // The slow call has found that the volume was deleted, and may have created it
                // again.
                if !(expected.is_empty() && found == ["a", "file", "link", "other"]) {
                    assert_eq!(found, expected);
                }
                share.assert_outside();
            },
        );
        assert!(changes > 45, "{changes}");
    }
}

#[test]
fn a_copy_of_a_volume_that_is_deleted_meanwhile_is_whole_or_is_not_made() {
    let source = || adopting(volume("from", "pvc-1"));
    let made = std::cell::Cell::new((0, 0));
    for is_claimed in [true, false] {
        slow_at_each(
            |share| {
                if is_claimed {
                    share.create(&source()).unwrap();
                }
                share.fill_source();
            },
            |share| match share.copy(&order()) {
                Err(failure) if failure.kind == Kind::NotFound => Ok(()),
                result => result.map(drop),
            },
            |share| share.delete(&old(&source(), OnDelete::Delete)).unwrap(),
            |share| {
                let (whole, none) = made.get();
                assert!(!share.path("from").exists());
                match share.lookup(&order().volume.at) {
                    Some(_) => {
                        share.assert_whole();
                        made.set((whole + 1, none));
                        share
                            .delete(&old(&order().volume, OnDelete::Delete))
                            .unwrap();
                    }
                    None => made.set((whole, none + 1)),
                }
                assert_eq!(names(&share.path("")), [".belay"]);
                share.assert_clean();
            },
        );
    }
    let (whole, none) = made.get();
    assert!(whole > 10 && none > 40, "{whole} {none}");
}

#[test]
fn a_volume_that_is_no_volume_is_not_copied() {
    let share = Share::new();
    refused(share.copy(&order()), Kind::NotFound, "does not exist");
    share.write("from/sub/file");
    fs::remove_file(share.path("from/sub/file")).unwrap();
    let below = volume("from/sub/below", "pvc-9");
    share.create(&below).unwrap();
    let words = "has the directories of other volumes";
    refused(share.copy(&order()), Kind::Precondition, words);
    share.delete(&old(&below, OnDelete::Delete)).unwrap();
    share.create(&volume("from", "pvc-8")).unwrap();
    refused(share.copy(&order()), Kind::NotFound, "does not exist");
    share
        .delete(&old(&volume("from", "pvc-8"), OnDelete::Delete))
        .unwrap();
    share.create(&volume("from", "pvc-1")).unwrap();
    let part = Copying {
        from: Source {
            at: adopting(volume("from/part", "pvc-7")).at,
            ..order().from
        },
        ..order()
    };
    share.write("from/part/file");
    refused(
        share.copy(&part),
        Kind::Precondition,
        "a part of another volume",
    );
    fs::create_dir(share.path("from/.belay")).unwrap();
    refused(
        share.copy(&order()),
        Kind::Precondition,
        "is a share itself",
    );
    assert_eq!(names(&share.path("")), [".belay", "from"]);
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    assert_eq!(names(&share.path(".belay/claims")).len(), 1);
}

#[test]
fn a_name_is_that_of_one_copy() {
    let share = Share::new();
    share.make_source();
    until(20, || share.copy(&order()));
    let words = "was begun as a copy of volume filer#share#from#pvc-1#, and not as an empty volume";
    refused(share.create(&order().volume), Kind::Incompatible, words);
    let other = Copying {
        from: Source {
            id: "filer#share#from#pvc-9#".to_owned(),
            ..order().from
        },
        ..order()
    };
    refused(
        share.copy(&other),
        Kind::Incompatible,
        "was begun as a copy of",
    );
    share.copy(&order()).unwrap();
    // If the volume already exists, the caller compares its source with the request.
    let found = share.create(&order().volume).unwrap();
    assert_eq!(found.source.as_deref(), Some(ID));
    let elsewhere = copying(volume("ns/copy", "pvc-3"));
    let words = "is the directory of volume \"pvc-2\"";
    refused(share.copy(&elsewhere), Kind::Incompatible, words);
    // csi-driver-nfs may have left an incomplete volume.
    share.write("pvc-4/file");
    let half = share.copy(&copying(plain("pvc-4")));
    refused(half, Kind::Incompatible, "is not known to be this volume's");
}
