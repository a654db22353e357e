//! Tests which devices of a killed agent are freed at startup, and which devices stay bound.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use belay_server::call::Kind;
use belay_server::request::AccessMode;

use super::bench::{DRIVER, Form, MIB, Verb, Volume, World, sweep};
use super::power::ends_in_stage;
use super::simulated::Simulated;
use super::suite::nothing_left;
use crate::device::loop_path;
use crate::kernel::fake::{Died, Fault};
use crate::kernel::{Cause, Kernel, LoopMode, Open};
use crate::operation::Node;

on_both! {
    what_a_dead_agent_left_bound_is_freed_at_the_start
    what_another_agent_or_process_has_is_not_freed_at_the_start
    what_is_staged_is_not_freed_at_the_start
    what_a_killed_stage_left_bound_is_freed_when_the_next_one_is_refused_for_good
    what_is_staged_stays_when_another_stage_of_it_is_refused
    what_was_left_bound_in_another_mode_is_freed_and_bound_anew
}

pub(super) const KEPT: LoopMode = LoopMode {
    read_only: false,
    autoclear: false,
};

/// Returns the name under which the volume's devices are bound.
fn name_of(volume: &Volume) -> String {
    format!("{DRIVER}/{}", volume.id)
}

/// Binds the volume's file to a loop device, as NodeStageVolume does before a crash. Returns the
/// number of the device.
fn leave_bound<W: World>(world: &W, volume: &Volume) -> u32 {
    bind(world, &volume.file(), &name_of(volume), KEPT)
}

pub(super) fn bind<W: World>(world: &W, file: &Path, name: &str, mode: LoopMode) -> u32 {
    let kernel = world.kernel();
    let (of_file, of_device) = match mode.read_only {
        true => (Open::FileRead, Open::DeviceRead),
        false => (Open::FileWrite, Open::DeviceWrite),
    };
    let file = kernel.open(file, of_file).unwrap();
    assert!(kernel.flock(&file).unwrap());
    loop {
        let number = kernel.loop_get_free().unwrap();
        let device = kernel.open(&loop_path(number), of_device).unwrap();
        match kernel.loop_configure(&device, &file, mode, name) {
            Ok(()) => return number,
            Err(error) => assert_eq!(error.cause(), Cause::Busy),
        }
    }
}

/// Starts agents until one of them has freed every device.
fn all_freed_at_the_start<W: World>(world: &W) {
    for _ in 0..world.tries_max() {
        drop(world.start_swept());
        if world.left().is_empty() {
            return;
        }
    }
    nothing_left(world);
}

fn what_a_dead_agent_left_bound_is_freed_at_the_start<W: World>(world: &W) {
    for name in ["one", "two"] {
        leave_bound(world, &world.volume(name, Form::Block));
    }
    // In sysfs, the name of a removed file also ends with " (deleted)".
    leave_bound(world, &world.volume("four (deleted)", Form::Block));
    all_freed_at_the_start(world);
}

fn what_another_agent_or_process_has_is_not_freed_at_the_start<W: World>(world: &W) {
    let volume = world.volume("vol", Form::Block);
    let number = leave_bound(world, &volume);
    let kernel = world.kernel();
    let device = |how| kernel.open(&loop_path(number), how).unwrap();
    let is_kept = || {
        let status = kernel.loop_status(&device(Open::DeviceRead)).unwrap();
        assert_eq!(status.unwrap().mode, KEPT);
    };
    // The user may be a pod that has opened a raw device.
    let user = device(Open::DeviceRead);
    let other_agent = world.start_swept();
    is_kept();
    drop(user);
    // The other agent still holds the directory's lock, because an agent keeps the lock until it
    // exits.
    drop(world.start_swept());
    is_kept();
    drop(other_agent);

    let claim = device(Open::DeviceExclusive);
    drop(world.start_swept());
    is_kept();
    drop(claim);
    all_freed_at_the_start(world);
}

fn what_is_staged_is_not_freed_at_the_start<W: World>(world: &W) {
    let volume = world.volume("vol", Form::Block);
    let call = |node: &Node<W::Kernel>, verb| volume.call(node, verb).unwrap();
    call(&world.start_swept(), Verb::Stage);
    call(&world.start_swept(), Verb::Publish(1));
    let node = world.start_swept();
    for verb in [Verb::Stats, Verb::Unpublish(1), Verb::Unstage] {
        call(&node, verb);
    }
    drop(node);
    nothing_left(world);
}

/// Calls NodeStageVolume with mount flags that are never allowed, so that the caller does not
/// retry.
#[track_caller]
fn refused_stage<W: World>(node: &Node<W::Kernel>, volume: &Volume) {
    let mut unfit = volume.clone();
    (unfit.form, unfit.flags) = (Form::Ext4, &["remount"]);
    let failure = unfit.call(node, Verb::Stage).unwrap_err();
    let kinds = [Kind::Invalid, Kind::Precondition];
    assert!(kinds.contains(&failure.kind), "{failure}");
}

fn what_a_killed_stage_left_bound_is_freed_when_the_next_one_is_refused_for_good<W: World>(
    world: &W,
) {
    let node = world.start_swept();
    let volume = world.volume("vol", Form::Block);
    let number = leave_bound(world, &volume);
    let kernel = world.kernel();
    let device = || kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
    // The user may be a pod that has opened a raw device.
    let user = device();
    refused_stage::<W>(&node, &volume);
    let status = kernel.loop_status(&user).unwrap();
    assert_eq!(status.unwrap().mode, KEPT);
    drop(user);
    for _ in 0..world.tries_max() {
        refused_stage::<W>(&node, &volume);
        if world.left().is_empty() {
            break;
        }
    }
    drop(node);
    nothing_left(world);
}

fn what_is_staged_stays_when_another_stage_of_it_is_refused<W: World>(world: &W) {
    let volume = world.volume("vol", Form::Block);
    volume.call(&world.start_swept(), Verb::Stage).unwrap();
    let node = world.start_swept();
    refused_stage::<W>(&node, &volume);
    for verb in [Verb::Publish(1), Verb::Stats] {
        volume.call(&node, verb).unwrap();
    }
    refused_stage::<W>(&node, &volume);
    for verb in [Verb::Stats, Verb::Unpublish(1), Verb::Unstage] {
        volume.call(&node, verb).unwrap();
    }
    drop(node);
    nothing_left(world);
}

/// Returns the mode in which a loop device is bound to the volume's file.
fn mode_of<W: World>(world: &W, volume: &Volume) -> LoopMode {
    let kernel = world.kernel();
    let file = kernel.look(&volume.file()).unwrap().unwrap();
    let bound = kernel.loop_bound().unwrap().into_iter().filter(|number| {
        let behind = kernel.loop_file(*number).unwrap();
        behind.is_some_and(|behind| behind.path == volume.file())
    });
    let mut modes = bound.filter_map(|number| {
        let device = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
        let status = kernel.loop_status(&device).unwrap().unwrap();
        (status.backing_ino == file.ino).then_some(status.mode)
    });
    let mode = modes.next().unwrap();
    assert_eq!(modes.next(), None);
    mode
}

fn what_was_left_bound_in_another_mode_is_freed_and_bound_anew<W: World>(world: &W) {
    let left_to_read = LoopMode {
        read_only: true,
        ..KEPT
    };
    for (left, mode) in [
        (KEPT, AccessMode::SingleNodeReaderOnly),
        (left_to_read, AccessMode::SingleNodeWriter),
    ] {
        let mut volume = world.volume(mode.name(), Form::Block);
        bind(world, &volume.file(), &name_of(&volume), left);
        volume.mode = mode;
        let node = world.start();
        volume.call(&node, Verb::Stage).unwrap();
        let wanted = LoopMode {
            read_only: mode.is_read_only(),
            ..KEPT
        };
        assert_eq!(mode_of(world, &volume), wanted);
        volume.call(&node, Verb::Unstage).unwrap();
        nothing_left(world);
    }
    // If a filesystem is staged read-only, its loop device is still writable.
    let volume = world.volume("vol", Form::Ext4);
    bind(world, &volume.file(), &name_of(&volume), left_to_read);
    let node = world.start();
    volume.call(&node, Verb::Stage).unwrap();
    assert!(!mode_of(world, &volume).read_only);
    volume.call(&node, Verb::Unstage).unwrap();
    nothing_left(world);
}

#[test]
fn a_device_of_somebody_else_is_not_even_opened() {
    let world = Simulated::new();
    let foreign = Path::new("/elsewhere/foreign");
    world.make_file(foreign, MIB);
    // Another process has bound a loop device under the name of one of this driver's volumes.
    let name = format!("{DRIVER}/vol");
    let number = bind(&world, foreign, &name, KEPT);
    let volume = world.volume("vol", Form::Block);
    leave_bound(&world, &volume);
    leave_bound(&world, &world.volume("other", Form::Block));
    world.machine.begin(None);
    let node = world.start();
    for verb in [Verb::Stage, Verb::Unstage] {
        volume.call(&node, verb).unwrap();
    }
    sweep(&node);
    let asked = loop_path(number).display().to_string();
    let calls = world.machine.end();
    assert!(calls.iter().any(|call| call.name == "LOOP_GET_STATUS64"));
    assert!(calls.iter().all(|call| call.object != asked), "{calls:?}");
    assert_eq!(world.kernel().loop_bound().unwrap(), [number]);
}

#[test]
fn a_start_that_fails_or_dies_at_any_call_loses_nothing_and_the_next_one_frees() {
    for at in 1.. {
        let mut is_over = true;
        for fault in [
            Fault::Fail(at, "EIO"),
            Fault::FailFrom(at, "EBUSY"),
            Fault::Die(at),
        ] {
            let world = Simulated::new();
            leave_bound(&world, &world.volume("left", Form::Block));
            let staged = world.volume("staged", Form::Block);
            staged.call(&world.start(), Verb::Stage).unwrap();
            let node = world.start();
            world.machine.begin(Some(fault));
            let swept = catch_unwind(AssertUnwindSafe(|| sweep(&node)));
            is_over &= world.machine.end().len() < at;
            assert!(swept.is_ok() || swept.is_err_and(|payload| payload.is::<Died>()));
            drop(node);
            let node = world.start_swept();
            for verb in [Verb::Publish(1), Verb::Unpublish(1), Verb::Unstage] {
                staged.call(&node, verb).unwrap();
            }
            drop(node);
            nothing_left(&world);
        }
        if is_over {
            return;
        }
    }
}

/// During an update, the other agent may be of the next release, which takes the lock at startup.
#[test]
fn a_refused_stage_of_a_staged_volume_takes_no_lock_from_another_agent() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    volume.call(&node, Verb::Stage).unwrap();
    refused_stage::<Simulated>(&node, &volume);
    assert!(world.start().try_lock_directory(0).unwrap());
}

#[test]
fn a_refused_stage_frees_nothing_beside_another_agent_or_where_mounts_are_hidden() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let bound = [leave_bound(&world, &volume)];
    let (node, kernel) = (world.start(), world.kernel());
    // The other agent holds the lock and may be about to use the device.
    let other = world.start();
    assert!(other.try_lock_directory(0).unwrap());
    refused_stage::<Simulated>(&node, &volume);
    assert_eq!(kernel.loop_bound().unwrap(), bound);
    drop(other);
    // Mounts of pods may be hidden now.
    for _ in 0..2 {
        world.machine.cover(world.base());
    }
    refused_stage::<Simulated>(&node, &volume);
    assert_eq!(kernel.loop_bound().unwrap(), bound);
    for _ in 0..2 {
        world.machine.uncover(world.base());
    }
    refused_stage::<Simulated>(&node, &volume);
    assert!(kernel.loop_bound().unwrap().is_empty());
}

/// If the name remained, it would refer to the next volume that gets the device number.
#[test]
fn the_name_of_a_device_is_removed_with_it_at_the_start() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let killed = Fault::DieAfter("link");
    assert!(ends_in_stage(&world, &world.start(), &volume, killed));
    let names = || {
        let directory = Path::new("/dev/belay").join(DRIVER);
        world.kernel().names(&directory).unwrap()
    };
    assert_eq!(names().len(), 1);
    drop(world.start_swept());
    assert_eq!(names(), Vec::<String>::new());
    nothing_left(&world);
}
