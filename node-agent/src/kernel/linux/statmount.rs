//! statmount(2): describes a mount by its ID. The cost is the same with 10,000 mounts.
//!
//! Structures and numbers are from include/uapi/linux/mount.h as of Linux 6.8. Later kernels only
//! add fields and flags.

#![expect(
    unsafe_code,
    reason = "neither rustix nor libc has a function for statmount"
)]

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::io::Errno;

use super::files::{self, MountId};
use super::mount::last_errno;
use super::mountinfo;
use crate::kernel::{Error, MountAttrs, MountFacts, MountSource, Result};

/// The number of statmount in include/uapi/asm-generic/unistd.h, which is the same on all supported
/// architectures; the libc crate does not have it yet.
const SYS_STATMOUNT: libc::c_long = 457;

const STATMOUNT_SB_BASIC: u64 = 0x01;
const STATMOUNT_MNT_BASIC: u64 = 0x02;
const STATMOUNT_MNT_ROOT: u64 = 0x08;
const STATMOUNT_FS_TYPE: u64 = 0x20;
const WANTED: u64 = STATMOUNT_SB_BASIC | STATMOUNT_MNT_BASIC | STATMOUNT_FS_TYPE;
/// The options of the filesystem, since Linux 6.11. On older kernels, the returned mask lacks this
/// bit.
const STATMOUNT_MNT_OPTS: u64 = 0x80;
/// The source of the filesystem, since Linux 6.13. On older kernels, the returned mask lacks this
/// bit.
const STATMOUNT_SB_SOURCE: u64 = 0x200;

/// `SB_RDONLY` (include/linux/fs.h), the same bit as `MS_RDONLY`.
const SB_RDONLY: u32 = 1;

/// The filesystems whose statfs adds up counters in memory, without access to the disk
/// (fs/ext4/super.c, fs/xfs/xfs_super.c). Until Linux 5.18, the statfs of xfs waited until inodes
/// were freed. With project quotas, the statfs of ext4 and xfs may read a quota from the disk.
const COUNTING_IN_MEMORY: [&str; 2] = ["ext4", "xfs"];

/// Buffer size for the name of a filesystem type and the options of the filesystem.
const STRINGS_BYTES: usize = 2048;

/// `struct mnt_id_req`.
#[repr(C)]
struct MntIdReq {
    size: u32,
    spare: u32,
    mnt_id: u64,
    param: u64,
}

/// `struct statmount`, with a buffer for its strings.
#[repr(C)]
struct StatMount {
    size: u32,
    /// Offset of the mount options in `strings`.
    mnt_opts: u32,
    mask: u64,
    sb_dev_major: u32,
    sb_dev_minor: u32,
    sb_magic: u64,
    sb_flags: u32,
    /// Offset of the filesystem type in `strings`.
    fs_type: u32,
    mnt_id: u64,
    mnt_parent_id: u64,
    mnt_id_old: u32,
    mnt_parent_id_old: u32,
    mnt_attr: u64,
    mnt_propagation: u64,
    mnt_peer_group: u64,
    mnt_master: u64,
    propagate_from: u64,
    /// Offset of the mounted directory in `strings`.
    mnt_root: u32,
    mnt_point: u32,
    mnt_ns_id: u64,
    fs_subtype: u32,
    /// Offset of the source in `strings`.
    sb_source: u32,
    /// Fields that were added later, and are not requested.
    rest: [u64; 48],
    strings: [u8; STRINGS_BYTES],
}

const MNT_ID_REQ_SIZE_VER0: u32 = 24;

const _: () = assert!(size_of::<MntIdReq>() == 24);
const _: () = assert!(std::mem::offset_of!(StatMount, mnt_attr) == 64);
const _: () = assert!(std::mem::offset_of!(StatMount, sb_source) == 124);
const _: () = assert!(std::mem::offset_of!(StatMount, strings) == 512);

/// Whether statmount(2) returns the options of filesystems, as it does since Linux 6.11.
static SHOWS_OPTIONS: LazyLock<bool> =
    LazyLock::new(|| release(rustix::system::uname().release()) >= Some((6, 11)));

/// Parses the major and the minor version at the beginning of a kernel release.
fn release(text: &CStr) -> Option<(u32, u32)> {
    let mut numbers = text.to_str().ok()?.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Whether this kernel has statmount(2), and thus unique mount IDs, which Linux 6.8 added as well.
pub(super) fn is_known() -> bool {
    // The kernel refuses a request smaller than the first version with EINVAL, before any lookup.
    // An errno other than EINVAL means that the call is missing, or that a seccomp filter blocks
    // it.
    statmount(0, 0, WANTED).err() == Some(Errno::INVAL)
}

/// Returns the mount on `path`; `None` if `path` is not the root of a mount.
pub(super) fn facts(path: &Path) -> Result<Option<MountFacts>> {
    let failed = |errno| Error::at("statmount", path, errno);
    let id = match files::mount_id(path, true)? {
        Some(MountId::Unique(id)) => id,
        Some(MountId::Listed(_)) => return Err(failed(Errno::NOSYS)),
        None => return Ok(None),
    };
    facts_of(id).map_err(failed)
}

/// Returns the mount that contains `path`.
pub(super) fn holding(path: &Path) -> Result<Option<MountFacts>> {
    let failed = |errno| Error::at("statmount", path, errno);
    match files::holding_mount_id(path, true)? {
        Some(MountId::Unique(id)) => facts_of(id).map_err(failed),
        Some(MountId::Listed(_)) => Err(failed(Errno::NOSYS)),
        None => Ok(None),
    }
}

/// Returns the mount with this unique ID; `None` if the mount no longer exists.
pub(super) fn facts_of(id: u64) -> rustix::io::Result<Option<MountFacts>> {
    let asked = |wanted| statmount(id, MNT_ID_REQ_SIZE_VER0, wanted);
    let mut shows_options = *SHOWS_OPTIONS;
    let found = match asked(WANTED | STATMOUNT_MNT_OPTS) {
        // The options are too long for the buffer. Only mounts of other programs have such long
        // options.
        Err(Errno::OVERFLOW) => {
            shows_options = false;
            asked(WANTED)
        }
        found => found,
    };
    let found = match found {
        Ok(found) => found,
        // The filesystem was unmounted meanwhile.
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if found.mask & WANTED != WANTED {
        return Err(Errno::NODATA);
    }
    let fs_type = string_at(&found.strings, found.fs_type).ok_or(Errno::NODATA)?;
    let options = match found.mask & STATMOUNT_MNT_OPTS {
        // The mount has no options, or none that the kernel shows.
        0 => c"",
        _ => string_at(&found.strings, found.mnt_opts).ok_or(Errno::NODATA)?,
    };
    let options = options.to_bytes();
    let fs_type = fs_type.to_string_lossy().into_owned();
    let counts_in_memory = shows_options
        && COUNTING_IN_MEMORY.contains(&fs_type.as_str())
        && !mountinfo::has_project_quotas(options);
    let is_read_only = found.sb_flags & SB_RDONLY != 0;
    Ok(Some(MountFacts {
        fs_type,
        attrs: MountAttrs::from_bits(found.mnt_attr),
        superblock_read_only: is_read_only || mountinfo::is_emergency(options),
        shut_down: mountinfo::is_shut_down(options),
        counts_in_memory,
        peer_group: found.mnt_peer_group,
        label: mountinfo::label(options),
    }))
}

/// Returns the mounted directory of the mount with this unique ID; `None` if the mount no longer
/// exists.
pub(super) fn root_of(id: u64) -> rustix::io::Result<Option<PathBuf>> {
    let found = match statmount(id, MNT_ID_REQ_SIZE_VER0, STATMOUNT_MNT_ROOT) {
        // OVERFLOW: a directory with such a long path is not the agent's. NOENT: the mount no
        // longer exists.
        Err(Errno::OVERFLOW | Errno::NOENT) => return Ok(None),
        found => found?,
    };
    let root = string_at(&found.strings, found.mnt_root).ok_or(Errno::NODATA)?;
    let root = OsStr::from_bytes(root.to_bytes());
    Ok((found.mask & STATMOUNT_MNT_ROOT != 0).then(|| root.into()))
}

/// Returns the source of the mount with this unique ID; `None` if the kernel does not report it, or
/// the mount no longer exists.
pub(super) fn source_of(id: u64) -> rustix::io::Result<Option<MountSource>> {
    let wanted = WANTED | STATMOUNT_SB_SOURCE;
    let found = match statmount(id, MNT_ID_REQ_SIZE_VER0, wanted) {
        // OVERFLOW: the source is longer than fsconfig(2) allows. The caller reads the source from
        // mountinfo.
        Err(Errno::OVERFLOW | Errno::NOENT) => return Ok(None),
        found => found?,
    };
    if found.mask & wanted != wanted {
        return Ok(None);
    }
    let string = |offset| string_at(&found.strings, offset).ok_or(Errno::NODATA);
    Ok(Some(MountSource {
        fs_type: string(found.fs_type)?.to_string_lossy().into_owned(),
        source: OsStr::from_bytes(string(found.sb_source)?.to_bytes()).to_owned(),
        attrs: MountAttrs::from_bits(found.mnt_attr),
        superblock_read_only: found.sb_flags & SB_RDONLY != 0,
    }))
}

fn statmount(mnt_id: u64, size: u32, wanted: u64) -> rustix::io::Result<StatMount> {
    let request = MntIdReq {
        size,
        spare: 0,
        mnt_id,
        param: wanted,
    };
    let mut found = StatMount {
        size: 0,
        mnt_opts: 0,
        mask: 0,
        sb_dev_major: 0,
        sb_dev_minor: 0,
        sb_magic: 0,
        sb_flags: 0,
        fs_type: 0,
        mnt_id: 0,
        mnt_parent_id: 0,
        mnt_id_old: 0,
        mnt_parent_id_old: 0,
        mnt_attr: 0,
        mnt_propagation: 0,
        mnt_peer_group: 0,
        mnt_master: 0,
        propagate_from: 0,
        mnt_root: 0,
        mnt_point: 0,
        mnt_ns_id: 0,
        fs_subtype: 0,
        sb_source: 0,
        rest: [0; 48],
        strings: [0; STRINGS_BYTES],
    };
    let (from, to): (*const MntIdReq, *mut StatMount) = (&request, &mut found);
    // SAFETY: `from` is a valid request that contains its own size; `to` is a valid buffer of the
    // passed size, which the kernel fills with integers and bytes only.
    let returned =
        unsafe { libc::syscall(SYS_STATMOUNT, from, to, size_of::<StatMount>(), 0_usize) };
    if returned == 0 {
        Ok(found)
    } else {
        Err(last_errno())
    }
}

fn string_at(strings: &[u8], offset: u32) -> Option<&CStr> {
    let from = strings.get(usize::try_from(offset).ok()?..)?;
    CStr::from_bytes_until_nul(from).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        for (text, expected) in [
            (c"6.18.44-fc-v657", Some((6, 18))),
            (c"7.2.0", Some((7, 2))),
            (c"6.8-rc1", Some((6, 8))),
            (c"5.14.0-427.el9.x86_64", Some((5, 14))),
            (c"6", None),
            (c"linux", None),
        ] {
            assert_eq!(release(text), expected, "{text:?}");
        }
        assert!(Some((6, 11)) > Some((6, 9)) && Some((6, 11)) > None);
    }
}
