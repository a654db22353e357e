//! A device is identified by the name that it was bound under: the driver's and the volume's,
//! whatever happened to the file.

use std::path::Path;

use belay_server::call::Kind;

use super::bench::{BYTES, DRIVER, Form, Verb, Volume, World};
use super::simulated::Simulated;
use super::suite::{all_ok, nothing_left};
use crate::device::loop_path;
use crate::kernel::{Cause, Kernel, LoopMode, MountAttrs, Open};
use crate::operation::{Node, Published, Thread};

on_both! {
    a_volume_that_an_earlier_release_bound_is_used_and_taken_down
    a_volume_of_an_earlier_release_whose_file_was_removed_is_taken_down
    a_volume_of_an_earlier_release_whose_file_was_replaced_is_taken_down
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

/// Stages a volume with a filesystem like earlier releases, whose devices have no driver's name.
fn stage_as_before<W: World>(world: &W, volume: &Volume) {
    let kernel = world.kernel();
    let is_raw = volume.form == Form::Block;
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    assert!(kernel.flock(&file).unwrap());
    let mode = LoopMode {
        read_only: false,
        autoclear: !is_raw,
    };
    let (node, device) = loop {
        let node = loop_path(kernel.loop_get_free().unwrap());
        let device = kernel.open(&node, Open::DeviceRead).unwrap();
        let writer = kernel.reopen(&device, Open::DeviceWrite).unwrap();
        match kernel.loop_configure(&writer, &file, mode, &volume.id) {
            Ok(()) => break (node, device),
            Err(error) => assert_eq!(error.cause(), Cause::Busy),
        }
    };
    let (mount, onto) = if is_raw {
        let onto = volume.staging().join("device");
        kernel.create_file(&onto, 0o600).unwrap();
        let mount = kernel.open_tree(&kernel.open_path(&node).unwrap());
        (mount.unwrap(), onto)
    } else {
        let fs = match volume.form {
            Form::Btrfs => "btrfs",
            _ => "ext4",
        };
        let context = kernel.fsopen(fs).unwrap();
        kernel
            .fsconfig_set(&context, "source", node.to_str())
            .unwrap();
        kernel.fsconfig_create(&context, false).unwrap();
        let mount = kernel.fsmount(&context, MountAttrs::default());
        (mount.unwrap(), volume.staging())
    };
    let private = MountAttrs::default();
    kernel.mount_setattr(&mount, private).unwrap();
    let onto = kernel.open_path(&onto).unwrap();
    kernel.move_mount(&mount, &onto).unwrap();
    drop(device);
}

fn staged_before<W: World>(world: &W, form: Form) -> Volume {
    let volume = world.volume(&format!("{form:?}"), form);
    all_ok(&world.start(), &volume, &[Verb::Stage, Verb::Unstage]);
    stage_as_before(world, &volume);
    volume
}

fn a_volume_that_an_earlier_release_bound_is_used_and_taken_down<W: World>(world: &W) {
    for form in FORMS {
        let volume = staged_before(world, form);
        let up = [Verb::Stage, Verb::Publish(1), Verb::Stats, Verb::Health];
        all_ok(&world.start_swept(), &volume, &up);
        let down = [Verb::Unpublish(1), Verb::Unstage];
        all_ok(&world.start_swept(), &volume, &down);
        nothing_left(world);
    }
}

fn a_volume_of_an_earlier_release_whose_file_was_removed_is_taken_down<W: World>(world: &W) {
    // Its device is not the first one.
    let beside = world.volume("beside", Form::Block);
    all_ok(&world.start(), &beside, &[Verb::Stage]);
    for form in FORMS {
        let volume = staged_before(world, form);
        world.remove_file(&volume.file());
        all_ok(&world.start_swept(), &volume, &[Verb::Unstage]);
    }
    all_ok(&world.start_swept(), &beside, &[Verb::Unstage]);
    nothing_left(world);
}

fn a_volume_of_an_earlier_release_whose_file_was_replaced_is_taken_down<W: World>(world: &W) {
    for form in FORMS {
        let volume = staged_before(world, form);
        let aside = volume.file().with_extension("bad");
        world.move_file(&volume.file(), &aside);
        world.make_file(&volume.file(), BYTES);
        let node = world.start_swept();
        refused(&node, &volume, Verb::Publish(1), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(world);
        world.remove_file(&aside);
    }
}

fn the_volume_of_another_driver_with_the_same_id_is_left_alone<W: World>(world: &W) {
    let folder = world.base().join("more");
    world.make_dir(&folder);
    for form in FORMS {
        for is_bound_as_before in [false, true] {
            let volume = world.volume(&format!("{form:?}"), form);
            let node = world.start();
            all_ok(&node, &volume, &[Verb::Stage]);
            if is_bound_as_before {
                all_ok(&node, &volume, &[Verb::Unstage]);
                stage_as_before(world, &volume);
            }
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

/// Renames the file, and puts a blank one in its place.
fn move_away<W: World>(world: &W, volume: &Volume, folder: &Path) {
    world.move_file(&volume.file(), &folder.join(&volume.id));
    world.make_file(&volume.file(), BYTES);
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

/// Neither another one is there, nor is the name in memory.
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
        assert_eq!(published(Thread::Only).unwrap(), Published::WantsPool);
        assert_eq!(published(Thread::Pool).unwrap(), Published::Done);
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
