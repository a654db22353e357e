//! A publish of a volume on a disk that is no longer mounted where it was staged. `matrix` has the
//! failures.

use std::path::Path;

use belay_server::call::{Failure, Kind};

use super::bench::{Form, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use super::suite::all_ok;
use crate::kernel::fake::{Fake, Holds};
use crate::operation::Node;

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

/// A publish is refused with that reason, and changes nothing.
#[track_caller]
fn refused(world: &Simulated, node: &Node<Fake>, volume: &Volume, why: &str) -> Failure {
    let before = world.machine.picture();
    let failure = volume.call(node, Verb::Publish(1)).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert!(failure.message.contains(why), "{failure}");
    let left = world.machine.picture().beyond(&before);
    assert_eq!(left, Vec::<String>::new(), "{failure}");
    failure
}

fn umount(world: &Simulated, path: &Path) {
    world.machine.uncover(path);
}

#[test]
fn a_volume_that_an_operator_unmounted_is_published_with_its_data() {
    for form in FORMS {
        for restart in [false, true] {
            let world = Simulated::of(Media::Disks);
            let volume = world.volume("vol", form);
            let mut node = world.start();
            all_ok(&node, &volume, &[Verb::Stage]);
            let before = world.machine.holds(&volume.file());
            umount(&world, &volume.staging_mount());
            if restart {
                drop(node);
                node = world.start();
            }
            let life = [Verb::Publish(1), Verb::Stats, Verb::Publish(2)];
            all_ok(&node, &volume, &life);
            assert_eq!(world.machine.holds(&volume.file()), before, "{form:?}");
            let down = [Verb::Unpublish(1), Verb::Unpublish(2), Verb::Unstage];
            all_ok(&node, &volume, &down);
            assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
        }
    }
}

/// A pod still has it: its disk must not be mounted a second time for another one.
#[test]
fn a_volume_that_is_still_published_is_not_staged_again() {
    for form in FORMS {
        let world = Simulated::of(Media::Disks);
        let volume = world.volume("vol", form);
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(2)]);
        umount(&world, &volume.staging_mount());
        refused(&world, &node, &volume, "vol-2");
        all_ok(&node, &volume, &[Verb::Unpublish(2), Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
    }
}

#[test]
fn a_publish_never_formats() {
    for content in ["new", "used", "unknown", "populated"] {
        let world = Simulated::of(Media::Disks);
        let mut volume = world.volume("vol", Form::Ext4);
        volume.content = content;
        world.machine.discard(&volume.file());
        let node = world.start();
        refused(&world, &node, &volume, "format");
        let holds = world.machine.holds(&volume.file());
        assert_eq!(holds, Holds::Nothing, "{content}");
        all_ok(&node, &volume, &[Verb::Unstage]);
    }
}

/// The kubelet has unstaged it, and removed the directory; or the pod no longer exists.
#[test]
fn nothing_is_staged_for_a_late_call() {
    for form in FORMS {
        let world = Simulated::of(Media::Disks);
        let node = world.start();
        let mut volume = world.volume("vol", form);
        let plugin = world.base().join("plugins");
        volume.staged_at = Some(plugin.join("globalmount"));
        refused(&world, &node, &volume, "stage it first");
        world.make_dir(&plugin);
        refused(&world, &node, &volume, "stage it first");
        volume.staged_at = None;
        volume.folder = "none/none".to_owned();
        world.make_dir(&volume.staging());
        refused(&world, &node, &volume, "stage it first");
    }
}

/// Its file stays on the node after a detach, and its controller may be copying it.
#[test]
fn a_volume_in_a_file_is_not_staged_by_a_publish() {
    for form in FORMS {
        let world = Simulated::new();
        let volume = world.volume("vol", form);
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage]);
        umount(&world, &volume.staging_mount());
        refused(&world, &node, &volume, "stage it first");
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
    }
}

#[test]
fn a_staged_filesystem_is_not_published_as_a_raw_device() {
    let world = Simulated::of(Media::Disks);
    let volume = world.volume("vol", Form::Ext4);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let raw = Volume {
        form: Form::Block,
        ..volume.clone()
    };
    refused(&world, &node, &raw, "stage it first");
    all_ok(&node, &volume, &[Verb::Publish(1), Verb::Unpublish(1)]);
}
