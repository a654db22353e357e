//! Tests deletions that are repeated after their end, archives of volumes that were not completed,
//! and files that another program has made since.

use super::super::claim::{Claim, Record, State};
use super::super::claims::{Claims, Occupancy};
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

/// Creates a claim as a killed call leaves it.
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
    for (policy, is_claimed) in [
        (OnDelete::Delete, true),
        (OnDelete::Delete, false),
        (OnDelete::Archive, true),
    ] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: policy,
            ..volume("ns/data", "pvc-1")
        };
        let deletion = old(&order, policy);
        match is_claimed {
            true => drop(share.create(&order).unwrap()),
            false => share.write("ns/data/file"),
        }
        assert_eq!(share.delete_or_leave(&deletion).unwrap(), None);
        assert_eq!(share.delete_or_leave(&deletion).unwrap(), None);
        // A backup, for example.
        share.write("ns/data/restored");
        let why = share.delete_or_leave(&deletion).unwrap().unwrap();
        assert!(why.contains("ns/data: the volume was deleted"), "{why}");
        assert_eq!(names(&share.path("ns/data")), ["restored"]);
        // The record does not affect another volume of csi-driver-nfs.
        let other = old(&volume("ns/data", "pvc-2"), OnDelete::Delete);
        share.delete(&other).unwrap();
        assert!(!share.path("ns/data").exists());
        // Hours later, it is a volume of csi-driver-nfs.
        share.write("ns/data/file");
        let gone = share.path(".belay/gone");
        let [hour] = &names(&gone)[..] else {
            panic!("{gone:?}");
        };
        let hour: u64 = hour.parse().unwrap();
        fs::rename(gone.join(hour.to_string()), gone.join("1")).unwrap();
        share.delete(&old(&order, OnDelete::Delete)).unwrap();
        assert!(!share.path("ns/data").exists());
        assert!(!gone.join("1").exists(), "records are not kept forever");
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
        share.delete(&old(&order, policy)).unwrap();
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

#[test]
fn what_an_archive_has_replaced_stays_while_there_is_no_archive() {
    let share = Share::new();
    let (claims, claim) = claimed(&share, record("ns/data", None), State::Archiving);
    let trash = Trash::open(&claims, &dir("ns/data"), &claim).unwrap();
    let older = format!("{}/older.1", trash.path());
    share.write(&format!("{older}/only-copy"));
    let (_, deletion) = archived("pvc-1");
    let words = "what it has replaced is in .belay/trash/";
    refused(share.delete(&deletion), Kind::Precondition, words);
    // Another program's directory has the name of the archive.
    share.write("archived-ns/data/file");
    refused(share.delete(&deletion), Kind::Precondition, words);
    assert_eq!(names(&share.path(&older)), ["only-copy"]);
    // A later call finds the deletion at its end.
    claims
        .advance(&dir("ns/data"), &claim, State::Gone)
        .unwrap();
    let stuck = share.delete(&deletion);
    refused(stuck, Kind::Precondition, &trash.path());
    assert_eq!(names(&share.path(&older)), ["only-copy"]);
}

/// The claim records that the archive of another volume is being placed.
#[test]
fn a_stale_claim_on_the_name_of_an_archive_is_not_this_volumes() {
    for has_older in [true, false] {
        let share = Share::new();
        let (order, deletion) = archived("pvc-1");
        share.create(&order).unwrap();
        share.write("ns/data/new");
        let stale = record("archived-ns/data", Some("0123456789abcdef".to_owned()));
        claimed(&share, stale, State::Placing);
        if has_older {
            share.write("archived-ns/data/old");
            let kept = OldVolume {
                removes_archived: false,
                ..deletion.clone()
            };
            let words = "--nfs-remove-archived";
            refused(share.delete(&kept), Kind::Precondition, words);
            assert_eq!(names(&share.path("ns/data")), ["new"]);
        }
        share.delete(&deletion).unwrap();
        assert!(!share.path("ns/data").exists());
        assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
        assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        let claims = Claims::find(&share.tree()).unwrap().unwrap();
        let Occupancy::By(claim) = claims.read(&dir("archived-ns/data")).unwrap() else {
            panic!("an archive without a claim");
        };
        assert_eq!(claim.state, State::Archived);
    }
}

/// The archive is placed, and moved away before the deletion is completed.
#[test]
fn what_has_the_name_of_a_volume_that_was_archived_is_not_archived_again() {
    let share = Share::new();
    let (_, claim) = claimed(&share, record("ns/data", None), State::Archiving);
    let placing = record("archived-ns/data", Some(claim.nonce));
    claimed(&share, placing, State::Placing);
    share.write("ns/data/restored");
    let deletion = old(&volume("ns/data", "pvc-1"), OnDelete::Archive);
    share.delete(&deletion).unwrap();
    assert_eq!(names(&share.path("ns/data")), ["restored"]);
    assert!(!share.path("archived-ns").exists());
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
    // A volume of csi-driver-nfs.
    gone(&share, &retained);
    share.write("a/b/file");
    // The volume may be in the retained directory, which exists again.
    let inside = old(&volume("a/b", "pvc-4"), OnDelete::Delete);
    let words = "a part of another volume is not deleted";
    refused(share.delete(&inside), Kind::Precondition, words);
    fs::remove_dir_all(share.path("a")).unwrap();
    // Archives.
    gone(
        &share,
        &NewVolume {
            at: owned("archived-ns", "pvc-1"),
            ..retained
        },
    );
    share.write("ns/data/file");
    let archive = old(&volume("ns/data", "pvc-3"), OnDelete::Archive);
    share.delete(&archive).unwrap();
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
}
