//! Tests that the agent identifies a loop device by the name with which the device was bound. This
//! name contains the driver and the volume, and is valid even if the file was moved or removed.

use std::path::Path;

use belay_server::call::Kind;

use super::bench::{BYTES, DRIVER, Form, Verb, Volume, World};
use super::simulated::Simulated;
use super::suite::{all_ok, nothing_left};
use crate::kernel::Kernel;
use crate::operation::{Node, Thread};

on_both! {
    the_volume_of_another_driver_with_the_same_id_is_left_alone
    a_volume_whose_file_was_moved_is_taken_down_and_not_staged_twice
    a_volume_whose_file_was_removed_is_not_published_again
    a_raw_device_that_a_killed_unstage_left_is_freed_whatever_became_of_its_file
}

const FORMS: [Form; 3] = [Form::Ext4, Form::Btrfs, Form::Block];

#[track_caller]
fn refused<K: Kernel>(node: &Node<K>, volume: &Volume, verb: Verb, kind: Kind) {
    let failure = volume.call(node, verb).unwrap_err();
    assert_eq!(failure.kind, kind, "{verb:?}: {failure}");
}

fn the_volume_of_another_driver_with_the_same_id_is_left_alone<W: World>(world: &W) {
    let folder = world.base().join("more");
    world.make_dir(&folder);
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage]);
        world.make_file(&folder.join(&volume.id), BYTES);
        world.remove_file(&volume.file());
        let other = world.start_driver("other.belay.dev", &folder);
        refused(&other, &volume, Verb::Stage, Kind::Incompatible);
        refused(&other, &volume, Verb::Publish(1), Kind::Precondition);
        refused(&other, &volume, Verb::Unstage, Kind::Precondition);
        drop((node, other));
        let node = world.start_driver(DRIVER, &world.volumes());
        all_ok(&node, &volume, &[Verb::Unstage]);
        drop(node);
        world.remove_file(&folder.join(&volume.id));
        nothing_left(world);
    }
}

fn a_volume_whose_file_was_moved_is_taken_down_and_not_staged_twice<W: World>(world: &W) {
    let elsewhere = world.base().join("elsewhere");
    world.make_dir(&elsewhere);
    for form in FORMS {
        for is_restarted in [false, true] {
            let volume = world.volume(&format!("{form:?}-{is_restarted}"), form);
            let mut second = volume.clone();
            second.folder = format!("{}-second", volume.folder);
            world.make_dir(&second.staging());
            let mut node = world.start();
            all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
            move_away(world, &volume, &elsewhere);
            if is_restarted {
                node = world.start();
            }
            refused(&node, &volume, Verb::Publish(2), Kind::Precondition);
            refused(&node, &volume, Verb::Stage, Kind::Incompatible);
            refused(&node, &second, Verb::Stage, Kind::Precondition);
            refused(&node, &second, Verb::Unstage, Kind::Precondition);
            all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
            nothing_left(world);
            all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
            nothing_left(world);
        }
    }
}

fn a_volume_whose_file_was_removed_is_not_published_again<W: World>(world: &W) {
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        world.remove_file(&volume.file());
        refused(&node, &volume, Verb::Publish(2), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(world);
    }
}

/// Moves the volume's file away, and creates a new file in its place.
fn move_away<W: World>(world: &W, volume: &Volume, folder: &Path) {
    world.move_file(&volume.file(), &folder.join(&volume.id));
    world.make_file(&volume.file(), BYTES);
    world.mark_new(&volume.file());
}

fn a_raw_device_that_a_killed_unstage_left_is_freed_whatever_became_of_its_file<W: World>(
    world: &W,
) {
    for (number, (is_kept, is_replaced)) in
        [(false, false), (false, true), (true, false), (true, true)]
            .into_iter()
            .enumerate()
    {
        for is_restarted in [false, true] {
            let volume = world.volume(&format!("{number}-{is_restarted}"), Form::Block);
            let mut node = world.start_swept();
            all_ok(&node, &volume, &[Verb::Stage]);
            let kernel = world.kernel();
            kernel.umount(&volume.staging().join("device")).unwrap();
            let aside = volume.file().with_extension("bad");
            match is_kept {
                true => world.move_file(&volume.file(), &aside),
                false => world.remove_file(&volume.file()),
            }
            if is_replaced {
                world.make_file(&volume.file(), BYTES);
            }
            if is_restarted {
                node = world.start_swept();
            }
            all_ok(&node, &volume, &[Verb::Unstage, Verb::Unstage]);
            nothing_left(world);
            if is_kept {
                world.remove_file(&aside);
            }
        }
    }
}

/// After the file was moved, there is no file at the volume's path, and the name is not in the
/// kernel's dentry cache.
#[test]
fn a_volume_whose_file_was_moved_is_not_published_again_and_no_thread_waits_for_its_name() {
    let world = Simulated::new();
    let elsewhere = world.base().join("elsewhere");
    world.make_dir(&elsewhere);
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        world.machine.chill_names(true);
        let target = volume.target(2);
        let published = |thread| volume.publish_at(&node, &target, thread);
        assert_eq!(published(Thread::Only).unwrap(), None);
        assert_eq!(published(Thread::Pool).unwrap(), Some(()));
        let moved = elsewhere.join(&volume.id);
        world.move_file(&volume.file(), &moved);
        refused(&node, &volume, Verb::Publish(3), Kind::Precondition);
        world.machine.chill_names(false);
        refused(&node, &volume, Verb::Publish(3), Kind::Precondition);
        world.move_file(&moved, &volume.file());
        let life = [Verb::Publish(3), Verb::Unpublish(3), Verb::Unpublish(2)];
        all_ok(&node, &volume, &life);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(&world);
    }
}
