//! Tests a mount in which an old state of the server is visible, as with a directory delegation.

use super::super::claim::State;
use super::super::claims::{Claims, Occupancy};
use super::super::deletion::discard;
use super::super::original::Original;
use super::super::trash::Trash;
use super::copied::order;
use super::copied_dropped::{changes_until_placed, killed_copy};
use super::repeated::dir;
use super::*;

/// Returns a mount in which a deleted volume is still visible, although its directory now belongs
/// to another volume.
fn stale(share: &Share, replaced: impl FnOnce()) -> Tree {
    let shown = share.dir.path().join("shown");
    fs::rename(share.path(""), &shown).unwrap();
    fs::create_dir(share.path("")).unwrap();
    replaced();
    Tree::stale(&shown, tree::Share::Local(share.path("")))
}

#[test]
fn a_claim_that_only_this_mount_still_shows_moves_nothing() {
    let share = Share::new();
    let order = volume("ns/data", "pvc-1");
    share.create(&order).unwrap();
    let tree = stale(&share, || {
        share.create(&order).unwrap();
        share.write("ns/data/file");
    });
    let claims = Claims::find(&tree).unwrap().unwrap();
    let dir = dir("ns/data");
    let Occupancy::By(claim) = claims.read(&dir).unwrap() else {
        panic!("no claim");
    };
    let trash = Trash::of_current(&claims, &dir, &claim).map(drop);
    refused(trash, Kind::Busy, "another call changes its volume");
    assert_eq!(
        Trash::find(&claims, &dir, &claim).map(|it| it.is_some()),
        Ok(false)
    );
}

#[test]
fn a_source_that_only_this_mount_still_shows_is_not_the_one_that_was_copied() {
    let share = Share::new();
    share.make_source();
    let tree = stale(&share, || share.make_source());
    let source = order().from;
    let original = Original::open(&tree, &source).unwrap();
    refused(
        original.check(),
        Kind::NotFound,
        "was deleted while it was copied",
    );
}

/// Another call has removed the copy, and a later volume was created in the same directory.
#[test]
fn a_copy_that_only_this_mount_still_shows_is_not_moved_away() {
    let share = Share::new();
    assert!(killed_copy(&share, changes_until_placed()));
    let later = order().volume;
    let dir = &later.at.dir;
    let claims = Claims::find(&share.tree()).unwrap().unwrap();
    let Occupancy::By(claim) = claims.read(dir).unwrap() else {
        panic!("no claim");
    };
    let claim = claims.advance(dir, &claim, State::Gone).unwrap();
    let tree = stale(&share, || drop(share.create(&later).unwrap()));
    let end = Instant::now() + Duration::from_secs(600);
    let removed = discard(&tree, dir, &claim, end);
    refused(removed, Kind::Busy, "another call changes its volume");
    assert!(share.dir.path().join("shown/ns/copy/file").exists());
}
