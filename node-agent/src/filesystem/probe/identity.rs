//! Detects the filesystem at the start of a device, by its superblock alone.

use std::fmt;
use std::ops::Range;

use belay_server::call::Failure;

use super::disk::{ALIGN_BYTES, Area, Areas, DeviceUnderTest, Disk, KernelDisk, not_told};
use super::signature::{Hit, Weight};
use super::{btrfs, ext4, xfs};
use crate::filesystem::FsType;
use crate::filesystem::witness::Attempt;
use crate::kernel::{self, Kernel};
use crate::work::Progress;

/// The size in bytes of the start of a device that never holds user data: ext4 and xfs keep their
/// own structures there. The superblocks of software RAID 1.1 and 1.2 are in this range.
const START_BYTES: u64 = 8 << 10;

/// A mountable filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sound {
    /// The filesystem type.
    pub(crate) fs: FsType,
    /// Whether the filesystem must be checked before the mount, because its superblock records
    /// errors or an unclean state that the kernel does not repair.
    pub(crate) wants_check: bool,
    /// The number of blocks of an ext4 whose journal must be replayed. The mount replays the
    /// journal, which may change this number. `None` if no journal must be replayed.
    pub(crate) blocks_before_replay: Option<u64>,
    /// Whether the filesystem is an ext4 that can have project quotas.
    pub(crate) has_projects: bool,
    /// Whether the filesystem is an ext4 whose superblock requests `errors=panic`.
    pub(crate) panics: bool,
    /// The reason why the filesystem must not be mounted with the mount options in its superblock,
    /// which no mount flag overrides; `None` if it may be mounted.
    pub(crate) refused_options: Option<String>,
}

/// The result of reading the superblocks at the start of a device.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::filesystem) enum Identity {
    /// There is no superblock of ext, xfs or btrfs.
    Nothing,
    /// A mountable ext4.
    Ext4(ext4::Superblock),
    /// A mountable xfs.
    Xfs(xfs::Superblock),
    /// A mountable btrfs that uses only this device.
    Btrfs(btrfs::Superblock),
    /// A filesystem whose mkfs was interrupted, and the offset of its superblock in bytes.
    Unfinished { fs: FsType, at: u64 },
    /// A superblock that is damaged, or whose filesystem must not be mounted: its description, and
    /// its offset in bytes.
    Odd { what: String, at: u64 },
}

/// Identifies the filesystem on a device, with one read of its start.
///
/// # Errors
///
/// Returns an error if the start could not be read in full.
pub(in crate::filesystem) fn identify<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<Identity, Failure> {
    let disk = KernelDisk { kernel, device };
    let mut areas = Areas::default();
    areas.push(Area::read(&disk, 0..btrfs::AT + btrfs::BYTES as u64)?);
    Ok(Identity::of(&areas, disk.bytes()))
}

impl Identity {
    /// Judges the start of a device of `bytes` bytes.
    pub(super) fn of(areas: &Areas, bytes: u64) -> Identity {
        let head = usize::try_from(bytes).map_or(xfs::BYTES_MAX, |all| all.min(xfs::BYTES_MAX));
        let xfs = xfs::judge(areas.get(0, head).unwrap_or_default(), bytes);
        let ext = ext4::judge(areas.get(ext4::AT, ext4::BYTES).unwrap_or_default(), bytes);
        match (xfs, ext) {
            // Check for btrfs last: its superblock is at 64 KiB, where a later mkfs of another type
            // may have left it.
            (xfs::Verdict::Absent, ext4::Verdict::Absent) => {
                let block = areas.get(btrfs::AT, btrfs::BYTES).unwrap_or_default();
                Self::of_btrfs(btrfs::judge(block, bytes))
            }
            (xfs::Verdict::Absent, ext4::Verdict::Sound(ext4)) => Identity::Ext4(ext4),
            (xfs::Verdict::Absent, ext4::Verdict::Other(what) | ext4::Verdict::Damaged(what)) => {
                Identity::Odd { what, at: ext4::AT }
            }
            // The two bytes of ext's magic number can occur in the inode lists of an xfs.
            (xfs::Verdict::Sound(xfs), ext4::Verdict::Absent | ext4::Verdict::Damaged(_)) => {
                Identity::Xfs(xfs)
            }
            (xfs::Verdict::Other(what), ext4::Verdict::Absent | ext4::Verdict::Damaged(_)) => {
                Identity::Odd { what, at: 0 }
            }
            (xfs::Verdict::Unfinished, ext4::Verdict::Absent | ext4::Verdict::Damaged(_)) => {
                Identity::Unfinished {
                    fs: FsType::Xfs,
                    at: 0,
                }
            }
            (_, ext4::Verdict::Sound(_)) => Identity::Odd {
                what: "both an xfs and an ext4 superblock".to_owned(),
                at: 0,
            },
            (_, ext4::Verdict::Other(what)) => Identity::Odd {
                what: format!("both an xfs superblock and {what}"),
                at: 0,
            },
        }
    }

    fn of_btrfs(verdict: btrfs::Verdict) -> Identity {
        match verdict {
            btrfs::Verdict::Absent => Identity::Nothing,
            btrfs::Verdict::Sound(btrfs) => Identity::Btrfs(btrfs),
            btrfs::Verdict::Unfinished => Identity::Unfinished {
                fs: FsType::Btrfs,
                at: btrfs::AT,
            },
            btrfs::Verdict::Other(what) => Identity::Odd {
                what,
                at: btrfs::AT,
            },
        }
    }

    /// Returns the type of the mountable filesystem; `None` if there is none.
    pub(in crate::filesystem) fn fs_type(&self) -> Option<FsType> {
        match self {
            Identity::Ext4(_) => Some(FsType::Ext4),
            Identity::Xfs(_) => Some(FsType::Xfs),
            Identity::Btrfs(_) => Some(FsType::Btrfs),
            Identity::Nothing | Identity::Unfinished { .. } | Identity::Odd { .. } => None,
        }
    }

    /// Returns the facts about the mountable filesystem; `None` if there is none.
    pub(in crate::filesystem) fn sound(&self) -> Option<Sound> {
        let fs = self.fs_type()?;
        let ext4 = match self {
            Identity::Ext4(superblock) => Some(superblock),
            _ => None,
        };
        Some(Sound {
            fs,
            wants_check: ext4.is_some_and(|ext4| ext4.wants_check),
            blocks_before_replay: ext4.filter(|ext4| ext4.needs_recovery).map(|it| it.blocks),
            has_projects: ext4.is_some_and(|ext4| ext4.has_projects),
            panics: ext4.is_some_and(|ext4| ext4.panics),
            refused_options: ext4.and_then(|ext4| ext4.refused_options.clone()),
        })
    }

    /// Whether an interrupted mkfs of `attempt` may have left the filesystem incomplete. mkfs.ext4
    /// and mkfs.btrfs make their superblock valid only once everything else is on the disk, so a
    /// valid ext4 or btrfs is complete. mkfs.xfs syncs only after it has made its superblock valid:
    /// an xfs may be incomplete if it has the UUID of the attempt and has not been mounted since.
    pub(super) fn may_be_half_made(&self, attempt: Attempt) -> bool {
        match self {
            Identity::Nothing | Identity::Unfinished { .. } => true,
            Identity::Xfs(xfs) => xfs.is_untouched && attempt.made(xfs.uuid),
            Identity::Ext4(_) | Identity::Btrfs(_) | Identity::Odd { .. } => false,
        }
    }

    /// Whether the signature contradicts this superblock, because it shows that other content was
    /// written to the device later. Elsewhere on the device, a signature is most likely user data,
    /// and no reason to refuse a valid filesystem.
    pub(super) fn contradicts(&self, hit: &Hit) -> bool {
        match hit.weight {
            Weight::Decisive => !self.users().contains(&hit.at),
            Weight::Plain => self.unused().contains(&hit.at),
            Weight::Weak | Weight::Copy | Weight::Relic => false,
        }
    }

    /// Returns the range that may hold user data, which can look like any signature. There is no
    /// user data past the end of the filesystem.
    fn users(&self) -> Range<u64> {
        match self {
            Identity::Ext4(superblock) => START_BYTES..superblock.bytes(),
            Identity::Xfs(superblock) => START_BYTES..superblock.bytes,
            Identity::Btrfs(superblock) => btrfs::USERS_AT..superblock.bytes,
            Identity::Nothing | Identity::Unfinished { .. } | Identity::Odd { .. } => 0..0,
        }
    }

    /// Returns the range at the start that holds neither user data nor fields of the superblock. A
    /// field such as the UUID can look like any signature.
    fn unused(&self) -> Range<u64> {
        match self {
            Identity::Xfs(_)
            | Identity::Unfinished {
                fs: FsType::Xfs, ..
            }
            | Identity::Odd { at: 0, .. } => xfs::UNUSED,
            Identity::Btrfs(_)
            | Identity::Unfinished {
                fs: FsType::Btrfs, ..
            }
            | Identity::Odd { at: btrfs::AT, .. } => btrfs::UNUSED,
            Identity::Ext4(_)
            | Identity::Unfinished { .. }
            | Identity::Odd { .. }
            | Identity::Nothing => ext4::UNUSED,
        }
    }
}

/// Describes a filesystem whose mkfs was interrupted.
pub(super) fn unfinished(fs: FsType) -> String {
    let article = if fs == FsType::Btrfs { "a" } else { "an" };
    format!("{article} {fs} filesystem that mkfs did not finish")
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Nothing => f.write_str("no superblock"),
            Identity::Ext4(_) => f.write_str("ext4"),
            Identity::Xfs(_) => f.write_str("xfs"),
            Identity::Btrfs(_) => f.write_str("btrfs"),
            Identity::Unfinished { fs, at } => write!(f, "{} at byte {at}", unfinished(*fs)),
            Identity::Odd { what, at } => write!(f, "{what} at byte {at}"),
        }
    }
}
/// Returns the number of blocks of an ext4 filesystem, mounted or not.
///
/// # Errors
///
/// Returns an error if the superblock cannot be read, or is not a valid ext4 superblock.
pub(crate) fn ext4_blocks<K: Kernel>(kernel: &K, fd: &K::Fd) -> Result<u64, Failure> {
    Ok(ext4_superblock(kernel, fd, kernel.device_bytes(fd)?)?.blocks)
}

/// Reads the superblock of an ext4 filesystem, mounted or not, on a device of `bytes` bytes.
pub(in crate::filesystem) fn ext4_superblock<K: Kernel>(
    kernel: &K,
    fd: &K::Fd,
    bytes: u64,
) -> Result<ext4::Superblock, Failure> {
    let disk = KernelDisk {
        kernel,
        device: &DeviceUnderTest {
            fd,
            bytes,
            backing: None,
            volume: "",
            secrets: &[],
            is_new: false,
            accepts_uncleared: false,
            progress: &Progress::default(),
        },
    };
    let read = || -> Result<ext4::Verdict, Failure> {
        let block = Area::read(&disk, 0..ALIGN_BYTES)?;
        let superblock = block.get(ext4::AT, ext4::BYTES).unwrap_or_default();
        Ok(ext4::judge(superblock, bytes))
    };
    let verdict = match read()? {
        // If the filesystem is mounted, the kernel may have been writing the superblock: read it
        // again.
        ext4::Verdict::Damaged(_) => read()?,
        verdict => verdict,
    };
    match verdict {
        ext4::Verdict::Sound(superblock) => Ok(superblock),
        ext4::Verdict::Absent => Err(not_told("no ext4 superblock at byte 1024".to_owned())),
        ext4::Verdict::Other(what) | ext4::Verdict::Damaged(what) => Err(not_told(what)),
    }
}

/// Whether the ext4 on the device may have project quotas, now or after quotactl(2). Returns `true`
/// if the filesystem has the feature, or if the superblock cannot be read or is not valid.
///
/// # Errors
/// Returns an error if the size of the device cannot be read.
pub(crate) fn may_have_project_quotas<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
) -> kernel::Result<bool> {
    let bytes = kernel.device_bytes(device)?;
    let superblock = ext4_superblock(kernel, device, bytes);
    Ok(superblock.map_or(true, |superblock| superblock.has_projects))
}
