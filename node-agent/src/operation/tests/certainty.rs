//! Tests whether a failed call reports with certainty that nothing was changed: if the error says
//! "rolled back", the kubelet may forget the volume; if the error says "may be running", the
//! kubelet retries.

use std::path::Path;

use belay_server::call::Certainty;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::Simulated;
use crate::kernel::Kernel as _;
use crate::kernel::fake::{Call, Fake, Fault};
use crate::operation::Node;

/// Returns a volume on which the calls before `verb` were made.
fn before(verb: Verb, form: Form) -> (Simulated, Volume) {
    let world = Simulated::new();
    let volume = world.volume("vol", form);
    if verb != Verb::Stage {
        volume.call(&world.start(), Verb::Stage).unwrap();
    }
    (world, volume)
}

/// Makes a call in which the mount cannot be attached to its path. Returns the certainty of the
/// failure, and the number of new objects on the machine.
fn unshown(verb: Verb, form: Form, fault: fn(usize, &'static str) -> Fault) -> (Certainty, usize) {
    let (world, volume) = before(verb, form);
    let node = world.start();
    let act = || volume.call(&node, verb).unwrap();
    let number = world.first_call(act, |call| call.name == "move_mount");

    let (world, volume) = before(verb, form);
    let was = world.left().len();
    let node = world.start();
    world.machine.begin(Some(fault(number, "EPERM")));
    let failure = volume.call(&node, verb).unwrap_err();
    world.machine.end();
    (failure.certainty, world.left().len() - was)
}

#[test]
fn what_could_be_put_back_is_and_what_could_not_is_said() {
    for (verb, form) in [
        (Verb::Stage, Form::Block),
        (Verb::Publish(1), Form::Block),
        (Verb::Publish(1), Form::Ext4),
    ] {
        let put_back = unshown(verb, form, Fault::Fail);
        assert_eq!(put_back, (Certainty::RolledBack, 0), "{verb:?} {form:?}");
        let (certainty, left) = unshown(verb, form, Fault::FailFrom);
        assert_eq!(certainty, Certainty::MayBeRunning, "{verb:?} {form:?}");
        assert_ne!(left, 0, "{verb:?} {form:?}");
    }
    // The agent does not have to roll back, because closing its descriptors undoes everything.
    let gone = unshown(Verb::Stage, Form::Ext4, Fault::Fail);
    assert_eq!(gone, (Certainty::NothingHappened, 0));
    // The agent cannot read either whether something is mounted at the path, so the failure is
    // uncertain.
    let gone = unshown(Verb::Stage, Form::Ext4, Fault::FailFrom);
    assert_eq!(gone, (Certainty::MayBeRunning, 0));
}

/// Returns an unstaged raw volume, a staged raw volume, and the position of the first matching
/// system call of NodeStageVolume for the unstaged volume.
fn unstaged(is_it: impl Fn(&Call) -> bool) -> (Simulated, Node<Fake>, [Volume; 2], usize) {
    let new = || {
        let world = Simulated::new();
        let node = world.start();
        let volumes = ["vol", "other"].map(|id| world.volume(id, Form::Block));
        volumes[1].call(&node, Verb::Stage).unwrap();
        (world, node, volumes)
    };
    let (world, node, [volume, _]) = new();
    let at = world.first_call(|| volume.call(&node, Verb::Stage).unwrap(), is_it);
    let (world, node, volumes) = new();
    (world, node, volumes, at)
}

/// The device is detached, but another process may have mounted something on the file that was
/// created as mount point.
#[test]
fn a_file_that_cannot_be_removed_is_said_though_its_device_was_freed() {
    let path = Path::new("/base/staging/vol/device");
    let is_it = |call: &Call| call.name == "open O_PATH" && Path::new(&call.object) == path;
    let (world, node, [volume, other], at) = unstaged(is_it);
    assert_eq!(volume.staging_mount(), path);
    world.machine.begin(Some(Fault::Hang(at)));
    let failure = std::thread::scope(|threads| {
        let staged = threads.spawn(|| volume.call(&node, Verb::Stage));
        world.machine.wait_for_hang();
        world.machine.stack(&other.staging_mount(), path);
        world.machine.let_go();
        staged.join().unwrap().unwrap_err()
    });
    world.machine.end();
    assert_eq!(failure.certainty, Certainty::MayBeRunning, "{failure}");
    let bound = world.kernel().loop_bound().unwrap();
    assert_eq!(bound.len(), 1, "that of the other volume");
}

#[test]
fn a_raw_stage_that_fails_before_its_bind_is_rolled_back() {
    let is_clone = |call: &Call| call.name == "open_tree";
    let (world, node, [volume, other], at) = unstaged(is_clone);
    world.machine.begin(Some(Fault::Fail(at, "EPERM")));
    let failure = volume.call(&node, Verb::Stage).unwrap_err();
    world.machine.end();
    assert_eq!(failure.certainty, Certainty::RolledBack, "{failure}");
    other.call(&node, Verb::Unstage).unwrap();
    assert_eq!(world.left(), Vec::<String>::new());
}
