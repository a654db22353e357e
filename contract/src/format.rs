//! The parameters of a StorageClass for formatting blank volumes. The controller validates these
//! parameters, and the volume context passes them to the node that formats the volume.
//!
//! The names and meanings of the parameters are the same as in the AWS EBS driver. Options with
//! which a kernel might be unable to mount or grow the filesystem are not supported. Parameters for
//! encryption are recognised so that unknown ones can be refused.

use std::ops::RangeInclusive;

use belay_server::call::Failure;
use belay_server::request::Context;

const BLOCK_SIZE: &str = "blockSize";
const INODE_SIZE: &str = "inodeSize";
const BYTES_PER_INODE: &str = "bytesPerInode";
const NUMBER_OF_INODES: &str = "numberOfInodes";
const NODE_SIZE: &str = "btrfsNodeSize";

/// The parameters that configure the format.
pub const PARAMETERS: &[&str] = &[
    BLOCK_SIZE,
    INODE_SIZE,
    BYTES_PER_INODE,
    NUMBER_OF_INODES,
    NODE_SIZE,
];

/// The maximum block size, in bytes. No kernel has smaller pages, and kernels before Linux 6.12
/// cannot mount blocks larger than a page.
const BLOCK_BYTES_MAX: u32 = 4096;
/// The maximum number of bytes per inode that mke2fs accepts (`-i`).
const BYTES_PER_INODE_MAX: u32 = 64 << 20;
/// The offset of the node agent's mark of an unfinished format, in bytes from the start of the
/// device. The offset is constant, since the volume may grow before a format is retried. With the
/// options that Belay uses, mkfs of ext4 and xfs does not write at this offset. mkfs must not write
/// there, since the agent never resumes an interrupted format if it finds no mark.
pub const MARK_AT: u64 = 100 << 20;
/// The divisor for the maximum part of an ext4 that its inode tables may take: one eighth. mke2fs
/// does not write the inode tables, but larger tables can move other metadata to the offset of the
/// format mark.
const TABLES_PART: u64 = 8;
/// The minimum distance between the format mark and the end of the first inode tables, in bytes.
/// mke2fs writes the first directories, at least 20 KiB, directly after these tables.
const MARK_MARGIN: u64 = 1 << 20;
/// The volume sizes, in bytes, that allow blocks below the default size. In a smaller volume, the
/// journal can cover the format mark. In a larger volume, from 2 TiB on, a copy of the group
/// descriptors covers the mark.
const SMALL_BLOCKS_FIT: RangeInclusive<u64> = 256 << 20..=256 << 30;
/// The maximum number of inodes of a new ext4. An ext4 has at most 2^32 inodes, and their number
/// increases in proportion when it grows. With this maximum, each ext4 can grow to four times its
/// size.
const INODES_MAX: u64 = 1 << 30;
/// The default block size of ext4, in bytes.
const EXT4_BLOCK_BYTES: u32 = 4096;
/// The default inode size of ext4, in bytes.
const EXT4_INODE_BYTES: u32 = 256;
/// The volume size, in bytes, from which on mke2fs creates one inode per 64 KiB instead of one per
/// 16 KiB by default, since inode numbers have 32 bits.
const EXT4_LARGE_BYTES: u64 = 16 << 40;
/// The number of block groups whose metadata mke2fs stores together.
const FLEX_GROUPS: u64 = 16;
/// The size of a group descriptor of ext4, in bytes.
const DESCRIPTOR_BYTES: u64 = 64;
/// The default block size of mkfs.xfs, in bytes.
const XFS_BLOCK_BYTES: u32 = 4096;

/// The requested format options; `None` selects the default of Belay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatOptions {
    /// The block size of ext4 and xfs, in bytes.
    pub block_bytes: Option<u32>,
    /// The inode size of ext4 and xfs, in bytes.
    pub inode_bytes: Option<u32>,
    /// The number of inodes of an ext4.
    pub inodes: Option<Inodes>,
    /// The node size of btrfs, in bytes.
    pub node_bytes: Option<u32>,
}

/// The number of inodes of an ext4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inodes {
    /// The number of bytes of the volume for each inode.
    PerBytes(u64),
    /// The number of inodes, which increases in proportion when the volume grows.
    Count(u64),
}

impl FormatOptions {
    /// Reads the format options among the entries of `field`; ignores other entries.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the entry and the allowed values.
    pub fn read(field: &str, entries: &Context) -> Result<Self, Failure> {
        let power = |key, range: (u32, u32)| -> Result<Option<u32>, Failure> {
            let Some(text) = entries.get(key) else {
                return Ok(None);
            };
            let number = text.parse().ok().filter(|number: &u32| {
                number.is_power_of_two() && (range.0..=range.1).contains(number)
            });
            number.map(Some).ok_or_else(|| {
                let (least, most) = range;
                let why = format!("must be a power of two from {least} to {most}, not {text:?}");
                invalid(field, key, &why)
            })
        };
        let count = match entries.get(NUMBER_OF_INODES) {
            None => None,
            Some(text) => {
                let number = text.parse().ok();
                let fits = number.filter(|number| (1..=INODES_MAX).contains(number));
                let why = format!("must be a number from 1 to {INODES_MAX}, not {text:?}");
                Some(fits.ok_or_else(|| invalid(field, NUMBER_OF_INODES, &why))?)
            }
        };
        let per_bytes = power(BYTES_PER_INODE, (1024, BYTES_PER_INODE_MAX))?;
        let inodes = match (per_bytes, count) {
            (Some(_), Some(_)) => {
                let why = format!("contradicts {BYTES_PER_INODE}; set only one of them");
                return Err(invalid(field, NUMBER_OF_INODES, &why));
            }
            (Some(bytes), None) => Some(Inodes::PerBytes(bytes.into())),
            (None, count) => count.map(Inodes::Count),
        };
        Ok(Self {
            block_bytes: power(BLOCK_SIZE, (1024, BLOCK_BYTES_MAX))?,
            inode_bytes: power(INODE_SIZE, (256, BLOCK_BYTES_MAX))?,
            inodes,
            node_bytes: power(NODE_SIZE, (4096, 65536))?,
        })
    }

    /// Checks that a filesystem of this type and size can have the options.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the entry of `field` and the allowed values.
    pub fn fit(&self, field: &str, fs_type: &str, bytes: u64) -> Result<(), Failure> {
        let known: &[&str] = match fs_type {
            "ext4" => &[BLOCK_SIZE, INODE_SIZE, BYTES_PER_INODE, NUMBER_OF_INODES],
            "xfs" => &[BLOCK_SIZE, INODE_SIZE],
            "btrfs" => &[NODE_SIZE],
            _ => &[],
        };
        for (key, _) in self.entries() {
            if !known.contains(&&*key) {
                let known = known.join(", ");
                let why = format!("does not apply to {fs_type}, which takes {known}");
                return Err(invalid(field, &key, &why));
            }
        }
        match fs_type {
            // A volume without format parameters is never refused.
            _ if *self == Self::default() => Ok(()),
            "ext4" => self.fit_ext4(field, bytes),
            "xfs" => self.fit_xfs(field),
            _ => Ok(()),
        }
    }

    /// Returns the number of inodes of an ext4 of this size, requested or by default.
    #[must_use]
    pub fn ext4_inodes(&self, bytes: u64) -> Inodes {
        self.inodes.unwrap_or(match bytes {
            ..EXT4_LARGE_BYTES => Inodes::PerBytes(16_384),
            _ => Inodes::PerBytes(65_536),
        })
    }

    fn fit_ext4(&self, field: &str, bytes: u64) -> Result<(), Failure> {
        let block = u64::from(self.block_bytes.unwrap_or(EXT4_BLOCK_BYTES));
        let inode = u64::from(self.inode_bytes.unwrap_or(EXT4_INODE_BYTES));
        if inode > block {
            let why = format!("must be at most the {BLOCK_SIZE}, {block}");
            return Err(invalid(field, INODE_SIZE, &why));
        }
        if block < EXT4_BLOCK_BYTES.into() && !SMALL_BLOCKS_FIT.contains(&bytes) {
            let (least, most) = (SMALL_BLOCKS_FIT.start(), SMALL_BLOCKS_FIT.end());
            let why = format!(
                "must be {EXT4_BLOCK_BYTES} for {bytes} bytes; smaller blocks are for volumes of \
                 {least} to {most} bytes"
            );
            return Err(invalid(field, BLOCK_SIZE, &why));
        }
        let inodes = self.ext4_inodes(bytes);
        let least = (inode * TABLES_PART).max(block);
        let least = least.max(bytes.div_ceil(INODES_MAX).next_power_of_two());
        let with = format!("for {bytes} bytes with blocks of {block} and inodes of {inode} bytes");
        let why = match inodes {
            Inodes::PerBytes(per) if per < least => {
                format!("{BYTES_PER_INODE} must be at least {least} {with}")
            }
            Inodes::Count(count) if count > bytes / least => {
                format!("must be at most {} {with}", bytes / least)
            }
            _ if is_near_mark(bytes, block, inode, inodes) => {
                format!("these inodes would end near the format mark {with}; use fewer, or more")
            }
            _ => return Ok(()),
        };
        let key = match self.inodes {
            Some(Inodes::PerBytes(_)) => BYTES_PER_INODE,
            Some(Inodes::Count(_)) => NUMBER_OF_INODES,
            None => INODE_SIZE,
        };
        Err(invalid(field, key, &why))
    }

    /// Checks the limits of mkfs.xfs(8): an inode has 512 to 2048 bytes, and a block has room for
    /// at least two inodes.
    fn fit_xfs(&self, field: &str) -> Result<(), Failure> {
        let most = self.block_bytes.unwrap_or(XFS_BLOCK_BYTES) / 2;
        match self.inode_bytes {
            Some(inode) if !(512..=most).contains(&inode) => {
                let why = format!("must be from 512 to {most} for xfs: half of a block");
                Err(invalid(field, INODE_SIZE, &why))
            }
            _ => Ok(()),
        }
    }

    /// Returns the options as keys and values. An option that is not set has no key.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let (per_bytes, count) = match self.inodes {
            None => (None, None),
            Some(Inodes::PerBytes(bytes)) => (Some(bytes), None),
            Some(Inodes::Count(count)) => (None, Some(count)),
        };
        let entries = [
            (BLOCK_SIZE, self.block_bytes.map(u64::from)),
            (INODE_SIZE, self.inode_bytes.map(u64::from)),
            (BYTES_PER_INODE, per_bytes),
            (NUMBER_OF_INODES, count),
            (NODE_SIZE, self.node_bytes.map(u64::from)),
        ];
        let set = |(key, value): (&str, Option<u64>)| Some((key.to_owned(), value?.to_string()));
        entries.into_iter().filter_map(set)
    }
}

/// Whether the metadata of the first block groups ends near the format mark. mke2fs arranges this
/// metadata in the following order: the superblock, the group descriptors, the descriptors reserved
/// for growth, two bitmaps for each group, the inode tables.
fn is_near_mark(bytes: u64, block: u64, inode: u64, inodes: Inodes) -> bool {
    let blocks = bytes / block;
    let group_blocks = block * 8;
    let groups = blocks.div_ceil(group_blocks).max(1);
    let count = match inodes {
        Inodes::PerBytes(per) => bytes / per,
        Inodes::Count(count) => count,
    };
    let group_inodes = count
        .div_ceil(groups)
        .next_multiple_of((block / inode).max(8));
    let table = group_inodes * inode / block;
    let in_block = block / DESCRIPTOR_BYTES;
    let descriptors = groups.div_ceil(in_block);
    let grown = blocks.saturating_mul(1024).min(u32::MAX.into());
    let grown = grown.div_ceil(group_blocks).div_ceil(in_block);
    let reserved = grown.saturating_sub(descriptors).min(block / 4);
    let of_groups = groups.min(FLEX_GROUPS) * table;
    let end = (2 + descriptors + reserved + 2 * FLEX_GROUPS + of_groups) * block;
    end.abs_diff(MARK_AT) <= MARK_MARGIN
}

fn invalid(field: &str, key: &str, why: &str) -> Failure {
    Failure::invalid(&format!("{field}[{key}]"), why)
}

/// Values that turn encryption off.
const ENCRYPTION_OFF: [&str; 9] = ["", "0", "f", "false", "n", "no", "none", "off", "disabled"];

/// Whether a parameter of a class or an attribute of a volume requests encryption: its key contains
/// `luks` or `encrypt`, in any case, and its value does not turn encryption off. If an unknown
/// request were ignored, data would be stored unencrypted, and the content of a volume that another
/// driver has encrypted would not be recognised.
#[must_use]
pub fn is_encryption_requested(key: &str, value: &str) -> bool {
    has("encrypt", key, value) || is_encryption_by_driver(key, value)
}

/// Whether an entry requests encryption by the driver, with a LUKS header on the disk, instead of
/// encryption by the storage.
#[must_use]
pub fn is_encryption_by_driver(key: &str, value: &str) -> bool {
    has("luks", key, value)
}

fn has(word: &str, key: &str, value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    key.to_ascii_lowercase().contains(word) && !ENCRYPTION_OFF.contains(&&*value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn context(entries: &[(&str, &str)]) -> Context {
        let entries = entries.iter();
        let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Context::new("parameters", entries).unwrap()
    }

    fn read(entries: &[(&str, &str)]) -> Result<FormatOptions, Failure> {
        FormatOptions::read("parameters", &context(entries))
    }

    #[test]
    fn what_the_controller_writes_the_node_reads() {
        let of = |options: FormatOptions| Context::new("volume_context", options.entries());
        for inodes in [None, Some(Inodes::PerBytes(65_536)), Some(Inodes::Count(7))] {
            for (block_bytes, inode_bytes, node_bytes) in [
                (None, None, None),
                (Some(1024), Some(256), None),
                (Some(4096), None, Some(65_536)),
            ] {
                let options = FormatOptions {
                    block_bytes,
                    inode_bytes,
                    inodes,
                    node_bytes,
                };
                let context = of(options).unwrap();
                assert_eq!(FormatOptions::read("volume_context", &context), Ok(options));
                let keys: Vec<_> = context.iter().map(|(key, _)| key).collect();
                assert!(keys.iter().all(|key| PARAMETERS.contains(key)), "{keys:?}");
            }
        }
        assert_eq!(FormatOptions::default().entries().count(), 0);
    }

    #[test]
    fn a_value_that_no_filesystem_can_have_is_refused_by_name() {
        for (entries, key, part) in [
            (&[(BLOCK_SIZE, "512")][..], BLOCK_SIZE, "from 1024 to 4096"),
            (&[(BLOCK_SIZE, "8192")], BLOCK_SIZE, "from 1024 to 4096"),
            (&[(BLOCK_SIZE, "3000")], BLOCK_SIZE, "power of two"),
            (&[(BLOCK_SIZE, "4k")], BLOCK_SIZE, "not \"4k\""),
            (&[(BLOCK_SIZE, "")], BLOCK_SIZE, "not \"\""),
            (&[(INODE_SIZE, "128")], INODE_SIZE, "from 256 to 4096"),
            (&[(INODE_SIZE, "-256")], INODE_SIZE, "from 256 to 4096"),
            (
                &[(BYTES_PER_INODE, "0")],
                BYTES_PER_INODE,
                "power of two from 1024 to 67108864",
            ),
            (
                &[(BYTES_PER_INODE, "5474")],
                BYTES_PER_INODE,
                "power of two",
            ),
            (
                &[(NUMBER_OF_INODES, "1073741825")],
                NUMBER_OF_INODES,
                "to 1073741824",
            ),
            (&[(NODE_SIZE, "2048")], NODE_SIZE, "from 4096 to 65536"),
            (
                &[(BYTES_PER_INODE, "4096"), (NUMBER_OF_INODES, "9")],
                NUMBER_OF_INODES,
                "contradicts bytesPerInode",
            ),
        ] {
            let refused = read(entries).unwrap_err().message;
            let begin = format!("parameters[{key}]: ");
            assert!(
                refused.starts_with(&begin) && refused.contains(part),
                "{refused}"
            );
        }
    }

    #[test]
    fn an_option_that_the_filesystem_cannot_have_is_refused_by_name() {
        for (fs_type, entries, part) in [
            (
                "xfs",
                &[(BYTES_PER_INODE, "65536")][..],
                "[bytesPerInode]: does not apply to xfs",
            ),
            (
                "btrfs",
                &[(BLOCK_SIZE, "4096")],
                "which takes btrfsNodeSize",
            ),
            (
                "ext4",
                &[(NODE_SIZE, "4096")],
                "[btrfsNodeSize]: does not apply to ext4",
            ),
            (
                "ext4",
                &[(BLOCK_SIZE, "1024"), (INODE_SIZE, "2048")],
                "at most the blockSize, 1024",
            ),
            ("ext4", &[(BYTES_PER_INODE, "2048")], "at least 4096"),
            (
                "ext4",
                &[(INODE_SIZE, "4096")],
                "[inodeSize]: bytesPerInode must be at least 32768",
            ),
            (
                "ext4",
                &[(BLOCK_SIZE, "1024"), (BYTES_PER_INODE, "1024")],
                "at least 2048",
            ),
            (
                "ext4",
                &[(INODE_SIZE, "1024"), (BYTES_PER_INODE, "4096")],
                "at least 8192",
            ),
            (
                "ext4",
                &[(NUMBER_OF_INODES, "262145")],
                "at most 262144 for 1073741824",
            ),
            ("xfs", &[(INODE_SIZE, "256")], "from 512 to 2048"),
            ("xfs", &[(INODE_SIZE, "4096")], "from 512 to 2048"),
            (
                "xfs",
                &[(BLOCK_SIZE, "1024"), (INODE_SIZE, "1024")],
                "from 512 to 512",
            ),
        ] {
            let options = read(entries).unwrap();
            let refused = options.fit("parameters", fs_type, GIB).unwrap_err().message;
            assert!(
                refused.starts_with("parameters[") && refused.contains(part),
                "{refused}"
            );
        }
        for (fs_type, entries) in [
            ("ext4", &[][..]),
            ("ext4", &[(BYTES_PER_INODE, "4096"), (INODE_SIZE, "512")]),
            (
                "ext4",
                &[(NUMBER_OF_INODES, "262144"), (BLOCK_SIZE, "4096")],
            ),
            ("xfs", &[(BLOCK_SIZE, "1024"), (INODE_SIZE, "512")]),
            ("btrfs", &[(NODE_SIZE, "65536")]),
        ] {
            let fitting = read(entries).unwrap().fit("parameters", fs_type, GIB);
            assert_eq!(fitting, Ok(()), "{fs_type} {entries:?}");
        }
    }

    fn fits(bytes: u64, options: FormatOptions) -> Result<(), String> {
        let fitting = options.fit("parameters", "ext4", bytes);
        fitting.map_err(|failure| failure.message)
    }

    #[test]
    fn the_defaults_are_never_near_the_mark() {
        let mut bytes = 128 << 20;
        while bytes < 64 << 40 {
            let inodes = FormatOptions::default().ext4_inodes(bytes);
            assert!(!is_near_mark(bytes, 4096, 256, inodes), "{bytes}");
            bytes += bytes / 1000;
        }
    }

    #[test]
    fn small_blocks_need_a_size_at_which_nothing_else_is_at_the_mark() {
        for block in [1024, 2048] {
            let options = FormatOptions {
                block_bytes: Some(block),
                ..FormatOptions::default()
            };
            for (bytes, is_fit) in [
                ((256 << 20) - 1, false),
                (256 << 20, true),
                (256 << 30, true),
                ((256 << 30) + 1, false),
            ] {
                assert_eq!(fits(bytes, options).is_ok(), is_fit, "{block}, {bytes}");
            }
        }
    }

    /// With the first of these inode counts, mke2fs 1.47 has overwritten the format mark.
    #[test]
    fn inodes_that_end_at_the_mark_are_refused_and_others_not() {
        for (gib, count, is_fit) in [
            (100, 19_616_000, false),
            (100, 19_622_400, false),
            (100, 19_400_000, true),
            (100, 20_000_000, true),
            (2, 404_900, false),
            (2, 524_288, true),
        ] {
            let options = FormatOptions {
                inodes: Some(Inodes::Count(count)),
                ..FormatOptions::default()
            };
            let fitting = fits(gib * GIB, options);
            assert_eq!(fitting.is_ok(), is_fit, "{gib}, {count}: {fitting:?}");
            let is_named = |why: String| why.starts_with("parameters[numberOfInodes]: these");
            assert!(fitting.err().is_none_or(is_named), "{gib}, {count}");
        }
    }

    /// An ext4 with this number of inodes could no longer be expanded.
    #[test]
    fn an_ext4_has_inodes_left_to_grow_to_four_times_its_size() {
        let per = |bytes| FormatOptions {
            inodes: Some(Inodes::PerBytes(bytes)),
            ..FormatOptions::default()
        };
        assert_eq!(fits(4 << 40, per(4096)), Ok(()));
        let refused = fits((4 << 40) + GIB, per(4096)).unwrap_err();
        assert!(refused.contains("at least 8192"), "{refused}");
    }

    /// PersistentVolumes store volume contexts, and the contexts of other drivers have more keys.
    #[test]
    fn the_words_are_those_of_every_release_and_others_are_ignored() {
        let entries = [
            ("blockSize", "1024"),
            ("inodeSize", "512"),
            ("numberOfInodes", "1000"),
            ("btrfsNodeSize", "8192"),
            ("theirs", "x"),
        ];
        let expected = FormatOptions {
            block_bytes: Some(1024),
            inode_bytes: Some(512),
            inodes: Some(Inodes::Count(1000)),
            node_bytes: Some(8192),
        };
        assert_eq!(read(&entries), Ok(expected));
        let per_bytes = read(&[("bytesPerInode", "4096")]).unwrap();
        assert_eq!(per_bytes.inodes, Some(Inodes::PerBytes(4096)));
    }

    #[test]
    fn encryption_is_requested_by_any_of_its_names_unless_it_is_off() {
        for key in [
            "luksEncrypted",
            "encrypted",
            "example.com/luks-encrypted",
            "example.com/Encryption",
            "luksCipher",
        ] {
            assert!(is_encryption_requested(key, "true"), "{key}");
            assert!(is_encryption_requested(key, "aes-xts-plain64"), "{key}");
            assert_eq!(
                is_encryption_by_driver(key, "true"),
                key.contains("luks"),
                "{key}"
            );
            for off in ["false", "False", "no", "0", " ", "None", "off"] {
                assert!(!is_encryption_by_driver(key, off), "{key}: {off}");
                assert!(!is_encryption_requested(key, off), "{key}: {off}");
            }
        }
        assert!(!is_encryption_requested("type", "encrypted-standard"));
    }
}
