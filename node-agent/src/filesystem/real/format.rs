//! Tests of formats with the installed mkfs, of any version.

use belay_server::call::{Certainty, Kind};

use super::*;
use crate::filesystem::mkfs::{Recipe, mkfs};
use crate::filesystem::probe::{MARK_AT, MARK_BYTES, encode_mark};
use crate::filesystem::witness::{self, Witness};
use crate::filesystem::{format, settle};

const UUID: &str = "00010203-0405-4607-8809-0a0b0c0d0e0f";

impl Image {
    fn mark(&self) -> Vec<u8> {
        self.read(MARK_AT, MARK_BYTES)
    }

    fn witness(&self) -> Witness {
        let kernel = Linux::detect().unwrap();
        let file = self.hold(&kernel).backing;
        witness::ask(&kernel, &file).unwrap()
    }

    /// Changes the record in the file as an agent does that crashes before it records that the
    /// volume is in use.
    fn begin_format_only(&self) -> String {
        let kernel = Linux::detect().unwrap();
        let held = self.hold(&kernel);
        let record = witness::ask(&kernel, &held.backing).unwrap();
        if !matches!(record, Witness::Formatting(_)) {
            kernel.set_xattr(&held.backing, NEW, IS_NEW).unwrap();
        }
        witness::begin_format(&kernel, &held.backing).unwrap()
    }

    /// Makes the remains of an interrupted mkfs. An incomplete ext4 has no superblock. An
    /// incomplete btrfs has a superblock with the temporary magic number. An incomplete xfs has a
    /// valid superblock, but its other parts may not be on the disk.
    fn make_leftovers(&self, fs: FsType) {
        let uuid = self.begin_format_only();
        match fs {
            FsType::Ext4 => self.write(1024, &[0; 1024]),
            FsType::Xfs => self.make("xfs_db", &["-x", "-c", &format!("uuid {uuid}")]),
            FsType::Btrfs => {
                for at in BTRFS_MAGICS_AT {
                    self.write(at, b"!");
                }
            }
        }
        // The format was interrupted before the mark was erased.
        self.write(MARK_AT, &encode_mark(VOLUME, None).unwrap());
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_blank_device_gets_a_sound_filesystem_without_a_mark_and_is_in_use() {
    for fs in FsType::ALL {
        for bytes in [fs.minimum_bytes(), 400 * MIB + 512, GIB, 5 * GIB] {
            let image = Image::new(bytes);
            image.format(fs, DEADLINE).unwrap();
            image.assert_holds(fs);
            assert_ne!(
                image.mark(),
                encode_mark(VOLUME, None).unwrap(),
                "{fs} of {bytes}"
            );
            assert_eq!(image.witness(), Witness::Used, "{fs} of {bytes}");
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_features_are_those_of_linux_5_14_and_no_more() {
    let image = Image::new(GIB);
    image.format(FsType::Ext4, DEADLINE).unwrap();
    let told = tool("dumpe2fs", &["-h", text(&image.path())]);
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("Filesystem features:"))
        .unwrap();
    let mut features: Vec<&str> = line.split_whitespace().collect();
    features.sort_unstable();
    let expected = [
        "64bit",
        "dir_index",
        "dir_nlink",
        "ext_attr",
        "extent",
        "extra_isize",
        "filetype",
        "flex_bg",
        "has_journal",
        "huge_file",
        "large_file",
        "metadata_csum",
        "resize_inode",
        "sparse_super",
    ];
    assert_eq!(features, expected);
    for line in [
        "Block size:               4096",
        "Reserved block count:     0",
    ] {
        assert!(told.contains(line), "{told}");
    }

    let image = Image::new(GIB);
    image.format(FsType::Xfs, DEADLINE).unwrap();
    let told = tool("xfs_db", &["-r", "-c", "version", text(&image.path())]);
    for newer in ["NREXT64", "EXCHANGE", "PARENT", "METADIR", "RMAPBT"] {
        assert!(!told.contains(newer), "{told}");
    }
    for wanted in ["REFLINK", "INOBTCNT", "BIGTIME", "SPARSE_INODES"] {
        assert!(told.contains(wanted), "{told}");
    }

    let image = Image::new(GIB);
    image.format(FsType::Btrfs, DEADLINE).unwrap();
    let superblock = image.read(64 << 10, 4096);
    let field = |at: usize| u64::from_le_bytes(superblock[at..at + 8].try_into().unwrap());
    let (compat_ro, incompat) = (field(0xb4), field(0xbc));
    assert_eq!(compat_ro & !3, 0, "more than the free space tree");
    assert_eq!(
        incompat & !0x20,
        0x341,
        "big metadata is as old as the others"
    );
    assert_eq!(superblock[0xc4], 0, "another checksum than crc32c");
}

/// At the tested sizes, a structure of mkfs could overlap the mark at 100 MiB: group boundaries,
/// and the sizes at which journals and allocation groups grow. From 1258 to 1261 MiB, mkfs.btrfs
/// would write metadata to the mark's offset by default.
#[test]
fn the_mark_outlives_mkfs_on_devices_of_every_size() {
    let kernel = Linux::detect().unwrap();
    let mib = [
        128, 129, 199, 200, 201, 255, 256, 300, 399, 400, 401, 512, 600, 799, 800, 801, 1023, 1025,
        1250, 1255, 1256, 1257, 1258, 1259, 1260, 1261, 1262, 1265, 1419, 1420, 1421, 1535, 1537,
    ];
    let gib = [
        1, 2, 3, 4, 5, 8, 16, 17, 33, 50, 51, 64, 100, 300, 1024, 1500,
    ];
    let sizes = mib
        .iter()
        .map(|mib| mib * MIB)
        .chain(gib.iter().map(|gib| gib * GIB));
    let mark = encode_mark(VOLUME, None).unwrap();
    for bytes in sizes {
        for fs in FsType::ALL
            .into_iter()
            .filter(|fs| fs.minimum_bytes() <= bytes)
        {
            let image = Image::new(bytes);
            image.write(MARK_AT, &mark);
            let held = image.hold(&kernel);
            let recipe = Recipe {
                fs,
                options: FormatOptions::default(),
                uuid: UUID,
                over_leftovers: false,
                over_unread: false,
            };
            mkfs(&kernel, &held.device(bytes, VOLUME), &recipe, DEADLINE).unwrap();
            assert_eq!(image.mark(), mark, "{fs} of {bytes} bytes");
            let found = image.examine(VOLUME);
            assert!(
                matches!(&found, Probed::Unsettled(made) if made.fs_type() == fs),
                "{fs} of {bytes}: {found:?}"
            );
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_format_that_is_killed_can_be_tried_again_even_as_another_type() {
    for fs in FsType::ALL {
        let image = Image::new(GIB);
        // Each deadline kills mkfs at a random point, from before its start to after its end. The
        // result must not depend on this point.
        for millis in [0, 1, 2, 3, 5, 8, 13, 21] {
            match image.format(fs, Duration::from_millis(millis)) {
                Ok(()) => break,
                Err(failure) => {
                    assert_eq!(failure.kind, Kind::Timeout, "{failure}");
                    assert_eq!(failure.certainty, Certainty::MayBeRunning);
                }
            }
            assert!(matches!(image.witness(), Witness::Formatting(_)));
            match image.examine(VOLUME) {
                Probed::Interrupted(_) => {}
                // mkfs was killed after its last write.
                Probed::Unsettled(made) if made.fs_type() == fs => {
                    image.check(fs);
                    break;
                }
                other => panic!("{other:?}"),
            }
            let other = image.examine("vol-2");
            assert!(matches!(other, Probed::Foreign(_)), "{other:?}");
        }
        if matches!(image.examine(VOLUME), Probed::Interrupted(_)) {
            let other = match fs {
                FsType::Ext4 => FsType::Xfs,
                FsType::Xfs => FsType::Btrfs,
                FsType::Btrfs => FsType::Ext4,
            };
            image.format(other, DEADLINE).unwrap();
            image.assert_holds(other);
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn leftovers_of_any_type_are_written_over() {
    for before in FsType::ALL {
        for after in FsType::ALL {
            let image = Image::new(GIB);
            image.format(before, DEADLINE).unwrap();
            image.make_leftovers(before);
            image.format(after, DEADLINE).unwrap();
            image.assert_holds(after);
        }
    }
}

/// An operator restores a backup into a file whose format was interrupted. The witness (the record
/// in the file's attribute) remains, and also the mark, unless the backup overwrites the mark.
#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_that_was_restored_beneath_a_mark_is_no_leftover() {
    for (program, fs) in [
        ("mkfs.ext4", FsType::Ext4),
        ("mkfs.xfs", FsType::Xfs),
        ("mkfs.btrfs", FsType::Btrfs),
    ] {
        let image = Image::new(GIB);
        image.make(program, &["-q"]);
        image.begin_format_only();
        image.write(MARK_AT, &encode_mark(VOLUME, None).unwrap());
        let found = image.examine(VOLUME);
        assert!(
            matches!(&found, Probed::Unsettled(made) if made.fs_type() == fs),
            "{found:?}"
        );
    }
    for (program, args) in [
        ("mke2fs", &["-q", "-t", "ext2"][..]),
        ("mke2fs", &["-q", "-t", "ext3"]),
        ("mkswap", &["-q"]),
    ] {
        let image = Image::new(GIB);
        image.make(program, args);
        image.begin_format_only();
        image.write(MARK_AT, &encode_mark(VOLUME, None).unwrap());
        let found = image.examine(VOLUME);
        assert!(matches!(found, Probed::Foreign(_)), "{program}: {found:?}");
    }
}

/// The offsets of the magic number of btrfs, and of its copy. mkfs.btrfs makes the copy valid last.
const BTRFS_MAGICS_AT: [u64; 2] = [(64 << 10) + 0x40, (64 << 20) + 0x40];

/// All attempts to complete a format use the same UUID, by which the next attempt identifies the
/// remains of the earlier attempts.
#[test]
#[ignore = "needs root: make test"]
fn an_xfs_gets_the_uuid_of_its_witness() {
    let image = Image::new(GIB);
    let uuid = image.begin_format_only();
    assert_eq!(image.begin_format_only(), uuid);
    image.format(FsType::Xfs, DEADLINE).unwrap();
    let made = tool("xfs_db", &["-r", "-c", "uuid", text(&image.path())]);
    assert!(made.contains(&uuid), "{made}");
    assert_ne!(image.begin_format_only(), uuid, "a new format");
}

/// If the agent crashes after it has erased the mark, the file still records that a format has
/// begun.
#[test]
#[ignore = "needs root: make test"]
fn a_witness_left_behind_goes_before_the_filesystem_is_known() {
    let kernel = Linux::detect().unwrap();
    for fs in FsType::ALL {
        let image = Image::new(GIB);
        image.format(fs, DEADLINE).unwrap();
        image.begin_format_only();
        let before = image.state();
        let Probed::Unsettled(made) = image.examine(VOLUME) else {
            panic!("the witness is not found");
        };
        assert!(image.state() == before);
        assert!(matches!(image.witness(), Witness::Formatting(_)));

        let held = image.hold(&kernel);
        let settled = settle(&kernel, &held.device(GIB, VOLUME), made).unwrap();
        assert_eq!((settled.fs, settled.wants_check), (fs, false));
        assert_eq!(image.witness(), Witness::Used);
        image.write(MARK_AT, &encode_mark(VOLUME, None).unwrap());
        let found = image.examine(VOLUME);
        assert!(
            matches!(found, Probed::Known(ref known) if known.fs == fs),
            "{found:?}"
        );
    }
}

/// The test uses a file of procfs, which has no extended attributes.
#[test]
#[ignore = "needs root: make test"]
fn without_a_place_for_the_witness_nothing_is_formatted() {
    let kernel = Linux::detect().unwrap();
    let image = Image::new(GIB);
    let held = image.hold(&kernel);
    let Probed::Blank(permit) = examine(&kernel, &held.device(GIB, VOLUME)) else {
        panic!("a new image is not blank");
    };
    let file = kernel
        .open(Path::new("/proc/self/stat"), Open::FileRead)
        .unwrap();
    let device = DeviceUnderTest {
        backing: Some(&file),
        ..held.device(GIB, VOLUME)
    };
    let failure = format(
        &kernel,
        &device,
        (FsType::Ext4, FormatOptions::default()),
        permit.into(),
        DEADLINE,
    )
    .unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert!(failure.to_string().contains(NEW), "{failure}");
    assert!(matches!(image.examine(VOLUME), Probed::Blank(_)));
    // A volume that is already formatted can be used without extended attributes.
    assert_eq!(witness::ask(&kernel, &file).unwrap(), Witness::Used);
    witness::begin_use(&kernel, &file).unwrap();
}

#[test]
fn a_device_below_the_minimum_is_refused_and_left_blank() {
    for fs in FsType::ALL {
        let image = Image::new(fs.minimum_bytes() - 512);
        let failure = image.format(fs, DEADLINE).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        assert!(matches!(image.examine(VOLUME), Probed::Blank(_)));
    }
}

#[test]
fn leave_to_format_one_volume_is_none_for_another() {
    let kernel = Linux::detect().unwrap();
    let (blank, other) = (Image::new(GIB), Image::new(GIB));
    other.write(0, b"somebody's");
    let (held, other_held) = (blank.hold(&kernel), other.hold(&kernel));
    let Probed::Blank(permit) = examine(&kernel, &held.device(GIB, "vol-1")) else {
        panic!("a new image is not blank");
    };
    let device = other_held.device(GIB, "vol-2");
    let failure = format(
        &kernel,
        &device,
        (FsType::Ext4, FormatOptions::default()),
        permit.into(),
        DEADLINE,
    )
    .unwrap_err();
    assert_eq!(failure.kind, Kind::Bug);
    assert_eq!(other.read(0, 10), b"somebody's");
}
