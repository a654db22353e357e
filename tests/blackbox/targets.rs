//! The content and the permissions of a target, and the number of targets at which a volume may be
//! published.

use std::fs;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Rig, World, access, least_bytes, refused, refused_with, with_flags, with_mode};

#[test]
#[ignore = "needs root: make test"]
fn an_access_mode_allows_one_target_or_several() {
    let rig = Rig::new();
    let node = rig.node();
    for (mode, allows_two) in [
        (Mode::SingleNodeWriter, false),
        (Mode::SingleNodeSingleWriter, false),
        (Mode::SingleNodeReaderOnly, false),
        (Mode::SingleNodeMultiWriter, true),
    ] {
        for kind in ["ext4", "block"] {
            let volume = rig.volume(least_bytes(kind));
            if kind == "ext4" && mode == Mode::SingleNodeReaderOnly {
                // A read-only volume is never formatted, so stage the blank volume first.
                node.stage(volume.stage(access(kind)))
                    .expect("stage a blank volume");
                volume.down(&node, &[]);
            }
            let usage = with_mode(access(kind), mode);
            let (first, second) = (volume.target("first"), volume.target("second"));
            node.stage(volume.stage(usage.clone())).expect("stage");
            node.publish(volume.publish(&first, usage.clone()))
                .expect("publish");
            let before = World::around(rig.test_dir());
            let answer = node.publish(volume.publish(&second, usage));
            if allows_two {
                answer.expect("a second target");
            } else {
                let words = [first.to_str().expect("UTF-8"), mode.as_str_name()];
                refused_with(answer, Code::FailedPrecondition, &words);
                before.expect_unchanged(rig.test_dir(), mode.as_str_name());
            }
            volume.down(&node, &[&first, &second]);
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_cannot_change_between_writing_and_reading() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "block"] {
        let volume = rig.volume(least_bytes(kind));
        let (writes, reads) = (volume.target("writes"), volume.target("reads"));
        node.stage(volume.stage(access(kind))).expect("stage");
        node.publish(volume.publish(&writes, access(kind)))
            .expect("publish");
        node.publish(volume.publish_read_only(&reads, access(kind)))
            .expect("read-only");
        let before = World::around(rig.test_dir());
        let answer = node.publish(volume.publish_read_only(&writes, access(kind)));
        refused(answer, Code::AlreadyExists);
        let answer = node.publish(volume.publish(&reads, access(kind)));
        refused(answer, Code::AlreadyExists);
        before.expect_unchanged(rig.test_dir(), kind);
        volume.down(&node, &[&writes, &reads]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_that_shows_another_volume_is_not_published_to() {
    let mut rig = Rig::new();
    for (kind, other) in [
        ("ext4", "ext4"),
        ("block", "block"),
        ("xfs", "block"),
        ("block", "btrfs"),
    ] {
        let node = rig.node();
        let shown = rig.volume(least_bytes(kind));
        let volume = rig.volume(least_bytes(other));
        let target = shown.target("a");
        node.stage(shown.stage(access(kind))).expect("stage");
        node.publish(shown.publish(&target, access(kind)))
            .expect("publish");
        leave_words(kind, &target);
        node.stage(volume.stage(access(other))).expect("stage");
        for when in ["known", "restarted"] {
            let before = World::around(rig.test_dir());
            let answer = rig.node().publish(volume.publish(&target, access(other)));
            let words = ["target_path", &volume.id, target.to_str().expect("UTF-8")];
            refused_with(answer, Code::AlreadyExists, &words);
            before.expect_unchanged(rig.test_dir(), when);
            if when == "known" {
                rig.restart();
            }
        }
        expect_words(kind, &target);
        volume.down(&rig.node(), &[]);
        shown.down(&rig.node(), &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_read_only_target_of_a_filesystem_takes_no_writes_and_its_writable_neighbour_does() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let (writes, reads) = (volume.target("writes"), volume.target("reads"));
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish_read_only(&reads, access("ext4")))
        .expect("read-only");
    node.publish(volume.publish(&writes, access("ext4")))
        .expect("publish");
    let error = fs::write(reads.join("words"), "x").expect_err("a write on a read-only target");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    leave_words("ext4", &writes);
    expect_words("ext4", &reads);
    volume.down(&node, &[&writes, &reads]);
}

#[test]
#[ignore = "needs root: make test"]
fn what_a_pod_mounts_inside_its_target_shows_nowhere_else() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let (first, second) = (volume.target("first"), volume.target("second"));
    node.stage(volume.stage(access("ext4"))).expect("stage");
    for target in [&first, &second] {
        node.publish(volume.publish(target, access("ext4")))
            .expect("publish");
    }
    let inner = first.join("inner");
    fs::create_dir(&inner).expect("mkdir");
    mount("inner", &inner, "tmpfs", MountFlags::empty(), None).expect("mount");
    fs::write(inner.join("private"), "x").expect("write");
    for other in [&second, &volume.staging] {
        let leaked = other.join("inner/private");
        assert!(!leaked.exists(), "{} shows it", leaked.display());
    }
    unmount(&inner, UnmountFlags::NOFOLLOW).expect("umount");
    volume.down(&node, &[&first, &second]);
}

#[test]
#[ignore = "needs root: make test"]
fn mount_flags_show_on_the_target_and_unknown_ones_are_refused() {
    let rig = Rig::new();
    let node = rig.node();
    for (flags, shown) in [
        (&["noatime", "nodev"][..], &["noatime", "nodev"][..]),
        (&["noexec,nosuid"], &["noexec", "nosuid"]),
        (&["_netdev", "discard"], &["discard"]),
    ] {
        let volume = rig.volume(least_bytes("ext4"));
        let target = volume.target("a");
        let usage = with_flags(access("ext4"), flags);
        node.stage(volume.stage(usage.clone())).expect("stage");
        node.publish(volume.publish(&target, usage))
            .expect("publish");
        let options = mount_options(target.to_str().expect("UTF-8"));
        for flag in shown {
            assert!(
                options.iter().any(|option| option == flag),
                "{flag}: {options:?}"
            );
        }
        volume.down(&node, &[&target]);
    }
    let volume = rig.volume(least_bytes("ext4"));
    let before = World::around(rig.test_dir());
    let usage = with_flags(access("ext4"), &["noatime", "no_such_flag"]);
    refused(node.stage(volume.stage(usage)), Code::InvalidArgument);
    before.expect_unchanged(rig.test_dir(), "an unknown mount flag");
}

/// Returns the options of the mount and of its superblock (proc_pid_mountinfo(5)).
fn mount_options(point: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(point));
    let fields: Vec<&str> = line.expect("a mount").split(' ').collect();
    let both = [fields[5], fields[fields.len() - 1]];
    both.iter()
        .flat_map(|options| options.split(','))
        .map(str::to_owned)
        .collect()
}
