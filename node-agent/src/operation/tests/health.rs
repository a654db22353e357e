//! Tests of the health that is reported for a volume before, during and after a fault.

use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::health::{Conditions, Severity};
use belay_server::request::{AccessMode, NodeVolumeHealth};

use super::bench::{BYTES, Form, MIB, Verb, Volume, World, run};
use super::simulated::{Media, Simulated};
use crate::kernel::Kernel;
use crate::kernel::fake::{Call, Fake, Fault, Trouble};
use crate::operation::{self, Node};
use crate::work::Operation;

const READ_ONLY: (Severity, &str) = (Severity::Degraded, "FilesystemReadOnly");
const SHUT_DOWN: (Severity, &str) = (Severity::Inaccessible, "FilesystemShutDown");
const ERRORS: (Severity, &str) = (Severity::Degraded, "FilesystemErrors");
const DEVICE: (Severity, &str) = (Severity::Degraded, "DeviceErrors");

on_both! {
    what_is_not_staged_is_well_and_what_is_not_there_is_not_found
    a_volume_in_use_is_well
}

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

fn told(conditions: &Conditions) -> Vec<(Severity, &'static str)> {
    let all = conditions.iter();
    all.map(|condition| (condition.reason.severity(), condition.reason.name()))
        .collect()
}

fn up<K: Kernel>(node: &Node<K>, volume: &Volume) {
    volume.call(node, Verb::Stage).unwrap();
    volume.call(node, Verb::Publish(1)).unwrap();
}

/// Checks that NodeGetVolumeHealth and NodeGetVolumeStats report the expected health reasons.
#[track_caller]
fn expect(node: &Node<Fake>, volume: &Volume, expected: &[(Severity, &'static str)]) {
    assert_eq!(told(&volume.health(node).unwrap()), expected);
    let stats = volume.condition(node).unwrap();
    assert_eq!(told(&stats.conditions), expected, "of its statistics");
}

fn what_is_not_staged_is_well_and_what_is_not_there_is_not_found(world: &impl World) {
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    assert!(volume.health(&node).unwrap().is_empty());
    let mut unknown = volume.clone();
    unknown.id = "never".to_owned();
    assert_eq!(unknown.health(&node).unwrap_err().kind, Kind::NotFound);
}

fn a_volume_in_use_is_well(world: &impl World) {
    for form in FORMS {
        let node = world.start();
        let volume = world.volume(&format!("{form:?}"), form);
        up(&node, &volume);
        assert_eq!(told(&volume.health(&node).unwrap()), [], "{form:?}");
        // The result is the same after a restart, when the mount index is empty.
        let node = world.start();
        assert_eq!(told(&volume.health(&node).unwrap()), [], "{form:?}");
        volume.stats(&node).unwrap();
        volume.call(&node, Verb::Unpublish(1)).unwrap();
        volume.call(&node, Verb::Unstage).unwrap();
    }
    assert_eq!(world.left(), Vec::<String>::new());
}

#[test]
fn a_filesystem_in_trouble_is_complained_of_until_it_is_mounted_anew() {
    for (form, trouble, expected) in [
        (Form::Ext4, Trouble::ReadOnly, READ_ONLY),
        (Form::Ext4, Trouble::Errors(3), ERRORS),
        (Form::Xfs, Trouble::ShutDown, SHUT_DOWN),
        (Form::Btrfs, Trouble::ReadOnly, READ_ONLY),
        (Form::Btrfs, Trouble::Errors(1), DEVICE),
    ] {
        for restarts in [false, true] {
            let world = Simulated::new();
            let mut node = world.start();
            let volume = world.volume("vol", form);
            up(&node, &volume);
            world.machine.trouble(&volume.staging(), trouble);
            if restarts {
                node = world.start();
            }
            expect(&node, &volume, &[expected]);
            volume.call(&node, Verb::Unpublish(1)).unwrap();
            volume.call(&node, Verb::Unstage).unwrap();
            assert_eq!(told(&volume.health(&node).unwrap()), [], "{form:?}");
            up(&node, &volume);
            expect(&node, &volume, &[]);
        }
    }
}

#[test]
fn a_volume_that_was_staged_for_reading_only_is_well() {
    let world = Simulated::new();
    let node = world.start();
    let mut volume = world.volume("vol", Form::Ext4);
    volume.call(&node, Verb::Stage).unwrap();
    volume.call(&node, Verb::Unstage).unwrap();
    volume.mode = AccessMode::SingleNodeReaderOnly;
    up(&node, &volume);
    expect(&node, &volume, &[]);
}

#[test]
fn a_file_that_is_cut_or_removed_beneath_its_device_is_complained_of() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        up(&node, &volume);
        world.machine.truncate_file(&volume.file(), BYTES - MIB);
        expect(&node, &volume, &[(Severity::DataLoss, "BackingFileShort")]);
        world.make_file(&volume.file(), BYTES);
        expect(&node, &volume, &[]);
        world.machine.delete_file(&volume.file());
        let gone = [(Severity::DataLoss, "BackingFileGone")];
        expect(&node, &volume, &gone);
        let restarted = world.start();
        assert_eq!(told(&volume.health(&restarted).unwrap()), gone, "{form:?}");
        volume.call(&node, Verb::Unpublish(1)).unwrap();
        volume.call(&node, Verb::Unstage).unwrap();
        assert_eq!(volume.health(&node).unwrap_err().kind, Kind::NotFound);
    }
}

/// The volume grows between the two reads; the device must not seem larger than the file.
#[test]
fn the_file_is_measured_after_the_device_that_follows_it() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        up(&node, &volume);
        for of_stats in [false, true] {
            world.machine.begin(None);
            match of_stats {
                true => drop(volume.condition(&node).unwrap()),
                false => drop(volume.health(&node).unwrap()),
            }
            let calls = world.machine.end();
            let is_device =
                |call: &Call| call.name == "BLKGETSIZE64" || call.object.ends_with("/size");
            let file = volume.file().display().to_string();
            let is_file = |call: &Call| call.name == "statx" && call.object == file;
            let device = calls.iter().position(is_device).unwrap();
            let last = calls.iter().rposition(is_file).unwrap();
            assert!(device < last, "{form:?}: {calls:#?}");
        }
    }
}

#[test]
fn a_file_in_the_place_of_the_one_behind_the_device_is_complained_of() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    up(&node, &volume);
    world.machine.delete_file(&volume.file());
    world.make_file(&volume.file(), BYTES);
    let told = told(&volume.health(&node).unwrap());
    assert_eq!(told, [(Severity::DataLoss, "BackingFileGone")]);
}

#[test]
fn a_file_that_cannot_be_looked_at_is_complained_of() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    up(&node, &volume);
    // Enable quotas, so that statistics run only on the pool. Without quotas, the volume would
    // first be inspected on the event loop, and then again on the pool.
    world.machine.keep_quotas();
    volume.condition(&node).unwrap();
    let file = volume.file().display().to_string();
    for of_stats in [false, true] {
        let conditions = || match of_stats {
            true => volume.condition(&node).unwrap().conditions,
            false => volume.health(&node).unwrap(),
        };
        world.machine.begin(None);
        conditions();
        let calls = world.machine.end();
        let look = |call: &Call| call.name == "statx" && call.object == file;
        let at = 1 + calls.iter().position(look).unwrap();
        world.machine.begin(Some(Fault::Fail(at, "EIO")));
        let conditions = conditions();
        world.machine.end();
        let expected = [(Severity::Inaccessible, "BackingFileUnreadable")];
        assert_eq!(told(&conditions), expected);
    }
}

#[test]
fn a_raw_device_that_was_detached_by_force_is_lost() {
    let lost = [(Severity::Inaccessible, "DeviceLost")];
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Block);
    up(&node, &volume);
    world.machine.unbind_all();
    assert_eq!(told(&volume.health(&node).unwrap()), lost);
    assert_eq!(told(&volume.health(&world.start()).unwrap()), lost);
    // Stage a second volume, which gets the device number of the first.
    let other = world.volume("other", Form::Block);
    other.call(&node, Verb::Stage).unwrap();
    assert_eq!(told(&volume.health(&node).unwrap()), lost);
    assert_eq!(told(&other.health(&node).unwrap()), []);
}

/// If `/dev` is read-only, only the staging path shows to which volume a raw device belongs.
#[test]
fn a_raw_device_without_a_name_is_lost_where_the_caller_says_it_was_staged() {
    let lost = [(Severity::Inaccessible, "DeviceLost")];
    let world = Simulated::new();
    world.machine.fix_dev();
    let volume = world.volume("vol", Form::Block);
    volume.call(&world.start(), Verb::Stage).unwrap();
    world.machine.unbind_all();
    assert_eq!(told(&volume.health(&world.start()).unwrap()), lost);
}

#[test]
fn a_filesystem_whose_disk_was_removed_is_lost_also_after_a_restart() {
    let lost = [(Severity::Inaccessible, "DeviceLost")];
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        for is_published in [false, true] {
            let world = Simulated::of(Media::Disks);
            let node = world.start();
            let volume = world.volume("vol", form);
            volume.call(&node, Verb::Stage).unwrap();
            if is_published {
                volume.call(&node, Verb::Publish(1)).unwrap();
            }
            world.machine.unplug(&volume.file());
            for (node, agent) in [(node, "the same"), (world.start(), "the next")] {
                let conditions = volume.health(&node).map(|found| told(&found));
                assert_eq!(
                    conditions,
                    Ok(lost.into()),
                    "{form:?} {is_published} {agent}"
                );
            }
        }
    }
}

/// If a volume is unmounted while it is being inspected, its health is unknown.
#[test]
fn a_volume_that_is_unmounted_meanwhile_has_no_condition() {
    let staged = || {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", Form::Ext4);
        volume.call(&node, Verb::Stage).unwrap();
        world.machine.trouble(&volume.staging(), Trouble::ReadOnly);
        (world, node, volume)
    };
    let (world, node, volume) = staged();
    world.machine.begin(None);
    assert_eq!(told(&volume.health(&node).unwrap()), [READ_ONLY]);
    for at in 1..=world.machine.end().len() {
        let (world, node, volume) = staged();
        world.machine.begin(Some(Fault::Hang(at)));
        let conditions = std::thread::scope(|threads| {
            let health = threads.spawn(|| volume.health(&node));
            world.machine.wait_for_hang();
            world.kernel().umount(&volume.staging()).unwrap();
            world.machine.let_go();
            health.join().unwrap()
        });
        world.machine.end();
        assert_eq!(told(&conditions.unwrap()), [], "call {at}");
    }
}

/// Returns the health of a volume for a request without paths.
fn without_paths<K: Kernel>(node: &Node<K>, volume: &Volume) -> Result<Conditions, Failure> {
    let request = NodeVolumeHealth {
        id: volume.volume_id(),
        staging: None,
        target: None,
    };
    run(node, Operation::Health, |cx| {
        operation::health(cx, &request)
    })
}

/// Returns the health of a volume for a request that contains only this target.
fn at_target<K: Kernel>(
    node: &Node<K>,
    volume: &Volume,
    target: &Path,
) -> Result<Conditions, Failure> {
    let request = NodeVolumeHealth {
        id: volume.volume_id(),
        staging: None,
        target: Some(target.to_owned()),
    };
    run(node, Operation::Health, |cx| {
        operation::health(cx, &request)
    })
}

#[test]
fn a_volume_is_judged_without_paths_whether_this_agent_or_an_earlier_one_mounted_it() {
    for (form, trouble, expected) in [
        (Form::Ext4, Trouble::ReadOnly, READ_ONLY),
        (Form::Ext4, Trouble::ShutDown, SHUT_DOWN),
        (Form::Ext4, Trouble::Errors(3), ERRORS),
        (Form::Xfs, Trouble::ReadOnly, READ_ONLY),
        (Form::Xfs, Trouble::ShutDown, SHUT_DOWN),
        (Form::Btrfs, Trouble::ReadOnly, READ_ONLY),
        (Form::Btrfs, Trouble::Errors(1), DEVICE),
    ] {
        let world = Simulated::new();
        let node = world.start();
        let (volume, other) = (world.volume("vol", form), world.volume("vol-2", form));
        for volume in [&volume, &other] {
            up(&node, volume);
        }
        world.machine.trouble(&volume.staging(), trouble);
        for node in [node, world.start()] {
            let conditions = without_paths(&node, &volume).unwrap();
            assert_eq!(told(&conditions), [expected], "{form:?}");
            assert_eq!(told(&without_paths(&node, &other).unwrap()), [], "{form:?}");
        }
    }
}

#[test]
fn a_file_that_is_cut_or_removed_is_found_without_paths_after_a_restart() {
    for form in FORMS {
        let world = Simulated::new();
        let volume = world.volume("vol", form);
        up(&world.start(), &volume);
        let expect = |expected| {
            let conditions = without_paths(&world.start(), &volume).unwrap();
            assert_eq!(
                told(&conditions),
                [(Severity::DataLoss, expected)],
                "{form:?}"
            );
        };
        world.machine.truncate_file(&volume.file(), BYTES - MIB);
        expect("BackingFileShort");
        world.machine.delete_file(&volume.file());
        expect("BackingFileGone");
        world.make_file(&volume.file(), BYTES);
        expect("BackingFileGone");
    }
}

#[test]
fn a_target_for_reading_only_hides_no_filesystem_that_its_errors_stopped() {
    let world = Simulated::new();
    let node = world.start();
    let mut volume = world.volume("vol", Form::Ext4);
    volume.call(&node, Verb::Stage).unwrap();
    volume.mode = AccessMode::SingleNodeReaderOnly;
    volume.call(&node, Verb::Publish(1)).unwrap();
    world.machine.trouble(&volume.staging(), Trouble::ReadOnly);
    let expected = [(Severity::Degraded, "FilesystemReadOnly")];
    for node in [node, world.start()] {
        assert_eq!(told(&without_paths(&node, &volume).unwrap()), expected);
        let at_target = at_target(&node, &volume, &volume.target(1));
        assert_eq!(told(&at_target.unwrap()), expected);
        let stats = volume.condition(&node).unwrap();
        assert_eq!(told(&stats.conditions), expected, "of its statistics");
        // Only the mount at the staging path shows whether the volume was requested read-only. With
        // a relative path, this mount cannot be found.
        let relative = Path::new("base/staging/vol");
        let stats = volume.stats_of(&node, &volume.target(1), relative);
        assert_eq!(told(&stats.unwrap().conditions), []);
    }
}

#[test]
fn the_volume_of_another_driver_is_not_judged_for_its_id() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Ext4);
    up(&world.start(), &volume);
    world.machine.trouble(&volume.staging(), Trouble::ReadOnly);
    let folder = Path::new("/base/more");
    world.machine.make_dir(folder);
    let other_driver = || world.start_driver("other.belay.dev", folder);
    let failure = without_paths(&other_driver(), &volume).unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound);
    world.make_file(&folder.join("vol"), BYTES);
    assert_eq!(told(&without_paths(&other_driver(), &volume).unwrap()), []);
}

/// The other volume is unhealthy, or is a raw volume whose device was detached by force. Both cases
/// are tested with and without names in `/dev/belay`.
#[test]
fn another_volume_at_the_paths_told_is_not_judged() {
    for (form, is_named) in FORMS.iter().flat_map(|it| [(*it, true), (*it, false)]) {
        let world = Simulated::new();
        if !is_named {
            world.machine.fix_dev();
        }
        let node = world.start();
        let (volume, other) = (world.volume("a", form), world.volume("b", form));
        up(&node, &other);
        let nodes = [node, world.start()];
        let request = NodeVolumeHealth {
            id: volume.volume_id(),
            staging: Some(other.staging()),
            target: Some(other.target(1)),
        };
        let health = |node| {
            let judged = run(node, Operation::Health, |cx| {
                operation::health(cx, &request)
            });
            told(&judged.unwrap())
        };
        for node in &nodes {
            assert_eq!(health(node), [], "{form:?}");
        }
        match form {
            Form::Block => world.machine.unbind_all(),
            _ => world.machine.trouble(&other.staging(), Trouble::ReadOnly),
        }
        for node in &nodes {
            let judged = at_target(node, &volume, &other.target(1)).unwrap();
            assert_eq!(told(&judged), [], "{form:?}");
            if is_named || form != Form::Block {
                assert_eq!(health(node), [], "{form:?}");
            }
        }
    }
}

#[test]
fn a_removed_disk_is_a_reason_for_the_volume_that_was_noted_at_the_target_alone() {
    let lost = [(Severity::Inaccessible, "DeviceLost")];
    for form in FORMS {
        let world = Simulated::of(Media::Disks);
        let node = world.start();
        let (volume, other) = (world.volume("vol", form), world.volume("other", form));
        up(&node, &volume);
        world.machine.unplug(&volume.file());
        let judged = |volume, node| told(&at_target(node, volume, &volume.target(1)).unwrap());
        assert_eq!(judged(&volume, &node), lost, "{form:?}");
        for node in [node, world.start()] {
            let judged = at_target(&node, &other, &volume.target(1)).unwrap();
            assert_eq!(told(&judged), [], "{form:?}");
        }
    }
}

/// The kubelet has staged the volume again, but a pod still uses the device that was detached by
/// force.
#[test]
fn a_raw_volume_is_lost_while_one_of_its_targets_shows_the_device_that_it_had() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Block);
    up(&node, &volume);
    world.machine.unbind_all();
    volume.call(&node, Verb::Stage).unwrap();
    for node in [&node, &world.start()] {
        let health = volume.health(node).unwrap();
        assert_eq!(told(&health), [(Severity::Inaccessible, "DeviceLost")]);
        let message = &health.iter().next().unwrap().message;
        let target = volume.target(1).display().to_string();
        assert!(message.contains(&target), "{message}");
    }
    volume.call(&node, Verb::Unpublish(1)).unwrap();
    volume.call(&node, Verb::Publish(1)).unwrap();
    assert_eq!(told(&volume.health(&node).unwrap()), []);
}
