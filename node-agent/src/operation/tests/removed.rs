//! Volumes whose disk was removed while they were staged: what is unmounted without a call, and
//! what is not. `matrix` has the failures.

use std::path::Path;

use belay_contract::drivers::OPENSTACK;

use super::bench::{Form, Verb, Volume, World, hear, run, start_with};
use super::kubelet_dir::start_unseen_with;
use super::simulated::{DISK_DRIVER, Media, Simulated, disks_of};
use super::suite::all_ok;
use crate::device::DiskRules;
use crate::kernel::Kernel as _;
use crate::kernel::fake::{Fake, Fault, Plug, Trouble};
use crate::operation::{self, Cleared, Node};
use crate::work::Operation;

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

fn world() -> Simulated {
    Simulated::of(Media::Disks)
}

/// A staged volume whose disk was removed.
fn unplugged(world: &Simulated, node: &Node<Fake>, form: Form) -> Volume {
    let volume = world.volume_of_kubelet("vol", form);
    hear(node).unwrap();
    all_ok(node, &volume, &[Verb::Stage]);
    world.machine.unplug(&volume.file());
    volume
}

fn is_mounted(world: &Simulated, path: &Path) -> bool {
    let line = format!("mount {}:", path.display());
    !world.machine.picture().beginning_with(&[&line]).is_empty()
}

const UNMOUNTED: Cleared = Cleared::Unmounted { was_last: true };

/// Its mount stays, and the ordinary calls take the volume down.
#[track_caller]
fn stays(world: &Simulated, node: &Node<Fake>, volume: &Volume, why: &str) {
    assert_eq!(volume.clear(node).unwrap(), Cleared::Nothing, "{why}");
    assert!(is_mounted(world, &volume.staging_mount()), "{why}");
    all_ok(node, volume, &[Verb::Unstage]);
    assert_eq!(world.left(), Vec::<String>::new(), "{why}");
}

#[test]
fn a_volume_without_a_pod_is_unmounted_and_its_kubelet_goes_on_as_it_likes() {
    for form in FORMS {
        for (next, shuts_down) in [
            (Verb::Unstage, false),
            (Verb::Stage, false),
            (Verb::Stage, true),
        ] {
            let world = world();
            let node = world.start();
            let volume = unplugged(&world, &node, form);
            let path = volume.staging_mount();
            if shuts_down && form == Form::Xfs {
                world.machine.trouble(&path, Trouble::ShutDown);
            }
            assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
            assert!(!is_mounted(&world, &volume.staging_mount()), "{form:?}");
            assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing);
            if next == Verb::Stage {
                world.machine.plug(Plug::virtio(&volume.file(), "vol"));
                hear(&node).unwrap();
                all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
                assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing);
                all_ok(&node, &volume, &[Verb::Unpublish(1)]);
            }
            all_ok(&node, &volume, &[Verb::Unstage]);
            assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
        }
    }
}

#[test]
fn a_volume_is_not_unmounted_while_a_pod_has_it() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = world.volume_of_kubelet("vol", form);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        world.machine.unplug(&volume.file());
        let used = Cleared::Used(volume.target(1));
        assert_eq!(volume.clear(&node).unwrap(), used);
        assert!(is_mounted(&world, &volume.staging_mount()), "{form:?}");
        all_ok(&node, &volume, &[Verb::Unpublish(1)]);
        assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// The bind of a raw device does not keep its number.
#[test]
fn a_disk_that_got_the_number_stays_with_its_own_volume() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = unplugged(&world, &node, form);
        let next = world.volume_of_kubelet("next", form);
        hear(&node).unwrap();
        all_ok(&node, &next, &[Verb::Stage, Verb::Publish(1)]);
        assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
        assert_eq!(next.clear(&node).unwrap(), Cleared::Nothing);
        all_ok(&node, &next, &[Verb::Stats, Verb::Unpublish(1)]);
        assert_eq!(next.clear(&node).unwrap(), Cleared::Nothing);
        assert!(is_mounted(&world, &next.staging_mount()), "{form:?}");
        for volume in [&volume, &next] {
            all_ok(&node, volume, &[Verb::Unstage]);
        }
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

#[test]
fn a_volume_whose_disk_is_there_is_never_unmounted() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = world.volume_of_kubelet("vol", form);
        let other = world.volume("other", Form::Ext4);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        world.machine.unplug(&other.file());
        hear(&node).unwrap();
        stays(&world, &node, &volume, "another disk was removed");
    }
}

#[test]
fn only_what_is_staged_in_the_kubelets_layout_is_unmounted() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = world.volume("vol", form);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        world.machine.unplug(&volume.file());
        stays(&world, &node, &volume, "another layout");
    }
}

/// A pod's mount may be hidden.
#[test]
fn nothing_is_unmounted_where_not_all_mounts_are_seen() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = unplugged(&world, &node, form);
        world.machine.cover(world.base());
        assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing, "{form:?}");
        world.machine.uncover(world.base());
        assert!(is_mounted(&world, &volume.staging_mount()), "{form:?}");
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

#[test]
fn a_mount_that_covers_the_volumes_is_left_alone() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = unplugged(&world, &node, form);
        let folder = volume.staging();
        let above = folder.parent().unwrap();
        world.machine.cover(above);
        assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing, "{form:?}");
        world.machine.uncover(above);
        assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// The kernel's record of a raw device's bind names the volume.
#[test]
fn after_a_restart_a_raw_volume_is_known() {
    for form in FORMS {
        let world = world();
        let volume = world.volume_of_kubelet("vol", form);
        all_ok(&world.start(), &volume, &[Verb::Stage]);
        let node = world.start();
        world.machine.unplug(&volume.file());
        if form != Form::Block {
            stays(&world, &node, &volume, "no call has named the volume");
            continue;
        }
        assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// Its unstage is refused, names the target and changes nothing.
#[track_caller]
fn stays_published(world: &Simulated, node: &Node<Fake>, volume: &Volume) {
    let before = world.machine.picture();
    let refused = volume.call(node, Verb::Unstage).unwrap_err().to_string();
    let target = volume.target(1).display().to_string();
    assert!(refused.contains(&target), "{:?}: {refused}", volume.form);
    assert_eq!(world.machine.picture(), before, "{:?}", volume.form);
}

/// Whether its target was bound by this agent or an earlier one, and whatever has the number of the
/// disk by now.
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
            stays_published(&world, &node, &volume);
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

/// The number of a removed disk is nowhere to be read if a btrfs is on it.
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
            // Of a raw volume the disk is sought first.
            let why = ["was removed while it is staged", "is not on this node"];
            assert!(
                why.iter().any(|why| refused.contains(why)),
                "{what}: {refused}"
            );
        }
        stays_published(&world, &node, &volume);
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

/// A driver whose volumes are files has no disks.
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

#[test]
fn a_volume_of_another_driver_is_left_to_that_one() {
    let world = world();
    let other = world.start_disks("other.csi.example");
    let volume = unplugged(&world, &other, Form::Block);
    let node = world.start_disks(DISK_DRIVER);
    assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing);
    assert_eq!(volume.clear(&other).unwrap(), UNMOUNTED);
    all_ok(&other, &volume, &[Verb::Unstage]);
}

/// Before Linux 6.8 mounts have no unique ids.
#[test]
fn a_mount_without_an_id_is_known_by_its_device() {
    for (form, is_cleared) in FORMS.iter().flat_map(|it| [(*it, true), (*it, false)]) {
        let world = world();
        world.machine.number_no_mounts();
        let transport = disks_of(DISK_DRIVER, &OPENSTACK, DiskRules::default());
        let node = start_with(world.kernel(), transport, world.base());
        let volume = unplugged(&world, &node, form);
        if is_cleared {
            assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
        }
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// The index has its mount until the agent looks for it.
#[test]
fn a_mount_that_an_operator_has_unmounted_is_forgotten() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = unplugged(&world, &node, form);
        world.machine.uncover(&volume.staging_mount());
        assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing);
        assert!(operation::removed(&node).mounts.is_empty(), "{form:?}");
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// Such a bind is a peer of the staged mount, as a mirror of it is.
#[test]
fn a_volume_that_an_operator_has_bound_elsewhere_stays() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = world.volume_of_kubelet("vol", form);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        let kernel = world.kernel();
        let elsewhere = match form {
            Form::Block => world.base().join("device"),
            _ => world.base().join("folder"),
        };
        match form {
            Form::Block => world.make_file(&elsewhere, 0),
            _ => world.make_dir(&elsewhere),
        }
        let staged = kernel.open_path(&volume.staging_mount()).unwrap();
        let bound = kernel.open_tree(&staged).unwrap();
        let onto = kernel.open_path(&elsewhere).unwrap();
        kernel.move_mount(&bound, &onto).unwrap();
        drop((staged, bound, onto));
        world.machine.unplug(&volume.file());
        let used = Cleared::Used(elsewhere.clone());
        assert_eq!(volume.clear(&node).unwrap(), used, "{form:?}");
        assert!(is_mounted(&world, &volume.staging_mount()), "{form:?}");
        world.machine.uncover(&elsewhere);
        assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED, "{form:?}");
    }
}

#[test]
fn only_volumes_whose_disk_was_removed_are_found() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volumes = ["gone", "there"].map(|id| world.volume_of_kubelet(id, form));
        hear(&node).unwrap();
        for volume in &volumes {
            all_ok(&node, volume, &[Verb::Stage]);
        }
        assert_eq!(operation::removed(&node).mounts, [], "{form:?}");
        let [gone, _] = volumes;
        world.machine.unplug(&gone.file());
        let found = [(gone.volume_id(), gone.staging_mount())];
        assert_eq!(operation::removed(&node).mounts, found, "{form:?}");
    }
}

/// One that cannot be checked does not hide the others.
#[test]
fn each_removed_disk_is_found() {
    let world = world();
    let node = world.start();
    let volumes = ["one", "two", "three"].map(|id| world.volume_of_kubelet(id, Form::Block));
    hear(&node).unwrap();
    for volume in &volumes {
        all_ok(&node, volume, &[Verb::Stage]);
        world.machine.unplug(&volume.file());
    }
    world.machine.begin(None);
    assert_eq!(operation::removed(&node).mounts.len(), 3);
    let calls_made = world.machine.end().len();
    for at in 1..=calls_made {
        world.machine.begin(Some(Fault::Fail(at, "EIO")));
        let removed = operation::removed(&node);
        world.machine.end();
        assert!(removed.mounts.len() >= 2, "{at}: {removed:?}");
        let is_whole = removed.mounts.len() == 3;
        assert_eq!(removed.unchecked.is_none(), is_whole, "{at}: {removed:?}");
    }
}

/// The kubelet's directory, or a PersistentVolume, has another name by now.
#[test]
fn a_volume_that_is_staged_elsewhere_by_now_is_not_forgotten() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let world = world();
        let node = world.start();
        let volume = unplugged(&world, &node, form);
        let mut renamed = volume.clone();
        renamed.staged_at = world.volume_of_kubelet("renamed", form).staged_at;
        world.machine.plug(Plug::virtio(&volume.file(), "vol"));
        hear(&node).unwrap();
        all_ok(&node, &renamed, &[Verb::Stage, Verb::Publish(1)]);
        let cleared = Cleared::Unmounted { was_last: false };
        assert_eq!(volume.clear(&node).unwrap(), cleared, "{form:?}");
        assert_eq!(volume.clear(&node).unwrap(), Cleared::Nothing);
        all_ok(
            &node,
            &renamed,
            &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
        );
        assert!(!is_mounted(&world, &renamed.staging_mount()), "{form:?}");
    }
}

fn clear_at(node: &Node<Fake>, volume: &Volume) -> Cleared {
    let (id, path) = (volume.volume_id(), volume.staging_mount());
    run(node, Operation::Unstage, |cx| {
        operation::clear(cx, &id, &path)
    })
    .unwrap()
}

/// Its disk came back, and it was staged again, since it was found removed.
#[test]
fn a_volume_whose_disk_is_there_by_now_is_not_unmounted() {
    for form in FORMS {
        let world = world();
        let node = world.start();
        let volume = world.volume_of_kubelet("vol", form);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        assert_eq!(clear_at(&node, &volume), Cleared::Nothing, "{form:?}");
        assert!(is_mounted(&world, &volume.staging_mount()), "{form:?}");
        all_ok(&node, &volume, &[Verb::Publish(1), Verb::Stats]);
    }
}

/// A pod's mount may be hidden there.
#[test]
fn nothing_is_unmounted_where_the_kubelet_does_not_see_the_mounts() {
    let world = world();
    let volume = unplugged(&world, &world.start(), Form::Block);
    let transport = disks_of(DISK_DRIVER, &OPENSTACK, DiskRules::default());
    let node = start_unseen_with(&world, world.kernel(), transport);
    hear(&node).unwrap();
    assert_eq!(clear_at(&node, &volume), Cleared::Nothing);
    assert!(is_mounted(&world, &volume.staging_mount()));
    assert_eq!(clear_at(&world.start(), &volume), UNMOUNTED);
}

/// Where `/dev` takes no names, the agent knows it by what it has noted.
#[test]
fn a_raw_volume_without_a_name_is_unmounted() {
    let world = world();
    world.machine.fix_dev();
    let node = world.start();
    let volume = unplugged(&world, &node, Form::Block);
    assert_eq!(volume.clear(&node).unwrap(), UNMOUNTED);
    all_ok(&node, &volume, &[Verb::Unstage]);
    assert_eq!(world.left(), Vec::<String>::new());
}
