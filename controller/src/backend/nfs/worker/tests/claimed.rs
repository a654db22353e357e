//! A directory is that of one volume.

use super::super::claims::{Claims, file_name};
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
    // One of that name is its own: csi-driver-nfs has made it.
    share.write("pvc-2/file");
    share.create(&plain("pvc-2")).unwrap();
    assert_eq!(names(&share.path("pvc-2")), ["file"]);
}

#[test]
fn a_volume_is_not_created_in_another_one_nor_around_it() {
    let share = Share::new();
    share.create(&volume("a/b", "pvc-1")).unwrap();
    let inside = share.create(&volume("a/b/c/d", "pvc-2"));
    refused(
        inside,
        Kind::Incompatible,
        "is inside a/b, the directory of volume \"pvc-1\"",
    );
    let around = share.create(&volume("a", "pvc-3"));
    refused(
        around,
        Kind::Incompatible,
        "has the directories of other volumes",
    );
    assert_eq!(names(&share.path("a/b")), [""; 0]);
    // An ID of csi-driver-nfs may be that of the directory around.
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
    assert_eq!(share.look(&stranger.at), None);
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        share.delete(&old(&stranger, policy)).unwrap();
    }
    assert_eq!(names(&share.path("data")), ["file"]);
    assert!(share.look(&owned("data", "pvc-1")).is_some());
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
    let claim = share.path(".belay/claims").join(file_name(&order.at.dir));
    let other = share
        .path(".belay/claims")
        .join(file_name(&owned("x", "x").dir));
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
    // That of another directory.
    fs::copy(&claim, &other).unwrap();
    fs::write(&other, &sound).unwrap();
    refused(
        share.create(&plain("x")),
        Kind::Precondition,
        "is no claim on x",
    );
    assert_eq!(names(&share.path("pvc-1")), ["file"]);
    assert!(Claims::find(&share.tree()).unwrap().is_some());
}
