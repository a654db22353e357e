//! Tests of target paths that a different driver has mounted before this driver replaced it. These
//! targets are bind mounts that were made with mount(2), so they are in the peer group of the
//! staged mount, like mirrors.

use std::path::{Path, PathBuf};

use belay_server::call::{Failure, Kind};
use belay_server::request::AccessMode;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::kernel::fake::Fake;
use crate::kernel::{Kernel, MountAttrs};
use crate::operation::Node;

const FILESYSTEMS: [Form; 3] = [Form::Ext4, Form::Xfs, Form::Btrfs];

/// Returns a volume that the replaced driver has staged and has published at the first target.
fn replaced(world: &Simulated, form: Form) -> (Node<Fake>, Volume) {
    let mut volume = world.volume("vol", form);
    all_ok(&world.start(), &volume, &[Verb::Stage]);
    bind(&world.kernel(), &volume.staging(), &volume.target(1));
    volume.mode = AccessMode::SingleNodeSingleWriter;
    (world.start(), volume)
}

fn bind(kernel: &Fake, from: &Path, onto: &Path) {
    kernel.mkdir(onto, 0o700).unwrap();
    let bound = kernel.open_tree(&kernel.open_path(from).unwrap()).unwrap();
    let onto = kernel.open_path(onto).unwrap();
    kernel.move_mount(&bound, &onto).unwrap();
}

/// Mounts something over the path. If the path is the target, this mount is also propagated to the
/// staging path.
fn cover(kernel: &Fake, path: &Path) {
    let root = kernel.open_path(Path::new("/dev")).unwrap();
    let mount = kernel.open_tree(&root).unwrap();
    kernel.mount_setattr(&mount, MountAttrs::default()).unwrap();
    let onto = kernel.open_path(path).unwrap();
    kernel.move_mount(&mount, &onto).unwrap();
}

#[track_caller]
fn refused(result: Result<(), Failure>, path: &Path) {
    let failure = result.unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    let path: PathBuf = path.into();
    assert!(
        failure.message.contains(path.to_str().unwrap()),
        "{failure}"
    );
}

#[test]
fn a_target_of_a_replaced_driver_keeps_the_volume_from_a_second_pod_and_its_staging() {
    for media in [Media::Files, Media::Disks] {
        for form in FILESYSTEMS {
            let world = Simulated::of(media);
            let (node, volume) = replaced(&world, form);
            for _ in 0..2 {
                refused(volume.call(&node, Verb::Publish(2)), &volume.target(1));
                refused(volume.call(&node, Verb::Unstage), &volume.target(1));
                let staged = node.kernel.look(&volume.staging()).unwrap().unwrap();
                assert!(staged.mount_root, "{media:?} {form:?}");
            }
            all_ok(
                &node,
                &volume,
                &[
                    Verb::Unpublish(1),
                    Verb::Publish(2),
                    Verb::Unpublish(2),
                    Verb::Unstage,
                ],
            );
            nothing_left(&world);
        }
    }
}

#[test]
fn so_does_one_under_another_mount() {
    for form in FILESYSTEMS {
        let world = Simulated::new();
        let (node, volume) = replaced(&world, form);
        let pods = volume.target(1).parent().unwrap().to_owned();
        cover(&node.kernel, &pods);
        for _ in 0..2 {
            refused(volume.call(&node, Verb::Unstage), &volume.target(1));
            let staged = node.kernel.look(&volume.staging()).unwrap().unwrap();
            assert!(staged.mount_root, "{form:?}");
        }
        world.machine.uncover(&pods);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(&world);
    }
}
