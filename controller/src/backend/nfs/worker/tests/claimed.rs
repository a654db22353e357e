//! Tests that a directory belongs to one volume.

use super::super::claim::{Claim, State};
use super::super::claims::{Claims, Occupancy};
use super::*;
use std::sync::Barrier;

#[test]
fn a_directory_that_is_no_volume_of_belay_is_not_handed_out() {
    let share = Share::new();
    share.write("data/file");
    fs::create_dir(share.path("empty")).unwrap();
    for dir in ["data", "empty", "data/file"] {
        let result = share.create(&volume(dir, "pvc-1"));
        refused(
            result,
            Kind::Incompatible,
            "is not known to be this volume's",
        );
    }
    assert_eq!(names(&share.path("data")), ["file"]);
    // An empty directory with the name of the volume was created by an interrupted call.
    fs::create_dir(share.path("pvc-2")).unwrap();
    share.create(&plain("pvc-2")).unwrap();
    share.write("pvc-3/file");
    for order in [plain("pvc-3"), adopting(plain("pvc-3"))] {
        let words = "is not known to be this volume's";
        refused(share.create(&order), Kind::Incompatible, words);
    }
    assert_eq!(names(&share.path("pvc-3")), ["file"]);
}

#[test]
fn a_volume_is_not_created_in_another_one_nor_around_it() {
    let share = Share::new();
    share.create(&volume("a/b", "pvc-1")).unwrap();
    let inside = share.create(&volume("a/b/c/d", "pvc-2"));
    refused(
        inside,
        Kind::Incompatible,
        "is inside a/b, which is the directory of volume \"pvc-1\"",
    );
    let around = share.create(&volume("a", "pvc-3"));
    refused(
        around,
        Kind::Incompatible,
        "has the directories of other volumes",
    );
    assert_eq!(names(&share.path("a/b")), [""; 0]);
    // An ID of csi-driver-nfs may contain the parent directory of volumes.
    let deletion = share.delete(&old(&volume("a", "pvc-3"), OnDelete::Delete));
    refused(
        deletion,
        Kind::Precondition,
        "has the directories of other volumes",
    );
    assert!(share.path("a/b").is_dir());
}

#[test]
fn the_deletion_of_a_volume_that_lost_its_directory_to_another_one_touches_nothing() {
    let share = Share::new();
    share.create(&volume("data", "pvc-1")).unwrap();
    share.write("data/file");
    let stranger = volume("data", "pvc-2");
    assert_eq!(share.lookup(&stranger.at), None);
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        share.delete(&old(&stranger, policy)).unwrap();
    }
    assert_eq!(names(&share.path("data")), ["file"]);
    assert!(share.lookup(&owned("data", "pvc-1")).is_some());
}

#[test]
fn of_many_volumes_at_once_one_gets_the_directory() {
    let share = Share::new();
    const CALLS: usize = 8;
    for round in 0..20 {
        let barrier = Barrier::new(CALLS);
        let dir = format!("ns-{round}/data");
        let made: Vec<_> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..CALLS)
                .map(|n| {
                    let order = volume(&dir, &format!("pvc-{}", n % 4));
                    let (share, barrier) = (&share, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        share.create(&order).map(|_| order.at.name)
                    })
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let mut winners: Vec<_> = made.iter().flatten().collect();
        winners.dedup();
        winners.sort();
        winners.dedup();
        assert_eq!(winners.len(), 1, "{made:?}");
        for failure in made.iter().filter_map(|it| it.as_ref().err()) {
            assert_eq!(failure.kind, Kind::Incompatible, "{failure}");
        }
    }
}

#[test]
fn creations_and_deletions_below_one_directory_do_not_disturb_each_other() {
    let share = Share::new();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let share = &share;
            scope.spawn(move || {
                let order = volume(&format!("a/b/{n}"), &format!("pvc-{n}"));
                for _ in 0..50 {
                    share.create(&order).unwrap();
                    share.delete(&old(&order, OnDelete::Delete)).unwrap();
                }
            });
        }
    });
    share.assert_outside();
}

#[test]
fn a_damaged_claim_is_refused_by_its_path_and_decides_nothing() {
    let share = Share::new();
    let order = plain("pvc-1");
    share.create(&order).unwrap();
    share.write("pvc-1/file");
    let claim = claim_of(&share, "pvc-1");
    let sound = fs::read(&claim).unwrap();
    for content in [
        &b""[..],
        b"{}",
        b"x",
        &vec![b' '; 1 << 20],
        &sound[..sound.len() / 2],
    ] {
        fs::write(&claim, content).unwrap();
        for result in [
            share.create(&order).map(drop),
            share.delete(&old(&order, OnDelete::Delete)),
        ] {
            refused(result, Kind::Precondition, "is no claim on pvc-1");
        }
    }
    // The damaged claims are: a claim on another directory, an unknown state, and a file instead of
    // a directory.
    share.create(&plain("x")).unwrap();
    fs::write(claim_of(&share, "x"), &sound).unwrap();
    refused(
        share.create(&plain("x")),
        Kind::Precondition,
        "is no claim on x",
    );
    fs::write(&claim, &sound).unwrap();
    fs::rename(&claim, claim.with_extension("strange")).unwrap();
    refused(
        share.create(&order),
        Kind::Precondition,
        "is no claim on pvc-1",
    );
    let path = claim.parent().unwrap();
    fs::remove_dir_all(path).unwrap();
    fs::write(path, &sound).unwrap();
    for result in [
        share.create(&order).map(drop),
        share.delete(&old(&order, OnDelete::Delete)),
    ] {
        refused(result, Kind::Precondition, "in the place of a directory");
    }
    assert_eq!(names(&share.path("pvc-1")), ["file"]);
}

/// A directory in a nested share may have a claim in that share, with a different path.
#[test]
fn nothing_is_created_or_deleted_in_a_directory_that_is_a_share_itself() {
    let share = Share::new();
    let ours = volume("team/data", "pvc-1");
    share.create(&ours).unwrap();
    share.write("team/data/file");
    share.write("team/other/file");
    fs::create_dir(share.path("team/.belay")).unwrap();
    let words = "team has a directory .belay, so it is a share itself";
    for dir in ["team/new", "team/a/b"] {
        let created = share.create(&volume(dir, "pvc-2"));
        refused(created, Kind::Precondition, words);
    }
    // These volumes were created by csi-driver-nfs.
    let team = adopting(plain("team"));
    let others = [adopting(volume("team/other", "pvc-2")), ours.clone()];
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        for order in &others {
            let deleted = share.delete(&old(order, policy));
            refused(deleted, Kind::Precondition, words);
        }
    }
    share.delete(&old(&others[0], OnDelete::Retain)).unwrap();
    assert_eq!(names(&share.path("team")), [".belay", "data", "other"]);
    assert_eq!(names(&share.path("team/data")), ["file"]);
    // The directory is still refused after the claims of the outer share were removed.
    fs::remove_dir_all(share.path(".belay")).unwrap();
    refused(
        share.create(&team),
        Kind::Incompatible,
        "is not known to be this volume's",
    );
    let deleted = share.delete(&old(&team, OnDelete::Delete));
    refused(deleted, Kind::Precondition, words);
    // A tenant's directory `.belay` must not prevent the deletion of a volume of Belay.
    share.create(&plain("pvc-3")).unwrap();
    fs::create_dir(share.path("pvc-3/.belay")).unwrap();
    share
        .delete(&old(&plain("pvc-3"), OnDelete::Delete))
        .unwrap();
    assert!(!share.path("pvc-3").exists());
}

/// The parent directory remains, since it contains other files.
#[test]
fn a_directory_can_be_used_when_the_last_volume_below_it_is_gone() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let share = Share::new();
        let inner = NewVolume {
            on_delete: policy,
            ..volume("pvc-1/a/b", "pvc-2")
        };
        fs::create_dir(share.path("pvc-1")).unwrap();
        share.create(&inner).unwrap();
        share.write("pvc-1/file");
        let outer = plain("pvc-1");
        for result in [
            share.create(&outer).map(drop),
            share.delete(&old(&outer, OnDelete::Delete)),
        ] {
            assert!(result.unwrap_err().message.contains("of other volumes"));
        }
        share.delete(&old(&inner, OnDelete::Delete)).unwrap();
        fs::remove_dir_all(share.path("pvc-1")).unwrap();
        share.create(&outer).unwrap();
        share.delete(&old(&outer, OnDelete::Delete)).unwrap();
        assert!(!share.path("pvc-1").exists());
    }
}

/// If a volume is refused, its parent directories are not claimed.
#[test]
fn a_volume_that_was_not_created_is_above_nothing() {
    let share = Share::new();
    share.create(&plain("pvc-1")).unwrap();
    fs::create_dir_all(share.path("a/b")).unwrap();
    share.create(&volume("a/b", "pvc-2")).unwrap_err();
    share.create(&volume("pvc-1/x/y", "pvc-2")).unwrap_err();
    fs::write(share.path("file"), "").unwrap();
    share.create(&volume("file/x", "pvc-2")).unwrap_err();
    fs::remove_dir_all(share.path("a")).unwrap();
    assert_eq!(names(&share.path(".belay/claims")).len(), 1);
    for free in ["a", "pvc-1/x"] {
        let dir = owned(free, "x").dir;
        let claims = Claims::find(&share.tree()).unwrap().unwrap();
        assert_eq!(claims.read(&dir).unwrap(), Occupancy::Free);
    }
    share.create(&volume("a", "pvc-3")).unwrap();
}

/// Another process that ran the same call has left a claim on a parent directory, but no volume.
#[test]
fn what_is_left_of_a_claim_above_is_no_obstacle() {
    let share = Share::new();
    let order = volume("a/b/c", "pvc-1");
    share.create(&order).unwrap();
    // An operator has removed the claim file and the directory.
    let claim = claim_of(&share, "a/b/c");
    fs::remove_dir_all(claim.parent().unwrap()).unwrap();
    fs::remove_dir_all(share.path("a")).unwrap();
    share.create(&volume("a", "pvc-2")).unwrap();
    share
        .delete(&old(&volume("a", "pvc-2"), OnDelete::Delete))
        .unwrap();
    share.create(&volume("a/b", "pvc-3")).unwrap();
}

/// A slow worker whose volume was deleted finds a later volume in the same directory.
#[test]
fn a_call_for_an_earlier_volume_changes_nothing_of_a_later_one() {
    let share = Share::new();
    let order = volume("ns/data", "pvc-1");
    let dir = &order.at.dir;
    share.create(&order).unwrap();
    let claims = Claims::find(&share.tree()).unwrap().unwrap();
    let seen = |state| match claims.read(dir).unwrap() {
        Occupancy::By(claim) => Claim { state, ..claim },
        other => panic!("{other:?}"),
    };
    let states = [
        State::Creating,
        State::Ready,
        State::Deleting,
        State::Gone,
        State::Retained,
    ];
    let earlier: Vec<_> = states.into_iter().map(seen).collect();
    let trash = super::super::trash::Trash::open(&claims, dir, &earlier[2]).unwrap();
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    // The later volume also has the same name as the deleted volume.
    share.create(&order).unwrap();
    share.write("ns/data/file");
    let now = claims.read(dir).unwrap();
    for claim in &earlier {
        for state in states {
            if state != claim.state {
                let changed = claims.advance(dir, claim, state);
                refused(changed, Kind::Busy, "another call changes its volume");
            }
        }
        refused(
            claims.check(dir, claim),
            Kind::Busy,
            "another call changes its volume",
        );
        assert!(!claims.remove(dir, claim).unwrap());
        assert!(!claims.publish(dir, claim).unwrap());
    }
    // The server executes the last request of a killed worker.
    trash.take(&share.tree(), dir).unwrap();
    assert_eq!(claims.read(dir).unwrap(), now);
    assert_eq!(names(&share.path("ns/data")), ["file"]);
    assert!(share.lookup(&order.at).is_some());
}

/// The controller was killed, and then the PersistentVolumeClaim was deleted.
#[test]
fn a_creation_that_no_call_repeats_does_not_keep_its_directory_forever() {
    for has_files in [false, true] {
        let share = Share::new();
        let (first, next) = (volume("ns/data", "pvc-1"), volume("ns/data", "pvc-2"));
        share.create(&first).unwrap();
        let ready = claim_of(&share, "ns/data");
        let creating = ready.with_extension("creating");
        fs::rename(&ready, &creating).unwrap();
        refused(
            share.create(&next),
            Kind::Incompatible,
            "is the directory of volume \"pvc-1\"",
        );
        let file = fs::File::options().write(true).open(&creating).unwrap();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
        file.set_modified(long_ago).unwrap();
        if has_files {
            share.write("ns/data/file");
            refused(
                share.create(&next),
                Kind::Incompatible,
                "is not known to be this volume's",
            );
            assert_eq!(names(&share.path("ns/data")), ["file"]);
            continue;
        }
        share.create(&next).unwrap();
        refused(
            share.create(&first),
            Kind::Incompatible,
            "is the directory of volume \"pvc-2\"",
        );
        assert!(share.lookup(&next.at).is_some());
    }
}
