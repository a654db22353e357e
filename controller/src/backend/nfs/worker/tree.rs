//! System calls in a share, all relative to descriptors. No call follows a symbolic link, leaves
//! the share, or crosses into another filesystem.

use super::super::call::{Free, Mount};
use super::super::path::Dir;
use super::error::{Error, RENAME, Result, at};
use super::mount;
use belay_contract::nfs_mount::Way;
use belay_server::call::{Failure, Kind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// The mode of a new directory, before the umask is applied.
const DIRECTORY: Mode = Mode::from_bits_retain(0o777);
/// The modes of directories and files that only Belay may access.
pub(super) const PRIVATE_DIRECTORY: Mode = Mode::from_bits_retain(0o700);
pub(super) const PRIVATE_FILE: Mode = Mode::from_bits_retain(0o600);

/// The restrictions on path lookups by openat2(2).
pub(super) const INSIDE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A mounted share.
pub(super) struct Tree {
    root: OwnedFd,
    share: Share,
}

/// The data that is needed to mount a share again.
#[derive(Clone)]
pub(super) enum Share {
    Of(Rc<Mount>, Way),
    /// A directory of this host.
    #[cfg(test)]
    Local(std::path::PathBuf),
}

impl Share {
    /// Mounts the share again, to see its current state on the server. A mount with a directory
    /// delegation (RFC 8881, section 10.9) does not query the server, and changes by other mounts
    /// of the same client do not recall the delegation. Linux requests delegations since 6.19.
    ///
    /// # Errors
    /// Returns `Unreachable` for every error, since the share was mounted before.
    pub(super) fn afresh(&self) -> std::result::Result<Tree, Failure> {
        let root = match self {
            Self::Of(mount, way) => mount::again(mount, *way),
            #[cfg(test)]
            Self::Local(path) => Ok(File::open(path).expect("a directory").into()),
        };
        let share = self.clone();
        root.map(|root| Tree { root, share })
            .map_err(|it| Failure::new(Kind::Unreachable, it.message).may_be_running())
    }
}

impl Tree {
    /// Mounts a share.
    ///
    /// # Errors
    /// Returns the error of the kernel or of the server.
    pub(super) fn mount(of: &Mount) -> std::result::Result<Self, Failure> {
        let (root, way) = mount::share(of)?;
        let share = Share::Of(Rc::new(of.clone()), way);
        Ok(Self { root, share })
    }

    /// Returns a tree whose directory is out of date, like the directory of a mount with a
    /// delegation.
    #[cfg(test)]
    pub(super) fn stale(shown: &std::path::Path, share: Share) -> Self {
        let root = File::open(shown).expect("a directory").into();
        Self { root, share }
    }

    /// Returns the root of the share.
    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Returns the data that is needed to mount the share again.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Returns the space that the server reports for a directory, or for the whole share.
    pub(super) fn free(&self, dir: Option<&Dir>) -> Result<Free> {
        let shown = dir.map_or_else(|| "/".to_owned(), Dir::to_string);
        let opened = dir.map(|dir| open(&self.open_above(dir)?, dir.name(), &shown));
        let opened = opened.transpose()?;
        let found = retry(|| rustix::fs::fstatvfs(opened.as_ref().unwrap_or(&self.root)));
        let found = found.map_err(at("fstatvfs", &shown))?;
        Ok(Free {
            bytes: found.f_bavail.saturating_mul(found.f_frsize),
            files: (found.f_files > 0).then_some(found.f_favail),
        })
    }

    /// Opens the parent directory of `dir`.
    pub(super) fn open_above(&self, dir: &Dir) -> Result<OwnedFd> {
        match dir.parent() {
            None => open(&self.root, ".", "/"),
            Some(parent) => open(&self.root, &parent.to_string(), &parent.to_string()),
        }
    }

    /// Creates the missing parent directories of `dir`. Returns the innermost parent.
    pub(super) fn make_above(&self, dir: &Dir) -> Result<OwnedFd> {
        let mut here = open(&self.root, ".", "/")?;
        for above in dir.above() {
            match mkdir(&here, above.name(), DIRECTORY, &above.to_string()) {
                Err(error) if error.errno != Errno::EXIST => return Err(error),
                _ => here = open(&here, above.name(), &above.to_string())?,
            }
        }
        Ok(here)
    }

    /// Opens a directory for reading, or returns `None` if the path does not exist.
    pub(super) fn open_directory(&self, dir: &Dir) -> Result<Option<OwnedFd>> {
        let path = dir.to_string();
        open_existing(&self.root, &path, &path)
    }

    /// Whether a file of any type exists at the path.
    pub(super) fn exists(&self, dir: &Dir) -> Result<bool> {
        self.find(dir).map(|found| found.is_some())
    }

    /// Whether a directory exists at the path.
    pub(super) fn is_directory(&self, dir: &Dir) -> Result<bool> {
        let found = self.find(dir)?;
        Ok(found.is_some_and(|found| found.file_type == FileType::Directory))
    }

    /// Returns the file at the path, or `None` if the file or one of its parents does not exist.
    pub(super) fn find(&self, dir: &Dir) -> Result<Option<FileInfo>> {
        match self.open_above(dir) {
            Ok(above) => find(&above, dir.name(), &dir.to_string()),
            Err(error) if error.errno == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Must run before each change. In tests, returns an error after the simulated kill.
pub(super) fn alive() -> rustix::io::Result<()> {
    #[cfg(test)]
    super::tests::killed::check()?;
    Ok(())
}

/// Must run before each lookup. In tests, waits or returns an error if the test requests it.
fn looking() -> rustix::io::Result<()> {
    #[cfg(test)]
    super::tests::killed::before_look()?;
    Ok(())
}

/// Opens a directory for reading, and as the start of further lookups.
pub(super) fn open(from: impl AsFd, path: impl Arg + Copy, shown: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat2(&from, path, flags, Mode::empty(), INSIDE);
    retry(open).map_err(at("openat2", shown))
}

/// Opens a directory like [`open`], or returns `None` if the path does not exist.
pub(super) fn open_existing(from: &OwnedFd, path: &str, shown: &str) -> Result<Option<OwnedFd>> {
    match open(from, path, shown) {
        Err(error) if error.errno == Errno::NOENT => Ok(None),
        result => result.map(Some),
    }
}

/// Opens a file to read it, or returns `None` if the path does not exist.
pub(super) fn open_file(from: &OwnedFd, name: &str, shown: &str) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::openat2(from, name, flags, Mode::empty(), INSIDE);
    match retry(open) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(at("openat2", shown)(errno)),
    }
}

/// Repeats a lookup that fails with EAGAIN, which openat2(2) returns if a concurrent rename may
/// have affected the lookup.
pub(super) fn retry<T>(call: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    const ATTEMPTS: usize = 16;
    looking()?;
    for _ in 1..ATTEMPTS {
        match retry_on_intr(&call) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
    }
    retry_on_intr(call)
}

/// Creates a file that only Belay may access, with this content, and syncs it to the server's disk.
pub(super) fn write_new(above: &OwnedFd, name: &str, content: &[u8], shown: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |errno| at("openat", shown)(errno);
    alive().map_err(failed)?;
    let file = retry_on_intr(|| rustix::fs::openat(above, name, flags, PRIVATE_FILE));
    let file = file.map_err(failed)?;
    let mut rest = content;
    while !rest.is_empty() {
        alive().map_err(at("write", shown))?;
        let written = retry_on_intr(|| rustix::io::write(&file, rest));
        rest = &rest[written.map_err(at("write", shown))?..];
    }
    sync(&file, shown)
}

/// Syncs a file or a directory to the server's disk.
pub(super) fn sync(file: &OwnedFd, shown: &str) -> Result<()> {
    let sync = || {
        alive()?;
        rustix::fs::fsync(file)?;
        #[cfg(test)]
        super::tests::killed::note_sync();
        Ok(())
    };
    retry_on_intr(sync).map_err(at("fsync", shown))
}

/// Creates an empty file that only Belay may access, unless it exists.
pub(super) fn touch(above: &OwnedFd, name: &str, shown: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || {
        alive()?;
        rustix::fs::openat(above, name, flags, PRIVATE_FILE)
    };
    retry_on_intr(create).map(drop).map_err(at("openat", shown))
}

/// Creates and removes a file. Returns the file's UID, and its modification time by the server's
/// clock, in seconds since 1970.
pub(super) fn probe(above: &OwnedFd, name: &str, shown: &str) -> Result<(u32, i64)> {
    write_new(above, name, b"", shown)?;
    let stat = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW);
    let found = stat.map(|stat| (stat.st_uid, stat.st_mtime));
    unlink(above, name, shown)?;
    found.map_err(at("fstatat", shown))
}

/// Returns the modification time of a file in seconds since 1970; `None` if no file has the name.
pub(super) fn modified(above: &OwnedFd, name: &str, shown: &str) -> Result<Option<i64>> {
    Ok(stat(above, name, shown)?.map(|stat| stat.st_mtime))
}

/// Reads a whole file. Returns `None` if the file is longer than `bytes_max`.
pub(super) fn read(file: OwnedFd, bytes_max: u64, shown: &str) -> Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let read = File::from(file)
        .take(bytes_max + 1)
        .read_to_end(&mut content);
    match read {
        Ok(length) => Ok((length as u64 <= bytes_max).then_some(content)),
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Err(at("read", shown)(errno))
        }
    }
}

/// Creates a directory. The umask is applied to `mode`.
pub(super) fn mkdir(above: &OwnedFd, name: impl Arg + Copy, mode: Mode, shown: &str) -> Result<()> {
    let make = || {
        alive()?;
        rustix::fs::mkdirat(above, name, mode)
    };
    retry_on_intr(make).map_err(at("mkdirat", shown))
}

/// Creates the directory of a volume, in the directory `above`.
pub(super) fn make_volume(above: &OwnedFd, dir: &Dir) -> Result<()> {
    mkdir(above, dir.name(), DIRECTORY, &dir.to_string())
}

/// Opens a directory that only Belay may access, and creates it if it is missing.
pub(super) fn own(above: &OwnedFd, name: &str, shown: &str) -> Result<OwnedFd> {
    match open(above, name, shown) {
        Err(error) if error.errno == Errno::NOENT => {
            match mkdir(above, name, PRIVATE_DIRECTORY, shown) {
                Err(error) if error.errno != Errno::EXIST => Err(error),
                _ => open(above, name, shown),
            }
        }
        result => result,
    }
}

/// The type and the identity of a file in the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileInfo {
    pub(super) file_type: FileType,
    /// The st_dev and st_ino of the file, which a rename does not change. The NFS client derives
    /// st_ino from the server's fileid.
    pub(super) identity: (u64, u64),
}

/// Returns the file of that name, without following a link; `None` if no file has the name.
pub(super) fn find(above: &OwnedFd, name: &str, shown: &str) -> Result<Option<FileInfo>> {
    let found = stat(above, name, shown)?;
    Ok(found.map(|stat| FileInfo {
        file_type: FileType::from_raw_mode(stat.st_mode),
        identity: (stat.st_dev, stat.st_ino),
    }))
}

/// Returns all attributes of the file of that name, without following a link; `None` if no file has
/// the name.
pub(super) fn stat(above: impl AsFd, name: impl Arg + Copy, shown: &str) -> Result<Option<Stat>> {
    let stat = || {
        looking()?;
        rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)
    };
    match retry_on_intr(stat) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(at("fstatat", shown)(errno)),
    }
}

/// Renames a file or a directory, without following symbolic links.
pub(super) fn rename(
    (from, name): (&OwnedFd, impl Arg + Copy),
    (to, new): (&OwnedFd, impl Arg + Copy),
    shown: &str,
) -> Result<()> {
    let rename = || {
        alive()?;
        rustix::fs::renameat(from, name, to, new)
    };
    retry_on_intr(rename).map_err(at(RENAME, shown))
}

/// Removes a file that is not a directory. Succeeds if the file does not exist.
pub(super) fn unlink(above: &OwnedFd, name: impl Arg + Copy, shown: &str) -> Result<()> {
    unlink_existing(above, name, shown).map(drop)
}

/// Removes a file that is not a directory. Returns whether it existed.
pub(super) fn unlink_existing(above: &OwnedFd, name: impl Arg + Copy, shown: &str) -> Result<bool> {
    removed(above, name, AtFlags::empty()).map_err(at("unlinkat", shown))
}

/// Removes an empty directory. Succeeds if the directory does not exist.
pub(super) fn rmdir(above: &OwnedFd, name: &str, shown: &str) -> Result<()> {
    let removed = removed(above, name, AtFlags::REMOVEDIR);
    removed.map(drop).map_err(at("rmdir", shown))
}

/// Removes a directory if it is empty. Returns whether the directory was empty. Servers return
/// ENOTEMPTY or EEXIST for a directory with files.
pub(super) fn rmdir_if_empty(above: &OwnedFd, name: &str, shown: &str) -> Result<bool> {
    match rmdir(above, name, shown) {
        Err(error) if [Errno::NOTEMPTY, Errno::EXIST].contains(&error.errno) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Removes a file or a directory. Returns whether it existed.
pub(super) fn removed(
    above: &OwnedFd,
    name: impl Arg + Copy,
    flags: AtFlags,
) -> rustix::io::Result<bool> {
    let remove = || {
        alive()?;
        rustix::fs::unlinkat(above, name, flags)
    };
    match retry_on_intr(remove) {
        Err(Errno::NOENT) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Sets the mode of a directory, unless the directory already has it.
pub(super) fn chmod(directory: &OwnedFd, mode: u32, shown: &str) -> Result<()> {
    let failed = |errno| -> Error { at("fchmod", shown)(errno) };
    let now = rustix::fs::fstat(directory).map_err(failed)?.st_mode & 0o7777;
    if now == mode {
        return Ok(());
    }
    let chmod = || {
        alive()?;
        rustix::fs::fchmod(directory, Mode::from_bits_retain(mode))
    };
    retry_on_intr(chmod).map_err(at("fchmod", shown))
}
