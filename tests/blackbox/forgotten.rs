//! A volume that a kubelet forgets because it is killed between the unpublish of the last target
//! and the unstage: the volume is unstaged nevertheless if its deletion was refused, and only then.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use belay_contract::drivers::local::{CLAIM, Claim};
use belay_proto::csi::v1 as csi;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountPropagationFlags, UnmountFlags, unmount};
use tonic::Code;

use crate::kubelet_dir::Mount;
use crate::lifecycle::{expect_words, leave_words};
use crate::replaced::{Restore, restore};
use crate::rig::orders::{create, delete};
use crate::rig::{
    Answer, Controller, Launch, Rig, TestDir, Volume, access, mounts_of, refused, retried, until,
};

const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "block"];

/// Both programs, and a kubelet's directory.
pub(crate) struct Bed {
    mount: Mount,
    controller: Controller,
    pub(crate) rig: Rig,
    kubelet: PathBuf,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let test_dir = TestDir::new();
        let kubelet = test_dir.directory("kubelet");
        let mount = Mount::of(&test_dir, MountPropagationFlags::SHARED);
        let controller = Controller::start(&test_dir);
        let volumes = test_dir.path().join("state/volumes");
        let flags = vec![format!("--kubelet-dir={}", kubelet.display())];
        let command = Vec::new();
        let rig = Rig::launched(test_dir, volumes, Launch { command, flags });
        Bed {
            mount,
            controller,
            rig,
            kubelet,
        }
    }

    /// Returns a new volume, with the kubelet's paths.
    pub(crate) fn volume(&self, kind: &str) -> Volume {
        let calls = self.controller.calls();
        let order = create(&format!("of-{kind}"), kind);
        let made = calls.create(order).expect("create").volume;
        let id = made.expect("a volume").volume_id;
        let mut volume = Volume::made(&self.kubelet, self.rig.volumes(), id);
        volume.staging = self.staging(&volume, kind);
        fs::create_dir_all(&volume.staging).expect("mkdir");
        volume
    }

    fn staging(&self, volume: &Volume, kind: &str) -> PathBuf {
        let plugin = self.kubelet.join("plugins/kubernetes.io/csi");
        match kind {
            "block" => plugin.join("volumeDevices/staging").join(&volume.id),
            _ => plugin
                .join("local.csi.belay.dev")
                .join(&volume.id)
                .join("globalmount"),
        }
    }

    /// Asks the controller to delete the volume. A refusal takes seconds, and claims the file.
    fn delete(&self, volume: &Volume) -> Answer<csi::DeleteVolumeResponse> {
        self.controller.calls().delete(delete(&volume.id))
    }

    /// Repeats the deletion like the provisioner. The agent may still be unstaging the volume.
    #[track_caller]
    fn is_deleted_in_the_end(&self, volume: &Volume) {
        until("the volume is deleted", || match self.delete(volume) {
            Ok(_) => true,
            again => {
                refused(again, Code::FailedPrecondition);
                false
            }
        });
        assert!(!is_staged(volume));
    }

    /// Waits until the agent has unstaged a claimed volume. An agent that has just started may not
    /// watch the directory yet, so this repeats the claim like the provisioner its call.
    #[track_caller]
    pub(crate) fn is_unstaged_in_the_end(&self, volume: &Volume) {
        until("the volume is unstaged", || {
            volume.claim_to_delete();
            !is_staged(volume) && !self.is_bound(volume)
        });
    }

    /// Waits until the agent has found a claimed volume still mounted.
    #[track_caller]
    pub(crate) fn is_found_mounted(&self, volume: &Volume) {
        until("the agent has found it mounted", || {
            volume.claim_to_delete();
            pending(self).is_some_and(|said| said.contains(&volume.id))
        });
    }

    fn is_bound(&self, volume: &Volume) -> bool {
        let bound = self.rig.test_dir().loops();
        bound.iter().any(|it| it.file == volume.file)
    }

    pub(crate) fn end(self, volumes: &[Volume]) {
        for volume in volumes {
            self.delete(volume).expect("delete");
        }
        drop((self.controller, self.mount));
    }
}

fn is_staged(volume: &Volume) -> bool {
    let points = mounts_of("self").into_iter().map(|mount| mount.point);
    let ours = [volume.staging.clone(), volume.device()];
    points.into_iter().any(|point| ours.contains(&point))
}

fn up(bed: &Bed, volume: &Volume, kind: &str, target: &Path) {
    let node = bed.rig.node();
    // The agent may still be unstaging the volume.
    retried("it is staged", || node.stage(volume.stage(access(kind))));
    let publish = || node.publish(volume.publish(target, access(kind)));
    retried("it is published", publish);
}

#[test]
#[ignore = "needs root: make test"]
fn a_staged_and_forgotten_volume_is_unstaged_once_its_deletion_was_refused() {
    let bed = Bed::new();
    let volumes = KINDS.map(|kind| {
        let volume = bed.volume(kind);
        let target = volume.target("data");
        up(&bed, &volume, kind, &target);
        leave_words(kind, &target);
        let unpublish = volume.unpublish(&target);
        bed.rig.node().unpublish(unpublish).expect("unpublish");
        volume
    });
    // The refusals come at the same time.
    std::thread::scope(|threads| {
        for volume in &volumes {
            threads.spawn(|| {
                refused(bed.delete(volume), Code::FailedPrecondition);
                bed.is_deleted_in_the_end(volume);
            });
        }
    });
    bed.end(&[]);
}

/// The administrator has set the PersistentVolume to `Retain`, and uses it again.
#[test]
#[ignore = "needs root: make test"]
fn a_volume_whose_deletion_was_refused_stays_and_keeps_its_data_once_it_is_staged_again() {
    let bed = Bed::new();
    let node = bed.rig.node();
    for [kind, other] in [
        ["ext4", "xfs"],
        ["xfs", "ext4"],
        ["btrfs", "xfs"],
        ["block", "xfs"],
    ] {
        let (volume, last) = (bed.volume(kind), bed.volume(other));
        let target = volume.target("data");
        for is_staged_meanwhile in [true, false] {
            up(&bed, &volume, kind, &target);
            leave_words(kind, &target);
            bed.is_found_mounted(&volume);
            if !is_staged_meanwhile {
                volume.down(&node, &[&target]);
                volume.claim_to_delete();
            }
            assert_eq!(volume.attribute(CLAIM).as_deref(), Some(&b"delete"[..]));
            up(&bed, &volume, kind, &target);
            assert_eq!(volume.attribute(CLAIM), None);
            retried("it is unpublished", || {
                node.unpublish(volume.unpublish(&target))
            });
            // The file gets another attribute, but no claim.
            fs::set_permissions(&volume.file, Permissions::from_mode(0o600)).expect("chmod");
            node.stage(last.stage(access(other))).expect("stage");
            bed.is_unstaged_in_the_end(&last);
            assert!(is_staged(&volume));
            up(&bed, &volume, kind, &target);
            expect_words(kind, &target);
            volume.down(&node, &[&target]);
        }
        for volume in [&volume, &last] {
            bed.delete(volume).expect("delete");
        }
    }
    bed.end(&[]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_restarted_agent_releases_it_as_well_if_the_directory_has_two_names() {
    let mut bed = Bed::new();
    let other_name = bed.rig.test_dir().directory("kubelet-2");
    let other = Mount::bind(&bed.kubelet, other_name, MountPropagationFlags::SHARED);
    let volumes = KINDS.map(|kind| bed.volume(kind));
    for (volume, kind) in volumes.iter().zip(KINDS) {
        let node = bed.rig.node();
        node.stage(volume.stage(access(kind))).expect("stage");
    }
    bed.rig.restart();
    for volume in &volumes {
        bed.is_unstaged_in_the_end(volume);
    }
    drop(other);
    bed.end(&volumes);
}

#[test]
#[ignore = "needs root: make test"]
fn what_is_forgotten_with_a_file_that_was_replaced_since_is_unstaged_all_the_same() {
    let mut bed = Bed::new();
    for (how, is_restarted) in [
        (Restore::RenamedOver, false),
        (Restore::RenamedOver, true),
        (Restore::MovedAside, false),
        (Restore::MovedAside, true),
    ] {
        let volumes = KINDS.map(|kind| bed.volume(kind));
        for (volume, kind) in volumes.iter().zip(KINDS) {
            let target = volume.target("data");
            up(&bed, volume, kind, &target);
            restore(volume, how);
        }
        if is_restarted {
            bed.rig.restart();
        }
        for volume in &volumes {
            // A pod uses the volume. The new file has no lock, so the refusals come at once.
            refused(bed.delete(volume), Code::FailedPrecondition);
            bed.is_found_mounted(volume);
            assert!(is_staged(volume));
            let node = bed.rig.node();
            let target = volume.target("data");
            // The check of the claim is a job of the volume's.
            until("it is unpublished", || {
                node.unpublish(volume.unpublish(&target)).is_ok()
            });
            bed.is_deleted_in_the_end(volume);
        }
        until("nothing is bound", || bed.rig.test_dir().loops().is_empty());
    }
    bed.end(&[]);
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_in_use_and_volumes_without_a_claim_stay() {
    let bed = Bed::new();
    for kind in ["ext4", "block"] {
        let (used, idle, last) = (bed.volume(kind), bed.volume("xfs"), bed.volume("btrfs"));
        let target = used.target("data");
        up(&bed, &used, kind, &target);
        leave_words(kind, &target);
        let node = bed.rig.node();
        for volume in [&idle, &last] {
            node.stage(volume.stage(access(""))).expect("stage");
        }
        used.claim_to_delete();
        // This file gets other attributes, but no claim to delete it.
        fs::set_permissions(&idle.file, Permissions::from_mode(0o600)).expect("chmod");
        let copied = Claim::Copy("snap-1".to_owned());
        idle.set_attribute(CLAIM, copied.value().as_bytes());
        // The agent proceeds in the order of the events.
        bed.is_unstaged_in_the_end(&last);
        bed.is_found_mounted(&used);
        assert!(is_staged(&used) && is_staged(&idle));
        expect_words(kind, &target);

        // The kubelet is back, and proceeds by itself.
        until("it is unpublished", || {
            node.unpublish(used.unpublish(&target)).is_ok()
        });
        for volume in [&used, &idle] {
            volume.down(&node, &[]);
        }
        for volume in [used, idle, last] {
            bed.delete(&volume).expect("delete");
        }
    }
    bed.end(&[]);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_that_has_the_directories_lock_late_frees_and_releases_all_the_same() {
    let mut bed = Bed::new();
    let (volume, left) = (bed.volume("ext4"), bed.volume("block"));
    let node = bed.rig.node();
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.stage(left.stage(access("block"))).expect("stage");
    // The state is as after a crash of the agent between the bind of a device and its mount; and
    // one of the agent's threads waits for a disk, so that it has not exited.
    bed.rig.kill();
    unmount(left.device(), UnmountFlags::NOFOLLOW).expect("umount");
    let dead_agent = File::open(bed.rig.volumes()).expect("open");
    flock(&dead_agent, FlockOperation::NonBlockingLockExclusive).expect("flock");
    bed.rig.start();
    let log = bed.rig.agent();
    until("the agent does without the lock", || {
        log.log().contains("another process has it")
    });
    refused(bed.delete(&volume), Code::FailedPrecondition);
    assert!(bed.is_bound(&left) && is_staged(&volume));
    drop(dead_agent);
    until("the device that was left bound is freed", || {
        !bed.is_bound(&left)
    });
    bed.is_unstaged_in_the_end(&volume);
    left.down(&bed.rig.node(), &[]);
    bed.end(&[volume, left]);
}

/// Returns the node's report of a blocked deletion.
fn pending(bed: &Bed) -> Option<String> {
    let health = bed.rig.node().storage_health(Default::default());
    let all = health.expect("health").backend_health.into_iter();
    let mut found = all.filter(|it| it.reason == "UnstagePending");
    found.next().map(|it| it.message)
}

#[test]
#[ignore = "needs root: make test"]
fn a_forgotten_target_of_a_raw_device_stays_and_is_named_in_the_health_of_the_storage() {
    let mut bed = Bed::new();
    let volume = bed.volume("block");
    let target = volume.target("data");
    up(&bed, &volume, "block", &target);
    leave_words("block", &target);
    unmount(volume.device(), UnmountFlags::NOFOLLOW).expect("umount");
    fs::remove_file(volume.device()).expect("unlink");
    for restarted in [false, true] {
        if restarted {
            bed.rig.restart();
        }
        assert_eq!(pending(&bed), None);
        bed.is_found_mounted(&volume);
        let said = pending(&bed).unwrap_or_default();
        assert!(said.contains(target.to_str().expect("UTF-8")), "{said}");
        expect_words("block", &target);
    }
    unmount(&target, UnmountFlags::NOFOLLOW).expect("umount");
    assert_eq!(pending(&bed), None);
    bed.is_unstaged_in_the_end(&volume);
    fs::remove_file(&target).expect("unlink");
    bed.end(&[volume]);
}

/// The kubelet was killed after it removed the pod's directory and before the unpublish: it then
/// calls only the unstage, or nothing.
#[test]
#[ignore = "needs root: make test"]
fn a_forgotten_target_of_a_pod_that_does_not_exist_keeps_no_raw_volume() {
    let mut bed = Bed::new();
    fs::create_dir_all(bed.kubelet.join("pods")).expect("mkdir");
    for (is_unstaged, is_restarted) in [(true, false), (true, true), (false, false), (false, true)]
    {
        let volume = bed.volume("block");
        let plugin = bed.kubelet.join("plugins/kubernetes.io/csi/volumeDevices");
        let targets = plugin.join("publish").join(&volume.id);
        fs::create_dir_all(&targets).expect("mkdir");
        let (target, pod) = (targets.join("pod-1"), bed.kubelet.join("pods/pod-1"));
        up(&bed, &volume, "block", &target);
        leave_words("block", &target);
        fs::create_dir(&pod).expect("mkdir");
        if is_restarted {
            bed.rig.restart();
        }
        let node = bed.rig.node();
        refused(node.unstage(volume.unstage()), Code::FailedPrecondition);
        bed.is_found_mounted(&volume);
        expect_words("block", &target);
        fs::remove_dir(&pod).expect("rmdir");
        if is_unstaged {
            retried("it is unstaged", || node.unstage(volume.unstage()));
        } else {
            bed.is_unstaged_in_the_end(&volume);
        }
        assert!(!target.exists());
        bed.delete(&volume).expect("delete");
    }
    bed.end(&[]);
}
