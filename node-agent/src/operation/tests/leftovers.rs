//! Tests of settings, such as read-only, that a process has changed on a volume's loop device. The
//! next volume on that device must not inherit these settings. While the volume is in use, its
//! health reports them.

use belay_server::call::Kind;

use super::bench::{DRIVER, Form, Verb, Volume, World};
use super::simulated::Simulated;
use super::suite::{all_ok, nothing_left};
use super::sweep::{KEPT, bind};
use crate::device::loop_path;
use crate::kernel::fake::Fake;
use crate::kernel::{FileKind, Kernel, Open};
use crate::operation::Node;

const FORMS: [Form; 2] = [Form::Ext4, Form::Block];
const UP: [Verb; 2] = [Verb::Stage, Verb::Publish(1)];
const DOWN: [Verb; 2] = [Verb::Unpublish(1), Verb::Unstage];

/// Returns the number of the loop device on which the volume is staged.
fn number_of(node: &Node<Fake>, volume: &Volume) -> u32 {
    let staged = node.kernel.look(&volume.staging_mount()).unwrap().unwrap();
    let dev = match staged.kind {
        FileKind::BlockDevice => staged.rdev,
        _ => staged.dev,
    };
    node.kernel.loop_number(dev).unwrap()
}

/// Returns the health reasons that NodeGetVolumeHealth and NodeGetVolumeStats report.
fn reasons(node: &Node<Fake>, volume: &Volume) -> [Vec<&'static str>; 2] {
    let (health, stats) = (volume.health(node), volume.condition(node));
    [health.unwrap(), stats.unwrap().conditions]
        .map(|all| all.iter().map(|it| it.reason.name()).collect())
}

const HEALTHY: [Vec<&str>; 2] = [Vec::new(), Vec::new()];

/// Stages a volume, applies `change` to its loop device, and unstages the volume. Returns the
/// number of the device.
fn leave(world: &Simulated, node: &Node<Fake>, form: Form, change: impl FnOnce(u32)) -> u32 {
    let volume = world.volume("first", form);
    all_ok(node, &volume, &UP);
    let number = number_of(node, &volume);
    change(number);
    all_ok(node, &volume, &DOWN);
    number
}

#[test]
fn a_partition_of_a_volume_is_reported_and_is_not_on_the_device_of_the_next_volume() {
    for form in FORMS {
        for next_form in FORMS {
            let world = Simulated::new();
            let node = world.start();
            let first = world.volume("first", form);
            all_ok(&node, &first, &UP);
            let number = number_of(&node, &first);
            assert_eq!(reasons(&node, &first), HEALTHY);
            world.machine.add_partition(number);
            let altered = [vec!["DeviceAltered"], vec!["DeviceAltered"]];
            assert_eq!(reasons(&node, &first), altered, "{form:?}");
            all_ok(&node, &first, &DOWN);
            let next = world.volume("next", next_form);
            all_ok(&node, &next, &UP);
            assert_eq!(number_of(&node, &next), number);
            assert!(!world.machine.is_altered(number));
            assert_eq!(reasons(&node, &next), HEALTHY);
            all_ok(&node, &next, &DOWN);
            nothing_left(&world);
        }
    }
}

#[test]
fn a_device_whose_node_was_opened_to_other_users_is_not_the_next_volumes() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let number = leave(&world, &node, Form::Block, |number| {
            world.machine.open_to_all(number);
        });
        assert!(world.machine.is_altered(number));
        let [next, later] = ["next", "later"].map(|name| world.volume(name, form));
        for volume in [next, later] {
            all_ok(&node, &volume, &UP);
            let number = number_of(&node, &volume);
            assert!(!world.machine.is_altered(number), "{form:?}");
        }
    }
}

#[test]
fn a_number_whose_partition_is_open_is_given_to_no_volume_until_it_is_closed() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let number = leave(&world, &node, form, |number| {
            world.machine.add_partition(number);
        });
        world.machine.open_partition(number, true);
        let [next, last] = ["next", "last"].map(|name| world.volume(name, form));
        all_ok(&node, &next, &UP);
        assert_ne!(number_of(&node, &next), number);
        world.machine.open_partition(number, false);
        all_ok(&node, &last, &UP);
        assert_eq!(number_of(&node, &last), number);
        assert!(!world.machine.is_altered(number));
        for volume in [&next, &last] {
            all_ok(&node, volume, &DOWN);
        }
        nothing_left(&world);
    }
}

#[test]
fn a_device_whose_partition_is_open_is_freed_when_that_is_closed() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Block);
    all_ok(&node, &volume, &UP);
    let number = number_of(&node, &volume);
    world.machine.add_partition(number);
    world.machine.open_partition(number, true);
    all_ok(&node, &volume, &[Verb::Unpublish(1)]);
    let refused = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    assert!(refused.message.contains("still open"), "{refused}");
    world.machine.open_partition(number, false);
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(&world);
}

#[test]
fn a_device_that_was_set_read_only_is_reported_and_the_next_volume_can_be_written() {
    for form in FORMS {
        for next_form in FORMS {
            let world = Simulated::new();
            let node = world.start();
            let first = world.volume("first", form);
            all_ok(&node, &first, &UP);
            let number = number_of(&node, &first);
            world.machine.refuse_writes(number);
            let [health, stats] = reasons(&node, &first);
            assert_eq!(health, ["DeviceAltered"], "{form:?}");
            // If a device is set read-only while its filesystem is mounted, the filesystem can
            // still write to it.
            assert_eq!(stats.is_empty(), form != Form::Block, "{form:?}");
            all_ok(&node, &first, &DOWN);
            let next = world.volume("next", next_form);
            all_ok(&node, &next, &UP);
            assert_eq!(number_of(&node, &next), number);
            assert!(!world.machine.is_altered(number), "{next_form:?}");
            assert_eq!(reasons(&node, &next), HEALTHY);
            all_ok(&node, &next, &DOWN);
            nothing_left(&world);
        }
    }
}

#[test]
fn the_fsync_of_a_volume_reaches_the_disk_although_an_earlier_one_had_no_flushes() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let number = leave(&world, &node, form, |number| {
            world.machine.drop_flushes(number);
        });
        let next = world.volume("next", form);
        all_ok(&node, &next, &UP);
        assert_eq!(number_of(&node, &next), number);
        assert!(!world.machine.is_altered(number), "{form:?}");
    }
}

/// A device that a killed NodeStageVolume call left bound is reused only if it has no partitions.
#[test]
fn a_device_that_was_left_bound_is_reset_as_well() {
    for form in FORMS {
        for is_divided in [false, true] {
            let world = Simulated::new();
            let volume = world.volume("vol", form);
            let number = bind(&world, &volume.file(), &format!("{DRIVER}/vol"), KEPT);
            world.machine.refuse_writes(number);
            if is_divided {
                world.machine.add_partition(number);
            }
            let node = world.start();
            all_ok(&node, &volume, &UP);
            assert_eq!(number_of(&node, &volume), number);
            assert!(!world.machine.is_altered(number), "{form:?}");
            all_ok(&node, &volume, &DOWN);
            nothing_left(&world);
        }
    }
}

#[test]
fn a_free_number_that_another_process_has_claimed_does_not_refuse_a_stage() {
    let world = Simulated::new();
    let node = world.start();
    let number = leave(&world, &node, Form::Block, |_| {});
    let other = world.kernel();
    let claim = other.open(&loop_path(number), Open::DeviceExclusive);
    let claim = claim.unwrap();
    let next = world.volume("next", Form::Ext4);
    all_ok(&node, &next, &UP);
    assert_ne!(number_of(&node, &next), number);
    drop(claim);
    all_ok(&node, &next, &DOWN);
    nothing_left(&world);
}
