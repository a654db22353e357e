//! Content that makes a user's volume look like something else from outside. The user, or an
//! operator who copies a disk image into the volume, must not lose the volume because of it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use belay_bed::tools::{run, text};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    NodeCalls, Rig, Volume, access, least_bytes, refused_with, with_flags, with_mode,
};

/// The size of a block, in bytes.
const BLOCK: usize = 4096;
/// The size of a file that is larger than the space a filesystem reserves.
const BALLAST: usize = 8 << 20;
/// The start of each block of the file that fills a volume; the block's number follows, in
/// little-endian form.
const NUMBERED: &[u8; 8] = b"block no";

/// A block that has a meaning at one offset of the device.
struct Trick {
    name: &'static str,
    /// Returns the offset for a device of this size in bytes.
    at: fn(u64) -> u64,
    block: fn(&Volume) -> Vec<u8>,
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_holds_its_own_format_mark_as_data_is_not_formatted_again() {
    let trick = Trick {
        name: "the mark of a format that was interrupted",
        at: |_| 100 << 20,
        block: format_mark,
    };
    // btrfs stores metadata there, where no user can choose the start of a block.
    for kind in ["ext4", "xfs"] {
        expect_harmless(kind, std::slice::from_ref(&trick));
    }
}

#[test]
#[ignore = "needs root: make test"]
fn superblocks_of_an_array_that_are_data_do_not_keep_a_volume_from_being_staged() {
    // A user can hardly choose the content at the end of an xfs.
    let tricks = [
        Trick {
            name: "an md superblock of version 0.90",
            at: |bytes| bytes - (64 << 10),
            block: |volume| md_version_0(volume.bytes() / 2),
        },
        Trick {
            name: "an md superblock of version 1.0",
            at: |bytes| bytes - 8192,
            block: |volume| md_version_1(volume.bytes() - 8192),
        },
    ];
    expect_harmless("ext4", &tricks);
}

/// Without an override, an error in this filesystem would halt the node.
#[test]
#[ignore = "needs root: make test"]
fn an_ext4_that_asks_for_a_panic_is_staged_with_remount_ro() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = written_raw(&rig, &node, &["-e", "panic"]);
    for (flags, expected) in [
        (&[][..], "errors=remount-ro"),
        (&["errors=continue"], "errors=continue"),
    ] {
        let usage = with_flags(access("ext4"), flags);
        node.stage(volume.stage(usage)).expect("stage");
        let options = superblock_options(&volume.staging);
        assert!(options.contains(&expected.to_owned()), "{options:?}");
        let panics = "errors=panic".to_owned();
        assert!(!options.contains(&panics), "{options:?}");
        volume.down(&node, &[]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn mount_options_in_a_superblock_are_refused_by_name_like_those_of_a_class() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = written_raw(&rig, &node, &[]);
    let file = text(&volume.file);
    for (options, name) in [
        ("noload", "noload"),
        ("discard,errors=panic", "errors"),
        ("journal_dev=0x700", "journal_dev"),
    ] {
        let command = format!("set_super_value mount_opts {options}");
        run("debugfs", &["-w", "-R", &command, file]);
        let words = [name, "tune2fs -E mount_opts=", file];
        for mode in [Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly] {
            let usage = with_mode(access("ext4"), mode);
            let staged = node.stage(volume.stage(usage));
            refused_with(staged, Code::FailedPrecondition, &words);
        }
    }
    run("tune2fs", &["-E", "mount_opts=", file]);
    run("tune2fs", &["-E", "mount_opts=commit=30", file]);
    node.stage(volume.stage(access("ext4"))).expect("stage");
    let options = superblock_options(&volume.staging);
    assert!(options.contains(&"commit=30".to_owned()), "{options:?}");
    volume.down(&node, &[]);
}

/// Returns a copy of a raw volume on which its user has created an ext4, like a volume restored
/// from its snapshot.
fn written_raw(rig: &Rig, node: &NodeCalls, options: &[&str]) -> Volume {
    let raw = rig.volume(least_bytes("ext4"));
    let target = raw.target("a");
    node.stage(raw.stage(access("block"))).expect("stage");
    let publish = raw.publish(&target, access("block"));
    node.publish(publish).expect("publish");
    run("mkfs.ext4", &[&["-q"], options, &[text(&target)]].concat());
    raw.down(node, &[&target]);
    rig.copy_of(&raw.file)
}

/// Returns the options of the superblock that is mounted at this path.
fn superblock_options(point: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let of_point = |line: &&str| line.split(' ').nth(4) == point.to_str();
    let line = mounts.lines().find(of_point).expect("a mount");
    let options = line.rsplit(' ').next().expect("options");
    options.split(',').map(str::to_owned).collect()
}

/// Writes each block to a volume, and fails unless the volume is then staged unchanged, even if its
/// file is recorded as new.
#[track_caller]
fn expect_harmless(kind: &str, tricks: &[Trick]) {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes(kind));
    node.stage(volume.stage(access(kind))).expect("stage");
    leave_words(kind, &volume.staging);
    fill(&volume.staging.join("filling"));
    let uuid = uuid(kind, &volume);
    for trick in tricks {
        let at = (trick.at)(volume.bytes());
        let before = store(&volume, at, &(trick.block)(&volume), trick.name);
        for is_new in [false, true] {
            let when = format!("{kind} with {}, new: {is_new}", trick.name);
            volume.down(&node, &[]);
            if is_new {
                volume.mark_new();
            }
            let answer = node.stage(volume.stage(access(kind)));
            assert!(answer.is_ok(), "{when}: {answer:?}");
            expect_words(kind, &volume.staging);
            assert_eq!(self::uuid(kind, &volume), uuid, "{when}");
        }
        store(&volume, at, &before, trick.name);
    }
    volume.down(&node, &[]);
}

/// Writes numbered blocks into a file until the filesystem is full.
fn fill(path: &Path) {
    // A filesystem may reserve some blocks, perhaps its last, until others become free.
    let ballast = path.with_file_name("ballast");
    fs::write(&ballast, vec![0; BALLAST]).expect("write");
    let file = File::create_new(path).expect("create");
    while append(&file) {}
    file.sync_all().expect("fsync");
    fs::remove_file(&ballast).expect("unlink");
    while append(&file) {}
    file.sync_all().expect("fsync");
}

/// Appends blocks. Returns whether they fitted.
fn append(file: &File) -> bool {
    let first = file.metadata().expect("stat").len() / BLOCK as u64;
    let mut chunk = vec![0; 256 * BLOCK];
    for (block, number) in chunk.chunks_mut(BLOCK).zip(first..) {
        block[..8].copy_from_slice(NUMBERED);
        block[8..16].copy_from_slice(&number.to_le_bytes());
    }
    match file.write_all_at(&chunk, first * BLOCK as u64) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::StorageFull => false,
        Err(error) => panic!("write: {error}"),
    }
}

/// Writes the block, as a user, where the user's data covers this byte of the device, or where an
/// earlier block was written. Returns the previous content.
fn store(volume: &Volume, at: u64, block: &[u8], name: &str) -> Vec<u8> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(volume.staging.join("filling"))
        .expect("open");
    let before = volume.read(at, BLOCK);
    let offset = match before.strip_prefix(NUMBERED) {
        Some(rest) => {
            let number = rest.first_chunk().expect("a block");
            u64::from_le_bytes(*number) * BLOCK as u64
        }
        None => find(&file, &before),
    };
    file.write_all_at(block, offset).expect("write");
    file.sync_all().expect("fsync");
    assert!(
        volume.read(at, BLOCK) == block,
        "{name} is not at byte {at}"
    );
    before
}

/// Returns the offset of this block in the file.
fn find(file: &File, block: &[u8]) -> u64 {
    let bytes = file.metadata().expect("stat").len();
    let mut found = vec![0; BLOCK];
    (0..bytes / BLOCK as u64)
        .map(|number| number * BLOCK as u64)
        .find(|at| {
            file.read_exact_at(&mut found, *at).expect("read");
            found == block
        })
        .expect("no data of the user's is there; choose another size")
}

/// Returns the filesystem's own UUID from its superblock (ext4: `s_uuid`; xfs: `sb_uuid`).
fn uuid(kind: &str, volume: &Volume) -> Vec<u8> {
    let at = match kind {
        "ext4" => 1024 + 0x68,
        _ => 32,
    };
    volume.read(at, 16)
}

/// Returns the mark that the node agent writes at byte 100 MiB while it formats this volume: a
/// magic, the version, the length of the ID, the ID; and a CRC-32C of all of it at byte 508.
fn format_mark(volume: &Volume) -> Vec<u8> {
    let id = volume.id.as_bytes();
    let length = u32::try_from(id.len()).expect("a short id");
    let mut block = b"BELAY-MKFS-MARK\n\x01\0\0\0".to_vec();
    block.extend(length.to_le_bytes());
    block.extend(id);
    block.resize(508, 0);
    block.extend(crc32c(&block).to_le_bytes());
    block.resize(BLOCK, 0);
    block
}

/// Returns the checksum of iSCSI (RFC 3720, appendix B.4).
fn crc32c(data: &[u8]) -> u32 {
    let mut crc = !0;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc = (crc >> 1) ^ (0x82f6_3b78 * carry);
        }
    }
    !crc
}

/// Returns the superblock of an array with the old metadata (Linux: include/uapi/linux/raid/md_p.h,
/// `mdp_super_t`), whose members have `bytes` bytes.
fn md_version_0(bytes: u64) -> Vec<u8> {
    let kibibytes = u32::try_from(bytes >> 10).expect("a small volume");
    let mut block = vec![0; BLOCK];
    block[..4].copy_from_slice(b"\xfc\x4e\x2b\xa9");
    block[8] = 90;
    block[32..36].copy_from_slice(&kibibytes.to_le_bytes());
    let checksum = md_checksum(&block);
    block[152..156].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// Returns a superblock of version 1 (`struct mdp_superblock_1`) for this byte offset, without any
/// member.
fn md_version_1(at: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..4].copy_from_slice(b"\xfc\x4e\x2b\xa9");
    block[4] = 1;
    block[144..152].copy_from_slice(&(at >> 9).to_le_bytes());
    let checksum = md_checksum(&block[..256]);
    block[216..220].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// Returns the sum of all words, with the carry added.
fn md_checksum(block: &[u8]) -> u32 {
    let (words, _) = block.as_chunks();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_le_bytes(*word)))
        .sum();
    let low = u32::try_from(sum & 0xffff_ffff).expect("32 bits");
    low.wrapping_add(u32::try_from(sum >> 32).expect("a short sum"))
}
