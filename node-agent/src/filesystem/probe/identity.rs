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

/// mkfs writes filesystem structures where a software RAID of version 1.1 or 1.2 has its
/// superblock: it never holds user data.
const START_BYTES: u64 = 8 << 10;

/// A mountable filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sound {
    /// The filesystem type.
    pub(crate) fs: FsType,
    /// Whether the superblock asks for a check that the kernel does not make when it mounts the
    /// filesystem.
    pub(crate) wants_check: bool,
    /// The blocks of an ext4 whose journal the kernel replays when it mounts it, which may change
    /// their number.
    pub(crate) blocks_before_replay: Option<u64>,
    /// Whether the filesystem is an ext4 that can have project quotas.
    pub(crate) has_projects: bool,
    /// Whether the filesystem is an ext4 whose superblock asks for `errors=panic`.
    pub(crate) panics: bool,
    /// The reason why it must not be mounted with the options in its superblock, which no flag
    /// overrides; `None` if it may.
    pub(crate) refused_options: Option<String>,
}

/// The result of reading the superblocks at the start.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::filesystem) enum Identity {
    /// There is no superblock of ext, xfs or btrfs.
    Nothing,
    /// ext4, mountable.
    Ext4(ext4::Superblock),
    /// xfs, mountable.
    Xfs(xfs::Superblock),
    /// btrfs on this device alone, mountable.
    Btrfs(btrfs::Superblock),
    /// A superblock whose mkfs was interrupted, and its offset.
    Unfinished { fs: FsType, at: u64 },
    /// A superblock that must not be mounted here, and its offset.
    Odd { what: String, at: u64 },
}

/// Reads the start of a device and judges it. One read.
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
            // Last: it begins at 64 KiB, where a later mkfs of another type may have left it.
            (xfs::Verdict::Absent, ext4::Verdict::Absent) => {
                let block = areas.get(btrfs::AT, btrfs::BYTES).unwrap_or_default();
                Self::of_btrfs(btrfs::judge(block, bytes))
            }
            (xfs::Verdict::Absent, ext4::Verdict::Sound(ext4)) => Identity::Ext4(ext4),
            (xfs::Verdict::Absent, ext4::Verdict::Other(what) | ext4::Verdict::Damaged(what)) => {
                Identity::Odd { what, at: ext4::AT }
            }
            // xfs may have the two bytes of ext in its inode lists.
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

    /// The mountable filesystem.
    pub(in crate::filesystem) fn fs_type(&self) -> Option<FsType> {
        match self {
            Identity::Ext4(_) => Some(FsType::Ext4),
            Identity::Xfs(_) => Some(FsType::Xfs),
            Identity::Btrfs(_) => Some(FsType::Btrfs),
            Identity::Nothing | Identity::Unfinished { .. } | Identity::Odd { .. } => None,
        }
    }

    /// The mountable filesystem, and whether it must be checked first.
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

    /// Whether a mkfs of that attempt may have left it incomplete. mkfs.ext4 and mkfs.btrfs make
    /// their superblock valid once everything else is on the disk, so their filesystem is complete
    /// if it is valid. mkfs.xfs syncs only afterwards: its remains are identified by their UUID,
    /// until the filesystem is mounted.
    pub(super) fn may_be_half_made(&self, attempt: Attempt) -> bool {
        match self {
            Identity::Nothing | Identity::Unfinished { .. } => true,
            Identity::Xfs(xfs) => xfs.is_untouched && attempt.made(xfs.uuid),
            Identity::Ext4(_) | Identity::Btrfs(_) | Identity::Odd { .. } => false,
        }
    }

    /// A signature that contradicts this superblock: something else was written to the device
    /// later. Anywhere else a signature is most likely a user's data, and no reason to refuse a
    /// good volume.
    pub(super) fn contradicts(&self, hit: &Hit) -> bool {
        match hit.weight {
            Weight::Decisive => !self.users().contains(&hit.at),
            Weight::Plain => self.unused().contains(&hit.at),
            Weight::Weak | Weight::Copy | Weight::Relic => false,
        }
    }

    /// The bytes that may be user data, which users can make look like a signature. There are none
    /// past the end of the filesystem.
    fn users(&self) -> Range<u64> {
        match self {
            Identity::Ext4(superblock) => START_BYTES..superblock.bytes(),
            Identity::Xfs(superblock) => START_BYTES..superblock.bytes,
            Identity::Btrfs(superblock) => btrfs::USERS_AT..superblock.bytes,
            Identity::Nothing | Identity::Unfinished { .. } | Identity::Odd { .. } => 0..0,
        }
    }

    /// The bytes at the start that hold neither user data nor fields of the superblock itself,
    /// whose UUID can be anything.
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

/// The description of a filesystem whose mkfs was interrupted.
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
/// The blocks of an ext4 filesystem, mounted or not.
///
/// # Errors
///
/// Returns an error if the superblock could not be read, or is not one of ext4.
pub(crate) fn ext4_blocks<K: Kernel>(kernel: &K, fd: &K::Fd) -> Result<u64, Failure> {
    Ok(ext4_superblock(kernel, fd, kernel.device_bytes(fd)?)?.blocks)
}

/// The superblock of an ext4 filesystem, mounted or not, on a device of `bytes` bytes.
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
        // If it is mounted, the kernel may have been writing it.
        ext4::Verdict::Damaged(_) => read()?,
        verdict => verdict,
    };
    match verdict {
        ext4::Verdict::Sound(superblock) => Ok(superblock),
        ext4::Verdict::Absent => Err(not_told("no ext4 superblock at byte 1024".to_owned())),
        ext4::Verdict::Other(what) | ext4::Verdict::Damaged(what) => Err(not_told(what)),
    }
}

/// Whether the ext4 on the device may have project quotas, now or after quotactl(2): it has the
/// feature, or its superblock is not sound.
///
/// # Errors
/// Returns an error if the device has no size.
pub(crate) fn may_have_project_quotas<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
) -> kernel::Result<bool> {
    let bytes = kernel.device_bytes(device)?;
    let superblock = ext4_superblock(kernel, device, bytes);
    Ok(superblock.map_or(true, |superblock| superblock.has_projects))
}
