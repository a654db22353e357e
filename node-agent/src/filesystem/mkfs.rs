//! The arguments of mkfs. The arguments select features that Linux 5.14 can mount, regardless of
//! the installed tool's defaults, and keep mkfs from overwriting the format mark at 100 MiB.

mod btrfs;

use std::path::Path;
use std::time::{Duration, Instant};

use belay_contract::format::{FormatOptions, Inodes};
use belay_server::call::{Failure, Kind};

use super::FsType;
use super::probe::{DeviceUnderTest, Identity, identify};
use crate::kernel::{Cause, Child, ChildEnd, Kernel, Open};

/// The path of the device in the child: its standard input.
pub(super) const DEVICE: &str = "/proc/self/fd/0";

/// The features of ext4. The list starts with "none", so that no mke2fs.conf adds a feature. All
/// features in the list are older than Linux 4.0. Newer tools also enable orphan_file (5.15) and
/// metadata_csum_seed, which stay disabled.
const EXT4_FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,\
    64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
/// The extended options of ext4. mkfs leaves the inode tables to the kernel, which zeroes them
/// later, and discards nothing, because the device was just proven blank. A fully written inode
/// table, or metadata that is packed together, could overwrite the format mark.
const EXT4_EXTENDED: &str = "lazy_itable_init=1,nodiscard,packed_meta_blocks=0";

/// The metadata options of xfs, which xfsprogs 5.13 supports. Linux 5.10 supports all features of
/// the list.
const XFS_METADATA: &str = "crc=1,finobt=1,reflink=1,rmapbt=0,bigtime=1,inobtcount=1";
/// The size in bytes below which an xfs gets two allocation groups. With four groups, the second
/// group of a volume of 400 MiB would begin at the format mark, and so would the second of eight
/// groups, for a striped disk, of a volume of 800 MiB.
const XFS_SMALL_BYTES: u64 = 1 << 30;
/// The `sb_features_incompat` that [`XFS_METADATA`] and `-i sparse=1` produce: ftype, sparse
/// inodes, bigtime (Linux: fs/xfs/libxfs/xfs_format.h).
const XFS_INCOMPAT: u32 = 0x1 | 0x2 | 0x8;

/// A feature of xfs that is newer than Linux 5.14, and the option that disables it.
struct XfsFeature {
    incompat: u32,
    option: &'static str,
    no: &'static str,
    /// A file that is installed only by versions of xfsprogs that support the option.
    shipped_with: &'static str,
}

/// The features to disable. An older mkfs.xfs fails on an unknown option, so an option is passed
/// only if mkfs.xfs certainly supports it: its package installs the file `shipped_with`, or
/// mkfs.xfs has just enabled the feature.
const XFS_NEWER: &[XfsFeature] = &[
    XfsFeature {
        incompat: 0x20,
        option: "-i",
        no: "nrext64=0",
        shipped_with: "/usr/share/xfsprogs/mkfs/lts_6.6.conf",
    },
    XfsFeature {
        incompat: 0x40,
        option: "-i",
        no: "exchange=0",
        shipped_with: "/usr/share/xfsprogs/mkfs/lts_6.12.conf",
    },
    XfsFeature {
        incompat: 0x80,
        option: "-n",
        no: "parent=0",
        shipped_with: "/usr/share/xfsprogs/mkfs/lts_6.12.conf",
    },
];

/// The filesystem to create.
pub(super) struct Recipe<'a> {
    /// The filesystem type.
    pub(super) fs: FsType,
    /// The options of the request; they [fit](FormatOptions::fit) the type.
    pub(super) options: FormatOptions,
    /// The UUID that identifies an xfs after an interrupted mkfs. mkfs.ext4 and mkfs.btrfs need no
    /// UUID, see [`Identity::may_be_half_made`]. With a UUID, mkfs.btrfs would read every disk of
    /// the node.
    pub(super) uuid: &'a str,
    /// Whether the device may contain an incomplete filesystem, which must be overwritten.
    pub(super) over_leftovers: bool,
    /// Whether parts of the device were not read and may contain other bytes than zeros.
    pub(super) over_unread: bool,
}

/// Runs mkfs until it exits.
///
/// # Errors
///
/// Returns [`Kind::Busy`] if another process has the device open, [`Kind::Timeout`] at the
/// deadline, [`Kind::System`] with the tool's message.
pub(super) fn mkfs<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    recipe: &Recipe<'_>,
    deadline: Duration,
) -> Result<(), Failure> {
    match recipe.fs {
        FsType::Ext4 => run(
            kernel,
            device,
            "mkfs.ext4",
            ext4_args(device.bytes, &recipe.options, recipe.over_unread),
            deadline,
        ),
        FsType::Xfs => mkfs_xfs(kernel, device, recipe, deadline),
        FsType::Btrfs => btrfs::mkfs(kernel, device, recipe, deadline),
    }
}

/// Runs mkfs.xfs. If the new xfs has features that Linux 5.14 cannot mount, runs mkfs.xfs again
/// with the options that disable these features.
fn mkfs_xfs<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    recipe: &Recipe<'_>,
    deadline: Duration,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let is_shipped =
        |feature: &&XfsFeature| matches!(kernel.look(Path::new(feature.shipped_with)), Ok(Some(_)));
    let mut refused: Vec<&XfsFeature> = XFS_NEWER.iter().filter(is_shipped).collect();
    let args = xfs_args(device.bytes, recipe, recipe.over_leftovers, &refused);
    run(kernel, device, "mkfs.xfs", args, deadline)?;

    let unwanted = unwanted_features(kernel, device)?;
    if unwanted == 0 {
        return Ok(());
    }
    refused.extend(enabled(unwanted));
    let left = deadline.saturating_sub(begun.elapsed());
    run(
        kernel,
        device,
        "mkfs.xfs",
        xfs_args(device.bytes, recipe, true, &refused),
        left,
    )?;
    match unwanted_features(kernel, device)? {
        0 => Ok(()),
        bits => Err(Failure::new(
            Kind::System,
            format!(
                "mkfs.xfs turns on features that Linux 5.14 cannot mount (incompat {bits:#x}); \
                 install xfsprogs that this release supports"
            ),
        )),
    }
}

/// Returns the features that these bits enable.
fn enabled(incompat: u32) -> impl Iterator<Item = &'static XfsFeature> {
    let newer = XFS_NEWER.iter();
    newer.filter(move |feature| incompat & feature.incompat != 0)
}

pub(super) fn unwanted_features<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<u32, Failure> {
    match identify(kernel, device)? {
        Identity::Xfs(superblock) => Ok(superblock.incompat & !XFS_INCOMPAT),
        // The filesystem type is not checked here, because `format` checks the result of mkfs.
        _ => Ok(0),
    }
}

fn ext4_args(bytes: u64, options: &FormatOptions, over_unread: bool) -> Vec<String> {
    // The kernel might replay the log of an earlier filesystem (mke2fs(8)), so mkfs may skip
    // zeroing the journal only if the whole device was read as zeros.
    let is_left = u8::from(!over_unread);
    let extended = format!("{EXT4_EXTENDED},lazy_journal_init={is_left}");
    let (inodes, count) = match options.ext4_inodes(bytes) {
        Inodes::Count(count) => ("-N", count),
        Inodes::PerBytes(ratio) => ("-i", ratio),
    };
    let block_bytes = options.block_bytes.unwrap_or(4096).to_string();
    let inode_bytes = options.inode_bytes.unwrap_or(256).to_string();
    let args = [
        "-q",
        "-b",
        &block_bytes,
        "-I",
        &inode_bytes,
        inodes,
        &count.to_string(),
        "-G",
        "16",
        "-m",
        "0",
        "-e",
        "continue",
        "-O",
        EXT4_FEATURES,
        "-E",
        &extended,
        DEVICE,
    ];
    args.map(str::to_owned).to_vec()
}

fn xfs_args(
    bytes: u64,
    recipe: &Recipe<'_>,
    over_leftovers: bool,
    refused: &[&XfsFeature],
) -> Vec<String> {
    let metadata = format!("{XFS_METADATA},uuid={}", recipe.uuid);
    let mut args = vec!["-q", "-K", "-m", &metadata, "-i", "sparse=1"];
    let size = |bytes: Option<u32>| bytes.map(|bytes| format!("size={bytes}"));
    let block = size(recipe.options.block_bytes);
    let inode = size(recipe.options.inode_bytes);
    for (option, size) in [("-b", &block), ("-i", &inode)] {
        args.extend(size.iter().flat_map(|size| [option, size]));
    }
    if bytes < XFS_SMALL_BYTES {
        args.extend(["-d", "agcount=2"]);
    }
    for feature in refused {
        args.extend([feature.option, feature.no]);
    }
    if over_leftovers {
        args.push("-f");
    }
    args.push(DEVICE);
    args.into_iter().map(str::to_owned).collect()
}

fn run<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    program: &'static str,
    args: Vec<String>,
    deadline: Duration,
) -> Result<(), Failure> {
    let end = kernel.run(&Child {
        program,
        args,
        device: Some(device.fd),
        keys: &[],
        deadline,
        is_given_up: &|| false,
        is_fsck: false,
    })?;
    if end.code == Some(0) {
        return Ok(());
    }
    if end.timed_out {
        let text = format!("{program} exceeded its deadline {deadline:?}; a retry formats again");
        return Err(Failure::timeout(text).may_be_running());
    }
    match refuse_busy(kernel, device) {
        Err(failure) if failure.kind == Kind::Busy => Err(failure),
        _ => Err(Failure::new(Kind::System, failure_message(program, &end))),
    }
}

/// Refuses a device that another process has opened exclusively: probably an mkfs or e2fsck that
/// has outlived its agent.
pub(super) fn refuse_busy<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<(), Failure> {
    match kernel.reopen(device.fd, Open::DeviceExclusive) {
        Ok(_) => Ok(()),
        Err(error) if error.cause() == Cause::Busy => Err(Failure::busy(format!(
            "an earlier mkfs or e2fsck may still be running on the device, or it is mounted: \
             {error}"
        ))
        .may_be_running()),
        Err(error) => Err(error.into()),
    }
}

fn failure_message(program: &str, end: &ChildEnd) -> String {
    let how = end.code.map_or_else(
        || "was killed by a signal".to_owned(),
        |code| format!("failed with exit code {code}"),
    );
    format!("{program} {how}: {}", end.stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "00010203-0405-4607-8809-0a0b0c0d0e0f";

    fn xfs(options: FormatOptions) -> Recipe<'static> {
        Recipe {
            fs: FsType::Xfs,
            options,
            uuid: UUID,
            over_leftovers: false,
            over_unread: false,
        }
    }

    #[test]
    fn options_replace_the_defaults_and_no_other() {
        let ext4 = |options: &FormatOptions| ext4_args(1 << 30, options, false).join(" ");
        let default = ext4(&FormatOptions::default());
        let mut options = FormatOptions {
            block_bytes: Some(1024),
            inode_bytes: Some(512),
            inodes: Some(Inodes::PerBytes(8192)),
            node_bytes: None,
        };
        let changed = "-b 4096 -I 256 -i 16384";
        let expected = default.replace(changed, "-b 1024 -I 512 -i 8192");
        assert_eq!(ext4(&options), expected);
        options.inodes = Some(Inodes::Count(1000));
        let expected = default.replace(changed, "-b 1024 -I 512 -N 1000");
        assert_eq!(ext4(&options), expected);

        let xfs_args = |options| xfs_args(1 << 30, &xfs(options), false, &[]).join(" ");
        let default = xfs_args(FormatOptions::default());
        let expected = default.replace("-i sparse=1", "-i sparse=1 -b size=1024 -i size=512");
        assert_eq!(xfs_args(options), expected);
    }

    #[test]
    fn ext4_begins_from_no_features_and_is_never_forced() {
        let args = ext4_args(1 << 30, &FormatOptions::default(), false);
        assert!(args.iter().any(|arg| arg.starts_with("none,")));
        assert!(!args.iter().any(|arg| arg == "-F"));
        assert_eq!(args.last().unwrap(), DEVICE);
    }

    #[test]
    fn the_journal_of_an_ext4_is_written_unless_it_was_read_as_zeros() {
        for (over_unread, option) in [
            (true, "lazy_journal_init=0"),
            (false, "lazy_journal_init=1"),
        ] {
            let args = ext4_args(1 << 30, &FormatOptions::default(), over_unread).join(" ");
            assert!(args.contains(option), "{args}");
        }
    }

    /// With four groups, the second group would begin at the format mark.
    #[test]
    fn an_xfs_below_a_gibibyte_has_two_groups() {
        let args = |bytes| xfs_args(bytes, &xfs(FormatOptions::default()), false, &[]).join(" ");
        assert!(args(XFS_SMALL_BYTES - 512).contains("-d agcount=2"));
        assert!(!args(XFS_SMALL_BYTES).contains("agcount"));
    }

    #[test]
    fn what_a_newer_mkfs_has_enabled_is_refused_by_name() {
        let names = |bits| enabled(bits).map(|feature| feature.no).collect::<Vec<_>>();
        assert_eq!(names(0), [""; 0]);
        assert_eq!(names(XFS_INCOMPAT), [""; 0]);
        assert_eq!(names(0x20), ["nrext64=0"]);
        assert_eq!(names(0xc0), ["exchange=0", "parent=0"]);
    }

    #[test]
    fn xfs_is_forced_only_over_leftovers() {
        assert!(
            !xfs_args(1 << 30, &xfs(FormatOptions::default()), false, &[])
                .contains(&"-f".to_owned())
        );
        assert!(
            xfs_args(1 << 30, &xfs(FormatOptions::default()), true, &[]).contains(&"-f".to_owned())
        );
    }

    #[test]
    fn a_newer_feature_is_refused_by_name_only_when_known() {
        let plain = xfs_args(1 << 30, &xfs(FormatOptions::default()), false, &[]).join(" ");
        let refusing = xfs_args(
            1 << 30,
            &xfs(FormatOptions::default()),
            false,
            &XFS_NEWER.iter().collect::<Vec<_>>(),
        )
        .join(" ");
        for feature in XFS_NEWER {
            assert!(!plain.contains(feature.no));
            assert!(refusing.contains(&format!("{} {}", feature.option, feature.no)));
            assert_eq!(feature.incompat & XFS_INCOMPAT, 0);
        }
    }

    #[test]
    fn a_complaint_has_tool_code_and_last_words() {
        let end = ChildEnd {
            code: Some(1),
            timed_out: false,
            stderr: "no space".to_owned(),
            memory_max: None,
        };
        assert_eq!(
            failure_message("mkfs.xfs", &end),
            "mkfs.xfs failed with exit code 1: no space"
        );
    }
}
