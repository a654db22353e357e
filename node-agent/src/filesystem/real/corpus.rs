//! Tests with images that other tools have written: the probe identifies each image, and never
//! writes to an image.

use super::*;
use crate::filesystem::FsType;
use crate::filesystem::probe::tests::{md_version_0, md_version_1};
use crate::filesystem::probe::{MARK_AT, encode_mark};

const KEY: &[u8] = b"a key of no worth";

/// Asserts that the image has this foreign content at byte `at`, with and without its data map.
fn expect_foreign(image: &Image, what: &str, at: u64) {
    let before = image.state();
    let kernel = Linux::detect().unwrap();
    let held = image.hold(&kernel);
    for backing in [Some(&held.backing), None] {
        let device = DeviceUnderTest {
            secrets: &[],
            backing,
            ..held.device(image.bytes, VOLUME)
        };
        match examine(&kernel, &device) {
            Probed::Foreign(found) => assert_eq!((found.what.as_str(), found.at), (what, at)),
            other => panic!("{other:?} instead of {what}"),
        }
    }
    assert!(
        image.state() == before,
        "the probe has changed the image with {what}"
    );
}

fn expect_known(image: &Image, fs: FsType) {
    let before = image.state();
    let kernel = Linux::detect().unwrap();
    let held = image.hold(&kernel);
    for backing in [Some(&held.backing), None] {
        let device = DeviceUnderTest {
            secrets: &[],
            backing,
            ..held.device(image.bytes, VOLUME)
        };
        let found = examine(&kernel, &device);
        let is_so = match &found {
            Probed::Known(known) => backing.is_none() && known.fs == fs,
            Probed::Unsettled(made) => backing.is_some() && made.fs_type() == fs,
            _ => false,
        };
        assert!(is_so, "{found:?}");
    }
    assert!(
        image.state() == before,
        "the probe has changed an image with {fs}"
    );
}

fn made(bytes: u64, program: &str, args: &[&str]) -> Image {
    let image = Image::new(bytes);
    image.make(program, args);
    image
}

#[test]
fn filesystems_made_by_hand_are_known() {
    let ext4: [&[&str]; 5] = [
        &[],
        &["-b", "1024"],
        &["-b", "2048"],
        &["-O", "^metadata_csum,^64bit"],
        &["-O", "bigalloc,^resize_inode,sparse_super2"],
    ];
    for args in ext4 {
        let args = [&["-q", "-t", "ext4"], args].concat();
        expect_known(&made(512 * MIB, "mke2fs", &args), FsType::Ext4);
    }
    let xfs: [&[&str]; 4] = [
        &[],
        &["-s", "size=4096"],
        &["-m", "crc=0", "-b", "size=1024"],
        &["-m", "rmapbt=1"],
    ];
    for args in xfs {
        let args = [&["-q"], args].concat();
        expect_known(&made(512 * MIB, "mkfs.xfs", &args), FsType::Xfs);
    }
    let btrfs: [&[&str]; 4] = [
        &[],
        &["-M"],
        &["--csum", "xxhash"],
        &["-m", "single", "-n", "4096"],
    ];
    for args in btrfs {
        let args = [&["-q"], args].concat();
        expect_known(&made(512 * MIB + 512, "mkfs.btrfs", &args), FsType::Btrfs);
    }
    expect_known(
        &made(512 * MIB + 512, "mke2fs", &["-q", "-t", "ext4"]),
        FsType::Ext4,
    );
}

/// A user can fill a volume with a chosen block, so that a signature is at any offset.
#[test]
fn blocks_that_a_user_has_stored_do_not_take_his_volume_away() {
    let bytes = 512 * MIB;
    let (end, old_end) = (bytes - 8192, bytes - (64 << 10));
    let stored = [
        (MARK_AT, encode_mark(VOLUME, None).unwrap().to_vec()),
        (end, md_version_1(end)),
        (old_end, md_version_0(bytes / 2)),
    ];
    for (at, block) in stored {
        for (program, args, fs) in [
            ("mke2fs", &["-q", "-t", "ext4"][..], FsType::Ext4),
            ("mkfs.xfs", &["-q"], FsType::Xfs),
        ] {
            let image = made(bytes, program, args);
            image.write(at, &block);
            expect_known(&image, fs);
        }
    }
}

#[test]
fn one_of_several_devices_of_a_btrfs_is_foreign() {
    let (first, second) = (Image::new(256 * MIB), Image::new(256 * MIB));
    let paths = (first.path(), second.path());
    tool("mkfs.btrfs", &["-q", "-K", text(&paths.0), text(&paths.1)]);
    for image in [&first, &second] {
        expect_foreign(image, "one of 2 devices of a btrfs filesystem", 64 << 10);
    }
}

#[test]
fn a_btrfs_without_its_first_superblock_is_told_by_the_second() {
    let image = made(256 * MIB, "mkfs.btrfs", &["-q"]);
    image.write(64 << 10, &[0; 4096]);
    expect_foreign(&image, "a second btrfs superblock", (64 << 20) + 0x40);
}

#[test]
fn nothing_is_blank_and_zeros_are_too() {
    let image = Image::new(GIB + 512);
    assert!(matches!(image.examine(VOLUME), Probed::Blank(_)));
    image.write(0, &[0; 100_000]);
    image.write(GIB, &[0; 512]);
    assert!(matches!(image.examine(VOLUME), Probed::Blank(_)));
    image.write(GIB + 511, &[1]);
    expect_foreign(&image, "unknown data", GIB + 511);
}

#[test]
fn the_relatives_of_ext4_are_told_by_name() {
    for (fs, what) in [
        ("ext2", "an ext2 filesystem"),
        ("ext3", "an ext3 filesystem"),
    ] {
        expect_foreign(&made(256 * MIB, "mke2fs", &["-q", "-t", fs]), what, 1024);
    }
    let image = made(
        256 * MIB,
        "mke2fs",
        &["-q", "-b", "4096", "-O", "journal_dev"],
    );
    expect_foreign(&image, "an external journal of ext3 or ext4", 1024);
    for field in [
        "journal_uuid 00010203-0405-4607-8809-0a0b0c0d0e0f",
        "journal_dev 0x702",
    ] {
        let image = made(256 * MIB, "mke2fs", &["-q", "-t", "ext4"]);
        for command in [
            &*format!("set_super_value {field}"),
            "set_super_value journal_inum 0",
        ] {
            image.make("debugfs", &["-w", "-R", command]);
        }
        expect_foreign(&image, "an ext4 with an external journal", 1024);
    }
}

#[test]
fn other_filesystems_and_swap_are_told_by_name() {
    expect_foreign(&made(256 * MIB, "mkswap", &["-q"]), "swap space", 4086);
    let vfat = made(256 * MIB, "mkfs.vfat", &["-F", "32"]);
    expect_foreign(&vfat, "a vfat filesystem", 82);
    let vfat = made(64 * MIB, "mkfs.vfat", &["-F", "16"]);
    expect_foreign(&vfat, "a vfat filesystem", 54);
}

#[test]
fn encrypted_devices_are_told_by_name() {
    for (version, what) in [("luks1", "a LUKS1 header"), ("luks2", "a LUKS2 header")] {
        let image = Image::new(64 * MIB);
        let key = image.dir.path().join("key");
        std::fs::write(&key, KEY).unwrap();
        let format = [
            "luksFormat",
            "--batch-mode",
            "--disable-locks",
            "--type",
            version,
        ];
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        let key = ["--key-file", text(&key)];
        image.make("cryptsetup", &[&format[..], &cheap, &key].concat());
        expect_foreign(&image, what, 0);
        if version == "luks2" {
            image.write(0, &[0; 512]);
            expect_foreign(&image, "a second LUKS2 header", 16 << 10);
        }
    }
}

#[test]
fn partition_tables_are_told_by_name_also_by_their_copy() {
    let image = Image::new(256 * MIB);
    tool("sgdisk", &["--new=1:2048:0", text(&image.path())]);
    expect_foreign(&image, "a GPT partition table", 512);
    image.write(0, &[0; 64 << 10]);
    expect_foreign(&image, "a copy of a GPT partition table", 256 * MIB - 512);

    let image = Image::new(256 * MIB);
    tool(
        "sgdisk",
        &["--new=1:2048:0", "--gpttombr=1", text(&image.path())],
    );
    image.write(512, &[0; 64 << 10]);
    image.write(image.bytes - (64 << 10), &[0; 64 << 10]);
    expect_foreign(&image, "an MBR partition table", 510);
}

#[test]
fn a_table_written_over_a_filesystem_is_told_by_name() {
    let over_ext4 = made(512 * MIB, "mke2fs", &["-q", "-t", "ext4"]);
    let over_xfs = made(512 * MIB, "mkfs.xfs", &["-q"]);
    for image in [&over_ext4, &over_xfs] {
        tool("sgdisk", &["--new=1:2048:0", text(&image.path())]);
    }
    expect_foreign(&over_ext4, "a GPT partition table", 512);
    let both = "a damaged xfs superblock (wrong checksum) and a GPT partition table";
    expect_foreign(&over_xfs, both, 0);
}

/// The test writes the signatures itself, because pvcreate and mdadm need a block device. blkid
/// verifies them.
#[test]
fn members_of_volume_groups_and_arrays_are_told_by_name() {
    let image = Image::new(256 * MIB);
    let mut label = [0; 512];
    label[..8].copy_from_slice(b"LABELONE");
    label[8] = 1;
    label[20] = 32;
    label[24..32].copy_from_slice(b"LVM2 001");
    image.write(512, &label);
    expect_foreign(&image, "an LVM2 physical volume", 512 + 24);

    let end = 256 * MIB - 8192;
    for (version, at) in [("1.1", 0), ("1.2", 4096), ("1.0", end)] {
        let image = Image::new(256 * MIB);
        image.write(at, &md_version_1(at));
        expect_foreign(
            &image,
            &format!("a member of a software RAID (md {version})"),
            at,
        );
        let told = tool(
            "blkid",
            &["-p", "-o", "value", "-s", "TYPE", text(&image.path())],
        );
        assert_eq!(told.trim(), "linux_raid_member");
    }
}

#[test]
fn a_wiped_or_damaged_filesystem_is_not_blank() {
    let image = made(512 * MIB, "mke2fs", &["-q", "-t", "ext4", "-b", "4096"]);
    image.write(1024 + 0x78, b"label");
    expect_foreign(&image, "a damaged ext4 superblock (wrong checksum)", 1024);
    image.write(0, &[0; 4096]);
    let copy = (128 << 20) + 0x38;
    expect_foreign(&image, "a copy of an ext superblock", copy);

    let image = made(512 * MIB, "mkfs.xfs", &["-q"]);
    image.write(200, &[0xff]);
    expect_foreign(&image, "a damaged xfs superblock (wrong checksum)", 0);
    image.write(0, &[0; 4096]);
    expect_foreign(&image, "a copy of an xfs superblock", 128 << 20);
}

#[test]
fn a_filesystem_on_a_device_cut_short_is_told_with_both_sizes() {
    for (program, args) in [("mke2fs", &["-q", "-t", "ext4"][..]), ("mkfs.xfs", &["-q"])] {
        let mut image = made(512 * MIB, program, args);
        image.bytes -= 64 * MIB;
        File::options()
            .write(true)
            .open(image.path())
            .unwrap()
            .set_len(image.bytes)
            .unwrap();
        match image.examine(VOLUME) {
            Probed::Foreign(found) => {
                let size = "too large for a device of 448 MiB";
                assert!(found.what.ends_with(size), "{}", found.what);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_device_that_ends_before_its_size_is_unreadable() {
    let mut image = Image::new(MIB);
    image.bytes = 2 * MIB;
    let found = image.examine(VOLUME);
    assert!(matches!(found, Probed::Unreadable(_)), "{found:?}");
}
