//! The sink for a directory: creates the files of a copy in a directory. No other user can write in
//! the directory. The source may be a hostile archive: each name is looked up in an open directory,
//! without following symbolic links, so that links in the archive do not lead out of the volume.

use super::super::error::{Result as Done, at};
use super::super::layout::nonce;
use super::super::tar::{Entry, Type};
use super::super::tree::{self, PRIVATE_FILE, alive};
use super::attributes::{self, Extended};
use super::content::{FileCopy, Means};
use super::levels::{Levels, names, out};
use super::report::Report;
use super::{Item, Sink, Stop};
use belay_server::call::Failure;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

pub(in super::super) struct Target<'a> {
    /// A directory that contains a hard link to each copied file with several names.
    links: &'a OwnedFd,
    open: Levels,
    /// Whether Belay itself has read the files from a directory, now or when it created the
    /// archive. The directory may have changed during the read, so the same name may occur as a
    /// directory and as a file; the later of the two is kept. Archives of other programs are
    /// refused if a name occurs twice in this way.
    is_own: bool,
    means: Means,
}

impl<'a> Target<'a> {
    pub(in super::super) fn new(root: OwnedFd, links: &'a OwnedFd, is_own: bool) -> Self {
        Self {
            links,
            open: Levels::new(root),
            is_own,
            means: Means::default(),
        }
    }

    /// Creates a directory, unless it exists.
    pub(in super::super) fn make_directory(
        &mut self,
        entry: &Entry,
        extended: Extended<'_>,
        shown: &str,
    ) -> Result<(), Stop> {
        let names = names(&entry.path)?;
        let described = self.open.describe(&names, entry, extended, shown);
        match (described, names.split_last()) {
            (Err(Stop::Refused(_)), Some((name, above))) if self.is_own => {
                let here = self.open.above(above)?;
                self.set_aside(&here, name, shown)?;
                self.open.describe(&names, entry, extended, shown)
            }
            (described, _) => described,
        }
    }

    /// Creates a file. The function `fill` writes the content. Returns `false` if the file was
    /// already created under another name, and the new name is a hard link to that file.
    pub(in super::super) fn make_file(
        &mut self,
        entry: &Entry,
        extended: Extended<'_>,
        shown: &str,
        fill: impl FnOnce(&OwnedFd) -> Result<(), Stop>,
    ) -> Result<bool, Stop> {
        let (here, name) = self.place(entry)?;
        if self.linked(&here, &name, entry, shown)? {
            return Ok(false);
        }
        let file = self.make(&here, &name, shown, || created(&here, &name, shown))?;
        fill(&file)?;
        // Sync before setting the attributes: if the client wrote data later, the modification time
        // would change.
        tree::sync(&file, shown)?;
        attributes::apply(&file, entry, extended, shown)?;
        tree::sync(&file, shown)?;
        self.keep_link(&here, &name, entry, shown)?;
        Ok(true)
    }

    /// Creates a symbolic link, a FIFO, a socket or a device.
    pub(in super::super) fn make_special(
        &mut self,
        entry: &Entry,
        shown: &str,
    ) -> Result<(), Stop> {
        let (here, name) = self.place(entry)?;
        if self.linked(&here, &name, entry, shown)? {
            return Ok(());
        }
        let (major, minor) = entry.device;
        let device = rustix::fs::makedev(major, minor);
        let node = |file_type, device| {
            let made = self.make(&here, &name, shown, || {
                made_anew((&here, &name), "mknodat", shown, || {
                    rustix::fs::mknodat(&here, &*name, file_type, PRIVATE_FILE, device)
                })
            });
            match made {
                Err(_) if device != 0 => Err(Stop::Failure(Failure::precondition(format!(
                    "{shown:?} in the share: is a device, which the controller creates only with \
                     CAP_MKNOD; remove it, or give its container that capability, and repeat the \
                     call"
                )))),
                result => result,
            }
        };
        match entry.kind {
            Type::Symlink => self.make(&here, &name, shown, || {
                made_anew((&here, &name), "symlinkat", shown, || {
                    rustix::fs::symlinkat(&*entry.target, &here, &*name)
                })
            })?,
            Type::Socket => node(FileType::Socket, 0)?,
            Type::Character => node(FileType::CharacterDevice, device)?,
            Type::Block => node(FileType::BlockDevice, device)?,
            _ => node(FileType::Fifo, 0)?,
        }
        attributes::apply_at(&here, &name, entry, shown)?;
        self.keep_link(&here, &name, entry, shown)
    }

    /// Creates a hard link to an earlier file of an archive.
    pub(in super::super) fn make_link(&mut self, entry: &Entry, shown: &str) -> Result<(), Stop> {
        const MISSING: &str = "is a link to what is not in the archive before it";
        let (here, name) = self.place(entry)?;
        let names = names(&entry.target).map_err(|stop| match stop {
            Stop::Refused(why) => Stop::Refused(format!("its target {why}")),
            other => other,
        })?;
        let Some((old, above)) = names.split_last() else {
            return Err(Stop::refused("is a link to the volume itself"));
        };
        let mut from = tree::open(self.open.root(), c".", ".").map_err(out)?;
        for name in above {
            let opened = tree::open(&from, &**name, &name.to_string_lossy());
            from = opened.map_err(|error| match error.errno {
                Errno::NOENT => Stop::refused(MISSING),
                _ => out(error),
            })?;
        }
        let Some(found) = tree::stat(&from, &**old, shown)? else {
            return Err(Stop::refused(MISSING));
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(Stop::refused("is a link to a directory"));
        }
        let own = tree::stat(&here, &*name, shown)?;
        if own.is_some_and(|own| own.st_ino == found.st_ino) {
            return Ok(());
        }
        self.make(&here, &name, shown, || {
            made_anew((&here, &name), "linkat", shown, || {
                rustix::fs::linkat(&from, &**old, &here, &*name, AtFlags::empty())
            })
        })
    }

    /// Sets the attributes of all directories that are still open.
    pub(in super::super) fn end(self) -> Result<(), Stop> {
        self.open.end()
    }

    /// Opens the parent directory of a file. Returns the directory, and the name of the file.
    fn place(&mut self, entry: &Entry) -> Result<(OwnedFd, CString), Stop> {
        let mut names = names(&entry.path)?;
        let Some(name) = names.pop() else {
            return Err(Stop::refused("is the volume itself, and no directory"));
        };
        Ok((self.open.above(&names)?, name))
    }

    /// Creates a file of this name. If a directory has the name, moves the directory away or, in an
    /// archive of another program, refuses the file.
    fn make<T>(
        &self,
        here: &OwnedFd,
        name: &CStr,
        shown: &str,
        make: impl Fn() -> Done<T>,
    ) -> Result<T, Stop> {
        match make() {
            Err(error) if error.errno != Errno::ISDIR => Err(error.into()),
            Err(_) if !self.is_own => Err(Stop::refused("replaces a directory")),
            Err(_) => {
                self.set_aside(here, name, shown)?;
                Ok(make()?)
            }
            Ok(made) => Ok(made),
        }
    }

    fn set_aside(&self, here: &OwnedFd, name: &CStr, shown: &str) -> Result<(), Stop> {
        match tree::rename((here, name), (self.links, &*nonce()?), shown) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    /// Creates this name as a hard link if the file was already created under another name. Returns
    /// `false` if the file was not created yet.
    fn linked(
        &self,
        here: &OwnedFd,
        name: &CStr,
        entry: &Entry,
        shown: &str,
    ) -> Result<bool, Stop> {
        let Some(key) = &entry.links else {
            return Ok(false);
        };
        self.make(here, name, shown, || {
            let linked = made_anew((here, name), "linkat", shown, || {
                rustix::fs::linkat(self.links, &**key, here, name, AtFlags::empty())
            });
            match linked {
                // The file was not created yet, or already has as many links as the server allows.
                Err(error) if [Errno::NOENT, Errno::MLINK].contains(&error.errno) => Ok(false),
                result => result.map(|()| true),
            }
        })
    }

    /// Creates a hard link to the file in `links`; the other names of the file are created from
    /// this link.
    fn keep_link(
        &self,
        here: &OwnedFd,
        name: &CStr,
        entry: &Entry,
        shown: &str,
    ) -> Result<(), Stop> {
        let Some(key) = &entry.links else {
            return Ok(());
        };
        let link = || {
            alive()?;
            rustix::fs::linkat(here, name, self.links, &**key, AtFlags::empty())
        };
        match retry_on_intr(link) {
            Ok(()) | Err(Errno::EXIST | Errno::MLINK) => Ok(()),
            Err(errno) => Err(at("linkat", shown)(errno).into()),
        }
    }
}

impl Sink for Target<'_> {
    fn directory(&mut self, it: Item<'_>) -> Result<(), Stop> {
        self.make_directory(&it.entry, Extended::Of(it.from), it.shown)
    }

    fn file(&mut self, it: Item<'_>, _is_last: bool, report: &mut Report<'_>) -> Result<(), Stop> {
        let mut means = std::mem::take(&mut self.means);
        let made = self.make_file(&it.entry, Extended::Of(it.from), it.shown, |to| {
            FileCopy { of: &it, to }.copy(&mut means, report)
        });
        self.means = means;
        if let Err(Stop::Again(_)) = &made {
            self.back(0, &it.entry.path, it.shown)?;
        }
        made.map(drop)
    }

    fn special(&mut self, entry: &Entry, shown: &str) -> Result<(), Stop> {
        self.make_special(entry, shown)
    }

    fn begin(&mut self) -> Done<u64> {
        Ok(0)
    }

    /// Moves the file or directory of that name away, since a copy must contain a file completely
    /// or not at all.
    fn back(&mut self, _begin: u64, path: &[u8], shown: &str) -> Result<(), Stop> {
        let names = names(path)?;
        self.open.abandon(&names);
        match names.last() {
            Some(name) => {
                let here = self.open.above(&names[..names.len() - 1])?;
                self.set_aside(&here, name, shown)
            }
            None => Ok(()),
        }
    }
}

/// Creates an empty file. The file is opened with O_DIRECT, for which a client of NFS 4 requests no
/// delegation. With a delegation, Linux 7.2 does not send the times of the file to the server, and
/// a Linux server later refuses to set a time in the past.
fn created(to: &OwnedFd, name: &CStr, shown: &str) -> Done<OwnedFd> {
    const FLAGS: OFlags = OFlags::WRONLY
        .union(OFlags::CREATE)
        .union(OFlags::EXCL)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC);
    let create = |flags| rustix::fs::openat(to, name, flags, PRIVATE_FILE);
    let file = made_anew((to, name), "openat", shown, || {
        match create(FLAGS | OFlags::DIRECT) {
            // The system call may have created the file although it has failed.
            Err(Errno::INVAL) => create(FLAGS.difference(OFlags::EXCL)),
            result => result,
        }
    })?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(at("fcntl", shown))?;
    Ok(file)
}

/// Creates a file by calling the function `make`. Replaces a file of that name from an earlier
/// attempt or entry.
fn made_anew<T>(
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
