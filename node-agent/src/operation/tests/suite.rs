//! What every kernel must let the operations do: the same tests, simulated and real.

use std::path::PathBuf;

use belay_server::failure::{Failure, Kind};
use belay_server::request::AccessMode;

use super::bench::{BYTES, Form, GROWN_BYTES, MIB, Verb, Volume, World};
use super::simulated::Simulated;
use crate::kernel::Kernel;
use crate::operation::{Node, Published, Thread, VolumeUsage};

on_both! {
    a_volume_lives_through_all_calls
    every_call_may_come_twice
    every_call_may_come_after_a_restart
    what_is_not_staged_is_not_published
    a_published_volume_is_not_unstaged
    foreign_data_is_never_formatted
    a_populated_volume_without_data_is_never_formatted
    one_target_means_one
    a_volume_staged_as_one_form_is_not_staged_as_the_other
    a_volume_is_not_staged_in_two_places
    a_mount_inside_one_target_shows_nowhere_else
}

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];
const LIFE: [Verb; 8] = [
    Verb::Stage,
    Verb::Publish(1),
    Verb::Publish(2),
    Verb::Stats,
    Verb::Expand,
    Verb::Unpublish(2),
    Verb::Unpublish(1),
    Verb::Unstage,
];

#[track_caller]
fn all_ok<K: Kernel>(node: &Node<K>, volume: &Volume, verbs: &[Verb]) {
    for verb in verbs {
        let done = volume.call(node, *verb);
        assert!(done.is_ok(), "{verb:?} of {:?}: {done:?}", volume.form);
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Failure>, kind: Kind) {
    assert_eq!(result.map(drop).map_err(|f| f.kind), Err(kind));
}

#[track_caller]
fn nothing_left(world: &impl World) {
    assert_eq!(world.left(), Vec::<String>::new());
}

fn a_volume_lives_through_all_calls(world: &impl World) {
    for form in FORMS {
        let node = world.start();
        let volume = world.volume(&format!("{form:?}"), form);
        all_ok(&node, &volume, &LIFE[..4]);
        if form != Form::Ext4 || world.grows_ext4() {
            grow(world, &node, &volume);
        }
        all_ok(&node, &volume, &LIFE[5..]);
        nothing_left(world);
        all_ok(&node, &volume, &LIFE);
        nothing_left(world);
    }
}

fn grow<W: World>(world: &W, node: &Node<W::Kernel>, volume: &Volume) {
    let before = volume.stats(node).unwrap();
    world.make_file(&volume.file(), GROWN_BYTES);
    assert_eq!(volume.expand(node).unwrap(), GROWN_BYTES);
    match (before, volume.stats(node).unwrap()) {
        (VolumeUsage::Block(before), VolumeUsage::Block(after)) => {
            assert_eq!((before, after), (BYTES, GROWN_BYTES));
        }
        (VolumeUsage::Filesystem(before), VolumeUsage::Filesystem(after)) => {
            assert!(before.total_bytes <= BYTES && after.total_bytes > BYTES);
        }
        other => panic!("{other:?}"),
    }
}

fn every_call_may_come_twice(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        for verb in LIFE {
            all_ok(&node, &volume, &[verb, verb]);
        }
        nothing_left(world);
    }
}

fn every_call_may_come_after_a_restart(world: &impl World) {
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        for verb in LIFE {
            all_ok(&world.start(), &volume, &[verb]);
            all_ok(&world.start(), &volume, &[verb]);
        }
        nothing_left(world);
    }
}

fn what_is_not_staged_is_not_published(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        refused(volume.call(&node, Verb::Publish(1)), Kind::Precondition);
        nothing_left(world);
    }
}

fn a_published_volume_is_not_unstaged(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        all_ok(&node, &volume, &LIFE[..2]);
        refused(volume.call(&node, Verb::Unstage), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(world);
    }
}

fn foreign_data_is_never_formatted(world: &impl World) {
    let node = world.start();
    for (form, at) in [
        (Form::Ext4, 0),
        (Form::Xfs, 300 * MIB),
        (Form::Btrfs, 64 * MIB),
        (Form::Ext4, BYTES - 1),
    ] {
        let volume = world.volume(&format!("{form:?}-{at}"), form);
        world.write_file(&volume.file(), at, b"x");
        refused(volume.call(&node, Verb::Stage), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_populated_volume_without_data_is_never_formatted(world: &impl World) {
    let node = world.start();
    let mut volume = world.volume("vol", Form::Ext4);
    volume.content = "populated";
    refused(volume.call(&node, Verb::Stage), Kind::Precondition);
    nothing_left(world);
}

fn one_target_means_one(world: &impl World) {
    for form in FORMS {
        let mut volume = world.volume(&format!("{form:?}"), form);
        volume.mode = AccessMode::SingleNodeSingleWriter;
        let node = world.start();
        all_ok(&node, &volume, &LIFE[..2]);
        refused(volume.call(&node, Verb::Publish(2)), Kind::Precondition);
        let restarted = world.start();
        refused(
            volume.call(&restarted, Verb::Publish(2)),
            Kind::Precondition,
        );
        all_ok(&restarted, &volume, &[Verb::Unpublish(1), Verb::Publish(2)]);
        all_ok(&restarted, &volume, &[Verb::Unpublish(2), Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_volume_staged_as_one_form_is_not_staged_as_the_other(world: &impl World) {
    let node = world.start();
    for (form, other) in [(Form::Ext4, Form::Block), (Form::Block, Form::Ext4)] {
        let volume = world.volume(&format!("{form:?}"), form);
        let as_other = Volume {
            form: other,
            ..volume.clone()
        };
        all_ok(&node, &volume, &[Verb::Stage]);
        refused(as_other.call(&node, Verb::Stage), Kind::Incompatible);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_volume_is_not_staged_in_two_places(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        let mut elsewhere = volume.clone();
        elsewhere.base = world.base().join("other");
        world.make_dir(&elsewhere.staging());
        all_ok(&node, &volume, &[Verb::Stage]);
        refused(elsewhere.call(&node, Verb::Stage), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_mount_inside_one_target_shows_nowhere_else(world: &impl World) {
    let node = world.start();
    let volume = world.volume("outer", Form::Ext4);
    all_ok(&node, &volume, &LIFE[..3]);
    let mut inner = world.volume("inner", Form::Ext4);
    inner.base = volume.target(1);
    world.make_dir(&inner.staging());
    all_ok(&node, &inner, &[Verb::Stage]);

    let is_mounted_at = |folder: PathBuf| {
        let path = folder.join("staging").join("inner");
        node.kernel.look(&path).unwrap().unwrap().mount_root
    };
    assert!(is_mounted_at(volume.target(1)));
    assert!(!is_mounted_at(volume.target(2)) && !is_mounted_at(volume.staging()));
    all_ok(&node, &inner, &[Verb::Unstage]);
    all_ok(&node, &volume, &LIFE[5..]);
    nothing_left(world);
}

/// Simulated alone, since before Linux 6.8 every publish goes there.
#[test]
fn a_target_upon_a_volume_is_made_on_the_pool() {
    let world = Simulated::new();
    for form in [Form::Ext4, Form::Btrfs] {
        let node = world.start();
        let outer = world.volume(&format!("outer-{form:?}"), form);
        let inner = world.volume(&format!("inner-{form:?}"), form);
        all_ok(&node, &outer, &LIFE[..2]);
        all_ok(&node, &inner, &[Verb::Stage]);
        let within = outer.target(1).join("within");
        let published = |target| inner.publish_at(&node, target, Thread::Only).unwrap();
        assert_eq!(published(&within), Published::WantsPool, "{form:?}");
        assert!(node.kernel.look(&within).unwrap().is_none());
        assert_eq!(published(&inner.target(1)), Published::Done, "{form:?}");
        for volume in [&inner, &outer] {
            all_ok(&node, volume, &[Verb::Unpublish(1), Verb::Unstage]);
        }
        nothing_left(&world);
    }
}
