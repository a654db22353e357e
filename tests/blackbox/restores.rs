//! A volume's file that a backup tool restored, as a whole or in part. A tool that keeps no
//! extended attributes does not restore the record that a file is new: Belay never formats it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use belay_contract::drivers::local::{BYTES, NEW};
use tonic::Code;

use crate::lifecycle::expect_words;
use crate::never_format::{by_hand, expect_lost, uuid};
use crate::rig::{Rig, Volume, access, least_bytes, refused_with, run, text};

/// Restores the backup `$1` to the path `$2`, without attributes.
const TOOLS: [&str; 6] = [
    r#"cp "$1" "$2""#,
    r#"cp --sparse=always "$1" "$2""#,
    r#"rsync --inplace "$1" "$2""#,
    r#"tar --extract --file="$1.tar" --directory="${2%/*}""#,
    r#"dd if="$1" of="$2" bs=1M status=none"#,
    r#"dd if="$1" of="$2" bs=1M conv=sparse status=none"#,
];

/// Restores the backup `$1` to the path `$2`, with its attributes.
const KEEPING_ATTRIBUTES: [&str; 3] = [
    r#"cp --archive "$1" "$2""#,
    r#"rsync --archive --xattrs "$1" "$2""#,
    r#"tar --extract --xattrs --file="$1.tar" --directory="${2%/*}""#,
];

/// Saves the file of the volume with its attributes, as a copy and as an archive with `.tar` after
/// its name. Returns the path of the copy.
fn back_up(rig: &Rig, volume: &Volume) -> PathBuf {
    let directory = rig.test_dir().directory("backups");
    let (copy, archive) = (directory.join(&volume.id), format!("{}.tar", volume.id));
    run("cp", &["--archive", text(&volume.file), text(&copy)]);
    let (archive, directory) = (directory.join(archive), text(&directory));
    let archive = format!("--file={}", archive.display());
    let directory = format!("--directory={directory}");
    let args = ["--create", "--xattrs", "--sparse", &archive, &directory];
    run("tar", &[&args[..], &[&volume.id]].concat());
    copy
}

/// Replaces the file of the volume. The kernel kills the tool when it writes beyond `end`.
fn restore(tool: &str, backup: &Path, volume: &Volume, end: Option<u64>) {
    fs::remove_file(&volume.file).expect("unlink");
    let end = end.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
    let limit = format!("--fsize={end}");
    let mut command = Command::new("prlimit");
    command.args(["--core=0", &limit, "sh", "-c", tool, "sh"]);
    command.args([backup, &volume.file]);
    let output = command.output().expect("prlimit of util-linux");
    assert_eq!(
        output.status.success(),
        end == "unlimited",
        "{tool}: {output:?}"
    );
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_a_tool_restored_without_attributes_is_mounted_with_its_data() {
    let rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = by_hand(&rig, kind);
        let backup = back_up(&rig, &volume);
        for tool in TOOLS {
            restore(tool, &backup, &volume, None);
            for name in [NEW, BYTES] {
                assert_eq!(volume.attribute(name), None, "{tool}");
            }
            let staged = rig.node().stage(volume.stage(access(kind)));
            assert!(staged.is_ok(), "{kind} by {tool}: {staged:?}");
            expect_words(kind, &volume.staging);
            volume.down(&rig.node(), &[]);
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_whose_restore_was_cut_off_is_not_formatted_once_it_has_its_size_again() {
    let rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = by_hand(&rig, kind);
        let (bytes, uuid_before) = (volume.bytes(), uuid(kind, &volume));
        let backup = back_up(&rig, &volume);
        for tool in TOOLS {
            let what = format!("{kind} by {tool}");
            restore(tool, &backup, &volume, Some(0));
            volume.grow(bytes);
            expect_lost(&rig.node(), &volume, &what);
            restore(tool, &backup, &volume, Some(bytes / 2));
            volume.grow(bytes);
            // The filesystem may be mounted, with its remaining content.
            let staged = rig.node().stage(volume.stage(access(kind)));
            if staged.is_ok() {
                volume.down(&rig.node(), &[]);
            }
            assert_eq!(uuid(kind, &volume), uuid_before, "{what}: {staged:?}");
        }
    }
}

/// The tool copies with several threads, of which one was killed.
#[test]
#[ignore = "needs root: make test"]
fn a_restored_file_without_its_first_part_is_not_formatted() {
    let rig = Rig::new();
    let tool = r#"dd if="$1" of="$2" bs=1M skip=1 seek=1 conv=sparse status=none"#;
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = by_hand(&rig, kind);
        let backup = back_up(&rig, &volume);
        restore(tool, &backup, &volume, None);
        let before = volume.contents();
        for asked in ["", "ext4", "xfs", "btrfs"] {
            let staged = rig.node().stage(volume.stage(access(asked)));
            refused_with(staged, Code::FailedPrecondition, &["not formatted"]);
            before.expect_unchanged(&volume.file, &format!("{kind}, requested {asked:?}"));
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_was_never_used_is_formatted_if_its_restored_file_has_its_attributes() {
    let rig = Rig::new();
    for tool in KEEPING_ATTRIBUTES.iter().chain(&TOOLS) {
        let volume = rig.volume(least_bytes("ext4"));
        let recorded = [NEW, BYTES].map(|name| volume.attribute(name));
        let backup = back_up(&rig, &volume);
        restore(tool, &backup, &volume, None);
        if KEEPING_ATTRIBUTES.contains(tool) {
            let found = [NEW, BYTES].map(|name| volume.attribute(name));
            assert_eq!(found, recorded, "{tool}");
        } else {
            expect_lost(&rig.node(), &volume, tool);
            // The operator knows that the volume is new.
            volume.mark_new();
        }
        let staged = rig.node().stage(volume.stage(access("ext4")));
        assert!(staged.is_ok(), "{tool}: {staged:?}");
        volume.down(&rig.node(), &[]);
    }
}
