//! Tests of a device that was detached by force, and whose number was reused for a different
//! volume. The bind mounts that were made for the first volume then show the second volume, but
//! must still be recognized as the first volume's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_server::call::Kind;
use belay_server::request::NodeVolumeHealth;

use super::bench::{BYTES, DRIVER, Form, Verb, Volume, World, run, until};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::loop_path;
use crate::kernel::fake::{Call, Fault};
use crate::kernel::{Dev, FileKind, Kernel, LoopMode, MountAttrs, Open};
use crate::operation::{self, Node, Thread};
use crate::work::Operation;

on_both! {
    a_raw_volume_whose_number_went_to_another_volume_is_taken_down_and_the_other_kept
    a_volume_that_got_a_number_is_taken_down_before_the_one_that_lost_it
    a_number_that_a_mount_still_shows_is_not_given_to_the_next_volume
    a_bind_that_the_agent_has_not_made_keeps_a_volume_that_lost_its_device_staged
    a_name_that_was_removed_is_restored_by_the_next_stage
    a_target_of_an_earlier_attachment_is_not_published
    a_target_of_a_volume_that_lost_its_number_is_not_published_for_the_one_that_got_it
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

/// Returns the number of the device that is bound at a path.
fn shown<K: Kernel>(kernel: &K, path: &Path) -> Dev {
    kernel.look(path).unwrap().unwrap().rdev
}

/// Detaches the device as `losetup --detach` does (losetup(8)).
fn detach_by_force<K: Kernel>(kernel: &K, dev: Dev) {
    let number = kernel.loop_number(dev).unwrap();
    let path = || kernel.loop_file(number).unwrap().map(|file| file.path);
    let file = path();
    let device = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
    kernel.loop_clr_fd(&device).unwrap();
    drop(device);
    until(|| file.is_none() || path() != file);
}

/// Binds the volume's file to the device with this number, like an agent that does not see the
/// mounts of the first agent. Returns `false` if another program has taken the device meanwhile.
fn give<K: Kernel>(kernel: &K, dev: Dev, volume: &Volume) -> bool {
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    assert!(kernel.flock(&file).unwrap());
    let path = loop_path(kernel.loop_number(dev).unwrap());
    let device = kernel.open(&path, Open::DeviceWrite).unwrap();
    let name = format!("{DRIVER}/{}", volume.id);
    kernel.loop_configure(&device, &file, KEPT, &name).is_ok()
}

/// Returns a published raw volume whose device was detached by force, and a second published volume
/// that now has the device number. Makes several attempts, because other programs on a real machine
/// may take the device.
fn exchanged<W: World>(world: &W, name: &str, form: Form) -> (Node<W::Kernel>, Volume, Volume) {
    for attempt in 0..50 {
        let node = world.start();
        let lost = world.volume(&format!("lost-{name}-{attempt}"), Form::Block);
        let got = world.volume(&format!("got-{name}-{attempt}"), form);
        all_ok(&node, &lost, &[Verb::Stage, Verb::Publish(1)]);
        let dev = shown(&node.kernel, &lost.target(1));
        detach_by_force(&node.kernel, dev);
        if give(&node.kernel, dev, &got) {
            all_ok(&node, &got, &[Verb::Stage, Verb::Publish(1)]);
            return (node, lost, got);
        }
        all_ok(&node, &lost, &DOWN);
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

/// Returns the device number of a mount, which shows a raw device or an ext4.
fn device_of<K: Kernel>(kernel: &K, path: &Path) -> Dev {
    let stat = kernel.look(path).unwrap().unwrap();
    match stat.kind {
        FileKind::BlockDevice => stat.rdev,
        _ => stat.dev,
    }
}

fn a_number_that_a_mount_still_shows_is_not_given_to_the_next_volume<W: World>(world: &W) {
    for form in FORMS {
        for is_restarted in [false, true] {
            let name = |what: &str| format!("{what}-{form:?}-{is_restarted}");
            let mut node = world.start();
            let lost = world.volume(&name("lost"), Form::Block);
            all_ok(&node, &lost, &[Verb::Stage, Verb::Publish(1)]);
            let dev = shown(&node.kernel, &lost.target(1));
            detach_by_force(&node.kernel, dev);
            if is_restarted {
                node = world.start();
            }
            let next = ["next", "last"].map(|what| world.volume(&name(what), form));
            for volume in &next {
                all_ok(&node, volume, &[Verb::Stage, Verb::Publish(1)]);
                assert_ne!(device_of(&node.kernel, &volume.target(1)), dev);
            }
            all_ok(&node, &lost, &DOWN);
            for volume in &next {
                all_ok(&node, volume, &DOWN);
            }
            nothing_left(world);
        }
    }
}

/// For each target, the kubelet makes a second bind mount.
fn a_bind_that_the_agent_has_not_made_keeps_a_volume_that_lost_its_device_staged<W: World>(
    world: &W,
) {
    let node = world.start();
    let [lost, next] = ["lost", "next"].map(|name| world.volume(name, Form::Block));
    all_ok(&node, &lost, &[Verb::Stage, Verb::Publish(1)]);
    let (kernel, own) = (&node.kernel, world.base().join("own"));
    kernel.create_file(&own, 0o600).unwrap();
    let target = kernel.open_path(&lost.target(1)).unwrap();
    let clone = kernel.open_tree(&target).unwrap();
    kernel.mount_setattr(&clone, MountAttrs::default()).unwrap();
    let onto = kernel.open_path(&own).unwrap();
    kernel.move_mount(&clone, &onto).unwrap();
    drop((target, clone, onto));
    let dev = shown(kernel, &own);
    detach_by_force(kernel, dev);
    all_ok(&node, &lost, &[Verb::Unpublish(1)]);
    refused(&node, &lost, Verb::Unstage, Kind::Precondition);
    all_ok(&node, &next, &[Verb::Stage]);
    assert_ne!(shown(kernel, &next.staging().join("device")), dev);
    kernel.umount(&own).unwrap();
    all_ok(&node, &lost, &[Verb::Unstage]);
    all_ok(&node, &next, &[Verb::Unstage]);
    nothing_left(world);
}

#[test]
fn a_number_that_no_mount_shows_any_longer_is_given_again() {
    let world = Simulated::new();
    let node = world.start();
    let [lost, next] = ["lost", "next"].map(|name| world.volume(name, Form::Block));
    all_ok(&node, &lost, &[Verb::Stage]);
    let dev = shown(&node.kernel, &lost.staging().join("device"));
    detach_by_force(&node.kernel, dev);
    // The mount was removed by another process, but is still in the agent's mount index.
    node.kernel.umount(&lost.staging().join("device")).unwrap();
    all_ok(&node, &next, &[Verb::Stage]);
    assert_eq!(shown(&node.kernel, &next.staging().join("device")), dev);
}

/// Both drivers run in the same process. Neither driver may use a device number that a mount of the
/// other driver shows.
#[test]
fn a_number_that_a_mount_of_another_driver_shows_is_not_given_to_the_next_volume() {
    let world = Simulated::new();
    let shared = Arc::default();
    let folder = world.base().join("other");
    world.make_dir(&folder);
    let first = world.start().sharing(&shared);
    let second = world.start_driver("two.example", &folder).sharing(&shared);
    let lost = world.volume("lost", Form::Block);
    all_ok(&first, &lost, &[Verb::Stage, Verb::Publish(1)]);
    let dev = shown(&first.kernel, &lost.target(1));
    detach_by_force(&first.kernel, dev);
    let next = world.volume("next", Form::Block);
    world.move_file(&next.file(), &folder.join("next"));
    all_ok(&second, &next, &[Verb::Stage]);
    assert_ne!(shown(&second.kernel, &next.staging().join("device")), dev);
    all_ok(&first, &lost, &DOWN);
    all_ok(&second, &next, &[Verb::Unstage]);
    nothing_left(&world);
}

fn a_name_that_was_removed_is_restored_by_the_next_stage<W: World>(world: &W) {
    let node = world.start();
    let volume = world.volume("vol", Form::Block);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
    let directory = names_of(&node.kernel, &volume);
    for name in node.kernel.names(&directory).unwrap() {
        node.kernel.unlink(&directory.join(name)).unwrap();
    }
    node.kernel.rmdir(&directory).unwrap();
    refused(&node, &volume, Verb::Publish(2), Kind::Precondition);
    assert!(node.kernel.look(&volume.target(2)).unwrap().is_none());
    all_ok(&node, &volume, &[Verb::Stats, Verb::Stage]);
    all_ok(&node, &volume, &[Verb::Publish(2), Verb::Publish(1)]);
    all_ok(&node, &volume, &[Verb::Unpublish(2)]);
    all_ok(&node, &volume, &DOWN);
    nothing_left(world);
}

/// Returns the directory in `/dev/belay` that contains the name under which the volume's device is
/// bound.
fn names_of<K: Kernel>(kernel: &K, volume: &Volume) -> PathBuf {
    let base = Path::new("/dev/belay").join(DRIVER);
    let names = kernel.names(&base).unwrap().into_iter();
    let prefix = format!("{}@", volume.id);
    let mut ours = names.filter(|name| name.starts_with(&prefix));
    base.join(ours.next().unwrap())
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

/// The targets of both volumes show the same device, but unpublishing one volume would remove the
/// target of the other volume.
fn a_target_of_a_volume_that_lost_its_number_is_not_published_for_the_one_that_got_it<W: World>(
    world: &W,
) {
    for is_restarted in [false, true] {
        let name = format!("{is_restarted}");
        let (mut node, lost, got) = exchanged(world, &name, Form::Block);
        if is_restarted {
            node = world.start();
        }
        let target = lost.target(1);
        let published = got.publish_at(&node, &target, Thread::Pool);
        let failure = published.unwrap_err();
        assert_eq!(failure.kind, Kind::Incompatible, "{failure}");
        let why = "was made for another volume";
        assert!(failure.message.contains(why), "{failure}");
        all_ok(&node, &lost, &DOWN);
        all_ok(&node, &got, &[Verb::Stats]);
        all_ok(&node, &got, &DOWN);
        nothing_left(world);
    }
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

/// The mounts of the other agent are not visible in this mount namespace. The other agent's volume
/// has the same ID, but its file is in a different directory.
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

/// Returns the health reasons of a volume, queried without a path.
fn reasons<K: Kernel>(node: &Node<K>, volume: &Volume) -> Vec<&'static str> {
    let request = NodeVolumeHealth {
        id: volume.volume_id(),
        staging: None,
        target: None,
    };
    let health = run(node, Operation::Health, |cx| {
        operation::health(cx, &request)
    })
    .unwrap();
    health.iter().map(|it| it.reason.name()).collect()
}

/// The name of the file does not begin with the volume's ID, so the volume cannot be found by the
/// file name in sysfs.
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

/// Returns the names in `/dev` of a driver's devices.
fn names(world: &Simulated, driver: &str) -> Vec<String> {
    let path = Path::new("/dev/belay").join(driver);
    world.kernel().names(&path).unwrap()
}

/// If the volume is a disk, the disk is finally detached, as a cloud does.
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

/// If `/dev` is read-only, only the agent's mount index shows to which volume a bind mount belongs.
#[test]
fn without_names_a_raw_volume_that_lost_its_number_is_taken_down_and_the_other_kept() {
    for verb in [Verb::Stage, Verb::Unstage] {
        let world = Simulated::new();
        world.machine.fix_dev();
        let node = world.start();
        let [lost, got] = ["lost", "got"].map(|name| world.volume(name, Form::Block));
        all_ok(&node, &lost, &[Verb::Stage]);
        let dev = shown(&node.kernel, &lost.staging_mount());
        detach_by_force(&node.kernel, dev);
        assert!(give(&node.kernel, dev, &got));
        all_ok(&node, &got, &[Verb::Stage, Verb::Publish(1)]);
        all_ok(&node, &lost, &[verb]);
        assert_eq!(shown(&node.kernel, &got.target(1)), dev);
        if verb == Verb::Stage {
            assert_ne!(shown(&node.kernel, &lost.staging_mount()), dev);
        }
        all_ok(&node, &got, &[Verb::Stats]);
        all_ok(&node, &got, &DOWN);
        all_ok(&node, &lost, &[Verb::Unstage]);
        nothing_left(&world);
    }
}

/// On a large node, the mount table has thousands of lines, so reading it is expensive.
#[test]
fn a_number_that_no_driver_has_noted_is_taken_without_reading_the_mount_table() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Block);
    world.machine.begin(None);
    all_ok(&node, &volume, &[Verb::Stage]);
    let calls = world.machine.end();
    let is_table = |call: &&Call| call.object == "mountinfo";
    assert_eq!(calls.iter().filter(is_table).count(), 0);
}
