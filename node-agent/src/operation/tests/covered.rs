//! Tests of a volume whose target is hidden by another mount. The volume's device must stay bound,
//! regardless of which calls are made and which system calls fail. After the hiding mount is
//! removed, all calls succeed as usual.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use belay_contract::drivers::local::CLAIM;
use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World, run, sweep};
use super::simulated::Simulated;
use super::suite::all_ok;
use crate::kernel::fake::{Died, Fake, Fault};
use crate::kernel::{Kernel, Open};
use crate::operation::{Node, release};
use crate::work::Operation;

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];
const REFUSED: [Verb; 3] = [Verb::Unpublish(1), Verb::Publish(1), Verb::Unstage];

/// Returns a published volume whose staging path was unmounted and whose target is hidden, which is
/// the worst case, and the directory over which something is mounted.
fn covered(world: &Simulated, form: Form) -> (Volume, PathBuf) {
    let volume = world.volume("vol", form);
    let node = world.start();
    for verb in [Verb::Stage, Verb::Publish(1)] {
        volume.call(&node, verb).unwrap();
    }
    let folder = volume.target(1).parent().unwrap().to_owned();
    world.machine.cover(&folder);
    (volume, folder)
}

/// Unmounts the staging path as a process other than the agent.
fn unstage_by_hand(world: &Simulated, volume: &Volume) {
    let (kernel, device) = (world.kernel(), volume.staging().join("device"));
    match volume.form {
        Form::Block => {
            kernel.umount(&device).unwrap();
            kernel.unlink(&device).unwrap();
        }
        _ => kernel.umount(&volume.staging()).unwrap(),
    }
}

pub(super) fn want_unstaged(world: &Simulated, volume: &Volume) {
    let kernel = world.kernel();
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    kernel.set_xattr(&file, CLAIM, b"delete").unwrap();
}

#[track_caller]
fn is_bound(world: &Simulated, what: &str) {
    let bound = world.kernel().loop_bound().unwrap();
    assert_eq!(bound.len(), 1, "{what}");
}

fn goes_down(world: &Simulated, volume: &Volume) {
    let node = world.start_swept();
    for verb in [Verb::Unpublish(1), Verb::Unstage] {
        volume.call(&node, verb).unwrap();
    }
    drop(node);
    assert_eq!(world.left(), Vec::<String>::new());
}

#[test]
fn every_call_that_would_take_it_for_gone_is_refused() {
    for form in FORMS {
        let world = Simulated::new();
        let volume = world.volume("vol", form);
        let node = world.start();
        for verb in [Verb::Stage, Verb::Publish(1)] {
            volume.call(&node, verb).unwrap();
        }
        let folder = volume.target(1).parent().unwrap().to_owned();
        world.machine.cover(&folder);
        for node in [node, world.start()] {
            for verb in REFUSED.repeat(2) {
                let failure = volume.call(&node, verb).unwrap_err();
                assert_eq!(
                    failure.kind,
                    Kind::Precondition,
                    "{form:?} {verb:?}: {failure}"
                );
                is_bound(&world, &format!("{form:?} {verb:?}"));
            }
        }
        world.machine.uncover(&folder);
        goes_down(&world, &volume);
    }
}

/// The startup scan of the mount table records the target by its path without symlinks.
#[test]
fn a_covered_target_that_a_call_names_by_a_link_is_not_unpublished() {
    for form in FORMS {
        let world = Simulated::new();
        let (volume, folder) = covered(&world, form);
        let mut by_link = volume.clone();
        by_link.base = world.base().join("link");
        world.machine.link_dir(&by_link.base, world.base());
        let node = world.start();
        let failure = by_link.call(&node, Verb::Unpublish(1)).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{form:?}: {failure}");
        let why = format!("is mounted at {}", volume.target(1).display());
        assert!(failure.message.contains(&why), "{form:?}: {failure}");
        world.machine.uncover(&folder);
        all_ok(&node, &by_link, &[Verb::Unpublish(1)]);
        assert!(!world.machine.is_there(&volume.target(1)), "{form:?}");
        goes_down(&world, &volume);
    }
}

#[test]
fn a_covered_staging_path_is_not_unstaged() {
    for form in FORMS {
        let world = Simulated::new();
        let volume = world.volume("vol", form);
        volume.call(&world.start(), Verb::Stage).unwrap();
        let folder = volume.staging().parent().unwrap().to_owned();
        world.machine.cover(&folder);
        let node = world.start_swept();
        let failure = volume.call(&node, Verb::Unstage).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{form:?}: {failure}");
        is_bound(&world, &format!("{form:?}"));
        world.machine.uncover(&folder);
        drop(node);
        goes_down(&world, &volume);
    }
}

/// The startup scan of the mount table finds two mounts at the same path.
#[test]
fn a_target_under_the_mount_of_another_volume_keeps_it_staged_after_a_restart() {
    for form in FORMS {
        let world = Simulated::new();
        let (volume, other) = (world.volume("vol", form), world.volume("other", form));
        let node = world.start();
        for volume in [&volume, &other] {
            volume.call(&node, Verb::Stage).unwrap();
        }
        volume.call(&node, Verb::Publish(1)).unwrap();
        let target = volume.target(1);
        world.machine.stack(&other.staging_mount(), &target);
        drop(node);
        let failure = volume.call(&world.start(), Verb::Unstage).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{form:?}: {failure}");
        let kernel = world.kernel();
        let staged = kernel.look(&volume.staging_mount()).unwrap().unwrap();
        assert!(staged.mount_root, "{form:?}: it is staged as before");
        kernel.umount(&target).unwrap();
        let node = world.start();
        for verb in [Verb::Unpublish(1), Verb::Unstage] {
            volume.call(&node, verb).unwrap();
        }
        other.call(&node, Verb::Unstage).unwrap();
    }
}

/// Tries to free the volume's device without a NodeUnstageVolume call: by the sweep, by a
/// NodeStageVolume call that fails because of its mount flags, and by `release`, which unstages a
/// volume that is being deleted.
fn free_unasked(node: &Node<Fake>, volume: &Volume) {
    sweep(node);
    let mut unfit = volume.clone();
    (unfit.form, unfit.flags) = (Form::Ext4, &["remount"]);
    assert!(unfit.call(node, Verb::Stage).is_err());
    // `release` does not unmount a mount that it cannot identify.
    drop(run(node, Operation::Unstage, |cx| {
        release(cx, &volume.volume_id())
    }));
}

#[test]
fn no_failure_and_no_death_at_any_call_of_a_start_or_a_release_frees_it() {
    for form in FORMS {
        for at in 1.. {
            let mut is_over = true;
            for fault in [
                Fault::Fail(at, "EIO"),
                Fault::FailFrom(at, "EBUSY"),
                Fault::Fail(at, "ENOENT"),
                Fault::Die(at),
            ] {
                let world = Simulated::new();
                let (volume, folder) = covered(&world, form);
                unstage_by_hand(&world, &volume);
                want_unstaged(&world, &volume);
                let node = world.start();
                world.machine.begin(Some(fault));
                let freed = catch_unwind(AssertUnwindSafe(|| free_unasked(&node, &volume)));
                is_over &= world.machine.end().len() < at;
                assert!(freed.is_ok() || freed.is_err_and(|payload| payload.is::<Died>()));
                is_bound(&world, &format!("{form:?} {fault:?}"));
                drop(node);
                world.machine.uncover(&folder);
                goes_down(&world, &volume);
            }
            if is_over {
                break;
            }
        }
    }
}
