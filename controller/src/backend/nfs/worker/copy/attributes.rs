//! Owner, mode, extended attributes and times of what is copied. Owners are numbers.

use super::super::error::{Error, Result, at};
use super::super::tree::alive;
use super::walk::Stop;
use belay_server::call::Failure;
use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, UTIME_NOW, Uid, XattrFlags};
use rustix::io::{Errno, retry_on_intr};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

/// The longest list of names, and the longest value, that Linux has.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// How much an archive has of those of one file, in bytes: with its path, less than programs read
/// that are written in Go (`maxSpecialFileSize` in its archive/tar), such as csi-driver-nfs.
const ARCHIVED_BYTES_MAX: usize = 512 << 10;
/// The most that an archive has of one besides name and value.
const RECORD_BYTES: usize = 32;
/// Access control lists, by NFS 4 and 3. They are set only if they differ: setting one changes the
/// mode, and a server shows one of a file that has none.
const LISTS: [&[u8]; 3] = [
    b"system.nfs4_acl",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];
/// Those of users.
const OF_USERS: &[u8] = b"user.";

/// Sets the time of modification to that of the server.
pub(in super::super) fn touch(above: &OwnedFd, name: &str, shown: &str) -> Result<()> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    let set = || {
        alive()?;
        rustix::fs::utimensat(above, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    };
    retry_on_intr(set).map_err(at("utimensat", shown))
}

/// Gives a file or a directory these attributes.
pub(in super::super) fn apply(
    extended: &[Attribute],
    to: &OwnedFd,
    stat: &Stat,
    shown: &str,
) -> Result<()> {
    set_all(to, stat, shown, || extend(to, extended, shown))
}

/// Gives a file or a directory the attributes of another one.
pub(super) fn copy(
    from: &OwnedFd,
    to: &OwnedFd,
    stat: &Stat,
    shown: &str,
) -> std::result::Result<(), Stop> {
    set_all(to, stat, shown, || {
        let mut has_set_list = false;
        // One at a time: together, they may be larger than the memory.
        each(from, shown, |attribute| {
            has_set_list |= extend(to, &[attribute], shown)?;
            Ok(())
        })?;
        Ok(has_set_list)
    })
}

/// `extend` sets the extended ones, and returns whether it has set an access control list.
fn set_all<E: From<Error>>(
    to: &OwnedFd,
    stat: &Stat,
    shown: &str,
    extend: impl FnOnce() -> std::result::Result<bool, E>,
) -> std::result::Result<(), E> {
    let now = stat_of(to, shown)?;
    if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = owner(stat);
        let set = || {
            alive()?;
            rustix::fs::fchown(to, user, group)
        };
        retry_on_intr(set).map_err(at("fchown", shown))?;
    }
    set_mode(to, stat, shown)?;
    if extend()? {
        // A list changes the mode.
        set_mode(to, stat, shown)?;
    }
    let set = || {
        alive()?;
        rustix::fs::futimens(to, &times(stat))
    };
    Ok(retry_on_intr(set).map_err(at("futimens", shown))?)
}

/// The same for what cannot be opened, which this process has just made in a directory that no
/// other user can write in. A link has no mode.
pub(in super::super) fn apply_at(
    above: &OwnedFd,
    name: &CStr,
    stat: &Stat,
    shown: &str,
) -> Result<()> {
    const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;
    let now = retry_on_intr(|| rustix::fs::statat(above, name, NOFOLLOW));
    let now = now.map_err(at("fstatat", shown))?;
    if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = owner(stat);
        let set = || {
            alive()?;
            rustix::fs::chownat(above, name, user, group, NOFOLLOW)
        };
        retry_on_intr(set).map_err(at("fchownat", shown))?;
    }
    let is_link = stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
    if !is_link && now.st_mode != stat.st_mode {
        let set = || {
            alive()?;
            rustix::fs::chmodat(above, name, mode(stat), AtFlags::empty())
        };
        retry_on_intr(set).map_err(at("fchmodat", shown))?;
    }
    let set = || {
        alive()?;
        rustix::fs::utimensat(above, name, &times(stat), NOFOLLOW)
    };
    retry_on_intr(set).map_err(at("utimensat", shown))
}

/// Setting an owner may have taken bits away.
fn set_mode(to: &OwnedFd, stat: &Stat, shown: &str) -> Result<()> {
    if stat_of(to, shown)?.st_mode == stat.st_mode {
        return Ok(());
    }
    let set = || {
        alive()?;
        rustix::fs::fchmod(to, mode(stat))
    };
    retry_on_intr(set).map_err(at("fchmod", shown))
}

/// The extended attributes of a file: name and value.
pub(in super::super) type Attribute = (CString, Vec<u8>);

/// Whether an attribute is copied.
pub(in super::super) fn is_copied(name: &[u8]) -> bool {
    is_list(name) || name.starts_with(OF_USERS)
}

/// Whether it is an access control list.
pub(in super::super) fn is_list(name: &[u8]) -> bool {
    LISTS.contains(&name)
}

/// The extended attributes of a file that are archived.
///
/// # Errors
/// `Precondition` if they are too large for an archive.
pub(in super::super) fn read(
    from: &OwnedFd,
    shown: &str,
) -> std::result::Result<Vec<Attribute>, Stop> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    each(from, shown, |(name, value)| {
        bytes += RECORD_BYTES + 3 * name.as_bytes().len() + value.len();
        if bytes > ARCHIVED_BYTES_MAX {
            return Err(Stop::Failure(Failure::precondition(format!(
                "{shown:?} in the share: has more than {ARCHIVED_BYTES_MAX} bytes of extended \
                 attributes, which programs that read archives refuse; remove some, or move it \
                 away, and repeat the call"
            ))));
        }
        found.push((name, value));
        Ok(())
    })?;
    Ok(found)
}

/// The extended attributes that an archive has of a file, without those that are not copied. The
/// later one of a name counts.
///
/// # Errors
/// Why it is refused.
pub(in super::super) fn archived(
    all: &[(Vec<u8>, Vec<u8>)],
) -> std::result::Result<Vec<Attribute>, String> {
    let mut found = BTreeMap::new();
    for (name, value) in all.iter().filter(|(name, _)| is_copied(name)) {
        let name = CString::new(name.clone());
        let name = name.map_err(|_| "has an attribute whose name has a zero byte".to_owned())?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(format!(
                "has an attribute of {} bytes, and Linux has at most {XATTR_BYTES_MAX}",
                value.len()
            ));
        }
        found.insert(name, value.clone());
    }
    Ok(found.into_iter().collect())
}

/// Each extended attribute of a file that is copied.
fn each(
    from: &OwnedFd,
    shown: &str,
    mut take: impl FnMut(Attribute) -> std::result::Result<(), Stop>,
) -> std::result::Result<(), Stop> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let listed = retry_on_intr(|| rustix::fs::flistxattr(from, &mut names[..]));
    let length = match listed {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(errno) => return Err(Stop::of(at("flistxattr", shown)(errno))),
    };
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if !is_copied(name.to_bytes()) {
            continue;
        }
        let value = value(from, name).map_err(failed("fgetxattr", name, shown));
        if let Some(value) = value.map_err(Stop::of)? {
            take((name.to_owned(), value))?;
        }
    }
    Ok(())
}

/// Sets extended attributes; whether an access control list was set.
pub(in super::super) fn extend(
    to: &OwnedFd,
    attributes: &[Attribute],
    shown: &str,
) -> Result<bool> {
    let mut has_set_list = false;
    for (name, value) in attributes {
        let is_list = is_list(name.to_bytes());
        if is_list && matches!(self::value(to.as_fd(), name), Ok(Some(now)) if now == *value) {
            continue;
        }
        let set = || {
            alive()?;
            rustix::fs::fsetxattr(to, &**name, value, XattrFlags::empty())
        };
        retry_on_intr(set).map_err(failed("fsetxattr", name, shown))?;
        has_set_list |= is_list;
    }
    Ok(has_set_list)
}

fn failed(call: &'static str, name: &CStr, shown: &str) -> impl FnOnce(Errno) -> Error {
    let described = format!("{shown}: attribute {}", name.to_string_lossy());
    at(call, described)
}

/// None if it was removed meanwhile.
fn value(from: impl AsFd, name: &CStr) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; XATTR_BYTES_MAX];
    match retry_on_intr(|| rustix::fs::fgetxattr(&from, name, &mut value[..])) {
        Ok(length) => {
            value.truncate(length);
            value.shrink_to_fit();
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn stat_of(file: &OwnedFd, shown: &str) -> Result<Stat> {
    rustix::fs::fstat(file).map_err(at("fstat", shown))
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    (Some(user), Some(group))
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_bits_retain(stat.st_mode & 0o7777)
}

fn times(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn time(seconds: i64, nanoseconds: u64) -> Timespec {
    Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or_default(),
    }
}
