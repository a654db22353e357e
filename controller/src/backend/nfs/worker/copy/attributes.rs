//! Owner, mode, extended attributes and times of copied files. Owners are copied as numbers.

use super::super::error::{Error, Result, at};
use super::super::tar::{Entry, Time, Type};
use super::super::tree::{self, alive};
use super::Stop;
use belay_server::call::Failure;
use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, UTIME_NOW, Uid, XattrFlags};
use rustix::io::{Errno, retry_on_intr};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

/// The kernel's limit on the list of a file's extended attribute names, and on the value of an
/// attribute, in bytes (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Maximum size of one file's extended attributes in an archive, in bytes. Together with the file's
/// path, the attributes stay below the limit of programs written in Go (`maxSpecialFileSize` in its
/// archive/tar), such as csi-driver-nfs.
const ARCHIVED_BYTES_MAX: usize = 512 << 10;
/// Maximum number of bytes that an attribute takes up in an archive in addition to its name and
/// value.
const RECORD_BYTES: usize = 32;
/// The extended attributes that contain access control lists, with NFS 4 and 3. An access control
/// list is set only if the file has a different list: setting a list changes the mode, and a server
/// reports a list even for a file without a list.
const LISTS: [&[u8]; 3] = [
    b"system.nfs4_acl",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];
/// The prefix of the extended attributes that users can set.
const OF_USERS: &[u8] = b"user.";

/// Sets the modification time of a file to the current time of the server.
pub(in super::super) fn refresh(above: &OwnedFd, name: &str, shown: &str) -> Result<()> {
    const NOW: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: NOW,
        last_modification: NOW,
    };
    let set = || {
        alive()?;
        rustix::fs::utimensat(above, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    };
    retry_on_intr(set).map_err(at("utimensat", shown))
}

/// An extended attribute: name and value.
pub(in super::super) type Attribute = (CString, Vec<u8>);

/// The extended attributes to set on a copied file.
#[derive(Clone, Copy)]
pub(in super::super) enum Extended<'a> {
    /// The attributes of an open file.
    Of(&'a OwnedFd),
    /// The attributes that an archive lists for a file.
    Listed(&'a [Attribute]),
}

impl Extended<'_> {
    /// Passes the attributes to the function `take` one at a time, since all attributes of a file
    /// together may not fit into memory.
    fn each(
        self,
        shown: &str,
        take: impl FnMut(Attribute) -> std::result::Result<(), Stop>,
    ) -> std::result::Result<(), Stop> {
        match self {
            Self::Of(from) => each(from, shown, take),
            Self::Listed(all) => all.iter().cloned().try_for_each(take),
        }
    }
}

/// Describes a file or a directory, without its content and extended attributes.
pub(in super::super) fn entry(path: &[u8], kind: Type, stat: &Stat) -> Entry {
    let time = |seconds: i64, nanoseconds: u64| Time {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
    };
    Entry {
        path: path.to_vec(),
        kind,
        mode: stat.st_mode & 0o7777,
        user: stat.st_uid,
        group: stat.st_gid,
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        accessed: Some(time(stat.st_atime, stat.st_atime_nsec)),
        ..Entry::default()
    }
}

/// Sets all attributes of a file or a directory.
pub(in super::super) fn apply(
    to: &OwnedFd,
    entry: &Entry,
    extended: Extended<'_>,
    shown: &str,
) -> std::result::Result<(), Stop> {
    let now = stat_of(to, shown)?;
    if (now.st_uid, now.st_gid) != (entry.user, entry.group) {
        let (user, group) = owner(entry);
        let set = || {
            alive()?;
            rustix::fs::fchown(to, user, group)
        };
        retry_on_intr(set).map_err(at("fchown", shown))?;
    }
    set_mode(to, entry, shown)?;
    let mut has_set_list = false;
    extended.each(shown, |attribute| {
        has_set_list |= extend(to, &attribute, shown)?;
        Ok(())
    })?;
    if has_set_list {
        // Setting an access control list changes the mode.
        set_mode(to, entry, shown)?;
    }
    let set = || {
        alive()?;
        rustix::fs::futimens(to, &times(entry))
    };
    Ok(retry_on_intr(set).map_err(at("futimens", shown))?)
}

/// Sets the extended attributes of a directory before files are created in it. Returns the access
/// control lists, which must be set after the files are created, since new files would inherit the
/// lists.
pub(super) fn apply_early(
    to: &OwnedFd,
    extended: Extended<'_>,
    shown: &str,
) -> std::result::Result<Vec<Attribute>, Stop> {
    let mut lists = Vec::new();
    extended.each(shown, |attribute| {
        match is_list(attribute.0.as_bytes()) {
            true => lists.push(attribute),
            false => {
                extend(to, &attribute, shown)?;
            }
        }
        Ok(())
    })?;
    Ok(lists)
}

/// Sets the attributes of a file that cannot be opened, such as a symbolic link. No other user can
/// replace the file: this process has just created it in a directory in which no other user can
/// write. A symbolic link has no mode.
pub(super) fn apply_at(above: &OwnedFd, name: &CStr, entry: &Entry, shown: &str) -> Result<()> {
    const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;
    let now = retry_on_intr(|| rustix::fs::statat(above, name, NOFOLLOW));
    let now = now.map_err(at("fstatat", shown))?;
    if (now.st_uid, now.st_gid) != (entry.user, entry.group) {
        let (user, group) = owner(entry);
        let set = || {
            alive()?;
            rustix::fs::chownat(above, name, user, group, NOFOLLOW)
        };
        retry_on_intr(set).map_err(at("fchownat", shown))?;
    }
    if entry.kind != Type::Symlink && now.st_mode & 0o7777 != entry.mode {
        let set = || {
            alive()?;
            rustix::fs::chmodat(above, name, mode(entry), AtFlags::empty())
        };
        retry_on_intr(set).map_err(at("fchmodat", shown))?;
    }
    let set = || {
        alive()?;
        rustix::fs::utimensat(above, name, &times(entry), NOFOLLOW)
    };
    retry_on_intr(set).map_err(at("utimensat", shown))
}

/// Sets the mode, since setting the owner of a file may have cleared some bits of its mode.
fn set_mode(to: &OwnedFd, entry: &Entry, shown: &str) -> Result<()> {
    tree::chmod(to, entry.mode, shown)
}

/// Whether an extended attribute of this name is copied.
fn is_copied(name: &[u8]) -> bool {
    is_list(name) || name.starts_with(OF_USERS)
}

/// Whether an extended attribute is an access control list.
fn is_list(name: &[u8]) -> bool {
    LISTS.contains(&name)
}

/// Returns the extended attributes of a file that are archived.
///
/// # Errors
/// Returns `Precondition` if the attributes are too large for an archive.
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

/// Returns the extended attributes that an archive lists for a file and that are copied. If a name
/// occurs several times, the last value is used.
///
/// # Errors
/// Returns the reason if an attribute is refused.
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

/// Passes each extended attribute that must be copied from a file to `take`.
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

/// Sets an extended attribute; returns whether it was an access control list.
fn extend(to: &OwnedFd, (name, value): &Attribute, shown: &str) -> Result<bool> {
    let is_list = is_list(name.to_bytes());
    if is_list && matches!(self::value(to.as_fd(), name), Ok(Some(now)) if now == *value) {
        return Ok(false);
    }
    let set = || {
        alive()?;
        rustix::fs::fsetxattr(to, &**name, value, XattrFlags::empty())
    };
    retry_on_intr(set).map_err(failed("fsetxattr", name, shown))?;
    Ok(is_list)
}

fn failed(call: &'static str, name: &CStr, shown: &str) -> impl FnOnce(Errno) -> Error {
    let described = format!("{shown}: attribute {}", name.to_string_lossy());
    at(call, described)
}

/// Returns the value of an attribute, or `None` if the attribute was removed meanwhile.
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

fn owner(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    let (user, group) = (Uid::from_raw(entry.user), Gid::from_raw(entry.group));
    (Some(user), Some(group))
}

fn mode(entry: &Entry) -> Mode {
    Mode::from_bits_retain(entry.mode)
}

fn times(entry: &Entry) -> Timestamps {
    let time = |of: Time| Timespec {
        tv_sec: of.seconds,
        tv_nsec: i64::from(of.nanoseconds),
    };
    Timestamps {
        last_access: time(entry.accessed.unwrap_or(entry.modified)),
        last_modification: time(entry.modified),
    }
}
