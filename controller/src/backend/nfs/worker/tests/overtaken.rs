//! Tests deletions that are stopped at each step while another program, or another call, continues.

use super::slow::{Step, repeated, slow_at, slow_at_each};
use super::*;
use std::cell::Cell;

/// Accepts a failure whose message asks an operator to move a file or a directory away.
fn unless_in_the_way(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if failure.kind == Kind::Precondition => Ok(()),
        result => result,
    }
}

/// Returns the directory of the volume's file, which must be in exactly one place.
pub(super) fn place_of(share: &Share, file: &str) -> PathBuf {
    let trash = share.path(".belay/trash");
    let in_trash = names(&trash)
        .into_iter()
        .map(|own| trash.join(own).join("volume"));
    let places = [share.path("ns/data"), share.path("archived-ns/data")];
    let has = |place: &PathBuf| place.join(file).exists();
    let found: Vec<_> = places.into_iter().chain(in_trash).filter(has).collect();
    assert_eq!(found.len(), 1, "{file}: {found:?}");
    found[0].clone()
}

/// Returns the number of claim files in this state.
fn claims_in(share: &Share, state: &str) -> usize {
    let claims = share.path(".belay/claims");
    let of = |own: String| names(&claims.join(own)).into_iter();
    let files = names(&claims).into_iter().flat_map(of);
    files
        .filter(|file| file.ends_with(&format!(".{state}")))
        .count()
}

#[test]
fn a_program_that_takes_the_name_of_an_archive_meanwhile_loses_nothing() {
    let (order, _) = archived("pvc-1");
    let deletion = old(&order, OnDelete::Archive);
    let foreign = |share: &Share| share.path("archived-ns/data/foreign");
    let steps = slow_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write("ns/data/file");
        },
        |share| unless_in_the_way(share.delete(&deletion)),
        |share| {
            // The name of the archive is free until the volume is renamed to that name.
            if !share.path("archived-ns/data").exists() {
                share.write("archived-ns/data/foreign");
            }
        },
        |share| {
            let was_taken = foreign(share).exists();
            place_of(share, "file");
            match repeated(share, &deletion) {
                Ok(()) => assert!(!was_taken),
                Err(failure) => {
                    assert!(was_taken, "{failure}");
                    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
                    assert_eq!(names(&share.path("archived-ns/data")), ["foreign"]);
                    // The operator moves the directory away, as the message requests.
                    fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
                    repeated(share, &deletion).unwrap();
                }
            }
            assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        },
    );
    assert!(steps > 40, "{steps}");
}

/// A new volume is created with the name of the archive, or with the name of a parent directory.
#[test]
fn a_volume_that_gets_the_name_of_an_archive_meanwhile_is_kept() {
    let (order, deletion) = archived("pvc-1");
    for dir in ["archived-ns/data", "archived-ns"] {
        let other = volume(dir, "pvc-2");
        let (made, refused) = (Cell::new(0), Cell::new(0));
        let is_made = Cell::new(false);
        slow_at_each(
            |share| {
                share.create(&order).unwrap();
                share.write("ns/data/file");
            },
            |share| unless_in_the_way(share.delete(&deletion)),
            |share| {
                let created = share.create(&other);
                is_made.set(created.is_ok());
                match created {
                    Ok(_) => share.write(&format!("{dir}/precious")),
                    Err(failure) => assert_eq!(failure.kind, Kind::Incompatible, "{failure}"),
                }
            },
            |share| {
                place_of(share, "file");
                if !is_made.get() {
                    refused.set(refused.get() + 1);
                    return;
                }
                made.set(made.get() + 1);
                assert_eq!(names(&share.path(dir)), ["precious"]);
                let again = repeated(share, &deletion).unwrap_err();
                assert_eq!(again.kind, Kind::Precondition, "{again}");
                assert_eq!(claims_in(share, "archived"), 0);
                share.delete(&old(&other, OnDelete::Delete)).unwrap();
                repeated(share, &deletion).unwrap();
                assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
            },
        );
        assert!(made.get() > 5 && refused.get() > 5, "{made:?} {refused:?}");
    }
}

/// The deleted volume was created by csi-driver-nfs. A later volume of Belay is created in the same
/// directory.
#[test]
fn a_slow_deletion_of_a_volume_without_a_claim_removes_nothing_that_came_later() {
    let order = volume("ns/data", "pvc-1");
    let later = volume("ns/data", "pvc-2");
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        let deletion = OldVolume {
            on_delete: Some(policy),
            ..old(&adopting(order.clone()), policy)
        };
        let steps = slow_at_each(
            |share| share.write("ns/data/file"),
            |share| share.delete(&deletion),
            |share| {
                repeated(share, &deletion).unwrap();
                if policy != OnDelete::Retain {
                    share.create(&later).unwrap();
                    share.write("ns/data/later");
                }
            },
            |share| {
                let left = match policy {
                    OnDelete::Retain => "file",
                    _ => "later",
                };
                assert_eq!(names(&share.path("ns/data")), [left], "{policy}");
                let has_archive = share.path("archived-ns/data/file").exists();
                assert_eq!(has_archive, policy == OnDelete::Archive);
                assert_eq!(
                    share.lookup(&later.at).is_some(),
                    policy != OnDelete::Retain,
                    "{policy}"
                );
            },
        );
        assert!(steps > 10, "{policy}: {steps}");
    }
}

/// After the first call has succeeded, another program creates a directory with the volume's name.
#[test]
fn of_two_deletions_at_once_neither_removes_what_another_program_makes_then() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let order = NewVolume {
            on_delete: policy,
            ..volume("ns/data", "pvc-1")
        };
        let deletion = old(&order, policy);
        slow_at_each(
            |share| {
                share.create(&order).unwrap();
                share.write("ns/data/file");
            },
            |share| unless_in_the_way(share.delete(&deletion)),
            |share| {
                repeated(share, &deletion).unwrap();
                share.write("ns/data/restored");
            },
            |share| {
                assert_eq!(names(&share.path("ns/data")), ["restored"], "{policy}");
                let again = repeated(share, &deletion);
                refused(again, Kind::Precondition, "--nfs-adopt");
                assert_eq!(names(&share.path("ns/data")), ["restored"], "{policy}");
            },
        );
    }
}

/// The volume was retained and moved away, and a later volume was created in the same directory.
#[test]
fn a_slow_retention_changes_nothing_of_a_later_volume() {
    let order = NewVolume {
        on_delete: OnDelete::Retain,
        ..volume("ns/data", "pvc-1")
    };
    let later = volume("ns/data", "pvc-2");
    let deletion = old(&order, OnDelete::Retain);
    slow_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write("ns/data/file");
        },
        |share| share.delete(&deletion),
        |share| {
            repeated(share, &deletion).unwrap();
            fs::rename(share.path("ns"), share.path("kept")).unwrap();
            share.create(&later).unwrap();
            share.write("ns/data/later");
        },
        |share| {
            assert_eq!(names(&share.path("ns/data")), ["later"]);
            assert_eq!(names(&share.path("kept/data")), ["file"]);
            assert_eq!(claim_of(share, "ns/data").extension().unwrap(), "ready");
            assert!(share.lookup(&later.at).is_some());
        },
    );
}

/// The parent of the deleted directory now belongs to a later volume. NFS has no request to remove
/// a directory only if it is still the same directory, so the call must check the identity of the
/// directory first.
#[test]
fn a_slow_deletion_sees_that_a_directory_above_is_a_volume_by_now() {
    let order = volume("ns/data", "pvc-1");
    let deletion = old(&order, OnDelete::Delete);
    let later = volume("ns", "pvc-2");
    let made = Cell::new(0);
    slow_at(
        Some(Step::Look),
        |share| assert_eq!(share.create(&order).unwrap().bytes, 7),
        |share| share.delete(&deletion),
        |share| {
            repeated(share, &deletion).unwrap();
            share.create(&later).unwrap();
            made.set(made.get() + 1);
        },
        |share| assert!(share.path("ns").is_dir()),
    );
    assert!(made.get() > 20, "{made:?}");
}
