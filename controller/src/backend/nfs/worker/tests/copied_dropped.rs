//! Tests copies that are cancelled while other calls are in progress, and sources in which files
//! are removed during the copy.

use super::super::claim::{Record, State};
use super::super::claims::{Claims, Occupancy};
use super::super::layout::note;
use super::super::trash::Trash;
use super::copied::{age, order};
use super::killed::{fail_look, killed_at_each, until};
use super::repeated::{claimed, dir, record};
use super::slow::{Step, during, repeated, slow_at_each};
use super::tenants::moved;
use super::*;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::unix::fs::MetadataExt as _;

/// Kills the worker of a copy after this number of changes. Returns `false` if the copy was
/// completed with fewer changes.
pub(super) fn killed_copy(share: &Share, changes: usize) -> bool {
    share.make_source();
    until(changes, || share.copy(&order())).is_none()
}

/// Returns the number of changes after which a copy is renamed to the volume's directory.
pub(super) fn changes_until_placed() -> usize {
    let placed = (0..).find(|changes| {
        let share = Share::new();
        assert!(killed_copy(&share, *changes));
        share.path("ns/copy").exists()
    });
    placed.unwrap()
}

fn deletion() -> OldVolume {
    old(&order().volume, OnDelete::Delete)
}

fn has_state(share: &Share, state: &str) -> bool {
    let path = share
        .path(".belay/claims")
        .join(file_name(&order().volume.at.dir));
    names(&path).iter().any(|file| file.ends_with(state))
}

#[test]
fn a_copy_that_was_withdrawn_is_removed_by_any_later_call() {
    let placed = changes_until_placed();
    let dropped = Cell::new(0);
    for copied in [placed - 8, placed] {
        for changes in 0.. {
            let share = Share::new();
            assert!(killed_copy(&share, copied));
            let is_done = until(changes, || share.delete(&deletion())).is_some();
            if has_state(&share, ".gone") {
                dropped.set(dropped.get() + 1);
                // A different volume can be created in the directory immediately: its call need not
                // wait for an hour, and its name may differ.
                let other = volume("ns/copy", "pvc-9");
                share.create(&other).unwrap();
                assert_eq!(names(&share.path("ns/copy")), [""; 0]);
                share.delete(&old(&other, OnDelete::Delete)).unwrap();
            }
            share.copy(&order()).unwrap();
            share.assert_copied();
            if is_done {
                break;
            }
        }
    }
    assert!(dropped.get() > 20, "{}", dropped.get());
}

#[test]
fn a_copy_that_takes_long_to_remove_is_removed_in_parts() {
    let share = Share::new();
    assert!(killed_copy(&share, changes_until_placed()));
    let work = Work::Delete(deletion());
    let stopped = share.perform_until(&work, Instant::now());
    refused(stopped, Kind::Busy, "still being removed");
    assert!(has_state(&share, ".gone"));
    share.copy(&order()).unwrap();
    share.assert_copied();
}

/// The slow call, which removes the copy, has already found the copy in the volume's directory.
#[test]
fn a_slow_removal_takes_nothing_from_the_volume_that_another_call_has_completed() {
    let placed = changes_until_placed();
    let answered = Cell::new(false);
    let (completed, removed) = (Cell::new(0), Cell::new(0));
    for copied in [placed - 3, placed] {
        slow_at_each(
            |share| assert!(killed_copy(share, copied)),
            |share| share.delete(&deletion()),
            |share| {
                let result = share.copy(&order());
                answered.set(result.is_ok());
                if let Err(failure) = result {
                    assert_eq!(failure.kind, Kind::Busy, "{failure}");
                }
            },
            |share| match (answered.get(), share.lookup(&order().volume.at)) {
                (true, Some(_)) => {
                    share.assert_copied();
                    completed.set(completed.get() + 1);
                }
                // A removal that begins after the copy is complete removes the complete volume.
                _ => removed.set(removed.get() + 1),
            },
        );
    }
    let counts = (completed.get(), removed.get());
    assert!(counts.0 > 5 && counts.1 > 5, "{counts:?}");
}

/// Renames a directory in the trash whose name has this prefix, as a slower call would do.
fn renamed_late(share: &Share, prefix: &str, to: impl Fn(&Path) -> PathBuf) -> bool {
    let is_copy = |path: &&PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(prefix) && !name.starts_with("copy.is.") && !name.ends_with(".links")
    };
    let found = moved(&share.path(".belay/trash"));
    let copy = found.iter().find(is_copy);
    copy.is_some_and(|copy| fs::rename(copy, to(copy)).is_ok())
}

/// The slower call has checked its claim before the other call began the removal.
#[test]
fn nothing_is_left_of_a_copy_that_a_slower_call_completes_while_it_is_removed() {
    let placed = changes_until_placed();
    // The last change, after three other changes, renames the copy to the volume's directory.
    for (copied, prefix) in [(placed - 1, "copy.complete"), (placed - 4, "copy.")] {
        let renamed = Cell::new(0);
        let steps = slow_at_each(
            |share| {
                assert!(killed_copy(share, copied));
                fs::create_dir_all(share.path("ns")).unwrap();
            },
            |share| share.delete(&deletion()),
            |share| {
                let is_renamed = renamed_late(share, prefix, |copy| match prefix {
                    "copy.complete" => share.path("ns/copy"),
                    _ => copy.with_file_name("copy.complete"),
                });
                renamed.set(renamed.get() + usize::from(is_renamed));
            },
            |share| {
                repeated(share, &deletion()).unwrap();
                // The parent directory was removed, too.
                assert_eq!(names(&share.path("")), [".belay", "from"]);
                assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
            },
        );
        assert!(renamed.get() > 5 && renamed.get() < steps, "{renamed:?}");
    }
}

/// With NFS, accesses to a file that is removed while it is open fail with ESTALE.
#[test]
fn what_is_removed_from_the_source_meanwhile_is_not_copied_in_part() {
    for removed in ["a", "a/b"] {
        let share = Share::new();
        share.make_source();
        let (source, trash) = (share.path("from").join(removed), share.path(".belay/trash"));
        let mut looks = 0;
        let remove = move |step| {
            let copies = moved(&trash);
            let has_begun = copies.iter().any(|copy| copy.join(removed).exists());
            looks += usize::from(step == Step::Look && has_begun);
            // The first lookup of the call opens the copy.
            if looks == 2 && fs::remove_dir_all(&source).is_ok() {
                fail_look(0, Errno::STALE);
            }
        };
        during(remove, || share.copy(&order())).unwrap();
        assert!(!share.path("from").join(removed).exists(), "{removed}");
        assert!(!share.path("ns/copy").join(removed).exists(), "{removed}");
        assert!(share.path("ns/copy/other").exists());
    }
}

#[test]
fn a_copy_is_below_the_directories_above_it_and_not_in_another_volume() {
    let share = Share::new();
    share.make_source();
    share.copy(&order()).unwrap();
    let above = share.create(&volume("ns", "pvc-9"));
    refused(
        above,
        Kind::Incompatible,
        "has the directories of other volumes",
    );
    share.delete(&deletion()).unwrap();
    share.create(&volume("ns", "pvc-9")).unwrap();
    refused(
        share.copy(&order()),
        Kind::Incompatible,
        "is inside ns, which",
    );
    assert_eq!(names(&share.path("ns")), [""; 0]);
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    // The remaining claims are the claims of the source and of the volume.
    assert_eq!(names(&share.path(".belay/claims")).len(), 2);
}

/// The source was inside a volume that was retained. An operator has moved both volumes away.
#[test]
fn a_source_below_a_volume_that_was_moved_away_does_not_exist() {
    let share = Share::new();
    let retained = NewVolume {
        on_delete: OnDelete::Retain,
        ..volume("a", "pvc-9")
    };
    share.create(&retained).unwrap();
    share.write("a/b/file");
    share.delete(&old(&retained, OnDelete::Retain)).unwrap();
    let mut order = order();
    order.from.at = adopting(volume("a/b", "pvc-1")).at;
    let words = "a part of another volume is not copied";
    refused(share.copy(&order), Kind::Precondition, words);
    fs::rename(share.path("a"), share.path("kept")).unwrap();
    refused(share.copy(&order), Kind::NotFound, "does not exist");
}

/// The inode number of the directory is the number that was recorded when the initial files were
/// written to the directory.
#[test]
fn a_copy_whose_archive_is_moved_back_is_not_taken_for_one_without_a_caller() {
    let mut clone = order();
    clone.volume.on_delete = OnDelete::Archive;
    let deletion = old(&clone.volume, OnDelete::Archive);
    let moved_back = Cell::new(0);
    killed_at_each(
        |share| {
            share.make_source();
            share.copy(&clone).unwrap();
            // The call was killed before it removed the record of the inode number.
            let dir = &clone.volume.at.dir;
            let claims = Claims::find(&share.tree()).unwrap().unwrap();
            let Occupancy::By(claim) = claims.read(dir).unwrap() else {
                panic!("no claim");
            };
            let trash = Trash::open(&claims, dir, &claim).unwrap();
            let inode = fs::metadata(share.path("ns/copy")).unwrap().ino();
            share.write(&format!("{}/{}", trash.path(), note(inode)));
        },
        |share| share.delete(&deletion),
        |share, _| {
            if share.path("archived-ns/copy").exists() {
                fs::rename(share.path("archived-ns/copy"), share.path("ns/copy")).unwrap();
                moved_back.set(moved_back.get() + 1);
                share.delete(&deletion).unwrap_or_default();
                assert!(share.path("ns/copy/file").exists());
            }
        },
    );
    assert!(moved_back.get() > 5, "{moved_back:?}");
}

/// Another call is removing the copy, or was killed while it removed the copy.
#[test]
fn a_copy_that_is_gone_is_removed_by_another_copy_only_after_an_hour() {
    let share = Share::new();
    share.make_source();
    let gone = Record {
        source: Some("filer#share#from#pvc-1#".to_owned()),
        ..record("ns/gone", None)
    };
    let (claims, claim) = claimed(&share, gone, State::Gone);
    let trash = Trash::open(&claims, &dir("ns/gone"), &claim).unwrap();
    share.write(&format!("{}/0/file", trash.path()));
    for is_old in [false, true] {
        if is_old {
            age(&share.path(".belay/claims"));
        }
        share.copy(&order()).unwrap();
        share
            .delete(&old(&order().volume, OnDelete::Delete))
            .unwrap();
        let is_left = share.path(&trash.path()).join("0/file").exists();
        assert_eq!(is_left, !is_old);
    }
}
