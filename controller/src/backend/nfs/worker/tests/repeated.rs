//! Tests deletions that are repeated after they were completed, archives of incomplete volumes, and
//! files that another program has created since the deletion.

use super::super::claim::{Claim, Record, State};
use super::super::claims::Claims;
use super::super::trash::Trash;
use super::*;

pub(super) fn dir(path: &str) -> Dir {
    Dir::read(path).unwrap().unwrap()
}

pub(super) fn record(path: &str, archive_of: Option<String>) -> Record {
    Record {
        dir: path.to_owned(),
        name: "pvc-1".to_owned(),
        on_delete: OnDelete::Archive,
        bytes: 7,
        archive_of,
        source: None,
    }
}

/// Creates a claim file as if a killed call had left it.
pub(super) fn claimed(share: &Share, record: Record, state: State) -> (Claims, Claim) {
    let claims = Claims::open(&share.tree()).unwrap();
    let dir = dir(&record.dir);
    let claim = Claim::new(record, state).unwrap();
    assert!(claims.publish(&dir, &claim).unwrap());
    (claims, claim)
}

/// The response to the first call was lost.
#[test]
fn a_repeated_deletion_removes_nothing_that_came_after_the_first() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: policy,
            ..volume("ns/data", "pvc-1")
        };
        let deletion = old(&order, policy);
        share.create(&order).unwrap();
        share.write("ns/data/file");
        assert_eq!(share.delete_or_leave(&deletion).unwrap(), None);
        assert_eq!(share.delete_or_leave(&deletion).unwrap(), None);
        // For example, an operator has restored the directory from a backup.
        share.write("ns/data/restored");
        refused(share.delete(&deletion), Kind::Precondition, "--nfs-adopt");
        assert_eq!(names(&share.path("ns/data")), ["restored"]);
        // The operator moves the directory away, which is the remedy in the message.
        fs::rename(share.path("ns/data"), share.path("kept")).unwrap();
        assert_eq!(share.delete_or_leave(&deletion).unwrap(), None);
        assert_eq!(names(&share.path("kept")), ["restored"]);
    }
}

/// The directory belongs to an administrator, or to a volume of csi-driver-nfs.
#[test]
fn a_directory_without_a_claim_is_no_volume_unless_the_operator_says_so() {
    for has_claims in [false, true] {
        let share = Share::new();
        if has_claims {
            share.create(&plain("pvc-9")).unwrap();
        }
        let order = volume("ns/data", "pvc-1");
        share.write("ns/data/file");
        assert_eq!(share.lookup(&order.at), None);
        for policy in [OnDelete::Delete, OnDelete::Archive] {
            let words = "ns/data: exists, but .belay has no record of its volume";
            refused(
                share.delete(&old(&order, policy)),
                Kind::Precondition,
                words,
            );
        }
        share.delete(&old(&order, OnDelete::Retain)).unwrap();
        let claims = names(&share.path(".belay/claims"));
        assert_eq!(claims.len(), usize::from(has_claims));
        assert_eq!(names(&share.path("ns/data")), ["file"]);
        let adopted = adopting(order);
        assert!(share.lookup(&adopted.at).is_some());
        share.delete(&old(&adopted, OnDelete::Delete)).unwrap();
        assert!(!share.path("ns").exists());
    }
}

#[test]
fn files_in_the_directory_of_a_volume_that_was_not_created_are_neither_deleted_nor_archived() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: policy,
            ..volume("data", "pvc-1")
        };
        share.create(&order).unwrap();
        let ready = claim_of(&share, "data");
        fs::rename(&ready, ready.with_extension("creating")).unwrap();
        share.write("data/file");
        let why = share.delete_or_leave(&old(&order, policy)).unwrap();
        assert!(why.unwrap().contains("the volume was not created"));
        let again = share.delete(&old(&order, policy));
        refused(again, Kind::Precondition, "--nfs-adopt");
        assert_eq!(names(&share.path("data")), ["file"]);
        share.assert_clean();
    }
}

#[test]
fn a_deletion_that_finds_another_volume_says_which() {
    let share = Share::new();
    share.create(&volume("data", "pvc-1")).unwrap();
    let stranger = old(&volume("data", "pvc-2"), OnDelete::Delete);
    let why = share.delete_or_leave(&stranger).unwrap().unwrap();
    let expected = "directory data is the directory of volume \"pvc-1\", and not of volume \
                    \"pvc-2\"";
    assert_eq!(why, expected);
    assert!(share.path("data").is_dir());
}

/// The archive of another volume was moved away, or was claimed but never created.
#[test]
fn a_stale_claim_on_the_name_of_an_archive_is_not_this_volumes() {
    let share = Share::new();
    let (order, deletion) = archived("pvc-1");
    share.create(&order).unwrap();
    share.write("ns/data/new");
    let stale = record("archived-ns/data", Some("0123456789abcdef".to_owned()));
    claimed(&share, stale, State::Archived);
    share.write("archived-ns/data/old");
    let words = "so no archive goes there";
    refused(share.delete(&deletion), Kind::Precondition, words);
    assert_eq!(names(&share.path("ns/data")), ["new"]);
    fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
    share.delete(&deletion).unwrap();
    assert!(!share.path("ns/data").exists());
    assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    let claim = claim_of(&share, "archived-ns/data");
    assert_eq!(claim.extension().unwrap(), "archived");
    assert!(!claim.ends_with("0123456789abcdef.archived"));
}

/// The deletion is interrupted after the archive was claimed and before the volume is moved there.
#[test]
fn the_name_of_an_archive_is_taken_until_the_volume_has_no_claim() {
    let share = Share::new();
    let (claims, claim) = claimed(&share, record("ns/data", None), State::Deleting);
    let trash = Trash::open(&claims, &dir("ns/data"), &claim).unwrap();
    share.write(&format!("{}/volume/file", trash.path()));
    claimed(
        &share,
        record("archived-ns/data", Some(claim.nonce)),
        State::Archived,
    );
    for taken in ["archived-ns/data", "archived-ns/data/x"] {
        let other = share.create(&volume(taken, "pvc-2"));
        refused(other, Kind::Incompatible, "is the archive of volume");
    }
    let (_, deletion) = archived("pvc-1");
    share.delete(&deletion).unwrap();
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
    // After the operator has moved the archive away, its name is free.
    fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
    share.create(&volume("archived-ns/data", "pvc-2")).unwrap();
}

/// The volume was archived, and its archive was moved away before the deletion is completed.
#[test]
fn what_has_the_name_of_a_volume_that_was_archived_is_not_archived_again() {
    let share = Share::new();
    let (_, claim) = claimed(&share, record("ns/data", None), State::Deleting);
    let archive = record("archived-ns/data", Some(claim.nonce));
    claimed(&share, archive, State::Archived);
    share.write("ns/data/restored");
    let deletion = old(&volume("ns/data", "pvc-1"), OnDelete::Archive);
    share.delete(&deletion).unwrap();
    assert_eq!(names(&share.path("ns/data")), ["restored"]);
    assert!(!share.path("archived-ns").exists());
    // The name of the archive is free.
    let other = volume("archived-ns/data", "pvc-2");
    share.create(&other).unwrap();
    share.delete(&old(&other, OnDelete::Delete)).unwrap();
    share.assert_clean();
}

/// The directory was retained or archived, and then moved away.
#[test]
fn a_directory_that_was_moved_away_blocks_none_below_it() {
    let retained = NewVolume {
        on_delete: OnDelete::Retain,
        ..volume("a", "pvc-1")
    };
    let gone = |share: &Share, order: &NewVolume| {
        share.create(order).unwrap();
        share.delete(&old(order, OnDelete::Delete)).unwrap();
        fs::remove_dir(share.path(&order.at.dir.to_string())).unwrap();
    };
    let share = Share::new();
    gone(&share, &retained);
    let below = volume("a/b", "pvc-2");
    share.create(&below).unwrap();
    share.delete(&old(&below, OnDelete::Delete)).unwrap();
    share.assert_clean();
    // The volume was created by csi-driver-nfs.
    gone(&share, &retained);
    share.write("a/b/file");
    // The volume may be in the retained directory, which exists again.
    let inside = old(&adopting(volume("a/b", "pvc-4")), OnDelete::Delete);
    let words = "a part of another volume is not deleted";
    refused(share.delete(&inside), Kind::Precondition, words);
    fs::remove_dir_all(share.path("a")).unwrap();
    // The claim of an archive that was moved away does not prevent a new volume, either.
    gone(
        &share,
        &NewVolume {
            at: owned("archived-ns", "pvc-1"),
            ..retained
        },
    );
    share.write("ns/data/file");
    let archive = old(&adopting(volume("ns/data", "pvc-3")), OnDelete::Archive);
    share.delete(&archive).unwrap();
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
}
