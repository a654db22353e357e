//! Tests of volumes whose disk was removed while they were staged. The next NodeStageVolume call
//! first unmounts such a volume, unless a pod uses the volume. The module `matrix` tests failures
//! during this call.

use std::path::Path;

use belay_contract::drivers::OPENSTACK;
use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World, hear, run, start_with};
use super::kubelet_dir::start_unseen_with;
use super::simulated::{DISK_DRIVER, Media, Simulated, disks_of};
use super::suite::all_ok;
use crate::device::DiskRules;
use crate::kernel::fake::{Call, Fake, Fault, Plug, Trouble};
use crate::operation::{self, Node};
use crate::work::Operation;

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

fn world() -> Simulated {
    Simulated::of(Media::Disks)
}

/// Makes these calls for a volume, removes its disk, and returns the volume.
fn unplugged(world: &Simulated, node: &Node<Fake>, form: Form, calls: &[Verb]) -> Volume {
    let volume = world.volume_of_kubelet("vol", form);
    hear(node).unwrap();
    all_ok(node, &volume, calls);
    world.machine.unplug(&volume.file());
    volume
}

fn comes_back(world: &Simulated, node: &Node<Fake>, volume: &Volume) {
    world.machine.plug(Plug::virtio(&volume.file(), &volume.id));
    hear(node).unwrap();
}

fn is_mounted(world: &Simulated, path: &Path) -> bool {
    let line = format!("mount {}:", path.display());
    !world.machine.picture().beginning_with(&[&line]).is_empty()
}

/// Checks that the call fails with an error that names the path, and changes nothing.
#[track_caller]
fn refused(world: &Simulated, node: &Node<Fake>, volume: &Volume, verb: Verb, path: &Path) {
    let before = world.machine.picture();
    let refused = volume.call(node, verb).unwrap_err().to_string();
    let path = path.display().to_string();
    assert!(refused.contains(&path), "{:?}: {refused}", volume.form);
    assert_eq!(world.machine.picture(), before, "{:?}", volume.form);
}

#[track_caller]
fn lives_and_leaves_nothing(world: &Simulated, node: &Node<Fake>, volume: &Volume) {
    let life = [
        Verb::Stage,
        Verb::Publish(1),
        Verb::Stats,
        Verb::Unpublish(1),
        Verb::Unstage,
    ];
    all_ok(node, volume, &life);
    assert_eq!(world.left(), Vec::<String>::new(), "{:?}", volume.form);
}

/// The kubelet was killed and no longer knows the volume, so the disk was detached without
/// NodeUnstageVolume.
#[test]
fn a_volume_without_a_pod_is_staged_again_once_its_disk_is_back() {
    for form in FORMS {
        for (is_restarted, shuts_down) in [(false, false), (true, false), (false, true)] {
            let world = world();
            let mut node = world.start();
            let volume = unplugged(&world, &node, form, &[Verb::Stage]);
            let path = volume.staging_mount();
            if shuts_down && form == Form::Xfs {
                world.machine.trouble(&path, Trouble::ShutDown);
            }
            if is_restarted {
                node = world.start();
            }
            let missing = volume.call(&node, Verb::Stage).unwrap_err();
            assert_eq!(missing.kind, Kind::Unreachable, "{form:?}: {missing}");
            let is_kept = form == Form::Block;
            assert_eq!(is_mounted(&world, &path), is_kept, "{form:?}");
            comes_back(&world, &node, &volume);
            lives_and_leaves_nothing(&world, &node, &volume);
        }
    }
}

#[test]
fn a_volume_is_not_staged_again_while_a_pod_has_its_removed_disk() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let calls = [Verb::Stage, Verb::Publish(1)];
        let volume = unplugged(&world, &node, form, &calls);
        comes_back(&world, &node, &volume);
        refused(&world, &node, &volume, Verb::Stage, &volume.target(1));
        all_ok(&node, &volume, &[Verb::Unpublish(1)]);
        lives_and_leaves_nothing(&world, &node, &volume);
    }
}

/// A bind mount of a raw device does not prevent the reuse of its device number.
#[test]
fn a_disk_that_got_the_number_stays_with_its_own_volume() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = unplugged(&world, &node, form, &[Verb::Stage]);
        let next = world.volume_of_kubelet("next", form);
        hear(&node).unwrap();
        all_ok(&node, &next, &[Verb::Stage, Verb::Publish(1)]);
        let missing = volume.call(&node, Verb::Stage).unwrap_err();
        assert_eq!(missing.kind, Kind::Unreachable, "{form:?}: {missing}");
        assert!(is_mounted(&world, &next.staging_mount()), "{form:?}");
        all_ok(
            &node,
            &next,
            &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
        );
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// Before Linux 6.8, mounts have no unique IDs.
#[test]
fn a_mount_without_an_id_is_known_by_its_device() {
    for (form, is_back) in FORMS.iter().flat_map(|it| [(*it, true), (*it, false)]) {
        let world = world();
        world.machine.number_no_mounts();
        let transport = disks_of(DISK_DRIVER, &OPENSTACK, DiskRules::default());
        let node = start_with(world.kernel(), transport, world.base());
        let volume = unplugged(&world, &node, form, &[Verb::Stage]);
        if is_back {
            comes_back(&world, &node, &volume);
            all_ok(&node, &volume, &[Verb::Stage]);
        }
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// If `/dev` is read-only, the agent recognizes the volume only by the mount index.
#[test]
fn a_raw_volume_without_a_name_is_staged_again() {
    let world = world();
    world.machine.fix_dev();
    let node = world.start();
    let volume = unplugged(&world, &node, Form::Block, &[Verb::Stage]);
    comes_back(&world, &node, &volume);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    assert_eq!(world.left(), Vec::<String>::new());
}

fn unmount_if_removed(world: &Simulated, node: &Node<Fake>, volume: &Volume) {
    let removed = operation::removed(node).unwrap();
    let [unstage] = &removed[..] else {
        panic!("{:?}: {removed:?}", volume.form);
    };
    assert_eq!(unstage.id, volume.volume_id());
    run(node, Operation::Unstage, |cx| {
        operation::unmount_if_removed(cx, unstage)
    })
    .unwrap();
    let path = volume.staging_mount();
    assert!(!is_mounted(world, &path), "{:?}", volume.form);
}

/// The name of the disk in `/dev/belay` identifies the volume.
#[test]
fn after_a_restart_a_filesystem_whose_disk_is_removed_is_known() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        for is_restarted in [false, true] {
            let world = world();
            let mut node = world.start();
            let volume = world.volume_of_kubelet("vol", form);
            hear(&node).unwrap();
            all_ok(&node, &volume, &[Verb::Stage]);
            if is_restarted {
                node = world.start();
            }
            assert!(operation::removed(&node).unwrap().is_empty());
            world.machine.unplug(&volume.file());
            unmount_if_removed(&world, &node, &volume);
            comes_back(&world, &node, &volume);
            lives_and_leaves_nothing(&world, &node, &volume);
        }
    }
}

/// An offline disk cannot be opened, but may return with the same device number and its data.
#[test]
fn a_filesystem_whose_disk_cannot_be_opened_is_not_unmounted() {
    for form in [Form::Ext4, Form::Xfs] {
        let world = world();
        let node = world.start();
        let volume = world.volume_of_kubelet("vol", form);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        let stage = || all_ok(&node, &volume, &[Verb::Stage]);
        let is_open =
            |call: &Call| call.name.starts_with("open") && call.object.starts_with("/dev/v");
        let at = world.first_call(stage, is_open);
        let before = world.machine.picture();
        world.machine.begin(Some(Fault::Fail(at, "ENODEV")));
        let refused = volume.call(&node, Verb::Stage).unwrap_err();
        world.machine.end();
        assert!(refused.to_string().contains("was removed"), "{refused}");
        assert_eq!(world.machine.picture(), before, "{form:?}");
        assert!(operation::removed(&node).unwrap().is_empty());
        lives_and_leaves_nothing(&world, &node, &volume);
    }
}

/// If mounts of pods may be hidden, the agent must not unmount anything.
#[test]
fn nothing_is_unmounted_where_not_all_mounts_are_seen() {
    let world = world();
    let node = world.start();
    let volume = unplugged(&world, &node, Form::Ext4, &[Verb::Stage]);
    let removed = operation::removed(&node).unwrap();
    let transport = disks_of(DISK_DRIVER, &OPENSTACK, DiskRules::default());
    let unseen = start_unseen_with(&world, world.kernel(), transport);
    let refused = run(&unseen, Operation::Unstage, |cx| {
        operation::unmount_if_removed(cx, &removed[0])
    });
    assert_eq!(refused.unwrap_err().kind, Kind::Precondition);
    assert!(is_mounted(&world, &volume.staging_mount()));
    unmount_if_removed(&world, &node, &volume);
}

/// Tested with a target that this agent or an earlier agent has bound, and with different volumes
/// that have the disk's number by now.
#[test]
fn a_volume_on_a_removed_disk_is_not_unstaged_while_a_pod_has_it() {
    for (form, is_restarted) in FORMS.iter().flat_map(|it| [(*it, true), (*it, false)]) {
        for takes_number in [None, Some(Form::Block), Some(Form::Ext4)] {
            let world = world();
            let mut node = world.start();
            let volume = world.volume_of_kubelet("vol", form);
            hear(&node).unwrap();
            all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
            world.machine.unplug(&volume.file());
            let next = takes_number.map(|form| world.volume_of_kubelet("next", form));
            if is_restarted {
                node = world.start();
            }
            hear(&node).unwrap();
            if let Some(next) = &next {
                all_ok(&node, next, &[Verb::Stage, Verb::Publish(1)]);
            }
            refused(&world, &node, &volume, Verb::Unstage, &volume.target(1));
            all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
            assert!(!is_mounted(&world, &volume.staging_mount()), "{form:?}");
            if let Some(next) = &next {
                assert!(is_mounted(&world, &next.target(1)), "{form:?}");
                all_ok(
                    &node,
                    next,
                    &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
                );
            }
            assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
        }
    }
}

/// For a btrfs on a removed disk, the kernel does not report the device number.
#[test]
fn after_a_restart_a_volume_on_a_removed_disk_is_taken_down_by_its_kubelet() {
    for (form, is_removed_first) in FORMS.iter().flat_map(|it| [(*it, true), (*it, false)]) {
        let world = world();
        let volume = world.volume_of_kubelet("vol", form);
        let other = world.volume_of_kubelet("other", form);
        let before = world.start();
        all_ok(&before, &volume, &[Verb::Stage, Verb::Publish(1)]);
        all_ok(&before, &other, &[Verb::Stage, Verb::Publish(1)]);
        if is_removed_first {
            world.machine.unplug(&volume.file());
        }
        let node = world.start();
        if !is_removed_first {
            world.machine.unplug(&volume.file());
        }
        let what = format!("{form:?}, {is_removed_first}");
        for verb in [Verb::Stage, Verb::Publish(2)] {
            let refused = volume.call(&node, verb).unwrap_err().to_string();
            // NodeStageVolume for a raw volume first searches for the disk.
            let why = [
                "still published at",
                "was removed while it is staged",
                "is not on this node",
            ];
            assert!(
                why.iter().any(|why| refused.contains(why)),
                "{what}: {refused}"
            );
        }
        refused(&world, &node, &volume, Verb::Unstage, &volume.target(1));
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        assert!(!is_mounted(&world, &volume.staging_mount()), "{what}");
        all_ok(
            &node,
            &other,
            &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
        );
        assert_eq!(world.left(), Vec::<String>::new(), "{what}");
    }
}

/// If the driver's volumes are files, a disk cannot be a volume of this driver.
#[test]
fn a_btrfs_on_a_removed_disk_is_foreign_to_a_driver_with_files() {
    let world = world();
    let volume = world.volume_of_kubelet("vol", Form::Btrfs);
    all_ok(&world.start(), &volume, &[Verb::Stage]);
    world.machine.unplug(&volume.file());
    let files = world.start_driver(super::bench::DRIVER, &world.volumes());
    let refused = volume.call(&files, Verb::Unstage).unwrap_err();
    assert!(
        refused.to_string().contains("is not that of volume"),
        "{refused}"
    );
    assert!(is_mounted(&world, &volume.staging_mount()));
}
