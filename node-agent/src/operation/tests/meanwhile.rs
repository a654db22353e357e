//! Tests in which another program changes something between two system calls of an operation, so
//! that the result of an earlier check is no longer true.

use std::thread;
use std::time::{Duration, Instant};

use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::loop_path;
use crate::kernel::fake::{Call, Fake, Fault};
use crate::kernel::{Kernel, Open};
use crate::operation::Node;

/// Returns a test world, an agent, and a volume that was never staged.
fn fresh(media: Media, form: Form) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::of(media);
    let volume = world.volume("vol", form);
    let node = world.start();
    (world, node, volume)
}

/// Returns the system calls of NodeStageVolume.
fn calls(media: Media, form: Form) -> Vec<Call> {
    let (world, node, volume) = fresh(media, form);
    world.machine.begin(None);
    all_ok(&node, &volume, &[Verb::Stage]);
    world.machine.end()
}

/// Stages the volume. While the system call with the position `at` hangs, runs `act` as another
/// program. Returns the kind of the failure; `None` if NodeStageVolume succeeded.
fn refusal(
    (world, node, volume): &(Simulated, Node<Fake>, Volume),
    at: usize,
    act: impl FnOnce(),
) -> Option<Kind> {
    world.machine.begin(Some(Fault::Hang(at)));
    let staged = std::thread::scope(|threads| {
        let staged = threads.spawn(|| volume.call(node, Verb::Stage).map(drop));
        world.machine.wait_for_hang();
        act();
        world.machine.let_go();
        staged.join().unwrap()
    });
    world.machine.end();
    staged.err().map(|failure| failure.kind)
}

/// Once the removed disk is closed, its device number may be reused for a different disk.
#[test]
fn a_disk_that_is_removed_before_its_mount_has_its_place_is_not_reported_as_staged() {
    for (form, mounts) in [
        (Form::Ext4, "fsmount"),
        (Form::Xfs, "fsmount"),
        (Form::Block, "mount_setattr"),
    ] {
        let calls = calls(Media::Disks, form);
        let mounted = calls.iter().rposition(|call| call.name == mounts);
        for at in 1..=mounted.unwrap() + 1 {
            let begun = fresh(Media::Disks, form);
            let (world, _, volume) = &begun;
            let refused = refusal(&begun, at, || world.machine.unplug(&volume.file()));
            assert!(refused.is_some(), "{form:?}, {:?}", calls[at - 1]);
        }
    }
}

#[test]
fn a_file_that_is_deleted_before_it_is_locked_is_not_bound() {
    for form in [Form::Ext4, Form::Block] {
        let calls = calls(Media::Files, form);
        let at = calls.iter().position(|call| call.name == "flock").unwrap() + 1;
        let begun = fresh(Media::Files, form);
        let (world, node, volume) = &begun;
        let refused = refusal(&begun, at, || world.machine.delete_file(&volume.file()));
        assert_eq!(refused, Some(Kind::NotFound), "{form:?}");
        assert!(node.kernel.loop_bound().unwrap().is_empty());
        nothing_left(world);
    }
}

/// A NodeUnstageVolume call that was killed or refused may have set the flag AUTOCLEAR on the
/// device.
#[test]
fn a_device_that_would_be_detached_at_its_last_close_is_kept_when_it_is_staged_again() {
    let (world, node, volume) = fresh(Media::Files, Form::Block);
    all_ok(&node, &volume, &[Verb::Stage]);
    let kernel = world.kernel();
    let [number] = kernel.loop_bound().unwrap()[..] else {
        panic!("one device is bound");
    };
    let user = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
    kernel.loop_set_autoclear(&user, true).unwrap();
    all_ok(&node, &volume, &[Verb::Stage]);
    drop(user);
    assert_eq!(kernel.loop_bound().unwrap(), [number]);
    all_ok(
        &node,
        &volume,
        &[Verb::Publish(1), Verb::Unpublish(1), Verb::Unstage],
    );
    nothing_left(&world);
}

/// The first call hangs at each of its system calls while the second call is made. The test waits a
/// moment, because it cannot detect whether the second call is waiting for the first.
#[test]
fn of_two_volumes_that_are_mounted_at_one_path_at_the_same_time_one_is_refused() {
    const MOMENT: Duration = Duration::from_millis(50);
    for verb in [Verb::Stage, Verb::Publish(1)] {
        let begun = || {
            let (world, node, first) = fresh(Media::Files, Form::Ext4);
            let mut second = world.volume("other", Form::Ext4);
            if verb != Verb::Stage {
                all_ok(&node, &first, &[Verb::Stage]);
                all_ok(&node, &second, &[Verb::Stage]);
                second.staged_at = Some(second.staging());
            }
            second.folder.clone_from(&first.folder);
            (world, node, first, second)
        };
        let (world, node, first, _) = begun();
        world.machine.begin(None);
        all_ok(&node, &first, &[verb]);
        let calls = world.machine.end();
        let placed = calls.iter().rposition(|call| call.name == "move_mount");
        for at in 1..=placed.unwrap() + 1 {
            let (world, node, first, second) = begun();
            world.machine.begin(Some(Fault::Hang(at)));
            let results = thread::scope(|threads| {
                let one = threads.spawn(|| first.call(&node, verb));
                world.machine.wait_for_hang();
                let other = threads.spawn(|| second.call(&node, verb));
                let begin = Instant::now();
                while !other.is_finished() && begin.elapsed() < MOMENT {
                    thread::yield_now();
                }
                world.machine.let_go();
                [one, other].map(|thread| thread.join().unwrap())
            });
            world.machine.end();
            let count = results.iter().filter(|result| result.is_ok()).count();
            assert_eq!(count, 1, "{verb:?} at {:?}: {results:?}", calls[at - 1]);
            assert!(world.machine.violations().is_empty(), "{:?}", calls[at - 1]);
        }
    }
}
