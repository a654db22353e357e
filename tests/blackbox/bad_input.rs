//! Invalid requests to the node: each is refused with the right code and the name of the invalid
//! field, and changes nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::Code::{self, InvalidArgument};

use crate::rig::{
    NodeCalls, Rig, Volume, World, access, least_bytes, refused_with, until, with_flags, with_mode,
};

/// A node with volumes that invalid requests could harm.
pub(crate) struct Scene {
    pub(crate) rig: Rig,
    pub(crate) node: NodeCalls,
    /// A volume that was never staged.
    pub(crate) blank: Volume,
    /// A volume that is staged, and published at `target`.
    pub(crate) used: Volume,
    pub(crate) target: PathBuf,
    /// A directory in the volume, with files that a wrong path could reach.
    pub(crate) traps: PathBuf,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let rig = Rig::new();
        let (blank, used) = (
            rig.volume(least_bytes("ext4")),
            rig.volume(least_bytes("ext4")),
        );
        let (node, target) = (rig.node(), used.target("a"));
        node.stage(used.stage(access("ext4"))).expect("stage");
        node.publish(used.publish(&target, access("ext4")))
            .expect("publish");
        crate::lifecycle::leave_words("ext4", &target);
        let traps = rig.test_dir().directory("traps");
        rig.test_dir().directory("traps/directory/with");
        fs::write(traps.join("file"), "content").expect("write");
        symlink(&used.staging, traps.join("to-staging")).expect("symlink");
        symlink(&target, traps.join("to-target")).expect("symlink");
        symlink(traps.join("nothing"), traps.join("to-nothing")).expect("symlink");
        Scene {
            rig,
            node,
            blank,
            used,
            target,
            traps,
        }
    }

    pub(crate) fn trap(&self, name: &str) -> String {
        self.traps.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Makes the call. It must be refused with this code and message, change nothing, and leave the
    /// agent healthy.
    #[track_caller]
    pub(crate) fn expect<T: std::fmt::Debug>(
        &self,
        answer: impl FnOnce(&NodeCalls) -> Result<T, tonic::Status>,
        code: Code,
        word: &str,
    ) {
        let before = World::around(self.rig.test_dir());
        let message = refused_with(answer(&self.node), code, &[word]);
        before.expect_unchanged(self.rig.test_dir(), &message);
        self.node
            .stats(self.used.stats(&self.target))
            .expect("the next call works");
    }

    pub(crate) fn down(self) {
        self.used.down(&self.node, &[&self.target]);
        assert!(self.blank.contents().is_blank(), "something was written");
    }
}

fn bad_ids() -> Vec<(String, &'static str)> {
    vec![
        (String::new(), "volume_id: is required"),
        ("v".repeat(129), "volume_id: has 129 bytes"),
        ("vol\n1".to_owned(), "volume_id"),
        ("vol\u{1b}[2J".to_owned(), "volume_id"),
    ]
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_id_that_is_none_is_refused_by_every_call() {
    let scene = Scene::new();
    let (used, target) = (&scene.used, &scene.target);
    for (volume_id, why) in bad_ids() {
        let id = || volume_id.clone();
        let stage = csi::NodeStageVolumeRequest {
            volume_id: id(),
            ..used.stage(access("ext4"))
        };
        scene.expect(|node| node.stage(stage), InvalidArgument, why);
        let unstage = csi::NodeUnstageVolumeRequest {
            volume_id: id(),
            ..used.unstage()
        };
        scene.expect(|node| node.unstage(unstage), InvalidArgument, why);
        let publish = used.publish(target, access("ext4"));
        let publish = csi::NodePublishVolumeRequest {
            volume_id: id(),
            ..publish
        };
        scene.expect(|node| node.publish(publish), InvalidArgument, why);
        let unpublish = used.unpublish(target);
        let unpublish = csi::NodeUnpublishVolumeRequest {
            volume_id: id(),
            ..unpublish
        };
        scene.expect(|node| node.unpublish(unpublish), InvalidArgument, why);
        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: id(),
            ..used.stats(target)
        };
        scene.expect(|node| node.stats(stats), InvalidArgument, why);
        let expand = used.expand(target, access("ext4"));
        let expand = csi::NodeExpandVolumeRequest {
            volume_id: id(),
            ..expand
        };
        scene.expect(|node| node.expand(expand), InvalidArgument, why);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_publish_context_that_is_too_large_is_refused() {
    let scene = Scene::new();
    let mut stage = scene.blank.stage(access("ext4"));
    stage
        .publish_context
        .insert("other".to_owned(), "x".repeat(5000));
    scene.expect(|node| node.stage(stage), InvalidArgument, "publish_context");
    scene.down();
}

/// Returns capabilities that no volume supports, and the refusals of each.
fn bad_capabilities() -> Vec<(Option<csi::VolumeCapability>, &'static str)> {
    let neither = csi::VolumeCapability {
        access_type: None,
        ..access("ext4")
    };
    let no_mode = csi::VolumeCapability {
        access_mode: None,
        ..access("ext4")
    };
    let mut odd_mode = access("ext4");
    odd_mode.access_mode = Some(csi::volume_capability::AccessMode { mode: 99 });
    let long = "x".repeat(5000);
    vec![
        (None, "volume_capability: is required"),
        (Some(neither), "volume_capability"),
        (Some(no_mode), "access_mode"),
        (Some(odd_mode), "access_mode"),
        (
            Some(with_mode(access("ext4"), Mode::Unknown)),
            "access_mode",
        ),
        (Some(access("zfs")), "zfs"),
        (Some(access("EXT4")), "EXT4"),
        (Some(access("../ext4")), "../ext4"),
        (Some(access("ext4\n")), "fs_type"),
        (Some(with_flags(access("ext4"), &[&long])), "mount_flags"),
        (Some(with_flags(access("ext4"), &["ro\0"])), "mount_flags"),
    ]
}

#[test]
#[ignore = "needs root: make test"]
fn a_capability_that_no_volume_has_is_refused() {
    let scene = Scene::new();
    for (capability, why) in bad_capabilities() {
        let mut stage = scene.blank.stage(access("ext4"));
        stage.volume_capability.clone_from(&capability);
        scene.expect(|node| node.stage(stage), InvalidArgument, why);
        let mut publish = scene.used.publish(&scene.used.target("b"), access("ext4"));
        publish.volume_capability = capability;
        scene.expect(|node| node.publish(publish), InvalidArgument, why);
    }
    scene.down();
}

/// The kernel checks these flags only when it reads the superblock, and logs the reason only in its
/// own log. By then, a blank volume is formatted, and can be used with other flags.
#[test]
#[ignore = "needs root: make test"]
fn a_flag_that_the_filesystem_does_not_allow_is_named_although_the_kernel_does_not() {
    let rig = Rig::new();
    let node = rig.node();
    for (kind, flags, named) in [
        ("ext4", &["noatime", "prjquota"][..], ": prjquota"),
        ("ext4", &["data=journal,delalloc"], ": data, delalloc"),
        ("xfs", &["allocsize=3"], ": allocsize"),
        ("btrfs", &["subvol=nosuch"], ": subvol"),
    ] {
        let volume = rig.volume(least_bytes(kind));
        for _ in 0..2 {
            let staged = node.stage(volume.stage(with_flags(access(kind), flags)));
            let words = ["mount_flags", "without these flags", named];
            let message = refused_with(staged, InvalidArgument, &words);
            assert!(message.ends_with(named), "{message}");
            until(&message, || rig.test_dir().loops().is_empty());
        }
        node.stage(volume.stage(access(kind))).expect("stage");
        volume.down(&node, &[]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn sizes_that_contradict_each_other_or_the_file_are_refused() {
    let scene = Scene::new();
    let have = i64::try_from(scene.used.bytes()).expect("a size");
    let words = "capacity_range";
    for (required_bytes, limit_bytes, code, word) in [
        (-1, 0, InvalidArgument, words),
        (0, -1, InvalidArgument, words),
        (2 * have, have, InvalidArgument, words),
        (have + 1, 0, Code::Unavailable, "expand"),
    ] {
        let mut expand = scene.used.expand(&scene.target, access("ext4"));
        expand.capacity_range = Some(csi::CapacityRange {
            required_bytes,
            limit_bytes,
        });
        scene.expect(|node| node.expand(expand), code, word);
    }
    scene.down();
}
