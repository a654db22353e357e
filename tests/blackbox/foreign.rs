//! Devices with foreign data, in every form. All are refused, with the kind and position of the
//! data, and no byte of them changes.

use std::path::Path;

use tonic::Code;

use crate::rig::{Chance, Rig, Volume, World, access, bind_loop, refused_with, run};

const BYTES: u64 = 128 << 20;

/// The way in which a volume gets foreign data.
enum Made {
    /// The real tool writes the data to the file.
    By(fn(&str)),
    /// These bytes are written at these offsets.
    Of(&'static [(u64, &'static [u8])]),
}

struct Foreign {
    made: Made,
    /// The words of the refusal: the kind of the data, and its position.
    words: &'static [&'static str],
}

const fn by(tool: fn(&str), words: &'static [&'static str]) -> Foreign {
    Foreign {
        made: Made::By(tool),
        words,
    }
}

const fn of(bytes: &'static [(u64, &'static [u8])], words: &'static [&'static str]) -> Foreign {
    Foreign {
        made: Made::Of(bytes),
        words,
    }
}

/// A primary partition of type 0x83, which starts at sector 2048 and has 100 MiB.
const MBR_ENTRY: &[u8] = b"\0\x20\x21\0\x83\xaa\x28\x0c\0\x08\0\0\0\x20\x03\0";

const FOREIGN: [Foreign; 17] = [
    by(gpt, &["a GPT partition table", "at byte 512"]),
    by(luks1, &["a LUKS1 header", "at byte 0"]),
    by(luks2, &["a LUKS2 header", "at byte 0"]),
    by(lvm, &["an LVM2 physical volume", "at byte"]),
    by(
        |file| drop(run("mkswap", &[file])),
        &["swap space", "at byte"],
    ),
    by(
        |file| drop(run("mkfs.vfat", &[file])),
        &["a vfat filesystem", "at byte"],
    ),
    by(
        |file| drop(run("mkfs.ext2", &["-q", file])),
        &["an ext2 filesystem", "at byte 1024"],
    ),
    by(
        |file| drop(run("mkfs.ext3", &["-q", file])),
        &["an ext3 filesystem", "at byte 1024"],
    ),
    of(
        &[(446, MBR_ENTRY), (510, b"\x55\xaa")],
        &["an MBR partition table", "at byte"],
    ),
    of(
        &[(65_600, b"_BHRfS_M")],
        &["a damaged btrfs superblock", "at byte 65536"],
    ),
    of(
        &[(65_600, b"!BHRfS_M")],
        &[
            "a btrfs filesystem that mkfs did not finish",
            "at byte 65536",
        ],
    ),
    by(
        two_devices,
        &["one of 2 devices of a btrfs filesystem", "at byte 65536"],
    ),
    of(
        &[(32_769, b"CD001")],
        &["an iso9660 filesystem", "at byte 32769"],
    ),
    of(
        &[(0, b"bluestore block device")],
        &["a Ceph BlueStore device", "at byte 0"],
    ),
    of(
        &[(BYTES - 512, b"EFI PART")],
        &["a copy of a GPT partition table"],
    ),
    of(&[(1024 + 0x38, b"\x53\xef")], &["ext"]),
    of(&[(0, b"XFSB")], &["xfs"]),
];

fn gpt(file: &str) {
    run("sgdisk", &["--clear", "--new=1:0:0", file]);
}

/// The other device is removed before any check.
fn two_devices(file: &str) {
    let other = format!("{file}-other");
    run("truncate", &["--reference", file, &other]);
    run("mkfs.btrfs", &["-q", "-K", "-m", "raid1", file, &other]);
    run("rm", &[&other]);
}

fn luks1(file: &str) {
    luks(file, "luks1");
}

fn luks2(file: &str) {
    luks(file, "luks2");
}

fn luks(file: &str, kind: &str) {
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let mut args = vec![
        "luksFormat",
        "--batch-mode",
        "--type",
        kind,
        "--key-file",
        "/proc/version",
    ];
    args.extend(cheap);
    args.push(file);
    run("cryptsetup", &args);
}

/// Creates LVM data. LVM accepts only block devices, and is configured here to use only this one.
fn lvm(file: &str) {
    let device = &*bind_loop(Path::new(file));
    // A test of another process may just have set it read-only.
    run("blockdev", &["--setrw", device]);
    let config = format!(
        "devices {{ use_devicesfile=0 filter=[\"a|^{device}$|\", \"r|.*|\"] }} \
         backup {{ backup=0 archive=0 }} activation {{ udev_sync=0 udev_rules=0 monitoring=0 }}"
    );
    run("pvcreate", &["-y", "--config", &config, device]);
    run("losetup", &["-d", device]);
}

fn made(rig: &Rig, made: &Made) -> Volume {
    let volume = rig.volume(BYTES);
    match made {
        Made::By(tool) => tool(volume.file.to_str().expect("UTF-8")),
        Made::Of(places) => {
            for (at, bytes) in *places {
                volume.write(*at, bytes);
            }
        }
    }
    volume
}

/// Calls the stage in every way; each call must be refused with these words, and nothing may
/// change.
#[track_caller]
fn expect_refused(rig: &Rig, volume: &Volume, words: &[&str]) {
    let before = volume.contents();
    let world = World::around(rig.test_dir());
    for is_new in [true, false] {
        if !is_new {
            volume.mark_used();
        }
        for fs_type in ["", "ext4"] {
            let answer = rig.node().stage(volume.stage(access(fs_type)));
            refused_with(answer, Code::FailedPrecondition, words);
            let when = format!("{words:?}, new: {is_new}, requested {fs_type:?}");
            before.expect_unchanged(&volume.file, &when);
            world.expect_unchanged(rig.test_dir(), &when);
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn foreign_data_is_refused_by_name_and_offset_and_stays_unchanged() {
    let rig = Rig::new();
    for foreign in &FOREIGN {
        let volume = made(&rig, &foreign.made);
        expect_refused(&rig, &volume, foreign.words);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_single_byte_anywhere_keeps_a_volume_from_being_formatted() {
    let rig = Rig::new();
    let last = BYTES - 1;
    for at in [
        0,
        511,
        1024,
        4095,
        4096,
        65_536,
        BYTES / 2,
        (100 << 20) + 17,
        last - 4096,
        last,
    ] {
        let volume = rig.volume(BYTES);
        volume.write(at, b"\x01");
        expect_refused(&rig, &volume, &["unknown data", &format!("at byte {at}")]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn random_bytes_anywhere_keep_a_volume_from_being_formatted() {
    let rig = Rig::new();
    let mut chance = Chance::new("random_bytes_anywhere");
    for at in [0, BYTES / 2, BYTES - 8192] {
        let volume = rig.volume(BYTES);
        volume.write(at, &chance.bytes(8192));
        // Random data may happen to look like a known signature.
        expect_refused(&rig, &volume, &["at byte"]);
    }
    for _ in 0..10 {
        let volume = rig.volume(BYTES);
        volume.write(chance.below(BYTES), b"\x80");
        expect_refused(&rig, &volume, &["at byte"]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn zeros_that_were_written_are_blank_and_one_byte_among_them_is_not() {
    let rig = Rig::new();
    let volume = rig.volume(BYTES);
    volume.write(0, &vec![0; 9 << 20]);
    volume.write(BYTES - (1 << 20), &vec![0; 1 << 20]);
    volume.write(5 << 20, b"\x01");
    let answer = rig.node().stage(volume.stage(access("")));
    refused_with(answer, Code::FailedPrecondition, &["at byte 5242880"]);
    volume.write(5 << 20, b"\0");
    rig.node()
        .stage(volume.stage(access("")))
        .expect("zeros are blank");
    volume.down(&rig.node(), &[]);
}

/// Whether the filesystem's own check finds nothing to repair.
pub(crate) fn is_sound(kind: &str, file: &Path) -> bool {
    let file = file.to_str().expect("UTF-8");
    let args: &[&str] = match kind {
        "ext4" => &["e2fsck", "-f", "-n", file],
        "btrfs" => &["btrfs", "check", "-q", file],
        _ => &["xfs_repair", "-f", "-n", file],
    };
    let status = std::process::Command::new(args[0])
        .args(&args[1..])
        .output();
    status.expect("the filesystem's own check").status.success()
}
