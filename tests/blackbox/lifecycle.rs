//! A volume's whole lifecycle on its node, as a filesystem and as a raw device.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use belay_contract::drivers::local::NEW;
use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::rig::{NodeCalls, Rig, Volume, access, least_bytes, refused, refused_with, with_flags};

const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "block"];
const WORDS: &[u8] = b"what was written must be read";

/// Writes data like a pod; it is on disk when this returns.
pub(crate) fn leave_words(kind: &str, target: &Path) {
    let file = match kind {
        "block" => fs::File::options().write(true).open(target),
        _ => fs::File::create(target.join("words")),
    };
    let file = file.expect("open for writing");
    file.write_all_at(WORDS, 0).expect("write");
    file.sync_all().expect("fsync");
}

/// Fails unless the data of [`leave_words`] is there.
#[track_caller]
pub(crate) fn expect_words(kind: &str, target: &Path) {
    let file = match kind {
        "block" => fs::File::open(target),
        _ => fs::File::open(target.join("words")),
    };
    let mut found = vec![0; WORDS.len()];
    let read = file.and_then(|file| file.read_exact_at(&mut found, 0));
    assert!(read.is_ok(), "{kind} at {}: {read:?}", target.display());
    assert_eq!(found, WORDS, "{kind} at {}", target.display());
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_lives_its_whole_life_and_every_call_may_come_twice() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in KINDS {
        let volume = rig.volume(least_bytes(kind));
        let (first, second) = (volume.target("first"), volume.target("second"));
        for _ in 0..2 {
            node.stage(volume.stage(access(kind)))
                .expect("stage a blank volume");
        }
        for _ in 0..2 {
            node.publish(volume.publish(&first, access(kind)))
                .expect("publish");
        }
        assert_eq!(volume.attribute(NEW), None, "{kind} is in use");
        leave_words(kind, &first);
        for _ in 0..2 {
            expect_stats(&node, &volume, kind, &first);
        }
        for _ in 0..2 {
            let request = volume.publish_read_only(&second, access(kind));
            node.publish(request)
                .expect("publish a second time, read-only");
        }
        expect_words(kind, &second);
        grow(&node, &volume, kind, &first);
        for target in [&first, &second] {
            for _ in 0..2 {
                node.unpublish(volume.unpublish(target)).expect("unpublish");
            }
            assert!(!target.exists(), "{} is left", target.display());
        }
        for _ in 0..2 {
            node.unstage(volume.unstage()).expect("unstage");
        }
        rig.test_dir().expect_nothing_left();
        expect_empty(&volume.staging);

        node.stage(volume.stage(access(kind)))
            .expect("stage the formatted volume");
        node.publish(volume.publish(&first, access(kind)))
            .expect("publish again");
        expect_words(kind, &first);
        volume.down(&node, &[&first]);
        rig.test_dir().expect_nothing_left();
    }
}

/// If the label were dropped, the kubelet would start a pod that may not read its volume.
#[test]
#[ignore = "needs root: make test"]
fn a_label_of_selinux_is_mounted_or_refused() {
    let rig = Rig::new();
    let node = rig.node();
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        let before = volume.contents();
        let capability = with_flags(access(kind), &[&format!("context=\"{label}\"")]);
        match node.stage(volume.stage(capability)) {
            Ok(_) => {
                let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
                assert!(mounts.contains(label), "{kind}: {mounts}");
                node.unstage(volume.unstage()).expect("unstage");
            }
            Err(status) => {
                assert_eq!(status.code(), Code::InvalidArgument, "{kind}: {status}");
                assert!(status.message().contains("SELinux"), "{kind}: {status}");
                assert!(volume.contents() == before, "{kind} was formatted");
            }
        }
    }
}

/// The statistics of the mounted filesystem show the format.
#[test]
#[ignore = "needs root: make test"]
fn a_volume_is_formatted_as_its_context_asks() {
    let rig = Rig::new();
    let node = rig.node();
    let bytes = |kind| least_bytes(kind).max(256 << 20);
    for (kind, options, block_bytes, inodes) in [
        (
            "ext4",
            &[("blockSize", "1024"), ("numberOfInodes", "4096")][..],
            1024,
            Some(4096),
        ),
        (
            "ext4",
            &[("bytesPerInode", "65536")],
            4096,
            Some(bytes("ext4") >> 16),
        ),
        ("xfs", &[("blockSize", "2048")], 2048, None),
        ("btrfs", &[("btrfsNodeSize", "4096")], 4096, None),
    ] {
        let volume = rig.volume(bytes(kind));
        let mut stage = volume.stage(access(kind));
        let wrong = [("blockSize".to_owned(), "8192".to_owned())];
        stage.volume_context = wrong.into();
        let words = ["volume_context[blockSize]"];
        refused_with(node.stage(stage.clone()), Code::InvalidArgument, &words);
        let options = options.iter();
        let options = options.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        stage.volume_context = options.collect();
        node.stage(stage).expect("stage");
        let found = rustix::fs::statvfs(&volume.staging).expect("statvfs");
        assert_eq!(found.f_bsize, block_bytes, "{kind}");
        assert!(
            inodes.is_none_or(|inodes| found.f_files == inodes),
            "{kind}: {}",
            found.f_files
        );
        node.unstage(volume.unstage()).expect("unstage");
    }
}

#[track_caller]
fn expect_empty(directory: &Path) {
    let left: Vec<_> = fs::read_dir(directory)
        .expect("readdir")
        .flatten()
        .collect();
    assert!(left.is_empty(), "left: {left:?}");
}

fn expect_stats(node: &NodeCalls, volume: &Volume, kind: &str, target: &Path) {
    use csi::volume_usage::Unit;
    let usage = node.stats(volume.stats(target)).expect("stats").usage;
    let of = |unit: Unit| usage.iter().find(|u| u.unit == i32::from(unit));
    let bytes = of(Unit::Bytes).expect("bytes");
    let size = i64::try_from(volume.bytes()).expect("a size");
    if kind == "block" {
        assert_eq!((usage.len(), bytes.total), (1, size));
        return;
    }
    let inodes = of(Unit::Inodes);
    // btrfs creates inodes as needed.
    assert_eq!(inodes.is_none(), kind == "btrfs", "{usage:?}");
    for part in std::iter::once(bytes).chain(inodes) {
        assert!(part.used > 0 && part.available > 0, "{kind}: {part:?}");
        assert!(part.used + part.available <= part.total, "{kind}: {part:?}");
    }
    assert!(
        bytes.total > size / 2 && bytes.total <= size,
        "{kind}: {bytes:?} of {size}"
    );
}

/// Grows the file, and then expands the volume on the node, while a pod writes.
fn grow(node: &NodeCalls, volume: &Volume, kind: &str, target: &Path) {
    let before = volume.bytes();
    let size = before + (64 << 20);
    volume.grow(size);
    let total = |usage: csi::NodeGetVolumeStatsResponse| usage.usage[0].total;
    let total_before = total(node.stats(volume.stats(target)).expect("stats"));
    for _ in 0..2 {
        let answer = node.expand(volume.expand(target, access(kind)));
        if kind == "ext4" && !may_grow_ext4() {
            refused_with(answer, Code::FailedPrecondition, &["CAP_SYS_RESOURCE"]);
            continue;
        }
        let answer = answer.expect("expand");
        assert_eq!(answer.capacity_bytes, i64::try_from(size).expect("a size"));
        let total_after = total(node.stats(volume.stats(target)).expect("stats"));
        assert!(
            total_after > total_before,
            "{kind}: {total_before} to {total_after}"
        );
    }
    let file = if kind == "block" {
        target.to_owned()
    } else {
        target.join("more")
    };
    fs::File::options()
        .write(true)
        .create(kind != "block")
        .open(file)
        .and_then(|file| file.write_all_at(b"more", 1 << 20))
        .expect("write after growing");
}

/// Whether this machine can expand a mounted ext4, which requires CAP_SYS_RESOURCE
/// (capabilities(7): bit 24).
fn may_grow_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = u64::from_str_radix(mask.expect("CapEff").trim(), 16).expect("a mask");
    mask & (1 << 24) != 0
}

#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_that_was_grown_while_unstaged_fills_its_device_once_it_is_staged() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        let total = || {
            node.stage(volume.stage(access(kind))).expect("stage");
            let usage = node
                .stats(volume.stats(&volume.staging))
                .expect("stats")
                .usage;
            volume.down(&node, &[]);
            usage[0].total
        };
        let before = total();
        volume.grow(volume.bytes() * 2);
        let after = total();
        assert!(
            after > before + before / 2,
            "{kind}: {before} to {after} bytes"
        );
    }
}

#[test]
#[ignore = "needs root: make test"]
fn what_is_staged_in_one_way_cannot_be_staged_in_another() {
    let rig = Rig::new();
    let node = rig.node();
    for (staged, asked) in [
        ("ext4", "xfs"),
        ("xfs", "ext4"),
        ("ext4", "block"),
        ("block", "ext4"),
        ("btrfs", "xfs"),
        ("btrfs", "block"),
    ] {
        let volume = rig.volume(least_bytes("xfs"));
        node.stage(volume.stage(access(staged))).expect("stage");
        let target = volume.target("a");
        node.publish(volume.publish(&target, access(staged)))
            .expect("publish");
        leave_words(staged, &target);
        let before = crate::rig::World::around(rig.test_dir());
        refused(node.stage(volume.stage(access(asked))), Code::AlreadyExists);
        before.expect_unchanged(rig.test_dir(), &format!("{staged}, requested as {asked}"));
        expect_words(staged, &target);
        volume.down(&node, &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_is_not_unstaged_while_it_is_published() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in KINDS {
        let volume = rig.volume(least_bytes(kind));
        let target = volume.target("a");
        node.stage(volume.stage(access(kind))).expect("stage");
        node.publish(volume.publish(&target, access(kind)))
            .expect("publish");
        leave_words(kind, &target);
        let before = crate::rig::World::around(rig.test_dir());
        let path = target.to_str().expect("UTF-8");
        refused_with(
            node.unstage(volume.unstage()),
            Code::FailedPrecondition,
            &[path],
        );
        before.expect_unchanged(rig.test_dir(), kind);
        expect_words(kind, &target);
        volume.down(&node, &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_in_use_stays_until_its_user_is_gone() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    leave_words("ext4", &target);
    let user = fs::File::open(target.join("words")).expect("open");
    refused(
        node.unpublish(volume.unpublish(&target)),
        Code::FailedPrecondition,
    );
    expect_words("ext4", &target);
    drop(user);
    volume.down(&node, &[&target]);
}
