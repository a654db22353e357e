//! A device that was detached by force, and whose number went to another volume: its bind mounts
//! show the other volume from then on, and must be recognised as such.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use belay_server::call::Kind;
use belay_server::request::NodeVolumeHealth;

use super::bench::{BYTES, DRIVER, Form, Verb, Volume, World};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::loop_path;
use crate::kernel::fake::Fault;
use crate::kernel::{Dev, Kernel, LoopMode, Open};
use crate::operation::phase::Progress;
use crate::operation::{self, Node};

on_both! {
    a_raw_volume_whose_number_went_to_another_volume_is_taken_down_and_the_other_kept
    a_volume_that_got_a_number_is_taken_down_before_the_one_that_lost_it
    a_target_of_an_earlier_attachment_is_not_published
    a_device_of_the_same_name_in_another_namespace_is_not_released
    a_raw_volume_is_found_after_a_restart_whatever_its_file_is_called
}

const KEPT: LoopMode = LoopMode {
    read_only: false,
    autoclear: false,
};

#[track_caller]
fn refused<K: Kernel>(node: &Node<K>, volume: &Volume, verb: Verb, kind: Kind) {
    let failure = volume.call(node, verb).unwrap_err();
    assert_eq!(failure.kind, kind, "{verb:?}: {failure}");
}

/// The device that a path shows.
fn shown<K: Kernel>(kernel: &K, path: &Path) -> Dev {
    kernel.look(path).unwrap().unwrap().rdev
}

/// losetup(8) with `--detach`.
fn detach_by_force<K: Kernel>(kernel: &K, dev: Dev) {
    let path = loop_path(kernel.loop_number(dev).unwrap());
    let device = kernel.open(&path, Open::DeviceRead).unwrap();
    kernel.loop_clr_fd(&device).unwrap();
}

/// A published raw volume whose device was detached by force, and a published volume that has the
/// number now. On a real machine other programs take devices too, so it may need several attempts.
fn exchanged<W: World>(world: &W, name: &str, form: Form) -> (Node<W::Kernel>, Volume, Volume) {
    for attempt in 0..50 {
        let node = world.start();
        let lost = world.volume(&format!("lost-{name}-{attempt}"), Form::Block);
        let got = world.volume(&format!("got-{name}-{attempt}"), form);
        all_ok(&node, &lost, &[Verb::Stage, Verb::Publish(1)]);
        let dev = shown(&node.kernel, &lost.target(1));
        detach_by_force(&node.kernel, dev);
        all_ok(&node, &got, &[Verb::Stage, Verb::Publish(1)]);
        let stat = node.kernel.look(&got.target(1)).unwrap().unwrap();
        if [stat.rdev, stat.dev].contains(&dev) {
            return (node, lost, got);
        }
        let down = [Verb::Unpublish(1), Verb::Unstage];
        all_ok(&node, &got, &down);
        all_ok(&node, &lost, &down);
    }
    panic!("other processes took the number 50 times");
}

const FORMS: [Form; 2] = [Form::Block, Form::Ext4];
const DOWN: [Verb; 2] = [Verb::Unpublish(1), Verb::Unstage];

fn a_raw_volume_whose_number_went_to_another_volume_is_taken_down_and_the_other_kept<W: World>(
    world: &W,
) {
    for form in FORMS {
        for is_restarted in [false, true] {
            let name = format!("{form:?}-{is_restarted}");
            let (mut node, lost, got) = exchanged(world, &name, form);
            if is_restarted {
                node = world.start();
            }
            refused(&node, &lost, Verb::Publish(2), Kind::Precondition);
            refused(&node, &lost, Verb::Stats, Kind::NotFound);
            refused(&node, &lost, Verb::Unstage, Kind::Precondition);
            assert_eq!(reasons(&node, &lost), ["DeviceLost"]);
            all_ok(&node, &got, &[Verb::Publish(2), Verb::Stats]);
            assert_eq!(reasons(&node, &got), [""; 0]);
            all_ok(&node, &got, &[Verb::Unpublish(2)]);
            refused(&node, &got, Verb::Unstage, Kind::Precondition);
            all_ok(&node, &lost, &DOWN);
            all_ok(&node, &got, &[Verb::Stats, Verb::Publish(1)]);
            all_ok(&node, &lost, &[Verb::Stage, Verb::Unstage]);
            all_ok(&node, &got, &DOWN);
            nothing_left(world);
        }
    }
}

fn a_target_of_an_earlier_attachment_is_not_published<W: World>(world: &W) {
    let node = world.start();
    let volume = world.volume("vol", Form::Block);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
    let dev = shown(&node.kernel, &volume.target(1));
    detach_by_force(&node.kernel, dev);
    all_ok(&node, &volume, &[Verb::Stage]);
    refused(&node, &volume, Verb::Publish(1), Kind::Incompatible);
    all_ok(&node, &volume, &[Verb::Publish(2), Verb::Unpublish(1)]);
    all_ok(&node, &volume, &[Verb::Publish(1), Verb::Stats]);
    all_ok(&node, &volume, &[Verb::Unpublish(2)]);
    all_ok(&node, &volume, &DOWN);
    nothing_left(world);
}

fn a_volume_that_got_a_number_is_taken_down_before_the_one_that_lost_it<W: World>(world: &W) {
    for form in FORMS {
        let (node, lost, got) = exchanged(world, &format!("{form:?}"), form);
        drop(node);
        let node = world.start_swept();
        all_ok(&node, &got, &DOWN);
        all_ok(&node, &lost, &DOWN);
        nothing_left(world);
    }
}

/// The mounts of the other agent are not seen here; its volume has the same ID, elsewhere.
fn a_device_of_the_same_name_in_another_namespace_is_not_released<W: World>(world: &W) {
    let folder = world.base().join("other");
    world.make_dir(&folder);
    for is_restarted in [false, true] {
        for attempt in 0.. {
            assert!(attempt < 50, "other processes took the number 50 times");
            let volume = world.volume(&format!("{is_restarted}-{attempt}"), Form::Block);
            let mut node = world.start();
            all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
            let kernel = world.kernel();
            let dev = shown(&kernel, &volume.target(1));
            detach_by_force(&kernel, dev);
            let theirs = folder.join(&volume.id);
            world.make_file(&theirs, BYTES);
            let file = kernel.open(&theirs, Open::FileWrite).unwrap();
            assert!(kernel.flock(&file).unwrap());
            let number = kernel.loop_number(dev).unwrap();
            let device = kernel.open(&loop_path(number), Open::DeviceWrite).unwrap();
            let name = format!("{DRIVER}/{}", volume.id);
            let taken = kernel.loop_configure(&device, &file, KEPT, &name);
            drop((device, file));
            if is_restarted {
                node = world.start_swept();
            }
            all_ok(
                &node,
                &volume,
                &[Verb::Unpublish(1), Verb::Unstage, Verb::Unstage],
            );
            if taken.is_err() {
                continue;
            }
            assert!(
                kernel.loop_bound().unwrap().contains(&number),
                "{is_restarted}"
            );
            detach_by_force(&kernel, dev);
            nothing_left(world);
            break;
        }
    }
}

/// What health complains of, asked without a path.
fn reasons<K: Kernel>(node: &Node<K>, volume: &Volume) -> Vec<&'static str> {
    let request = NodeVolumeHealth {
        id: volume.volume_id(),
        staging: None,
        target: None,
    };
    let health = operation::health(node, &Progress::default(), &request).unwrap();
    health.iter().map(|it| it.reason.name()).collect()
}

/// Its name does not even begin with the id, so it is not found in sysfs.
fn a_raw_volume_is_found_after_a_restart_whatever_its_file_is_called<W: World>(world: &W) {
    for is_replaced in [false, true] {
        let volume = world.volume(&format!("vol-{is_replaced}"), Form::Block);
        let mut second = volume.clone();
        second.folder = format!("{}-second", volume.folder);
        world.make_dir(&second.staging());
        all_ok(&world.start(), &volume, &[Verb::Stage, Verb::Publish(1)]);
        let aside = world.volumes().join(format!("aside-{is_replaced}"));
        world.move_file(&volume.file(), &aside);
        world.make_file(&volume.file(), BYTES);
        let node = world.start_swept();
        refused(&node, &second, Verb::Stage, Kind::Precondition);
        if !is_replaced {
            world.remove_file(&volume.file());
        }
        assert_eq!(reasons(&node, &volume), ["BackingFileGone"]);
        all_ok(&node, &volume, &DOWN);
        nothing_left(world);
        world.remove_file(&aside);
    }
}

/// The names in `/dev` of the devices of a driver.
fn names(world: &Simulated, driver: &str) -> Vec<String> {
    let path = Path::new("/dev/belay").join(driver);
    world.kernel().names(&path).unwrap()
}

/// A volume whose disk is unplugged at the end, as its cloud does.
#[test]
fn no_death_leaves_the_name_of_a_device_that_is_detached() {
    for (media, driver) in [(Media::Files, DRIVER), (Media::Disks, DISK_DRIVER)] {
        for (before, verb) in [(&[][..], Verb::Stage), (&[Verb::Stage][..], Verb::Unstage)] {
            for at in 1.. {
                let world = Simulated::of(media);
                let volume = world.volume("vol", Form::Block);
                let node = world.start();
                all_ok(&node, &volume, before);
                assert_eq!(names(&world, driver).len(), before.len());
                world.machine.begin(Some(Fault::Die(at)));
                let ended = catch_unwind(AssertUnwindSafe(|| volume.call(&node, verb)));
                world.machine.end();
                let node = world.start();
                all_ok(&node, &volume, &[Verb::Unstage]);
                if media == Media::Disks {
                    world.machine.unplug(&volume.file());
                }
                drop((node, world.start()));
                assert_eq!(
                    names(&world, driver),
                    Vec::<String>::new(),
                    "{verb:?}, {at}"
                );
                nothing_left(&world);
                if ended.is_ok() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_start_removes_names_of_devices_alone_and_is_stopped_by_no_other_file() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let dev = shown(&node.kernel, &volume.staging().join("device"));
    detach_by_force(&node.kernel, dev);
    let others = Path::new("/dev/belay").join(DRIVER);
    world.make_file(&others.join("a-file"), 1);
    world.make_dir(&others.join("a@9"));
    world.make_file(&others.join("a@9/loop3"), 1);
    drop(node);
    let node = world.start();
    assert_eq!(names(&world, DRIVER), ["a-file", "a@9"]);
    assert!(
        node.kernel
            .look(&others.join("a@9/loop3"))
            .unwrap()
            .is_some()
    );
    all_ok(&node, &volume, &[Verb::Unstage]);
}

#[test]
fn where_dev_takes_no_names_a_raw_volume_is_used_without() {
    for media in [Media::Files, Media::Disks] {
        let world = Simulated::of(media);
        world.machine.fix_dev();
        let volume = world.volume("vol", Form::Block);
        all_ok(&world.start(), &volume, &[Verb::Stage, Verb::Publish(1)]);
        let node = world.start();
        all_ok(
            &node,
            &volume,
            &[Verb::Publish(2), Verb::Stats, Verb::Unpublish(2)],
        );
        all_ok(&node, &volume, &DOWN);
        nothing_left(&world);
    }
}
