//! Tests creations that the server refuses, that other calls overtake, and that conflict with
//! another program.

use super::slow::{Step, during, slow_at_each};
use super::*;
use belay_server::call::Certainty;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::unix::fs::PermissionsExt as _;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// After a failure that was rolled back, no files are left; any other failure may leave files
/// behind.
#[test]
fn a_creation_that_is_rolled_back_leaves_nothing() {
    let order = NewVolume {
        permissions: Some(0o2770),
        ..volume("ns/data", "pvc-1")
    };
    let mut rolled_back = 0;
    for at in 0.. {
        let share = Share::new();
        killed::fail(at, Errno::ACCESS);
        let result = share.create(&order);
        if killed::was_left() {
            break;
        }
        let is_left = !names(&share.path(".belay/claims")).is_empty();
        match result {
            // The step that failed was the removal of an empty directory.
            Ok(seen) => assert_eq!(seen.bytes, 7),
            Err(failure) => {
                assert_eq!(failure.kind, Kind::Precondition, "{at}: {failure}");
                match failure.certainty {
                    Certainty::RolledBack => {
                        rolled_back += 1;
                        assert!(!is_left, "{at}: {failure}");
                        assert!(!share.path("ns/data").exists(), "{at}: {failure}");
                    }
                    Certainty::NothingHappened => assert!(!is_left, "{at}: {failure}"),
                    Certainty::MayBeRunning => {}
                }
                // The directory was created, but its mode was not set, so no other volume may use
                // the directory.
                if share.path("ns/data").exists() {
                    assert_eq!(
                        failure.certainty,
                        Certainty::MayBeRunning,
                        "{at}: {failure}"
                    );
                    assert!(is_left, "{at}: {failure}");
                }
            }
        }
        assert_eq!(share.create(&order).unwrap().bytes, 7);
        assert_eq!(mode(&share.path("ns/data")), 0o2770);
    }
    // The failed steps create the parent directory, and the volume's own directory.
    assert_eq!(rolled_back, 2);
}

/// Another call completes and deletes the same volume, and a later volume is created in the
/// directory.
#[test]
fn a_slow_creation_changes_nothing_of_a_later_volume() {
    let order = NewVolume {
        permissions: Some(0o2770),
        ..volume("ns/data", "pvc-1")
    };
    let later = NewVolume {
        permissions: Some(0o750),
        ..volume("ns/data", "pvc-2")
    };
    for has_files in [true, false] {
        let steps = slow_at_each(
            |_| {},
            |share| match share.create(&order) {
                Err(failure) if failure.kind == Kind::Incompatible => {
                    let words = "is the directory of volume \"pvc-2\"";
                    assert!(failure.message.contains(words), "{failure}");
                    Ok(())
                }
                result => result.map(drop),
            },
            |share| {
                share.create(&order).unwrap();
                share.delete(&old(&order, OnDelete::Delete)).unwrap();
                share.create(&later).unwrap();
                if has_files {
                    share.write("ns/data/file");
                }
            },
            |share| {
                assert_eq!(names(&share.path("ns/data")).len(), usize::from(has_files));
                assert_eq!(mode(&share.path("ns/data")), 0o750);
                assert_eq!(share.lookup(&later.at).map(|seen| seen.bytes), Some(7));
                assert_eq!(claim_of(share, "ns/data").extension().unwrap(), "ready");
            },
        );
        assert!(steps > 30, "{steps}");
    }
}

/// Each of two concurrent calls either returns the volume, which one of them has completed, or must
/// be repeated.
#[test]
fn two_creations_of_a_volume_complete_it_once() {
    let order = volume("ns/data", "pvc-1");
    slow_at_each(
        |_| {},
        |share| share.create(&order).map(drop),
        |share| {
            share.create(&order).unwrap();
            share.write("ns/data/file");
        },
        |share| {
            assert_eq!(share.create(&order).unwrap().bytes, 7);
            assert_eq!(names(&share.path("ns/data")), ["file"]);
            share.delete(&old(&order, OnDelete::Delete)).unwrap();
            share.assert_clean();
        },
    );
}

/// Before the claim is ready, another program creates a file in the directory, or a file with the
/// name of the directory.
#[test]
fn a_directory_that_another_program_makes_meanwhile_is_not_handed_out() {
    let order = volume("ns/data", "pvc-1");
    let refusals = Cell::new(0);
    for path in ["ns/data/file", "ns/data"] {
        let steps = slow_at_each(
            |_| {},
            |share| match share.create(&order) {
                Err(failure) if failure.kind == Kind::Incompatible => {
                    assert_ne!(failure.certainty, Certainty::MayBeRunning, "{failure}");
                    assert_eq!(names(&share.path(".belay/claims")), [""; 0]);
                    Ok(())
                }
                result => result.map(drop),
            },
            |share| {
                if !share.path("ns/data").exists() {
                    share.write(path);
                }
            },
            |share| {
                match share.create(&order) {
                    Err(failure) => {
                        assert_eq!(failure.kind, Kind::Incompatible, "{failure}");
                        refusals.set(refusals.get() + 1);
                    }
                    // The volume was complete before the other program's change.
                    Ok(_) => assert!(share.path("ns/data").is_dir()),
                }
                assert!(share.path("ns/data").exists());
            },
        );
        assert!(refusals.get() > 5 && refusals.get() <= 2 * steps);
    }
}

/// A deletion of another volume removes the parent directories after they were created.
#[test]
fn directories_above_that_are_removed_meanwhile_are_made_again() {
    let order = volume("a/b/data", "pvc-1");
    slow_at_each(
        |_| {},
        |share| share.create(&order).map(drop),
        |share| {
            fs::remove_dir(share.path("a/b")).ok();
            fs::remove_dir(share.path("a")).ok();
        },
        |share| {
            share.create(&order).unwrap();
            assert!(share.path("a/b/data").is_dir());
        },
    );
}

/// The parent directory is removed before it is opened, or before the volume's directory is
/// created.
#[test]
fn directories_above_are_made_again_some_times() {
    let order = volume("a/data", "pvc-1");
    for when in [Step::Look, Step::Change] {
        for (times, is_made) in [(7, true), (8, false)] {
            let share = Share::new();
            let (above, mut removed) = (share.path("a"), 0);
            let remove = move |step| {
                if step == when && removed < times && fs::remove_dir(&above).is_ok() {
                    removed += 1;
                }
            };
            let result = during(remove, || share.create(&order));
            match is_made {
                true => assert_eq!(result.unwrap().bytes, 7),
                false => refused(result, Kind::Busy, "it was removed meanwhile"),
            }
            assert_eq!(share.create(&order).unwrap().bytes, 7);
        }
    }
}

#[test]
fn a_creation_whose_directory_is_removed_meanwhile_is_repeated() {
    let share = Share::new();
    let order = volume("data", "pvc-1");
    let (own, mut was_removed) = (share.path("data"), false);
    let remove = move |step| {
        if step == Step::Look && !was_removed {
            was_removed = fs::remove_dir(&own).is_ok();
        }
    };
    let result = during(remove, || share.create(&order));
    refused(result, Kind::Busy, "it was removed meanwhile");
    assert_eq!(names(&share.path(".belay/claims")), [""; 0]);
    share.create(&order).unwrap();
}

/// Another program creates a file with the name of the parent directory.
#[test]
fn a_creation_that_finds_a_file_in_its_path_leaves_no_claim() {
    let share = Share::new();
    let order = volume("ns/data", "pvc-1");
    let (above, claims) = (share.path("ns"), share.path(".belay/claims"));
    let make = move |step| {
        // The volume and its parent directory are already claimed.
        if step == Step::Change && names(&claims).len() == 2 && !above.exists() {
            fs::write(&above, "").unwrap();
        }
    };
    let failure = during(make, || share.create(&order)).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert_eq!(failure.certainty, Certainty::RolledBack, "{failure}");
    assert!(share.path("ns").is_file());
    share.assert_clean();
}

#[test]
fn a_refusal_has_the_parameter_that_the_directory_comes_from() {
    let share = Share::new();
    share.write("data/file");
    let of_class = share.create(&volume("data", "pvc-1"));
    refused(of_class, Kind::Incompatible, "subDir data: exists in");
    share.write("pvc-2");
    let named_so = share.create(&plain("pvc-2"));
    refused(named_so, Kind::Incompatible, "directory pvc-2: exists in");
}
