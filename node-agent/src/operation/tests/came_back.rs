//! Tests of raw volumes whose disk was removed and attached again while a pod was using the removed
//! disk, and of stacked bind mounts on the staging path of such a volume. `matrix` tests their
//! failures.

use std::path::Path;

use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World, hear};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::kernel::fake::{Fake, Plug};
use crate::kernel::{Dev, Kernel};
use crate::operation::Node;

fn world() -> Simulated {
    Simulated::of(Media::Disks)
}

/// Returns two worlds. In the second world, mounts have no unique IDs, as before Linux 6.8.
fn worlds() -> [Simulated; 2] {
    let old = world();
    old.machine.number_no_mounts();
    [world(), old]
}

/// The time at which the agent is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    Never,
    WhileRemoved,
    Later,
}

const RESTARTS: [Restart; 3] = [Restart::Never, Restart::WhileRemoved, Restart::Later];

/// Returns the number of the device that is bound at a path.
fn shown(node: &Node<Fake>, path: &Path) -> Dev {
    node.kernel.look(path).unwrap().unwrap().rdev
}

/// Attaches the volume's disk again, as the cloud does.
fn comes_back(world: &Simulated, volume: &Volume) {
    let plug = Plug::virtio(&volume.file(), &volume.id);
    world.machine.plug(plug);
}

/// Checks that the call fails with an error that names the path, and changes nothing.
#[track_caller]
fn refused(
    world: &Simulated,
    (node, volume): (&Node<Fake>, &Volume),
    verb: Verb,
    (kind, path): (Kind, &Path),
    what: &str,
) {
    let before = world.machine.picture();
    let failure = volume.call(node, verb).unwrap_err();
    assert_eq!(failure.kind, kind, "{what}: {failure}");
    let path = path.to_str().unwrap();
    assert!(failure.message.contains(path), "{what}: {failure}");
    assert_eq!(world.machine.picture(), before, "{what}");
}

/// Tested with the same disk, a different volume's disk, or no disk at the device number of the
/// removed disk.
#[test]
fn a_raw_volume_is_not_staged_again_while_a_pod_has_its_removed_disk() {
    for restart in RESTARTS {
        for takes_number in [None, Some(Form::Block), Some(Form::Ext4)] {
            let what = format!("{restart:?}, {takes_number:?}");
            for world in worlds() {
                let volume = world.volume_of_kubelet("vol", Form::Block);
                let mut node = world.start();
                all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
                let number = world.machine.disk_dev(&volume.file());
                world.machine.unplug(&volume.file());
                if restart == Restart::WhileRemoved {
                    node = world.start();
                }
                let next = takes_number.map(|form| world.volume_of_kubelet("next", form));
                comes_back(&world, &volume);
                let is_same = world.machine.disk_dev(&volume.file()) == number;
                assert_eq!(is_same, next.is_none(), "{what}");
                if restart == Restart::Later {
                    node = world.start();
                }
                hear(&node).unwrap();
                if let Some(next) = &next {
                    all_ok(&node, next, &[Verb::Stage, Verb::Publish(1)]);
                }
                let target = volume.target(1);
                for _ in 0..2 {
                    let why = (Kind::Incompatible, target.as_path());
                    refused(&world, (&node, &volume), Verb::Stage, why, &what);
                    let why = (Kind::Precondition, target.as_path());
                    refused(&world, (&node, &volume), Verb::Unstage, why, &what);
                }
                let again = [Verb::Unpublish(1), Verb::Stage, Verb::Publish(1)];
                all_ok(&node, &volume, &again);
                let disk = world.machine.disk_dev(&volume.file());
                assert_eq!(shown(&node, &target), disk, "{what}");
                let life = [Verb::Stats, Verb::Unpublish(1), Verb::Unstage];
                for volume in next.iter().chain([&volume]) {
                    all_ok(&node, volume, &life);
                }
                nothing_left(&world);
            }
        }
    }
}

/// Nothing is mounted at the staging path.
#[test]
fn the_bind_of_a_pod_is_found_though_an_operator_has_unmounted_the_staged_device() {
    for restart in [Restart::Never, Restart::Later] {
        for takes_number in [None, Some(Form::Block)] {
            let what = format!("{restart:?}, {takes_number:?}");
            for world in worlds() {
                let volume = world.volume_of_kubelet("vol", Form::Block);
                let mut node = world.start();
                all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
                world.machine.unplug(&volume.file());
                let next = takes_number.map(|form| world.volume_of_kubelet("next", form));
                world.machine.uncover(&volume.staging_mount());
                comes_back(&world, &volume);
                if restart == Restart::Later {
                    node = world.start();
                }
                hear(&node).unwrap();
                let target = volume.target(1);
                let why = (Kind::Precondition, target.as_path());
                refused(&world, (&node, &volume), Verb::Stage, why, &what);
                let unstaged = volume.call(&node, Verb::Unstage).unwrap_err();
                assert_eq!(unstaged.kind, Kind::Precondition, "{what}: {unstaged}");
                let again = [Verb::Unpublish(1), Verb::Stage, Verb::Publish(1)];
                all_ok(&node, &volume, &again);
                all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
                if let Some(next) = &next {
                    all_ok(&node, next, &[Verb::Stage, Verb::Unstage]);
                }
                nothing_left(&world);
            }
        }
    }
}

/// Returns a volume with two bind mounts of its device on the staging path.
fn stacked(world: &Simulated) -> (Volume, Node<Fake>) {
    let volume = world.volume_of_kubelet("vol", Form::Block);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let staged = volume.staging_mount();
    world.machine.stack(&staged, &staged);
    (volume, node)
}

#[test]
fn binds_of_a_removed_disk_that_are_stacked_are_taken_down_together() {
    for restart in RESTARTS {
        for is_number_taken in [false, true] {
            let what = format!("{restart:?}, {is_number_taken}");
            for world in worlds() {
                let (volume, mut node) = stacked(&world);
                all_ok(&node, &volume, &[Verb::Publish(1)]);
                world.machine.unplug(&volume.file());
                if restart == Restart::WhileRemoved {
                    node = world.start();
                }
                let next = is_number_taken.then(|| world.volume_of_kubelet("next", Form::Block));
                if restart == Restart::Later {
                    node = world.start();
                }
                hear(&node).unwrap();
                if let Some(next) = &next {
                    all_ok(&node, next, &[Verb::Stage, Verb::Publish(1)]);
                }
                let target = volume.target(1);
                let why = (Kind::Precondition, target.as_path());
                refused(&world, (&node, &volume), Verb::Unstage, why, &what);
                all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
                if let Some(next) = &next {
                    all_ok(
                        &node,
                        next,
                        &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
                    );
                }
                nothing_left(&world);
            }
        }
    }
}

/// Two bind mounts can be stacked even if no disk was removed: a second agent may have bound the
/// device as well.
#[test]
fn binds_of_a_device_that_is_there_are_taken_down_together_if_they_are_stacked() {
    for (media, is_restarted) in [Media::Files, Media::Disks]
        .iter()
        .flat_map(|media| [(*media, true), (*media, false)])
    {
        let world = Simulated::of(media);
        let mut node = world.start();
        let volume = world.volume_of_kubelet("vol", Form::Block);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        let staged = volume.staging_mount();
        let elsewhere = world.base().join("elsewhere");
        world.make_file(&elsewhere, 0);
        for onto in [&staged, &staged, &elsewhere] {
            world.machine.stack(&staged, onto);
        }
        if is_restarted {
            node = world.start();
            hear(&node).unwrap();
        }
        let what = format!("restarted: {is_restarted}");
        let why = (Kind::Precondition, volume.target(1));
        refused(
            &world,
            (&node, &volume),
            Verb::Unstage,
            (why.0, &why.1),
            &what,
        );
        all_ok(&node, &volume, &[Verb::Unpublish(1)]);
        // The volume is still staged.
        let unstaged = volume.call(&node, Verb::Unstage).unwrap_err();
        assert_eq!(unstaged.kind, Kind::Precondition, "{what}: {unstaged}");
        let path = elsewhere.to_str().unwrap();
        assert!(unstaged.message.contains(path), "{what}: {unstaged}");
        let life = [
            Verb::Stage,
            Verb::Publish(1),
            Verb::Stats,
            Verb::Unpublish(1),
        ];
        all_ok(&node, &volume, &life);
        world.machine.uncover(&elsewhere);
        world.machine.stack(&staged, &staged);
        all_ok(&node, &volume, &[Verb::Unstage, Verb::Unstage]);
        nothing_left(&world);
    }
}

#[test]
fn the_bind_of_another_volume_stays_on_or_under_that_of_a_removed_disk() {
    for (is_under, restart) in [false, true].map(|it| RESTARTS.map(|at| (it, at))).concat() {
        let what = format!("{is_under}, {restart:?}");
        for world in worlds() {
            let (volume, other) = (
                world.volume_of_kubelet("vol", Form::Block),
                world.volume_of_kubelet("other", Form::Block),
            );
            let mut node = world.start();
            for volume in [&volume, &other] {
                all_ok(&node, volume, &[Verb::Stage]);
            }
            let (staged, others) = (volume.staging_mount(), other.staging_mount());
            if is_under {
                // Hide the staged bind mount with another mount.
                let spare = world.base().join("spare");
                world.make_file(&spare, 0);
                world.machine.stack(&staged, &spare);
                world.machine.uncover(&staged);
                world.machine.stack(&others, &staged);
                world.machine.stack(&spare, &staged);
                world.machine.uncover(&spare);
            } else {
                world.machine.stack(&others, &staged);
            }
            world.machine.unplug(&volume.file());
            if restart != Restart::Never {
                node = world.start();
            }
            let unstaged = volume.call(&node, Verb::Unstage).unwrap_err();
            assert_eq!(unstaged.kind, Kind::Precondition, "{what}: {unstaged}");
            let path = staged.to_str().unwrap();
            assert!(unstaged.message.contains(path), "{what}: {unstaged}");
            let disk = world.machine.disk_dev(&other.file());
            for path in [&staged, &others] {
                assert_eq!(shown(&node, path), disk, "{what}");
            }
            if restart == Restart::Later {
                node = world.start();
            }
            world.machine.uncover(&staged);
            all_ok(&node, &volume, &[Verb::Unstage]);
            all_ok(&node, &other, &[Verb::Stage, Verb::Publish(1), Verb::Stats]);
            all_ok(&node, &other, &[Verb::Unpublish(1), Verb::Unstage]);
            nothing_left(&world);
        }
    }
}

/// A second agent of a different driver serves volumes with the same IDs.
#[test]
fn the_bind_of_another_driver_is_not_taken_down() {
    let world = world();
    let volume = world.volume_of_kubelet("vol", Form::Block);
    let theirs = world.start_disks("other.csi.example");
    all_ok(&theirs, &volume, &[Verb::Stage]);
    world.machine.unplug(&volume.file());
    comes_back(&world, &volume);
    let ours = world.start_disks(DISK_DRIVER);
    for (verb, kind) in [
        (Verb::Stage, Kind::Incompatible),
        (Verb::Unstage, Kind::Precondition),
    ] {
        let staged = volume.staging_mount();
        refused(&world, (&ours, &volume), verb, (kind, &staged), "");
    }
    all_ok(&theirs, &volume, &[Verb::Stage, Verb::Unstage]);
    nothing_left(&world);
}
