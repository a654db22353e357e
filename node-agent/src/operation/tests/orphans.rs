//! Tests of target paths of raw volumes that the kubelet no longer knows, because it was killed and
//! the directories of the pods were removed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use belay_server::call::Kind;

use super::bench::{BYTES, Form, Verb, Volume, World, hear, run};
use super::covered::want_unstaged;
use super::kubelet_dir::start_unseen;
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::loop_path;
use crate::kernel::fake::{Call, Fault, Plug};
use crate::kernel::{FileKind, Kernel, MountAttrs, Open};
use crate::operation::{KubeletDir, Node, Thread, release};
use crate::work::Operation;

on_both! {
    the_targets_of_a_pod_that_does_not_exist_do_not_keep_a_raw_volume_staged
    the_target_of_a_pod_that_exists_keeps_a_raw_volume_staged
    a_target_of_a_pod_that_does_not_exist_and_is_open_keeps_a_raw_volume_staged
    a_mount_elsewhere_keeps_a_raw_volume_staged_whatever_pods_there_are
    a_refused_unstage_leaves_a_raw_volume_staged_and_it_can_be_published
}

const PLUGIN: &str = "plugins/kubernetes.io/csi/volumeDevices";

/// Returns the kubelet's two paths for a volume and a pod (`pkg/volume/csi/csi_block.go`): the
/// target path of NodePublishVolume, and the path of the bind mount that the kubelet itself makes.
fn targets<W: World>(world: &W, volume: &Volume, pod: &str) -> [PathBuf; 2] {
    let plugin = world.base().join(PLUGIN);
    let (publish, own) = (
        plugin.join("publish").join(&volume.id),
        plugin.join(&volume.id).join("dev"),
    );
    [publish.join(pod), own.join(pod)]
}

fn publish_at<K: Kernel>(node: &Node<K>, volume: &Volume, target: &Path) {
    let published = volume.publish_at(node, target, Thread::Pool).unwrap();
    assert_eq!(published, Some(()));
}

/// Binds a target to a second path, as the kubelet does.
pub(super) fn bind<K: Kernel>(kernel: &K, from: &Path, onto: &Path) {
    kernel.create_file(onto, 0o600).unwrap();
    bind_onto(kernel, from, onto);
}

fn bind_onto<K: Kernel>(kernel: &K, from: &Path, onto: &Path) {
    let clone = kernel.open_tree(&kernel.open_path(from).unwrap()).unwrap();
    kernel.mount_setattr(&clone, MountAttrs::default()).unwrap();
    let onto = kernel.open_path(onto).unwrap();
    kernel.move_mount(&clone, &onto).unwrap();
}

/// Publishes a volume for the pod as the kubelet does, and returns the volume and the paths at
/// which it is bound.
fn published<W: World>(world: &W, id: &str, pod: &str) -> (Node<W::Kernel>, Volume, [PathBuf; 2]) {
    let volume = world.volume(id, Form::Block);
    let targets = targets(world, &volume, pod);
    for target in &targets {
        world.make_dir(target.parent().unwrap());
    }
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    publish_at(&node, &volume, &targets[0]);
    bind(&node.kernel, &targets[0], &targets[1]);
    (node, volume, targets)
}

fn the_targets_of_a_pod_that_does_not_exist_do_not_keep_a_raw_volume_staged<W: World>(world: &W) {
    for is_restarted in [false, true] {
        let id = format!("vol-{is_restarted}");
        let (mut node, volume, targets) = published(world, &id, "pod-1");
        if is_restarted {
            node = world.start();
        }
        all_ok(&node, &volume, &[Verb::Unstage, Verb::Unstage]);
        for target in targets {
            assert!(node.kernel.look(&target).unwrap().is_none());
        }
        nothing_left(world);
    }
}

fn the_target_of_a_pod_that_exists_keeps_a_raw_volume_staged<W: World>(world: &W) {
    let pod = world.base().join("pods/pod-1");
    let (node, volume, targets) = published(world, "vol", "pod-1");
    world.make_dir(&pod);
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    for target in &targets {
        assert!(node.kernel.look(target).unwrap().unwrap().mount_root);
    }
    node.kernel.rmdir(&pod).unwrap();
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(world);
}

/// The kubelet attaches a loop device to its own bind mount, and detaches this loop device when it
/// unmaps the volume.
fn a_target_of_a_pod_that_does_not_exist_and_is_open_keeps_a_raw_volume_staged<W: World>(
    world: &W,
) {
    let (node, volume, targets) = published(world, "vol", "pod-1");
    let user = node.kernel.open(&targets[1], Open::DeviceRead).unwrap();
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    let path = targets[1].to_str().unwrap();
    assert!(failure.message.contains(path), "{failure}");
    drop(user);
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(world);
}

/// If a path does not match the kubelet's layout, its pod is unknown.
fn a_mount_elsewhere_keeps_a_raw_volume_staged_whatever_pods_there_are<W: World>(world: &W) {
    let (node, volume, targets) = published(world, "vol", "pod-1");
    let elsewhere = world.base().join("volumeDevices/publish/vol/pod-1");
    world.make_dir(elsewhere.parent().unwrap());
    publish_at(&node, &volume, &elsewhere);
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert!(
        failure.message.contains(elsewhere.to_str().unwrap()),
        "{failure}"
    );
    assert!(node.kernel.look(&targets[0]).unwrap().is_none());
    node.kernel.umount(&elsewhere).unwrap();
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(world);
}

fn a_refused_unstage_leaves_a_raw_volume_staged_and_it_can_be_published<W: World>(world: &W) {
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    let staged = volume.staging().join("device");
    let elsewhere = world.base().join("elsewhere");
    all_ok(&node, &volume, &[Verb::Stage]);
    bind(&node.kernel, &staged, &elsewhere);
    for node in [node, world.start()] {
        let failure = volume.call(&node, Verb::Unstage).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        assert!(
            failure.message.contains(elsewhere.to_str().unwrap()),
            "{failure}"
        );
        all_ok(
            &node,
            &volume,
            &[Verb::Stage, Verb::Publish(1), Verb::Unpublish(1)],
        );
    }
    let node = world.start();
    node.kernel.umount(&elsewhere).unwrap();
    all_ok(&node, &volume, &[Verb::Unstage]);
    node.kernel.unlink(&elsewhere).unwrap();
    nothing_left(world);
}

/// The staging path is `volumeDevices/staging/dev/device`, and no pod is called `device`.
#[test]
fn the_staging_path_of_a_volume_called_dev_is_no_target() {
    let world = Simulated::new();
    let folder = world.base().join(PLUGIN).join("staging/dev");
    world.make_dir(&folder);
    world.make_dir(&world.base().join("pods"));
    let directory = KubeletDir::open(&world.kernel(), world.base()).unwrap();
    let is_orphan = |path: &str| {
        let path = world.base().join(PLUGIN).join(path);
        directory.is_orphan(&world.kernel(), &path).unwrap()
    };
    assert!(!is_orphan("staging/dev/device"));
    assert!(is_orphan("publish/dev/pod-1") && is_orphan("dev/dev/pod-1"));
    for other in ["publish/vol/deeper/pod-1", "vol/dev", "vol/other/pod-1"] {
        assert!(!is_orphan(other), "{other}");
    }
    let odd = Path::new(OsStr::from_bytes(b"publish/\xff/vol/pod-1"));
    let odd = world.base().join(PLUGIN).join(odd);
    assert!(!directory.is_orphan(&world.kernel(), &odd).unwrap());
}

/// If the directory that contains the directories of all pods is missing or hidden, the agent
/// cannot know that a pod does not exist.
#[test]
fn no_target_is_an_orphan_where_the_pods_are_not_visible() {
    let world = Simulated::new();
    let (node, volume, targets) = published(&world, "vol", "pod-1");
    let pods = world.base().join("pods");
    node.kernel.rmdir(&pods).unwrap();
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    world.make_dir(&pods);
    world.machine.cover(world.base());
    let failure = volume.call(&node, Verb::Unstage);
    world.machine.uncover(world.base());
    drop(failure);
    assert!(node.kernel.look(&targets[0]).unwrap().unwrap().mount_root);
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(&world);
}

#[test]
fn no_target_is_an_orphan_where_the_kubelet_does_not_see_the_mounts() {
    let world = Simulated::new();
    let (_, volume, targets) = published(&world, "vol", "pod-1");
    let failure = volume.call(&start_unseen(&world), Verb::Unstage);
    assert_eq!(failure.unwrap_err().kind, Kind::Precondition);
    for target in &targets {
        assert!(world.kernel().look(target).unwrap().unwrap().mount_root);
    }
}

/// Removes the file and the staged bind mount of a raw volume. Returns the number of its loop
/// device, which is still bound.
fn left_bound(world: &Simulated, volume: &Volume) -> u32 {
    let kernel = world.kernel();
    let [number] = kernel.loop_bound().unwrap()[..] else {
        panic!("one device is bound");
    };
    let device = volume.staging_mount();
    kernel.umount(&device).unwrap();
    kernel.unlink(&device).unwrap();
    world.remove_file(&volume.file());
    number
}

/// The agent cannot find the device through the volume's file or through a mount.
#[test]
fn a_device_of_a_deleted_file_is_kept_while_another_process_has_claimed_it() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    all_ok(&world.start(), &volume, &[Verb::Stage]);
    let path = loop_path(left_bound(&world, &volume));
    let kernel = world.kernel();
    let claim = kernel.open(&path, Open::DeviceExclusive).unwrap();
    let node = world.start();
    assert!(volume.call(&node, Verb::Unstage).is_err());
    let status = kernel.loop_status(&claim).unwrap().unwrap();
    assert!(!status.mode.autoclear, "the end of its user detaches it");
    drop(claim);
    all_ok(&node, &volume, &[Verb::Unstage]);
    assert!(kernel.loop_bound().unwrap().is_empty());
}

#[test]
fn an_unstage_that_dies_at_any_call_converges() {
    converges_wherever_an_unstage_dies(Media::Files, |_, _| {});
}

/// Applies `happens` to a published volume, and kills the agent at each system call of the
/// following NodeUnstageVolume call.
fn converges_wherever_an_unstage_dies(media: Media, happens: impl Fn(&Simulated, &Volume)) {
    for at in 1.. {
        let world = Simulated::of(media);
        let (node, volume, _) = published(&world, "vol", "pod-1");
        happens(&world, &volume);
        world.machine.begin(Some(Fault::Die(at)));
        let ended = catch_unwind(AssertUnwindSafe(|| volume.call(&node, Verb::Unstage)));
        world.machine.end();
        drop(node);
        all_ok(&world.start(), &volume, &[Verb::Unstage]);
        nothing_left(&world);
        if ended.is_ok() {
            return;
        }
    }
}

/// After a disk is removed, its mounts cannot be found by its device number.
#[test]
fn the_targets_of_a_removed_disk_keep_a_raw_volume_staged_only_while_their_pod_exists() {
    for is_restarted in [false, true] {
        let world = Simulated::of(Media::Disks);
        let (mut node, volume, targets) = published(&world, "vol", "pod-1");
        let (_, other, others) = published(&world, "other", "pod-2");
        let pod = world.base().join("pods/pod-1");
        world.make_dir(&pod);
        world.machine.unplug(&volume.file());
        if is_restarted {
            node = world.start();
        }
        for _ in 0..2 {
            let failure = volume.call(&node, Verb::Unstage).unwrap_err();
            assert_eq!(failure.kind, Kind::Precondition, "{failure}");
            for target in &targets {
                assert!(node.kernel.look(target).unwrap().unwrap().mount_root);
            }
        }
        node.kernel.rmdir(&pod).unwrap();
        all_ok(&node, &volume, &[Verb::Unstage, Verb::Unstage]);
        for target in targets {
            assert!(node.kernel.look(&target).unwrap().is_none());
        }
        // Even bind mounts for a pod that does not exist remain if no call has named their volume.
        for target in others {
            assert!(node.kernel.look(&target).unwrap().unwrap().mount_root);
        }
        all_ok(&node, &other, &[Verb::Unstage]);
        nothing_left(&world);
    }
}

/// After it was killed, a kubelet does not unstage a volume if the next pod uses the same volume.
#[test]
fn a_disk_that_came_back_is_staged_again_once_the_pods_of_the_removed_one_do_not_exist() {
    for is_restarted in [false, true] {
        let world = Simulated::of(Media::Disks);
        let (mut node, volume, targets) = published(&world, "vol", "pod-1");
        let pod = world.base().join("pods/pod-1");
        world.make_dir(&pod);
        world.machine.unplug(&volume.file());
        world.machine.plug(Plug::virtio(&volume.file(), &volume.id));
        if is_restarted {
            node = world.start();
        }
        hear(&node).unwrap();
        let before = world.machine.picture();
        let failure = volume.call(&node, Verb::Stage).unwrap_err();
        assert_eq!(failure.kind, Kind::Incompatible, "{failure}");
        assert_eq!(world.machine.picture(), before);
        node.kernel.rmdir(&pod).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        for target in targets {
            assert!(node.kernel.look(&target).unwrap().is_none());
        }
        all_ok(&node, &volume, &[Verb::Publish(1), Verb::Stats]);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(&world);
    }
}

/// An operator has unmounted the staged device, so only the targets show the removed disk.
#[test]
fn the_targets_of_a_removed_disk_that_is_not_staged_keep_it_only_while_their_pod_exists() {
    // If an agent starts while the disk is removed and the volume is not staged, the agent does not
    // find bind mounts of this disk.
    for (is_back, is_restarted) in [(false, false), (true, false), (true, true)] {
        for verb in [Verb::Unstage, Verb::Stage] {
            if verb == Verb::Stage && !is_back {
                continue;
            }
            let what = format!("{verb:?}, back: {is_back}, restarted: {is_restarted}");
            let world = Simulated::of(Media::Disks);
            let (mut node, volume, targets) = published(&world, "vol", "pod-1");
            let pod = world.base().join("pods/pod-1");
            world.make_dir(&pod);
            world.machine.unplug(&volume.file());
            world.machine.uncover(&volume.staging_mount());
            if is_back {
                world.machine.plug(Plug::virtio(&volume.file(), &volume.id));
            }
            if is_restarted {
                node = world.start();
            }
            hear(&node).unwrap();
            for _ in 0..2 {
                let failure = volume.call(&node, verb).unwrap_err();
                assert_eq!(failure.kind, Kind::Precondition, "{what}: {failure}");
                for target in &targets {
                    assert!(node.kernel.look(target).unwrap().unwrap().mount_root);
                }
            }
            node.kernel.rmdir(&pod).unwrap();
            all_ok(&node, &volume, &[verb, verb]);
            for target in &targets {
                assert!(node.kernel.look(target).unwrap().is_none(), "{what}");
            }
            all_ok(&node, &volume, &[Verb::Unstage]);
            nothing_left(&world);
        }
    }
}

/// The disk is staged again with a different device number before any call names the target.
#[test]
fn the_target_of_an_earlier_attachment_keeps_a_raw_volume_only_while_its_pod_exists() {
    for (is_removed, is_restarted) in [(true, false), (true, true), (false, false), (false, true)] {
        let what = format!("removed: {is_removed}, restarted: {is_restarted}");
        let world = Simulated::of(Media::Disks);
        let (mut node, volume, targets) = published(&world, "vol", "pod-1");
        let before = world.machine.disk_dev(&volume.file());
        let pod = world.base().join("pods/pod-1");
        world.make_dir(&pod);
        world.machine.unplug(&volume.file());
        for unmounted in [&volume.staging_mount(), &targets[0]] {
            world.machine.uncover(unmounted);
            node.kernel.unlink(unmounted).unwrap();
        }
        let (_, next, _) = published(&world, "next", "pod-2");
        world.machine.plug(Plug::virtio(&volume.file(), &volume.id));
        assert_ne!(world.machine.disk_dev(&volume.file()), before);
        hear(&node).unwrap();
        all_ok(&node, &volume, &[Verb::Stage]);
        if is_removed {
            world.machine.unplug(&volume.file());
        }
        if is_restarted {
            node = world.start();
        }
        hear(&node).unwrap();
        let shows = |path: &Path| node.kernel.look(path).unwrap().map(|stat| stat.rdev);
        // The agent finds the kubelet's own bind mount if the disk was removed, or if the agent was
        // restarted.
        if is_removed || is_restarted {
            let failure = volume.call(&node, Verb::Unstage).unwrap_err();
            assert_eq!(failure.kind, Kind::Precondition, "{what}: {failure}");
            assert_eq!(shows(&targets[1]), Some(before), "{what}");
        }
        node.kernel.rmdir(&pod).unwrap();
        all_ok(&node, &volume, &[Verb::Unstage, Verb::Unstage]);
        if is_removed || is_restarted {
            assert_eq!(shows(&targets[1]), None, "{what}");
        }
        // The next disk has the device number of the first disk.
        assert_eq!(shows(&next.staging_mount()), Some(before), "{what}");
    }
}

#[test]
fn an_unstage_of_a_removed_disk_that_dies_at_any_call_converges() {
    let unplug = |world: &Simulated, volume: &Volume| world.machine.unplug(&volume.file());
    converges_wherever_an_unstage_dies(Media::Disks, unplug);
}

/// The mount index does not contain the other process's bind mount. If the device were freed, this
/// bind mount would show the next volume that gets the device number.
#[test]
fn a_device_of_a_deleted_file_is_kept_while_a_bind_of_another_process_shows_it() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let (kernel, elsewhere) = (world.kernel(), world.base().join("elsewhere"));
    bind(&kernel, &volume.staging_mount(), &elsewhere);
    let number = left_bound(&world, &volume);
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    let path = elsewhere.to_str().unwrap();
    assert!(failure.message.contains(path), "{failure}");
    assert_eq!(kernel.loop_bound().unwrap(), [number]);
    kernel.umount(&elsewhere).unwrap();
    all_ok(&node, &volume, &[Verb::Unstage]);
    assert!(kernel.loop_bound().unwrap().is_empty());
}

/// The staged device was unmounted by an operator, or could not be bound again after
/// NodeUnstageVolume was refused.
#[test]
fn the_targets_of_a_volume_that_is_not_staged_keep_its_device_only_while_their_pod_exists() {
    let world = Simulated::new();
    let (node, volume, targets) = published(&world, "vol", "pod-1");
    let pod = world.base().join("pods/pod-1");
    world.make_dir(&pod);
    world.machine.uncover(&volume.staging_mount());
    for _ in 0..2 {
        let failure = volume.call(&node, Verb::Unstage).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        for target in &targets {
            assert!(node.kernel.look(target).unwrap().unwrap().mount_root);
        }
    }
    node.kernel.rmdir(&pod).unwrap();
    all_ok(&node, &volume, &[Verb::Unstage]);
    for target in targets {
        assert!(node.kernel.look(&target).unwrap().is_none());
    }
    nothing_left(&world);
}

/// If `/dev` is read-only, there are no names in `/dev/belay`, so the mount table does not show the
/// volume of the kubelet's own bind mount.
#[test]
fn the_targets_of_a_device_without_a_name_are_found_by_its_number() {
    for media in [Media::Files, Media::Disks] {
        let world = Simulated::of(media);
        world.machine.fix_dev();
        let (node, volume, targets) = published(&world, "vol", "pod-1");
        all_ok(&node, &volume, &[Verb::Unstage]);
        for target in targets {
            assert!(node.kernel.look(&target).unwrap().is_none());
        }
        nothing_left(&world);
    }
}

#[test]
fn a_target_that_the_kernel_does_not_unmount_is_reported_with_its_error() {
    let is_umount = |call: &Call| call.name == "umount2";
    let (world, at) = {
        let world = Simulated::new();
        let (node, volume, _) = published(&world, "vol", "pod-1");
        let at = world.first_call(|| all_ok(&node, &volume, &[Verb::Unstage]), is_umount);
        (Simulated::new(), at)
    };
    let (node, volume, targets) = published(&world, "vol", "pod-1");
    world.machine.begin(Some(Fault::Fail(at, "EPERM")));
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    world.machine.end();
    assert_eq!(failure.kind, Kind::System, "{failure}");
    let is_named = |target: &PathBuf| failure.message.contains(target.to_str().unwrap());
    assert!(targets.iter().any(is_named), "{failure}");
    assert!(failure.message.contains("EPERM"), "{failure}");
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(&world);
}

/// A process wrote to the file at the target path while nothing was bound onto this file.
#[test]
fn a_file_with_content_under_a_target_of_a_pod_that_does_not_exist_stays() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let [_, target] = targets(&world, &volume, "pod-1");
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    world.make_dir(target.parent().unwrap());
    world.make_dir(&world.base().join("pods"));
    world.make_file(&target, 1);
    bind_onto(&node.kernel, &volume.staging_mount(), &target);
    all_ok(&node, &volume, &[Verb::Unstage]);
    let left = node.kernel.look(&target).unwrap().unwrap();
    assert_eq!((left.kind, left.bytes), (FileKind::File, 1));
    nothing_left(&world);
}

/// A device whose file was moved can be found only through the staged bind mount, so that bind
/// mount must not be unmounted before the call is certain to succeed.
#[test]
fn a_refused_unstage_of_a_volume_whose_file_was_moved_unmounts_nothing() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let elsewhere = world.base().join("elsewhere");
    bind(&node.kernel, &volume.staging_mount(), &elsewhere);
    let aside = world.base().join("aside");
    world.make_dir(&aside);
    world.move_file(&volume.file(), &aside.join(&volume.id));
    world.machine.begin(None);
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    let calls = world.machine.end();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    let path = elsewhere.to_str().unwrap();
    assert!(failure.message.contains(path), "{failure}");
    assert!(!calls.iter().any(|call| call.name == "umount2"));
    node.kernel.umount(&elsewhere).unwrap();
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(&world);
}

/// After it was killed, the kubelet does not know the pod and the volume, so no call names the
/// volume.
#[test]
fn a_pending_deletion_unmounts_the_targets_of_a_pod_that_does_not_exist() {
    let world = Simulated::new();
    let volume = world.volume_of_kubelet("vol", Form::Block);
    let targets = targets(&world, &volume, "pod-1");
    for target in &targets {
        world.make_dir(target.parent().unwrap());
    }
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    publish_at(&node, &volume, &targets[0]);
    bind(&node.kernel, &targets[0], &targets[1]);
    want_unstaged(&world, &volume);
    let pod = world.base().join("pods/pod-1");
    world.make_dir(&pod);
    let release = || {
        run(&node, Operation::Unstage, |cx| {
            release(cx, &volume.volume_id())
        })
    };
    release().unwrap();
    for target in &targets {
        assert!(node.kernel.look(target).unwrap().unwrap().mount_root);
    }
    node.kernel.rmdir(&pod).unwrap();
    release().unwrap();
    for target in targets {
        assert!(node.kernel.look(&target).unwrap().is_none());
    }
    nothing_left(&world);
}

/// A mount in a different mount namespace or the mkfs of an earlier agent may have the device open
/// exclusively.
#[test]
fn a_pending_deletion_leaves_the_device_of_a_replaced_file_while_it_is_claimed() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let path = loop_path(left_bound(&world, &volume));
    world.make_file(&volume.file(), BYTES);
    want_unstaged(&world, &volume);
    let release = || {
        run(&node, Operation::Unstage, |cx| {
            release(cx, &volume.volume_id())
        })
    };
    let kernel = world.kernel();
    let claim = kernel.open(&path, Open::DeviceExclusive).unwrap();
    let failure = release().unwrap_err();
    assert_eq!(failure.kind, Kind::Busy, "{failure}");
    let status = kernel.loop_status(&claim).unwrap().unwrap();
    assert!(!status.mode.autoclear, "the end of its user detaches it");
    drop(claim);
    release().unwrap();
    assert!(kernel.loop_bound().unwrap().is_empty());
}
