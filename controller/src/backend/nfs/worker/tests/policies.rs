//! Tests deletions by policy, by the state of the claim and by existing files, and refusals before
//! any change.

use super::super::claim::{Record, State};
use super::super::trash::Trash;
use super::repeated::{claimed, dir, record};
use super::*;
use std::os::unix::fs::symlink;

/// Creates a volume that contains a file, as Belay or as csi-driver-nfs.
pub(super) fn prepare(share: &Share, order: &NewVolume, is_claimed: bool) {
    if is_claimed {
        share.create(order).unwrap();
    }
    share.write(&format!("{}/file", order.at.dir));
}

/// Asserts that the deletion has not begun: the volume and its claim are unchanged, and the trash
/// does not exist.
#[track_caller]
pub(super) fn is_untouched(share: &Share, order: &NewVolume, is_claimed: bool) {
    let dir = order.at.dir.to_string();
    assert_eq!(names(&share.path(&dir)), ["file"]);
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    match is_claimed {
        true => assert_eq!(claim_of(share, &dir).extension().unwrap(), "ready"),
        false => assert!(!share.path(".belay").exists()),
    }
}

#[test]
fn what_is_no_directory_is_neither_archived_nor_replaced_nor_deleted() {
    let (delete, archive) = (OnDelete::Delete, OnDelete::Archive);
    for (policy, path) in [
        (delete, "ns/data"),
        (archive, "ns/data"),
        (archive, "archived-ns/data"),
    ] {
        for is_link in [true, false] {
            let share = Share::new();
            let order = NewVolume {
                on_delete: policy,
                ..volume("ns/data", "pvc-1")
            };
            share.create(&order).unwrap();
            let place = share.path(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::remove_dir(&place).ok();
            match is_link {
                true => symlink(share.outside(), &place).unwrap(),
                false => fs::write(&place, "precious").unwrap(),
            }
            let words = match path {
                "ns/data" => "is no directory on the server",
                _ => "which exists",
            };
            refused(
                share.delete(&old(&order, policy)),
                Kind::Precondition,
                words,
            );
            assert_eq!(place.is_symlink(), is_link);
            assert!(is_link || fs::read(&place).unwrap() == b"precious");
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
            assert_eq!(claim_of(&share, "ns/data").extension().unwrap(), "ready");
            share.assert_outside();
        }
    }
}

/// The policies in the record and in the ID are fixed, so the next call continues the deletion with
/// the same policy.
#[test]
fn a_deletion_that_was_begun_is_completed_by_the_policy_that_keeps_more() {
    let (delete, archive) = (OnDelete::Delete, OnDelete::Archive);
    for (recorded, says, is_kept) in [
        (delete, delete, false),
        (delete, archive, true),
        (archive, delete, true),
        (archive, archive, true),
        // An earlier call has begun the deletion with a different ID of the volume.
        (delete, OnDelete::Retain, false),
        (archive, OnDelete::Retain, true),
    ] {
        let share = Share::new();
        let begun = Record {
            on_delete: recorded,
            ..record("ns/data", None)
        };
        claimed(&share, begun, State::Deleting);
        share.write("ns/data/file");
        let deletion = OldVolume {
            on_delete: Some(says),
            ..old(&volume("ns/data", "pvc-1"), says)
        };
        share.delete(&deletion).unwrap();
        assert!(!share.path("ns/data").exists(), "{recorded} {says}");
        let archive = share.path("archived-ns/data/file");
        assert_eq!(archive.exists(), is_kept, "{recorded} {says}");
        assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    }
}

/// A volume may have two IDs with different policies. Here, the call with one of the IDs was
/// killed.
#[test]
fn a_volume_that_waits_to_be_archived_is_not_deleted() {
    let share = Share::new();
    let begun = Record {
        on_delete: OnDelete::Delete,
        ..record("ns/data", None)
    };
    let (claims, claim) = claimed(&share, begun, State::Deleting);
    let trash = Trash::open(&claims, &dir("ns/data"), &claim).unwrap();
    share.write(&format!("{}/volume/file", trash.path()));
    let order = volume("ns/data", "pvc-1");
    let deleted = share.delete(&old(&order, OnDelete::Delete));
    refused(deleted, Kind::Precondition, &trash.path());
    assert_eq!(names(&share.path(&trash.path())), ["volume"]);
}

/// Another program may have created a new directory with the same name by now.
#[test]
fn a_volume_that_is_gone_is_not_deleted_again() {
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        let share = Share::new();
        let (claims, gone) = claimed(&share, record("ns/data", None), State::Gone);
        let trash = Trash::open(&claims, &dir("ns/data"), &gone).unwrap();
        share.write(&format!("{}/0/file", trash.path()));
        share.write("ns/data/later");
        let order = volume("ns/data", "pvc-1");
        share.delete(&old(&order, policy)).unwrap();
        assert_eq!(names(&share.path("ns/data")), ["later"]);
        share.assert_clean();
    }
}

/// Like csi-driver-nfs, a deletion with the policy `retain` removes nothing, even if the parent
/// directory is a file by now.
#[test]
fn a_retained_volume_without_its_directory_leaves_no_claim() {
    for is_file in [true, false] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: OnDelete::Retain,
            ..volume("ns/data", "pvc-1")
        };
        share.create(&order).unwrap();
        fs::remove_dir_all(share.path("ns")).unwrap();
        if is_file {
            share.write("ns");
        }
        share.delete(&old(&order, OnDelete::Retain)).unwrap();
        assert_eq!(share.path("ns").is_file(), is_file);
        share.assert_clean();
    }
}

/// An empty directory belongs to the volume.
#[test]
fn a_volume_that_was_not_completed_is_deleted_while_it_is_empty() {
    let share = Share::new();
    let order = volume("data", "pvc-1");
    share.create(&order).unwrap();
    let ready = claim_of(&share, "data");
    fs::rename(&ready, ready.with_extension("creating")).unwrap();
    let why = share.delete_or_leave(&old(&order, OnDelete::Delete));
    assert_eq!(why.unwrap(), None);
    assert_eq!(names(&share.path("")), [".belay"]);
    share.assert_clean();
}

#[test]
fn directories_above_an_archive_or_a_retained_volume_are_not_removed() {
    for policy in [OnDelete::Archive, OnDelete::Retain] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: policy,
            ..volume("a/b/data", "pvc-1")
        };
        share.create(&order).unwrap();
        share.delete(&old(&order, policy)).unwrap();
        assert!(share.path("a/b").is_dir(), "{policy}");
    }
}

/// The file does not belong to Belay, and the volume is already deleted.
#[test]
fn a_directory_above_that_is_a_file_by_now_is_left() {
    for file in ["a/b", "a"] {
        let share = Share::new();
        let (_, gone) = claimed(
            &share,
            Record {
                on_delete: OnDelete::Delete,
                ..record("a/b/data", None)
            },
            State::Gone,
        );
        assert_eq!(gone.state, State::Gone);
        share.write(file);
        let order = volume("a/b/data", "pvc-1");
        share.delete(&old(&order, OnDelete::Delete)).unwrap();
        assert!(share.path(file).is_file());
        share.assert_clean();
    }
}

/// The ID in the first call contained the policy; the ID in the next call may contain no policy.
#[test]
fn a_volume_that_was_retained_is_not_deleted_later() {
    let share = Share::new();
    let order = volume("ns/data", "pvc-1");
    prepare(&share, &order, true);
    let retention = OldVolume {
        on_delete: Some(OnDelete::Retain),
        ..old(&order, OnDelete::Delete)
    };
    share.delete(&retention).unwrap();
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        share.delete(&old(&order, policy)).unwrap();
        assert_eq!(names(&share.path("ns/data")), ["file"], "{policy}");
    }
    let claim = claim_of(&share, "ns/data");
    assert_eq!(claim.extension().unwrap(), "retained");
}

/// A deletion with the policy `retain` deletes nothing in the share.
#[test]
fn a_volume_in_a_directory_that_is_a_share_itself_can_be_retained() {
    let share = Share::new();
    let order = NewVolume {
        on_delete: OnDelete::Retain,
        ..volume("team/data", "pvc-1")
    };
    prepare(&share, &order, true);
    fs::create_dir(share.path("team/.belay")).unwrap();
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    let claim = claim_of(&share, "team/data");
    assert_eq!(claim.extension().unwrap(), "retained");
}

/// The deleted volume was created by csi-driver-nfs.
#[test]
fn a_volume_is_deleted_where_the_claims_of_volumes_below_are_left() {
    let share = Share::new();
    share.create(&volume("a/b/c", "pvc-1")).unwrap();
    let claim = claim_of(&share, "a/b/c");
    fs::remove_dir_all(claim.parent().unwrap()).unwrap();
    share.write("a/file");
    let order = old(&adopting(volume("a", "pvc-2")), OnDelete::Delete);
    share.delete(&order).unwrap();
    assert!(!share.path("a").exists());
}

/// The two claims contradict each other, for example because the share was restored from a backup.
#[test]
fn a_volume_that_was_completed_is_deleted_whatever_is_above_it() {
    let share = Share::new();
    claimed(&share, record("a", None), State::Ready);
    prepare(&share, &volume("a/b", "pvc-1"), false);
    claimed(&share, record("a/b", None), State::Ready);
    let order = volume("a/b", "pvc-1");
    share.delete(&old(&order, OnDelete::Archive)).unwrap();
    assert!(!share.path("a/b").exists());
    assert_eq!(names(&share.path("archived-a/b")), ["file"]);
}
