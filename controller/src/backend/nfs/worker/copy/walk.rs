//! Copies a directory with all that is in it. Tenants may change it meanwhile: each file is opened
//! without following a link, by its name in a directory that is open, and what is gone is skipped
//! only after the server has said that there is no such name. A server that does not answer makes
//! system calls fail in the way of a file that was removed.

use super::super::claim::nonce;
use super::super::error::{Error, Result as Done, at};
use super::super::tree::{self, INSIDE, PRIVATE_DIRECTORY, PRIVATE_FILE, alive, retry};
use super::attributes;
use super::content::{File, Means};
use super::report::Report;
use belay_server::call::Failure;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How deep directories are copied: each is open in source and target.
pub(in super::super) const DEPTH_MAX: usize = 256;
/// How often a name is copied again that changes meanwhile.
pub(in super::super) const ATTEMPTS: usize = 4;

/// Why a name is not copied.
pub(in super::super) enum Stop {
    /// It may be another file by now.
    Again(Error),
    Failure(Failure),
}

impl Stop {
    /// After a call on the source.
    pub(in super::super) fn of(error: Error) -> Self {
        match error.errno {
            Errno::NOENT | Errno::STALE | Errno::LOOP | Errno::NOTDIR | Errno::NXIO => {
                Self::Again(error)
            }
            _ => Self::Failure(error.into()),
        }
    }

    pub(in super::super) fn failure(self) -> Failure {
        match self {
            Self::Again(error) => error.into(),
            Self::Failure(failure) => failure,
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failure(error.into())
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

pub(super) struct Walk<'a, 'r> {
    /// A directory with a link to each file that has several.
    links: &'a OwnedFd,
    report: &'a mut Report<'r>,
    means: Means,
}

/// A name that is copied, and to where.
struct Name<'a> {
    from: BorrowedFd<'a>,
    to: &'a OwnedFd,
    name: &'a CStr,
    shown: &'a str,
    depth: usize,
}

impl<'a, 'r> Walk<'a, 'r> {
    pub(super) fn new(links: &'a OwnedFd, report: &'a mut Report<'r>) -> Self {
        Self {
            links,
            report,
            means: Means::default(),
        }
    }

    /// Copies what is in a directory, and its attributes.
    pub(super) fn directory(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        shown: &str,
    ) -> Result<(), Failure> {
        self.fill(from, to, shown, 0).map_err(Stop::failure)
    }

    fn fill(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        shown: &str,
        depth: usize,
    ) -> Result<(), Stop> {
        let stat = rustix::fs::fstat(from).map_err(|errno| Stop::of(at("fstat", shown)(errno)))?;
        let failed = |errno| Stop::of(at("getdents64", shown)(errno));
        let own = tree::open(from, c".", shown).map_err(Stop::of)?;
        let mut reader = Dir::new(own).map_err(failed)?;
        while let Some(entry) = reader.read() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let shown = format!("{shown}/{}", name.to_string_lossy());
            let from = from.as_fd();
            self.name(&Name {
                from,
                to,
                name,
                shown: &shown,
                depth,
            })?;
        }
        drop(reader);
        attributes::copy(from, to, &stat, shown)?;
        Ok(tree::sync(to, shown)?)
    }

    fn name(&mut self, it: &Name<'_>) -> Result<(), Stop> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            self.report.beat()?;
            // If the directory above is gone, it is asked for by its name.
            let stat = tree::stat(it.from, it.name, it.shown).map_err(Stop::of)?;
            if last.is_some() {
                self.set_aside(it)?;
            }
            let Some(stat) = stat else {
                self.report.changed(it.shown);
                return Ok(());
            };
            let copied = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.subdirectory(it),
                FileType::RegularFile => self.file(it, &stat),
                other => self.special(it, &stat, other),
            };
            match copied {
                Ok(()) => {
                    self.report.copied.files += 1;
                    return Ok(());
                }
                Err(Stop::Again(error)) => last = Some(error),
                Err(failure) => return Err(failure),
            }
        }
        let failure = last.map_or_else(|| Failure::bug("no attempt"), Failure::from);
        Err(Stop::Failure(failure))
    }

    /// Moves away what an attempt that failed has made: the copy has all of a name, or nothing.
    fn set_aside(&self, it: &Name<'_>) -> Result<(), Stop> {
        let new = nonce().map_err(Stop::Failure)?;
        match tree::rename((it.to, it.name), (self.links, &*new), it.shown) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    fn subdirectory(&mut self, it: &Name<'_>) -> Result<(), Stop> {
        let (shown, depth) = (it.shown, it.depth + 1);
        if depth > DEPTH_MAX {
            return Err(Stop::Failure(Failure::precondition(format!(
                "{shown:?} in the share: is more than {DEPTH_MAX} directories deep, and is not \
                 copied; move it up, and repeat the call"
            ))));
        }
        let from = tree::open(it.from, it.name, shown).map_err(Stop::of)?;
        match tree::mkdir(it.to, it.name, PRIVATE_DIRECTORY, shown) {
            // A name may be read twice.
            Err(error) if error.errno == Errno::EXIST => {}
            result => result?,
        }
        let to = tree::open(it.to, it.name, shown)?;
        self.fill(&from, &to, shown, depth)
    }

    fn file(&mut self, it: &Name<'_>, seen: &Stat) -> Result<(), Stop> {
        if self.linked(it, seen)? {
            return Ok(());
        }
        let shown = it.shown;
        let (from, stat) = open_file(it.from, it.name, shown)?;
        let to = created(it.to, it.name, shown)?;
        let file = File {
            from: &from,
            to: &to,
            stat: &stat,
            shown,
        };
        file.copy(&mut self.means, self.report)?;
        // Before: a client that writes later sets the time of modification.
        tree::sync(&to, shown)?;
        attributes::copy(&from, &to, &stat, shown)?;
        tree::sync(&to, shown)?;
        let now = rustix::fs::fstat(&from).map_err(|errno| Stop::of(at("fstat", shown)(errno)))?;
        if key(&now) != key(&stat) {
            self.report.changed(shown);
        }
        self.link(it, &stat)
    }

    /// A link, a FIFO, a socket or a device.
    fn special(&mut self, it: &Name<'_>, stat: &Stat, file_type: FileType) -> Result<(), Stop> {
        if self.linked(it, stat)? {
            return Ok(());
        }
        match file_type {
            FileType::Symlink => {
                let target = link_target(it.from, it.name, it.shown)?;
                made_anew((it.to, it.name), "symlinkat", it.shown, || {
                    rustix::fs::symlinkat(&target, it.to, it.name)
                })?;
            }
            FileType::Fifo | FileType::Socket => {
                make_node((it.to, it.name), file_type, 0, it.shown)?;
            }
            FileType::CharacterDevice | FileType::BlockDevice => {
                make_node((it.to, it.name), file_type, stat.st_rdev, it.shown)?;
            }
            _ => {
                return Err(Stop::Failure(Failure::precondition(format!(
                    "{:?} in the share: is of no type that can be copied; move it away, and repeat \
                     the call",
                    it.shown
                ))));
            }
        }
        attributes::apply_at(it.to, it.name, stat, it.shown)?;
        self.link(it, stat)
    }

    /// Whether the file was copied by another name, and has this one as well now.
    fn linked(&self, it: &Name<'_>, stat: &Stat) -> Result<bool, Stop> {
        if stat.st_nlink < 2 {
            return Ok(false);
        }
        let key = key(stat);
        let link = || rustix::fs::linkat(self.links, &*key, it.to, it.name, AtFlags::empty());
        match retry_on_intr(|| alive().and_then(|()| link())) {
            Ok(()) => Ok(true),
            // It has as many links as the server allows, with the one for this.
            Err(Errno::NOENT | Errno::MLINK) => Ok(false),
            Err(Errno::EXIST) => {
                tree::unlink(it.to, it.name, it.shown)?;
                retry_on_intr(link).map_err(at("linkat", it.shown))?;
                Ok(true)
            }
            Err(errno) => Err(at("linkat", it.shown)(errno).into()),
        }
    }

    /// Other names of the file are linked to this one.
    fn link(&self, it: &Name<'_>, stat: &Stat) -> Result<(), Stop> {
        if stat.st_nlink < 2 {
            return Ok(());
        }
        let key = key(stat);
        let link = || {
            alive()?;
            rustix::fs::linkat(it.to, it.name, self.links, &*key, AtFlags::empty())
        };
        match retry_on_intr(link) {
            Ok(()) | Err(Errno::EXIST | Errno::MLINK) => Ok(()),
            Err(errno) => Err(at("linkat", it.shown)(errno).into()),
        }
    }
}

/// What a file is known by while it is copied. A number alone may be that of a later file, if the
/// first one was removed.
pub(in super::super) fn key(stat: &Stat) -> String {
    let Stat {
        st_ino,
        st_size,
        st_mtime,
        st_mtime_nsec,
        ..
    } = stat;
    format!("{st_ino:x}.{st_size:x}.{st_mtime:x}.{st_mtime_nsec:x}")
}

/// An empty file for the content of another one. It is opened with O_DIRECT, for which a client
/// of NFS 4 requests no delegation: with one, Linux 7.2 keeps the times of a file to
/// itself, and its server does not accept one in the past later.
pub(in super::super) fn created(to: &OwnedFd, name: &CStr, shown: &str) -> Done<OwnedFd> {
    const FLAGS: OFlags = OFlags::WRONLY
        .union(OFlags::CREATE)
        .union(OFlags::EXCL)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC);
    let create = |flags| rustix::fs::openat(to, name, flags, PRIVATE_FILE);
    let file = made_anew((to, name), "openat", shown, || {
        match create(FLAGS | OFlags::DIRECT) {
            // It may have been created nevertheless.
            Err(Errno::INVAL) => create(FLAGS.difference(OFlags::EXCL)),
            result => result,
        }
    })?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(at("fcntl", shown))?;
    Ok(file)
}

/// A FIFO, a socket or a device.
pub(in super::super) fn make_node(
    (to, name): (&OwnedFd, &CStr),
    file_type: FileType,
    device: u64,
    shown: &str,
) -> Result<(), Failure> {
    let made = made_anew((to, name), "mknodat", shown, || {
        rustix::fs::mknodat(to, name, file_type, PRIVATE_FILE, device)
    });
    match made {
        Err(_) if device != 0 => Err(Failure::precondition(format!(
            "{shown:?} in the share: is a device, which the controller creates only with \
             CAP_MKNOD; remove it, or give its container that capability, and repeat the call"
        ))),
        result => Ok(result?),
    }
}

/// Makes a file; one of that name is of an earlier attempt.
pub(in super::super) fn made_anew<T>(
    (to, name): (&OwnedFd, &CStr),
    call: &'static str,
    shown: &str,
    make: impl Fn() -> rustix::io::Result<T>,
) -> Done<T> {
    let make = || {
        alive()?;
        make()
    };
    let made = match retry_on_intr(make) {
        Err(Errno::EXIST) => {
            tree::unlink(to, name, shown)?;
            retry_on_intr(make)
        }
        result => result,
    };
    made.map_err(at(call, shown))
}

/// What a symbolic link leads to; `Again` if it is none by now.
pub(in super::super) fn link_target(
    from: BorrowedFd<'_>,
    name: &CStr,
    shown: &str,
) -> Result<CString, Stop> {
    let read = || rustix::fs::readlinkat(from, name, Vec::new());
    let target = match retry_on_intr(read) {
        Err(Errno::INVAL) => Err(Errno::LOOP),
        result => result,
    };
    target.map_err(|errno| Stop::of(at("readlinkat", shown)(errno)))
}

/// Opens a file that is copied; `Again` if it is of another type by now.
pub(in super::super) fn open_file(
    from: BorrowedFd<'_>,
    name: &CStr,
    shown: &str,
) -> Result<(OwnedFd, Stat), Stop> {
    let flags =
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat2(from, name, flags, Mode::empty(), INSIDE);
    let opened = retry(open).map_err(at("openat2", shown));
    let file = opened.map_err(Stop::of)?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| Stop::of(at("fstat", shown)(errno)))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file, stat)),
        _ => Err(Stop::Again(at("openat2", shown)(Errno::NXIO))),
    }
}
