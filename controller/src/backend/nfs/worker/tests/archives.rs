//! Tests archives, and volumes and files that have the names of archives.

use super::super::claim::State;
use super::super::trash::Trash;
use super::policies::{is_untouched, prepare};
use super::repeated::{claimed, dir, record};
use super::*;
use std::os::unix::fs::symlink;

#[test]
fn a_volume_whose_archive_cannot_have_a_name_is_left_as_it_is() {
    for is_claimed in [true, false] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: OnDelete::Archive,
            ..adopting(volume(&"n".repeat(250), "pvc-1"))
        };
        prepare(&share, &order, is_claimed);
        let result = share.delete(&old(&order, OnDelete::Archive));
        refused(result, Kind::Precondition, "archive it by hand");
        is_untouched(&share, &order, is_claimed);
    }
}

#[test]
fn no_archive_goes_where_the_directories_of_volumes_are() {
    let share = Share::new();
    let (order, deletion) = archived("pvc-1");
    prepare(&share, &order, true);
    let below = volume("archived-ns/data/x", "pvc-2");
    share.create(&below).unwrap();
    refused(
        share.delete(&deletion),
        Kind::Precondition,
        "has the directories of volumes",
    );
    is_untouched(&share, &order, true);
    // An operator has removed the volume and its claim: the remaining files in `.belay` must not
    // prevent the archive.
    let claim = claim_of(&share, "archived-ns/data/x");
    fs::remove_dir_all(claim.parent().unwrap()).unwrap();
    fs::remove_dir_all(share.path("archived-ns")).unwrap();
    share.delete(&deletion).unwrap();
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
}

/// The name of the archive is the directory of another volume, which must not be treated as an
/// older archive.
#[test]
fn no_archive_replaces_a_volume() {
    for state in [State::Creating, State::Ready, State::Retained] {
        let share = Share::new();
        let (order, deletion) = archived("pvc-1");
        prepare(&share, &order, true);
        share.write("archived-ns/data/precious");
        claimed(&share, record("archived-ns/data", None), state);
        refused(
            share.delete(&deletion),
            Kind::Precondition,
            "so no archive goes there",
        );
        is_untouched(&share, &order, true);
        assert_eq!(names(&share.path("archived-ns/data")), ["precious"]);
    }
}

/// The directory was retained, and an operator has moved it away since.
#[test]
fn a_claim_that_is_left_keeps_no_archive_from_its_name() {
    let share = Share::new();
    let (order, _) = archived("pvc-1");
    prepare(&share, &order, true);
    claimed(&share, record("archived-ns/data", None), State::Retained);
    share.delete(&old(&order, OnDelete::Archive)).unwrap();
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
    let claim = claim_of(&share, "archived-ns/data");
    assert_eq!(claim.extension().unwrap(), "archived");
}

#[test]
fn the_deletion_of_a_volume_changes_nothing_of_one_called_as_its_archive() {
    for policy in [OnDelete::Delete, OnDelete::Retain] {
        let share = Share::new();
        let (order, other) = (
            volume("ns/data", "pvc-1"),
            volume("archived-ns/data", "pvc-2"),
        );
        share.create(&other).unwrap();
        prepare(&share, &order, true);
        share
            .delete(&OldVolume {
                on_delete: Some(policy),
                ..old(&order, policy)
            })
            .unwrap();
        let claim = claim_of(&share, "archived-ns/data");
        assert_eq!(claim.extension().unwrap(), "ready");
        assert!(share.lookup(&other.at).is_some());
    }
}

#[test]
fn the_archive_of_a_volume_is_not_deleted_as_a_volume() {
    let share = Share::new();
    claimed(&share, record("archived-ns/data", None), State::Archived);
    share.write("archived-ns/data/file");
    let order = adopting(volume("archived-ns/data", "pvc-1"));
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        share.delete(&old(&order, policy)).unwrap();
    }
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
    assert_eq!(names(&share.path(".belay/claims")).len(), 1);
}

/// Another program has created the link since the volume was moved to the trash.
#[test]
fn a_link_that_has_the_name_of_an_archive_is_not_removed() {
    let share = Share::new();
    let (claims, claim) = claimed(&share, record("ns/data", None), State::Deleting);
    let trash = Trash::open(&claims, &dir("ns/data"), &claim).unwrap();
    share.write(&format!("{}/volume/file", trash.path()));
    fs::create_dir(share.path("archived-ns")).unwrap();
    symlink(share.outside(), share.path("archived-ns/data")).unwrap();
    let (_, deletion) = archived("pvc-1");
    let words = "cannot become archived-ns/data, which exists";
    refused(share.delete(&deletion), Kind::Precondition, words);
    assert!(share.path("archived-ns/data").is_symlink());
    // The operator moves the link away, as the message requests.
    fs::rename(share.path("archived-ns/data"), share.path("link")).unwrap();
    share.delete(&deletion).unwrap();
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
    share.assert_outside();
}
