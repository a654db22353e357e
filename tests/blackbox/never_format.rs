//! Filesystems that Belay or an administrator created, and volumes that cannot be proven blank and
//! new, are never formatted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use belay_contract::drivers::local::{BYTES, NEW};
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use rustix::fs::{Advice, fadvise};
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    NodeCalls, Rig, TestDir, Volume, access, least_bytes, mount_image, mounted, refused_with, run,
    text, with_mode,
};

/// Returns a volume with a filesystem that an administrator created, with the tool's defaults.
pub(crate) fn by_hand(rig: &Rig, kind: &str) -> Volume {
    let volume = rig.volume(least_bytes("xfs"));
    let file = volume.file.to_str().expect("UTF-8");
    match kind {
        "ext4" => run("mkfs.ext4", &["-q", file]),
        "btrfs" => run("mkfs.btrfs", &["-q", file]),
        _ => run("mkfs.xfs", &["-q", file]),
    };
    mounted(rig.test_dir(), &volume.file, |directory| {
        leave_words(kind, directory)
    });
    volume
}

#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_made_by_hand_keeps_its_files_whatever_is_asked_of_it() {
    let rig = Rig::new();
    let node = rig.node();
    for (kind, other) in [("ext4", "xfs"), ("xfs", "btrfs"), ("btrfs", "ext4")] {
        for is_new in [true, false] {
            let volume = by_hand(&rig, kind);
            if !is_new {
                volume.mark_used();
            }
            let before = volume.contents();
            let answer = node.stage(volume.stage(access(other)));
            refused_with(answer, Code::FailedPrecondition, &[kind, other]);
            before.expect_unchanged(&volume.file, &format!("{kind}, requested {other}"));
            for asked in [kind, ""] {
                node.stage(volume.stage(access(asked))).expect("stage");
                expect_words(kind, &volume.staging);
                volume.down(&node, &[]);
            }
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_was_formatted_once_stays_that_filesystem() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        let mut seen = Vec::new();
        for round in 0..10 {
            // An operator may mistake it for another volume.
            if round % 3 == 2 {
                volume.mark_new();
            }
            node.stage(volume.stage(access(kind))).expect("stage");
            volume.down(&node, &[]);
            seen.push(uuid(kind, &volume));
        }
        assert!(
            seen[0].iter().any(|byte| *byte != 0),
            "{kind}: {:?}",
            seen[0]
        );
        assert!(seen.iter().all(|uuid| *uuid == seen[0]), "{kind}: {seen:?}");
    }
}

/// Returns `s_uuid` of ext4, `sb_uuid` of xfs, or `fsid` of btrfs.
pub(crate) fn uuid(kind: &str, volume: &Volume) -> Vec<u8> {
    let at = match kind {
        "ext4" => 1024 + 0x68,
        "btrfs" => 65_536 + 32,
        _ => 32,
    };
    volume.read(at, 16)
}

#[test]
#[ignore = "needs root: make test"]
fn a_blank_volume_becomes_what_is_asked_for_and_ext4_if_nothing_is() {
    let rig = Rig::new();
    let node = rig.node();
    for (asked, found) in [
        ("", "ext4"),
        ("ext4", "ext4"),
        ("xfs", "xfs"),
        ("btrfs", "btrfs"),
    ] {
        let volume = rig.volume(least_bytes("xfs"));
        node.stage(volume.stage(access(asked))).expect("stage");
        volume.down(&node, &[]);
        let magic = match found {
            "ext4" => volume.read(1024 + 0x38, 2) == b"\x53\xef",
            "btrfs" => volume.read(65_536 + 0x40, 8) == b"_BHRfS_M",
            _ => volume.read(0, 4) == b"XFSB",
        };
        assert!(magic, "requested {asked:?}");
        assert!(
            crate::foreign::is_sound(found, &volume.file),
            "{found} is not sound"
        );
        assert!(
            volume.read(100 << 20, 4096).iter().all(|byte| *byte == 0),
            "the mark is left"
        );
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_is_not_recorded_as_new_is_not_formatted() {
    let rig = Rig::new();
    let volume = rig.volume(least_bytes("ext4"));
    volume.mark_used();
    expect_lost(&rig.node(), &volume, "no attribute");
    for value in ["", "0", "11", "yes"] {
        volume.set_attribute(NEW, value.as_bytes());
        expect_lost(&rig.node(), &volume, value);
    }
}

/// Blanks the volume's file, and keeps its size.
fn empty(volume: &Volume) {
    let bytes = volume.bytes();
    let file = File::options().write(true).open(&volume.file);
    let file = file.expect("open for writing");
    file.set_len(0)
        .and_then(|()| file.set_len(bytes))
        .expect("ftruncate");
}

/// Fails unless the blanked volume is refused as lost, whatever is requested.
pub(crate) fn expect_lost(node: &NodeCalls, volume: &Volume, what: &str) {
    for asked in ["", "ext4", "xfs", "btrfs"] {
        for mode in [Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly] {
            let request = volume.stage(with_mode(access(asked), mode));
            let words = [text(&volume.file), "zeros", NEW];
            refused_with(node.stage(request), Code::FailedPrecondition, &words);
            assert!(volume.contents().is_blank(), "{what}: it was written");
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_was_in_use_and_reads_as_zeros_is_not_formatted() {
    let mut rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        let volume = rig.volume(least_bytes("xfs"));
        rig.node()
            .stage(volume.stage(access(kind)))
            .expect("stage a blank volume");
        volume.down(&rig.node(), &[]);
        empty(&volume);
        expect_lost(&rig.node(), &volume, kind);
        rig.restart();
        expect_lost(&rig.node(), &volume, kind);
        // An operator who knows that the data is lost does this.
        volume.mark_new();
        rig.node()
            .stage(volume.stage(access("ext4")))
            .expect("stage the abandoned volume");
        volume.down(&rig.node(), &[]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_foreign_filesystem_is_in_use_from_its_first_stage_on() {
    let rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs"] {
        for mode in [Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly] {
            let volume = by_hand(&rig, kind);
            let request = volume.stage(with_mode(access(kind), mode));
            rig.node().stage(request).expect("stage");
            volume.down(&rig.node(), &[]);
            empty(&volume);
            expect_lost(&rig.node(), &volume, kind);
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_that_was_only_read_can_still_be_formatted() {
    let rig = Rig::new();
    let volume = rig.volume(least_bytes("ext4"));
    let usage = with_mode(access("block"), Mode::SingleNodeReaderOnly);
    rig.node().stage(volume.stage(usage)).expect("stage");
    volume.down(&rig.node(), &[]);
    rig.node()
        .stage(volume.stage(access("ext4")))
        .expect("stage a volume that was never written");
    volume.down(&rig.node(), &[]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_shorter_than_its_volume_is_not_formatted() {
    let rig = Rig::new();
    let volume = rig.volume(least_bytes("ext4"));
    for kind in ["ext4", "block"] {
        let larger = volume.bytes() + (1 << 20);
        volume.set_attribute(BYTES, larger.to_string().as_bytes());
        let request = volume.stage(access(kind));
        let words = [volume.bytes(), larger].map(|bytes| format!(" {} MiB", bytes >> 20));
        let words = words.each_ref().map(String::as_str);
        refused_with(rig.node().stage(request), Code::FailedPrecondition, &words);
        assert!(volume.contents().is_blank(), "something was written");
    }
}

/// A separate disk with the directory of volumes, which can fail.
struct FailingDisk {
    image: PathBuf,
    directory: PathBuf,
}

impl FailingDisk {
    fn new(test_dir: &TestDir) -> Self {
        let image = test_dir.path().join("disk");
        File::create_new(&image)
            .and_then(|file| file.set_len(512 << 20))
            .expect("a disk");
        let (path, directory) = (
            image.to_str().expect("UTF-8"),
            test_dir.directory("disk-mounted"),
        );
        // A journal might be in the part that fails.
        run("mkfs.ext4", &["-q", "-O", "^has_journal", path]);
        mount_image(&image, &directory, "loop");
        FailingDisk { image, directory }
    }

    /// Makes every read of the file's data from byte `at` on fail; the disk's metadata stays in
    /// memory.
    fn fail_from(&self, file: &Path, at: u64) {
        let physical = extent(file, at);
        let disk = File::options().write(true).open(&self.image).expect("open");
        disk.set_len(physical).expect("ftruncate");
        let data = File::open(file).expect("open");
        fadvise(&data, 0, None, Advice::DontNeed).expect("fadvise");
        let read = data.read_exact_at(&mut [0; 512], at);
        let errno = read.expect_err("the disk should fail").raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::IO.raw_os_error()));
    }

    fn unmount(&self) {
        // This is long enough for the writes of the filesystem's unmount.
        let disk = File::options().write(true).open(&self.image).expect("open");
        disk.set_len(512 << 20).expect("ftruncate");
        run("umount", &[self.directory.to_str().expect("UTF-8")]);
    }
}

/// Returns the offset of a file's byte on its disk, from filefrag(8): `ext: from..to: from..to:
/// length: ...` in bytes.
fn extent(file: &Path, at: u64) -> u64 {
    let table = run("filefrag", &["-b1", "-e", file.to_str().expect("UTF-8")]);
    let numbers = |line: &str| -> Option<[u64; 2]> {
        let mut columns = line
            .split(':')
            .skip(1)
            .map(|column| column.split("..").next());
        let mut next = || columns.next()??.trim().parse().ok();
        Some([next()?, next()?])
    };
    let extents: Vec<[u64; 2]> = table.lines().filter_map(numbers).collect();
    let found = extents.iter().rev().find(|[logical, _]| *logical <= at);
    let [logical, physical] = found.unwrap_or_else(|| panic!("no byte {at} in {table}"));
    physical + (at - logical)
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_cannot_be_read_is_not_formatted() {
    let test_dir = TestDir::new();
    let disk = FailingDisk::new(&test_dir);
    let mut rig = Rig::with_volumes_in(test_dir, disk.directory.clone());
    let bytes = least_bytes("ext4");
    let volume = rig.volume(bytes);
    // These are written zeros: the volume would be blank if they could be read.
    for at in [0, bytes / 2, bytes - (1 << 20)] {
        volume.write(at, &vec![0; 1 << 20]);
    }
    for failing_from in [bytes - (1 << 20), bytes / 2, 0] {
        disk.fail_from(&volume.file, failing_from);
        let answer = rig.node().stage(volume.stage(access("ext4")));
        let code = answer.as_ref().err().map(tonic::Status::code);
        assert!(
            matches!(code, Some(Code::Internal | Code::FailedPrecondition)),
            "{answer:?}"
        );
        refused_with(answer, code.unwrap_or(Code::Ok), &["EIO"]);
        let head = failing_from.min(1 << 20);
        let head = volume.read(0, usize::try_from(head).expect("a size"));
        assert!(head.iter().all(|byte| *byte == 0), "something was written");
    }
    rig.kill();
    disk.unmount();
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_is_found_by_its_own_file_whatever_a_publish_context_says() {
    let rig = Rig::new();
    let (volume, other) = (
        rig.volume(least_bytes("ext4")),
        rig.volume(least_bytes("ext4")),
    );
    let stage = || {
        let mut request = volume.stage(access("ext4"));
        let contexts = [
            ("transport", "disk"),
            ("file", other.id.as_str()),
            ("bytes", "-1"),
            ("content", "populated"),
            ("read_only", "maybe"),
        ];
        let contexts = contexts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        request.publish_context.extend(contexts);
        rig.node().stage(request)
    };
    stage().expect("stage");
    assert!(other.contents().is_blank() && !volume.contents().is_blank());
    volume.down(&rig.node(), &[]);
    fs::remove_file(&volume.file).expect("unlink");
    refused_with(stage(), Code::NotFound, &[&volume.id]);
    assert!(other.contents().is_blank(), "something was written");
}
