//! Tests of volumes in files on a filesystem that has shut itself down. An operator can repair such
//! a filesystem only after all volumes in it are unstaged and the devices of these volumes are
//! detached.

use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World};
use super::orphans::bind;
use super::simulated::Simulated;
use super::suite::all_ok;
use crate::kernel::Kernel as _;
use crate::kernel::fake::{Fake, Trouble};
use crate::operation::Node;

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

/// Makes these calls for a volume whose file is on a separate filesystem.
fn after(form: Form, calls: &[Verb]) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::new();
    world.machine.cover(&world.volumes());
    let node = world.start();
    let volume = world.volume("vol", form);
    all_ok(&node, &volume, calls);
    (world, node, volume)
}

fn published(form: Form, is_restarted: bool) -> (Simulated, Node<Fake>, Volume) {
    let (world, node, volume) = after(form, &[Verb::Stage, Verb::Publish(1)]);
    let node = match is_restarted {
        true => world.start(),
        false => node,
    };
    (world, node, volume)
}

/// Makes these calls for a volume; afterwards, the filesystem that contains the volume's file shuts
/// itself down.
fn shut_down(form: Form, calls: &[Verb]) -> (Simulated, Node<Fake>, Volume) {
    let (world, node, volume) = after(form, calls);
    world.machine.trouble(&world.volumes(), Trouble::ShutDown);
    (world, node, volume)
}

fn bound(world: &Simulated) -> usize {
    world.kernel().loop_bound().unwrap().len()
}

#[track_caller]
fn stays_bound(world: &Simulated, node: &Node<Fake>, volume: &Volume, words: &[&str]) {
    let failure = volume.call(node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    for word in words {
        assert!(failure.message.contains(word), "{failure}");
    }
    assert_eq!(bound(world), 1);
}

#[test]
fn a_volume_is_taken_down_and_its_device_detached() {
    for form in FORMS {
        for is_restarted in [false, true] {
            let (world, node, volume) = published(form, is_restarted);
            world.machine.trouble(&world.volumes(), Trouble::ShutDown);
            assert_eq!(bound(&world), 1);
            let down = [Verb::Unpublish(1), Verb::Unstage, Verb::Unstage];
            all_ok(&node, &volume, &down);
            assert_eq!(bound(&world), 0, "{form:?}");
        }
    }
}

#[test]
fn a_raw_device_that_is_mounted_nowhere_is_detached_before_the_call_succeeds() {
    let (world, node, volume) = shut_down(Form::Block, &[Verb::Stage]);
    world.machine.uncover(&volume.staging_mount());
    all_ok(&node, &volume, &[Verb::Unstage]);
    assert_eq!(bound(&world), 0);
}

#[test]
fn a_raw_device_that_is_published_stays_bound_and_the_target_is_named() {
    let (world, node, volume) = shut_down(Form::Block, &[Verb::Stage, Verb::Publish(1)]);
    world.machine.uncover(&volume.staging_mount());
    let target = volume.target(1);
    let words = ["staged or published at", target.to_str().unwrap()];
    stays_bound(&world, &node, &volume, &words);
    all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
    assert_eq!(bound(&world), 0);
}

/// The bind mount was made by another process, so no NodeUnpublishVolume call removes it.
#[test]
fn a_raw_device_that_another_process_has_bound_stays_bound_and_the_path_is_named() {
    let (world, node, volume) = shut_down(Form::Block, &[Verb::Stage]);
    let elsewhere = world.base().join("elsewhere");
    bind(&world.kernel(), &volume.staging_mount(), &elsewhere);
    world.machine.uncover(&volume.staging_mount());
    let words = ["umount that path", elsewhere.to_str().unwrap()];
    stays_bound(&world, &node, &volume, &words);
    world.machine.uncover(&elsewhere);
    all_ok(&node, &volume, &[Verb::Unstage]);
    assert_eq!(bound(&world), 0);
}
