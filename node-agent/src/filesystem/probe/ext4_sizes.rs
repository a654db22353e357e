//! Tests of the sizes in superblocks of ext4 with different features, and of their mount options.

use super::ext4::tests::{seal, superblock};
use super::ext4::{Superblock, Verdict, check_options, is_copy, judge, panics};

fn sizes(fields: &[(usize, u32)]) -> Superblock {
    let mut block = superblock();
    for (at, value) in fields {
        block[*at..*at + 4].copy_from_slice(&value.to_le_bytes());
    }
    seal(&mut block);
    match judge(&block, u64::MAX) {
        Verdict::Sound(superblock) => superblock,
        other => panic!("{fields:x?}: {other:?}"),
    }
}

#[test]
fn sizes_follow_from_the_features() {
    // The feature 64bit adds the high half of the number of blocks, and longer descriptors.
    let large = sizes(&[(0x150, 1)]);
    assert_eq!(
        (large.blocks, large.copy_blocks),
        ((1 << 32) + 262_144, 2177)
    );
    let many_groups = (0x20, 1024);
    assert_eq!(sizes(&[many_groups]).copy_blocks, 132);
    let short = sizes(&[(0x60, 0x242), (0x150, 1), many_groups]);
    assert_eq!((short.blocks, short.copy_blocks), (262_144, 130));
    // Blocks of 1 KiB, the smallest size, and of 64 KiB, the largest.
    let small = sizes(&[
        (0x4, 262_145),
        (0x14, 1),
        (0x18, 0),
        (0x1c, 0),
        (0x20, 8192),
    ]);
    assert_eq!((small.block_bytes, small.first_block), (1024, 1));
    assert_eq!((small.inode_blocks, small.copy_blocks), (2048, 130));
    let large = sizes(&[(0x4, 16_384), (0x18, 6), (0x1c, 6)]);
    assert_eq!((large.block_bytes, large.inode_blocks), (65_536, 32));
    // Revision 0 has no field for the size of an inode.
    assert_eq!(sizes(&[(0x4c, 0)]).inode_blocks, 256);
}

#[test]
fn clusters_are_more_than_a_block_only_with_bigalloc() {
    let clusters = |ro_compat, log| sizes(&[(0x64, ro_compat), (0x1c, log)]).cluster_blocks;
    assert_eq!((clusters(0x46b, 6), clusters(0x46b, 2)), (1, 1));
    assert_eq!((clusters(0x66b, 6), clusters(0x66b, 2)), (16, 1));
}

#[test]
fn one_feature_of_ext4_of_either_kind_makes_it_an_ext4() {
    assert_eq!(sizes(&[(0x60, 0x2c2), (0x64, 0x3)]).blocks, 262_144);
    assert_eq!(sizes(&[(0x60, 0x2), (0x64, 0x43)]).blocks, 262_144);
}

#[test]
fn a_copy_has_the_number_of_its_group_and_possible_sizes() {
    let mut copy = superblock();
    assert!(!is_copy(&copy));
    copy[0x5a] = 1;
    assert!(is_copy(&copy));
    copy[0x18] = 7;
    assert!(!is_copy(&copy));
}

/// The kernel treats 0 like `remount-ro`.
#[test]
fn only_one_behaviour_after_errors_halts_the_node() {
    for errors in 0..5 {
        let mut block = [0; 1024];
        block[0x3c] = errors;
        assert_eq!(panics(&block), errors == 3, "{errors}");
    }
}

#[test]
fn mount_options_of_the_superblock_follow_the_rules_for_flags() {
    let checked = |options: &[u8]| {
        let mut block = [0; 1024];
        block[0x200..0x200 + options.len()].copy_from_slice(options);
        check_options(&block)
    };
    let no_longer = b"discard\0noload";
    for harmless in [&b""[..], b"discard,commit=30", b"nobarrier", no_longer] {
        assert_eq!(checked(harmless), Ok(()), "{harmless:?}");
    }
    for (options, part) in [
        (&b"noload"[..], "noload"),
        (b"discard,errors=panic", "halt the node"),
        (b"journal_dev=0x801", "journal_dev"),
        (&[b'n'; 64], "no end"),
        (b"\xff", "no name"),
    ] {
        let why = checked(options).unwrap_err();
        assert!(why.contains(part) && !why.contains(';'), "{why}");
    }
}
