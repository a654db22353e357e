//! Tests of formats with the options of a StorageClass, by the installed mkfs.

use belay_contract::format::Inodes;

use super::*;
use crate::filesystem::mkfs::{Recipe, mkfs};
use crate::filesystem::probe::{MARK_AT, MARK_BYTES, encode_mark};

const UUID: &str = "00010203-0405-4607-8809-0a0b0c0d0e0f";

fn options(block_bytes: Option<u32>, inode_bytes: Option<u32>) -> FormatOptions {
    FormatOptions {
        block_bytes,
        inode_bytes,
        ..FormatOptions::default()
    }
}

/// Returns the minimum and maximum of each option, alone and combined, and the expected output of
/// the tools.
fn cases() -> Vec<(FsType, FormatOptions, &'static [&'static str])> {
    let inodes = |inodes, options| FormatOptions {
        inodes: Some(inodes),
        ..options
    };
    let nodes = |bytes| FormatOptions {
        node_bytes: Some(bytes),
        ..FormatOptions::default()
    };
    let (one, four) = (options(Some(1024), None), options(Some(4096), Some(4096)));
    vec![
        (
            FsType::Ext4,
            one,
            &[
                "Block size:               1024",
                "Inode size:\t          256",
            ],
        ),
        (
            FsType::Ext4,
            options(Some(2048), Some(512)),
            &["Inode size:\t          512"],
        ),
        (
            FsType::Ext4,
            inodes(Inodes::PerBytes(32_768), four),
            &["Inode size:\t          4096"],
        ),
        (
            FsType::Ext4,
            inodes(Inodes::PerBytes(2048), one),
            &["Inode count:              524288"],
        ),
        (
            FsType::Ext4,
            inodes(Inodes::PerBytes(64 << 20), FormatOptions::default()),
            &["Block size:               4096"],
        ),
        (
            FsType::Ext4,
            inodes(Inodes::Count(262_144), FormatOptions::default()),
            &["Inode count:              262144"],
        ),
        (
            FsType::Ext4,
            inodes(Inodes::Count(1), FormatOptions::default()),
            &["Inode count: "],
        ),
        (
            FsType::Xfs,
            options(Some(1024), Some(512)),
            &["blocksize = 1024", "inodesize = 512"],
        ),
        (
            FsType::Xfs,
            options(None, Some(2048)),
            &["blocksize = 4096", "inodesize = 2048"],
        ),
        (FsType::Btrfs, nodes(4096), &["nodesize\t\t4096"]),
        (FsType::Btrfs, nodes(65_536), &["nodesize\t\t65536"]),
    ]
}

fn printed(image: &Image, fs: FsType) -> String {
    let path = image.path();
    match fs {
        FsType::Ext4 => tool("dumpe2fs", &["-h", text(&path)]),
        FsType::Xfs => tool("xfs_db", &["-r", "-c", "sb 0", "-c", "print", text(&path)]),
        FsType::Btrfs => tool("btrfs", &["inspect-internal", "dump-super", text(&path)]),
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_with_options_has_them_and_is_sound() {
    for (fs, options, expected) in cases() {
        options.fit("parameters", fs.name(), GIB).unwrap();
        let image = Image::new(GIB);
        image.format_with(fs, options, DEADLINE).unwrap();
        image.assert_holds(fs);
        let printed = printed(&image, fs);
        for part in expected {
            assert!(
                printed.contains(part),
                "{options:?}: no {part:?} in {printed}"
            );
        }
    }
}

/// Tests numbers of inodes near the largest accepted number, and device sizes near the smallest
/// accepted size or at which the journal grows. With `over_unread`, mkfs.ext4 also writes zeros to
/// the whole journal.
#[test]
fn the_mark_outlives_mkfs_next_to_what_is_refused() {
    let kernel = Linux::detect().unwrap();
    let mark = encode_mark(VOLUME, None).unwrap();
    let fit = |options: &FormatOptions, bytes| options.fit("parameters", "ext4", bytes).is_ok();
    let count = |gib: u64, permille: u64| {
        let options = FormatOptions {
            inodes: Some(Inodes::Count(gib * permille * 200)),
            ..FormatOptions::default()
        };
        (gib * GIB, options)
    };
    let counts = [2, 5, 100].into_iter();
    let counts = counts.flat_map(|gib| (960..1030).step_by(2).map(move |part| count(gib, part)));
    let small = [1024, 2048].into_iter().flat_map(|block| {
        let sizes = (256..300).step_by(4).chain([1023, 1024, 2048]);
        sizes.map(move |mib| (mib * MIB, options(Some(block), None)))
    });
    let mut refused = 0;
    for (bytes, options) in counts.chain(small) {
        if !fit(&options, bytes) {
            refused += 1;
            continue;
        }
        let image = Image::new(bytes);
        image.write(MARK_AT, &mark);
        let recipe = Recipe {
            fs: FsType::Ext4,
            options,
            uuid: UUID,
            over_leftovers: false,
            over_unread: bytes < 3 * GIB,
        };
        let held = image.hold(&kernel);
        mkfs(&kernel, &held.device(bytes, VOLUME), &recipe, DEADLINE).unwrap();
        let kept = image.read(MARK_AT, MARK_BYTES) == mark;
        assert!(kept, "{bytes}, {options:?}");
    }
    assert!(refused > 0, "the sweep has missed the mark");
}

/// Tests device sizes at which groups begin or journals grow, like the test with default options.
#[test]
fn the_mark_outlives_mkfs_with_options_too() {
    let kernel = Linux::detect().unwrap();
    let mark = encode_mark(VOLUME, None).unwrap();
    for (fs, options, _) in cases() {
        for mib in [300, 399, 400, 512, 799, 800, 1024, 1260, 2048, 5000] {
            let bytes = mib * MIB;
            if options.fit("parameters", fs.name(), bytes).is_err() {
                continue;
            }
            let image = Image::new(bytes);
            image.write(MARK_AT, &mark);
            let recipe = Recipe {
                fs,
                options,
                uuid: UUID,
                over_leftovers: false,
                over_unread: false,
            };
            let held = image.hold(&kernel);
            mkfs(&kernel, &held.device(bytes, VOLUME), &recipe, DEADLINE).unwrap();
            let kept = image.read(MARK_AT, MARK_BYTES) == mark;
            assert!(kept, "{fs} of {mib} MiB, {options:?}");
        }
    }
}
