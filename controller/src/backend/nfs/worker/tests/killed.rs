//! Kills a worker before each of its changes, and repeats the call.

use super::*;
use belay_server::call::Certainty;
use rustix::io::Errno;
use std::cell::Cell;

thread_local! {
    /// Number of changes that this thread may make before the simulated kill. `None` allows any
    /// number of changes.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static IS_KILLED: Cell<bool> = const { Cell::new(false) };
    /// The number of changes before the change that fails, and the error of that change.
    static FAILS: Cell<Option<(usize, Errno)>> = const { Cell::new(None) };
    /// The number of lookups before the lookup that fails, and the error of that lookup.
    static LOOK_FAILS: Cell<Option<(usize, Errno)>> = const { Cell::new(None) };
    /// Number of files that this thread has synced.
    static SYNCED: Cell<usize> = const { Cell::new(0) };
}

/// Called after each fsync.
pub(in super::super) fn note_sync() {
    SYNCED.set(SYNCED.get() + 1);
}

/// Called before each lookup.
pub(in super::super) fn before_look() -> rustix::io::Result<()> {
    super::slow::before_look();
    count_down(&LOOK_FAILS)
}

fn count_down(
    fails: &'static std::thread::LocalKey<Cell<Option<(usize, Errno)>>>,
) -> rustix::io::Result<()> {
    match fails.take() {
        Some((0, errno)) => return Err(errno),
        other => fails.set(other.map(|(left, errno)| (left - 1, errno))),
    }
    Ok(())
}

/// Called before each change. Returns an error if the test has requested that this change fails, or
/// if the simulated kill of the worker precedes this change.
pub(in super::super) fn check() -> rustix::io::Result<()> {
    super::slow::before_change();
    count_down(&FAILS)?;
    LEFT.with(|left| match left.get() {
        None => Ok(()),
        Some(0) => {
            IS_KILLED.set(true);
            Err(Errno::CANCELED)
        }
        Some(some) => {
            left.set(Some(some - 1));
            Ok(())
        }
    })
}

/// Makes a change of this thread fail after this number of changes.
pub(super) fn fail(after: usize, errno: Errno) {
    FAILS.set(Some((after, errno)));
}

/// Makes a lookup of this thread fail after this number of lookups.
pub(super) fn fail_look(after: usize, errno: Errno) {
    LOOK_FAILS.set(Some((after, errno)));
}

/// Whether a requested failure did not occur, since the call consists of fewer steps.
pub(super) fn was_left() -> bool {
    [FAILS.take(), LOOK_FAILS.take()]
        .iter()
        .any(Option::is_some)
}

/// Runs a call until it has made this number of changes. Returns `None` if the call was killed at
/// that change.
pub(super) fn until<T>(changes: usize, call: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(Some(changes));
    IS_KILLED.set(false);
    let result = call();
    LEFT.set(None);
    (!IS_KILLED.get()).then_some(result)
}

/// Kills the call before each of its changes in turn, each time in a new share, until the call is
/// complete. Returns the number of kills.
pub(super) fn killed_at_each(
    prepare: impl Fn(&Share),
    call: impl Fn(&Share) -> Result<(), Failure>,
    after: impl Fn(&Share, bool),
) -> usize {
    for changes in 0.. {
        let share = Share::new();
        prepare(&share);
        if let Some(done) = until(changes, || call(&share)) {
            done.unwrap();
            after(&share, true);
            return changes;
        }
        after(&share, false);
    }
    unreachable!("a call makes a finite number of changes")
}

#[test]
fn a_creation_that_was_killed_is_completed_by_the_next_one() {
    let order = NewVolume {
        permissions: Some(0o2770),
        ..volume("ns/data", "pvc-1")
    };
    let killed = killed_at_each(
        |_| {},
        |share| share.create(&order).map(drop),
        |share, is_done| {
            let found = share.lookup(&order.at);
            assert_eq!(found.is_some(), is_done, "no caller knows half a volume");
            assert_eq!(share.create(&order).unwrap().bytes, 7);
            assert_eq!(share.create(&order).unwrap().bytes, 7);
            assert!(share.path("ns/data").is_dir());
            assert_eq!(names(&share.path("")), [".belay", "ns"]);
            let other = share.create(&volume("ns/data", "pvc-2"));
            refused(
                other,
                Kind::Incompatible,
                "is the directory of volume \"pvc-1\"",
            );
            share.delete(&old(&order, OnDelete::Retain)).unwrap();
            assert_eq!(names(&share.path("")), [".belay"]);
        },
    );
    assert!(killed > 10, "{killed}");
}

/// The content of a claim is synced before the claim gets its name, so that a crash of the server
/// cannot remove the content.
#[test]
fn a_claim_is_on_the_servers_disk_before_it_has_its_name() {
    let order = volume("ns/data", "pvc-1");
    killed_at_each(
        |_| SYNCED.set(0),
        |share| share.create(&order).map(drop),
        |share, is_done| {
            let is_claimed = !names(&share.path(".belay/claims")).is_empty();
            assert!(is_claimed || !is_done);
            assert!(SYNCED.get() > 0 || !is_claimed);
        },
    );
}

/// After the kill, a different volume is created in the directory.
#[test]
fn a_creation_that_was_killed_is_refused_once_its_directory_has_files() {
    let order = volume("data", "pvc-1");
    killed_at_each(
        |_| {},
        |share| share.create(&order).map(drop),
        |share, is_done| {
            share.write("data/file");
            if is_done {
                share.create(&order).unwrap();
                return;
            }
            let result = share.create(&order);
            refused(
                result,
                Kind::Incompatible,
                "is not known to be this volume's",
            );
            assert_eq!(names(&share.path("data")), ["file"]);
        },
    );
}

#[test]
fn a_deletion_that_was_killed_is_completed_by_the_next_one() {
    let order = adopting(volume("ns/data", "pvc-1"));
    let deep = "ns/data/d".to_owned() + &"/d".repeat(36);
    for is_claimed in [true, false] {
        let killed = killed_at_each(
            |share| {
                if is_claimed {
                    share.create(&order).unwrap();
                }
                share.write("ns/data/a/b/file");
                share.write("ns/data/file");
                share.write(&format!("{deep}/file"));
                std::os::unix::fs::symlink(share.outside(), share.path("ns/data/link")).unwrap();
                share.write("kept/file");
            },
            |share| share.delete(&old(&order, OnDelete::Delete)),
            |share, is_done| {
                let again = share.create(&order);
                match (is_done, again) {
                    (true, again) => assert_eq!(again.unwrap().bytes, 7),
                    // The deletion has either begun or not begun; no other state is possible.
                    (false, Ok(_)) => {}
                    (false, Err(failure)) => {
                        assert!(
                            matches!(failure.kind, Kind::Busy | Kind::Incompatible),
                            "{failure}"
                        );
                    }
                }
                share.delete(&old(&order, OnDelete::Delete)).unwrap();
                share.delete(&old(&order, OnDelete::Delete)).unwrap();
                assert_eq!(names(&share.path("")), [".belay", "kept"]);
                share.assert_clean();
            },
        );
        assert!(killed > 40, "{killed}");
    }
}

#[test]
fn an_archive_that_was_interrupted_is_completed_by_the_next_call() {
    let (order, deletion) = archived("pvc-1");
    killed_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write("ns/data/new");
        },
        |share| share.delete(&deletion),
        |share, is_done| {
            overtaken::place_of(share, "new");
            assert!(!is_done || share.path("archived-ns/data/new").exists());
            share.delete(&deletion).unwrap();
            share.delete(&deletion).unwrap();
            assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
            assert_eq!(names(&share.path("ns")), [""; 0]);
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        },
    );
}

#[test]
fn a_failure_after_the_first_change_says_that_it_may_be_running() {
    let order = volume("ns/data", "pvc-1");
    let mut was_claimed = 0;
    for changes in 0..14 {
        let share = Share::new();
        LEFT.set(Some(changes));
        let failure = share.create(&order).unwrap_err();
        LEFT.set(None);
        let is_claimed = !names(&share.path(".belay/claims")).is_empty();
        if is_claimed {
            was_claimed += 1;
            assert_eq!(
                failure.certainty,
                Certainty::MayBeRunning,
                "{changes}: {failure}"
            );
        }
    }
    assert!(was_claimed > 3, "{was_claimed}");
}

#[test]
fn files_in_the_directory_of_a_volume_that_was_not_created_are_not_deleted() {
    let share = Share::new();
    let order = volume("data", "pvc-1");
    share.create(&order).unwrap();
    let ready = claim_of(&share, "data");
    fs::rename(&ready, ready.with_extension("creating")).unwrap();
    share.write("data/file");
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    assert_eq!(names(&share.path("data")), ["file"]);
    share.assert_clean();
}

#[test]
fn a_retention_that_was_killed_is_completed_by_the_next_one() {
    let order = adopting(volume("ns/data", "pvc-1"));
    for is_claimed in [true, false] {
        let deletion = OldVolume {
            on_delete: Some(OnDelete::Retain),
            ..old(&order, OnDelete::Delete)
        };
        killed_at_each(
            |share| {
                if is_claimed {
                    share.create(&order).unwrap();
                }
                share.write("ns/data/file");
            },
            |share| share.delete(&deletion),
            |share, is_done| {
                assert!(!is_done || share.lookup(&order.at).is_none());
                share.delete(&deletion).unwrap();
                let again = share.create(&volume("ns/data", "pvc-2"));
                refused(again, Kind::Incompatible, "was retained when its volume");
                let above = share.create(&volume("ns", "pvc-2"));
                refused(above, Kind::Incompatible, "has the directories of other");
                assert_eq!(names(&share.path("ns/data")), ["file"]);
            },
        );
    }
}
