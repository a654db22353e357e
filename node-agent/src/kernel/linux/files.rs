//! File system calls: statx, open, mkdir, pread and similar.
//!
//! Every file is opened with `O_CLOEXEC`. Calls that a signal may interrupt are repeated.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, SeekFrom, StatFs, Statx,
    StatxAttributes, StatxFlags, XattrFlags,
};
use rustix::io::{Errno, retry_on_intr};

use crate::kernel::{Dev, Error, FileKind, Open, Result, Stat, Usage, XATTR_BYTES_MAX};

/// `STATX_MNT_ID_UNIQUE` (include/uapi/linux/stat.h, Linux 6.8). Older kernels ignore the flag; the
/// returned mask shows whether the mount ID is unique.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The statx fields of a [`Stat`].
const WANTED: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::INO)
    .union(StatxFlags::SIZE)
    .union(StatxFlags::NLINK)
    .union(StatxFlags::MNT_ID)
    .union(MNT_ID_UNIQUE);

/// The flags with which statx reads attributes from memory, without a request to a server. On a
/// mount whose server never responded, statx returned immediately with these flags, and hung
/// without them.
const AT_ONCE: AtFlags = AtFlags::SYMLINK_NOFOLLOW
    .union(AtFlags::NO_AUTOMOUNT)
    .union(AtFlags::STATX_DONT_SYNC);

/// Implements [`crate::kernel::Kernel::look`].
pub(super) fn look(path: &Path) -> Result<Option<Stat>> {
    Ok(statx(path, WANTED)?.map(|found| stat_from(&found)))
}

/// The ID of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountId {
    /// The id of `STATX_MNT_ID_UNIQUE`, for statmount.
    Unique(u64),
    /// The ID of `STATX_MNT_ID`, the first field in mountinfo. The kernel reuses it.
    Listed(u64),
}

/// Returns the ID of the mount whose root is `path`; `None` if `path` is not the root of a mount.
/// With `unique`, returns the unique ID if the kernel has unique IDs, otherwise the listed ID.
pub(super) fn mount_id(path: &Path, unique: bool) -> Result<Option<MountId>> {
    let is_root = |found: &Statx| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok(with_mount_id(path, unique)?.filter(is_root).map(id_of))
}

/// Returns the ID of the mount that contains `path`. `unique` is the same as for [`mount_id`].
pub(super) fn holding_mount_id(path: &Path, unique: bool) -> Result<Option<MountId>> {
    Ok(with_mount_id(path, unique)?.map(id_of))
}

fn with_mount_id(path: &Path, unique: bool) -> Result<Option<Statx>> {
    let wanted = if unique {
        WANTED
    } else {
        WANTED.difference(MNT_ID_UNIQUE)
    };
    statx(path, wanted)
}

fn id_of(found: Statx) -> MountId {
    match has_unique_id(&found) {
        true => MountId::Unique(found.stx_mnt_id),
        false => MountId::Listed(found.stx_mnt_id),
    }
}

/// Implements [`crate::kernel::Kernel::stat`].
pub(super) fn stat(fd: &OwnedFd) -> Result<Stat> {
    rustix::fs::statx(fd, "", AT_ONCE | AtFlags::EMPTY_PATH, WANTED)
        .map(|found| stat_from(&found))
        .map_err(of("statx", fd))
}

/// Implements [`crate::kernel::Kernel::real`].
pub(super) fn real(path: &Path) -> Result<Option<PathBuf>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = match retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) {
        Ok(found) => found,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(Error::at("open", path, errno)),
    };
    let name = rustix::fs::readlink(&*link_of(&found), Vec::new())
        .map_err(|errno| Error::at("readlink", path, errno))?;
    Ok(Some(OsString::from_vec(name.into_bytes()).into()))
}

/// Implements [`crate::kernel::Kernel::has_no_links`].
pub(super) fn has_no_links(path: &Path) -> Result<Option<bool>> {
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
    match retry_on_intr(|| rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)) {
        Ok(_) => Ok(Some(true)),
        Err(Errno::LOOP) => Ok(Some(false)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::at("openat2", path, errno)),
    }
}

/// Implements [`crate::kernel::Remotes::mode`].
pub(super) fn mode(fd: &OwnedFd) -> Result<u32> {
    let found = rustix::fs::fstat(fd).map_err(of("fstat", fd))?;
    Ok(Mode::from_raw_mode(found.st_mode).as_raw_mode())
}

/// Implements [`crate::kernel::Remotes::chmod`].
pub(super) fn chmod(fd: &OwnedFd, mode: u32) -> Result<()> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(of("fchmod", fd))
}

/// Implements [`crate::kernel::Kernel::statfs`].
pub(super) fn statfs(path: &Path) -> Result<Usage> {
    retry_on_intr(|| rustix::fs::statfs(path))
        .map(|found| usage(&found))
        .map_err(|errno| Error::at("statfs", path, errno))
}

/// Implements [`crate::kernel::Kernel::fstatfs`].
pub(super) fn fstatfs(fd: &OwnedFd) -> Result<Usage> {
    retry_on_intr(|| rustix::fs::fstatfs(fd))
        .map(|found| usage(&found))
        .map_err(of("fstatfs", fd))
}

fn usage(found: &StatFs) -> Usage {
    // f_blocks counts fragments; f_frsize is 0 on filesystems without fragments (statfs(2)).
    let unit = match u64::try_from(found.f_frsize) {
        Ok(fragment @ 1..) => fragment,
        _ => u64::try_from(found.f_bsize).unwrap_or_default(),
    };
    Usage {
        total_bytes: found.f_blocks.saturating_mul(unit),
        used_bytes: found
            .f_blocks
            .saturating_sub(found.f_bfree)
            .saturating_mul(unit),
        available_bytes: found.f_bavail.saturating_mul(unit),
        total_inodes: found.f_files,
        used_inodes: found.f_files.saturating_sub(found.f_ffree),
        free_inodes: found.f_ffree,
    }
}

/// The flags for `O_PATH` of the last component itself.
const NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Implements [`crate::kernel::Kernel::open_path`].
pub(super) fn open_path(path: &Path) -> Result<OwnedFd> {
    retry_on_intr(|| rustix::fs::open(path, NAME, Mode::empty()))
        .map_err(|errno| Error::at("open", path, errno))
}

/// Implements [`crate::kernel::Kernel::open_path_cached`].
pub(super) fn open_path_cached(path: &Path) -> Result<Option<OwnedFd>> {
    let resolve = ResolveFlags::CACHED;
    match retry_on_intr(|| rustix::fs::openat2(CWD, path, NAME, Mode::empty(), resolve)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(Error::at("openat2", path, errno)),
    }
}

/// Implements [`crate::kernel::Kernel::open`].
pub(super) fn open(path: &Path, how: Open) -> Result<OwnedFd> {
    retry_on_intr(|| rustix::fs::open(path, flags(how), Mode::empty()))
        .map_err(|errno| Error::at("open", path, errno))
}

/// Implements [`crate::kernel::Kernel::reopen`].
pub(super) fn reopen(fd: &OwnedFd, how: Open) -> Result<OwnedFd> {
    let link = link_of(fd);
    retry_on_intr(|| rustix::fs::open(&*link, flags(how), Mode::empty())).map_err(of("open", fd))
}

/// Implements [`crate::kernel::Kernel::open_beneath`].
pub(super) fn open_beneath(dir: &OwnedFd, name: &str, how: Open) -> Result<OwnedFd> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    if how == Open::NameCached {
        resolve |= ResolveFlags::CACHED;
    }
    retry_on_intr(|| rustix::fs::openat2(dir, name, flags(how), Mode::empty(), resolve))
        .map_err(|errno| Error::new("openat2", format!("{}/{name}", path_of(dir)), errno))
}

/// Implements [`crate::kernel::Kernel::open_root`].
pub(super) fn open_root(mount: &OwnedFd) -> Result<OwnedFd> {
    retry_on_intr(|| rustix::fs::openat(mount, ".", flags(Open::Directory), Mode::empty()))
        .map_err(of("openat", mount))
}

/// Implements [`crate::kernel::Kernel::mkdir`].
pub(super) fn mkdir(path: &Path, mode: u32) -> Result<()> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(mode))
        .map_err(|errno| Error::at("mkdir", path, errno))
}

/// Implements [`crate::kernel::Kernel::rmdir`].
pub(super) fn rmdir(path: &Path) -> Result<()> {
    rustix::fs::rmdir(path).map_err(|errno| Error::at("rmdir", path, errno))
}

/// Implements [`crate::kernel::Kernel::create_file`].
pub(super) fn create_file(path: &Path, mode: u32) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::from_raw_mode(mode)))
        .map(drop)
        .map_err(|errno| Error::at("open", path, errno))
}

/// Implements [`crate::kernel::Kernel::unlink`].
pub(super) fn unlink(path: &Path) -> Result<()> {
    rustix::fs::unlink(path).map_err(|errno| Error::at("unlink", path, errno))
}

/// Implements [`crate::kernel::Kernel::link`].
pub(super) fn link(path: &Path, name: &Path) -> Result<()> {
    rustix::fs::link(path, name).map_err(|errno| Error::at("link", name, errno))
}

/// Implements [`crate::kernel::Kernel::names`].
pub(super) fn names(path: &Path) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::at("getdents", path, errno)
    };
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        Ok(entry.map_err(failed)?.file_name().into_string().ok())
    };
    entries
        .filter_map(|entry| name(entry).transpose())
        .collect()
}

/// Implements [`crate::kernel::Kernel::flock`].
pub(super) fn flock(fd: &OwnedFd) -> Result<bool> {
    match retry_on_intr(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(of("flock", fd)(errno)),
    }
}

/// Implements [`crate::kernel::Kernel::xattr`].
pub(super) fn xattr(fd: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = [0; XATTR_BYTES_MAX];
    match rustix::fs::fgetxattr(fd, name, &mut value) {
        Ok(length) => Ok(Some(value[..length].to_vec())),
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(of("fgetxattr", fd)(errno)),
    }
}

/// Implements [`crate::kernel::Kernel::new_uuid`].
pub(super) fn new_uuid() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let file = open(path, Open::FileRead)?;
    let mut text = [0; 36];
    let length = pread(&file, &mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// Implements [`crate::kernel::Kernel::set_xattr`].
pub(super) fn set_xattr(fd: &OwnedFd, name: &str, value: &[u8]) -> Result<()> {
    rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()).map_err(of("fsetxattr", fd))
}

/// Implements [`crate::kernel::Kernel::remove_xattr`].
pub(super) fn remove_xattr(fd: &OwnedFd, name: &str) -> Result<()> {
    match rustix::fs::fremovexattr(fd, name) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(errno) => Err(of("fremovexattr", fd)(errno)),
    }
}

/// Implements [`crate::kernel::Kernel::seek_data`].
pub(super) fn seek_data(fd: &OwnedFd, from: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(fd, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        // The file has no data from the offset to its end, or ends before the offset (lseek(2)).
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(of("lseek", fd)(errno)),
    }
}

/// Implements [`crate::kernel::Kernel::seek_hole`].
pub(super) fn seek_hole(fd: &OwnedFd, from: u64) -> Result<u64> {
    rustix::fs::seek(fd, SeekFrom::Hole(from)).map_err(of("lseek", fd))
}

/// Implements [`crate::kernel::Kernel::pread`].
pub(super) fn pread(fd: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    retry_on_intr(|| rustix::io::pread(fd, &mut *buffer, offset)).map_err(of("pread", fd))
}

/// Implements [`crate::kernel::Kernel::pwrite`].
pub(super) fn pwrite(fd: &OwnedFd, buffer: &[u8], offset: u64) -> Result<usize> {
    retry_on_intr(|| rustix::io::pwrite(fd, buffer, offset)).map_err(of("pwrite", fd))
}

/// Implements [`crate::kernel::Kernel::fsync`].
pub(super) fn fsync(fd: &OwnedFd) -> Result<()> {
    retry_on_intr(|| rustix::fs::fsync(fd)).map_err(of("fsync", fd))
}

/// Implements [`crate::kernel::Filesystems::syncfs`].
pub(super) fn syncfs(root: &OwnedFd) -> Result<()> {
    retry_on_intr(|| rustix::fs::syncfs(root)).map_err(of("syncfs", root))
}

/// Returns a function that builds the error of `call` on `fd`. The function resolves the path of
/// `fd` only if there is an error.
pub(super) fn of<'a>(call: &'static str, fd: &'a impl AsFd) -> impl Fn(Errno) -> Error + 'a {
    move |errno| Error::new(call, path_of(fd.as_fd()), errno)
}

/// Returns the path of `fd`, for messages.
pub(super) fn path_of(fd: impl AsFd) -> String {
    match std::fs::read_link(link_of(&fd)) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => format!("descriptor {}", fd.as_fd().as_raw_fd()),
    }
}

/// Returns the link of `fd` in /proc, in the calling thread's own descriptor table.
fn link_of(fd: impl AsFd) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_fd().as_raw_fd())
}

fn flags(how: Open) -> OFlags {
    let own = match how {
        Open::DeviceRead => OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK,
        Open::DeviceWrite => OFlags::RDWR | OFlags::DIRECT | OFlags::NONBLOCK,
        Open::DeviceExclusive => OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK,
        // If the file is a FIFO, the open would block until another process opens its other end.
        Open::FileWrite => OFlags::RDWR | OFlags::NONBLOCK,
        Open::FileRead => OFlags::RDONLY | OFlags::NONBLOCK,
        Open::Name | Open::NameCached => OFlags::PATH,
        Open::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
    };
    own | OFlags::CLOEXEC
}

fn statx(path: &Path, wanted: StatxFlags) -> Result<Option<Statx>> {
    match rustix::fs::statx(CWD, path, AT_ONCE, wanted) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::at("statx", path, errno)),
    }
}

fn has_unique_id(found: &Statx) -> bool {
    StatxFlags::from_bits_retain(found.stx_mask).contains(MNT_ID_UNIQUE)
}

fn stat_from(found: &Statx) -> Stat {
    Stat {
        kind: match FileType::from_raw_mode(u32::from(found.stx_mode)) {
            FileType::Directory => FileKind::Directory,
            FileType::RegularFile => FileKind::File,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Other,
        },
        dev: Dev {
            major: found.stx_dev_major,
            minor: found.stx_dev_minor,
        },
        rdev: Dev {
            major: found.stx_rdev_major,
            minor: found.stx_rdev_minor,
        },
        ino: found.stx_ino,
        bytes: found.stx_size,
        // `stx_blocks` counts units of 512 bytes: statx(2).
        allocated: found.stx_blocks * 512,
        links: found.stx_nlink,
        mount_root: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        mount_id: if has_unique_id(found) {
            found.stx_mnt_id
        } else {
            0
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::kernel::Cause;

    fn cause<T: std::fmt::Debug>(result: Result<T>) -> Cause {
        result.unwrap_err().cause()
    }

    #[test]
    fn look_tells_what_is_there_and_follows_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), b"12345").unwrap();
        symlink("file", at("link")).unwrap();

        let file = look(&at("file")).unwrap().unwrap();
        assert_eq!(
            (file.kind, file.bytes, file.mount_root),
            (FileKind::File, 5, false)
        );
        assert_eq!(look(&at("link")).unwrap().unwrap().kind, FileKind::Symlink);
        assert_eq!(look(dir.path()).unwrap().unwrap().kind, FileKind::Directory);
        assert_eq!(look(&at("absent")).unwrap(), None);
        assert_eq!(look(&at("file/below")).unwrap(), None);
        assert_eq!(cause(look(&at(&"x".repeat(300)))), Cause::Other);

        let proc = look(Path::new("/proc")).unwrap().unwrap();
        assert!(proc.mount_root);
        assert_ne!(proc.mount_id, file.mount_id);
    }

    #[test]
    fn where_a_path_leads_is_told_without_links_and_nothing_of_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let at = |name: &str| dir.join(name);
        std::fs::create_dir(at("folder")).unwrap();
        symlink("folder", at("link")).unwrap();
        symlink("/", at("root")).unwrap();
        symlink("absent", at("dangling")).unwrap();
        symlink("circle", at("circle")).unwrap();
        std::fs::write(at("file"), b"").unwrap();
        for (name, leads) in [
            ("folder", Some(at("folder"))),
            ("link", Some(at("folder"))),
            ("folder/../link", Some(at("folder"))),
            ("root", Some(PathBuf::from("/"))),
            ("root/proc", Some(PathBuf::from("/proc"))),
            ("file", Some(at("file"))),
            ("file/below", None),
            ("absent", None),
            ("dangling", None),
        ] {
            assert_eq!(real(&at(name)).unwrap(), leads, "{name}");
        }
        assert!(real(&at("circle")).is_err());
    }

    #[test]
    fn stat_of_a_descriptor_is_what_look_says_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_path(dir.path()).unwrap();
        assert_eq!(Some(stat(&fd).unwrap()), look(dir.path()).unwrap());
    }

    #[test]
    fn open_beneath_stays_inside_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("inside")).unwrap();
        std::fs::write(at("outside"), b"").unwrap();
        std::fs::write(at("inside/file"), b"").unwrap();
        symlink("file", at("inside/link")).unwrap();
        symlink("../outside", at("inside/escape")).unwrap();
        let inside = open(&at("inside"), Open::Directory).unwrap();

        for (name, expected) in [
            ("link", Cause::Escapes),
            ("escape", Cause::Escapes),
            ("../outside", Cause::Escapes),
            ("/etc/passwd", Cause::Escapes),
            ("absent", Cause::Missing),
        ] {
            let found = open_beneath(&inside, name, Open::FileRead);
            assert_eq!(cause(found), expected, "{name}");
        }
        let file = open_beneath(&inside, "file", Open::FileWrite).unwrap();
        assert_eq!(
            Some(stat(&file).unwrap()),
            look(&at("inside/file")).unwrap()
        );

        let root = open(Path::new("/"), Open::Directory).unwrap();
        assert_eq!(
            cause(open_beneath(&root, "proc", Open::Directory)),
            Cause::Escapes
        );
    }

    #[test]
    fn an_error_names_the_file_behind_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(dir.path(), Open::Directory).unwrap();
        let error = pread(&fd, &mut [0; 8], 0).unwrap_err().to_string();
        let expected = format!("pread {}: EISDIR", dir.path().display());
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn reopen_finds_the_same_file_after_its_name_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        create_file(&path, 0o600).unwrap();
        let name = open_path(&path).unwrap();
        unlink(&path).unwrap();
        create_file(&path, 0o600).unwrap();

        let file = reopen(&name, Open::FileWrite).unwrap();
        assert_eq!(stat(&file).unwrap().ino, stat(&name).unwrap().ino);
        assert_ne!(stat(&file).unwrap().ino, look(&path).unwrap().unwrap().ino);
    }

    #[test]
    fn making_what_exists_and_removing_what_is_full_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (sub, file) = (dir.path().join("sub"), dir.path().join("sub/file"));
        mkdir(&sub, 0o750).unwrap();
        assert_eq!(cause(mkdir(&sub, 0o750)), Cause::Exists);
        create_file(&file, 0o600).unwrap();
        assert_eq!(cause(create_file(&file, 0o600)), Cause::Exists);
        assert_eq!(cause(rmdir(&sub)), Cause::NotEmpty);
        unlink(&file).unwrap();
        rmdir(&sub).unwrap();
        assert_eq!(cause(rmdir(&sub)), Cause::Missing);
    }

    #[test]
    fn reads_and_writes_are_at_their_offset_and_a_read_past_the_end_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        create_file(&path, 0o600).unwrap();
        let file = open(&path, Open::FileWrite).unwrap();
        assert_eq!(pwrite(&file, b"abcdef", 2).unwrap(), 6);
        fsync(&file).unwrap();

        let mut buffer = [b'-'; 4];
        assert_eq!(pread(&file, &mut buffer, 6).unwrap(), 2);
        assert_eq!(&buffer, b"ef--");
        assert_eq!(pread(&file, &mut buffer, 8).unwrap(), 0);
    }

    #[test]
    fn data_and_holes_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(8 << 20)
            .unwrap();
        let file = open(&path, Open::FileWrite).unwrap();
        assert_eq!(seek_data(&file, 0).unwrap(), None);
        assert_eq!(seek_hole(&file, 0).unwrap(), 0);

        pwrite(&file, &[1; 4096], 4 << 20).unwrap();
        assert_eq!(seek_data(&file, 0).unwrap(), Some(4 << 20));
        assert_eq!(seek_hole(&file, 4 << 20).unwrap(), (4 << 20) + 4096);
        assert_eq!(seek_data(&file, 5 << 20).unwrap(), None);
    }

    #[test]
    fn a_lock_is_of_one_open_description_and_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        create_file(&path, 0o600).unwrap();
        let (first, second) = (
            open(&path, Open::FileWrite).unwrap(),
            open(&path, Open::FileWrite).unwrap(),
        );
        assert!(flock(&first).unwrap());
        assert!(flock(&first).unwrap());
        assert!(!flock(&second).unwrap());
        drop(first);
        assert!(flock(&second).unwrap());
    }

    #[test]
    fn every_descriptor_closes_on_exec() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        create_file(&path, 0o600).unwrap();
        let parent = open(dir.path(), Open::Directory).unwrap();
        let name = open_path(&path).unwrap();
        let all = [
            reopen(&name, Open::FileWrite).unwrap(),
            open_beneath(&parent, "file", Open::FileRead).unwrap(),
            open_root(&parent).unwrap(),
            parent,
            name,
        ];
        for fd in &all {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(
                flags.contains(rustix::io::FdFlags::CLOEXEC),
                "{}",
                path_of(fd)
            );
        }
    }
}
