//! The source for a directory: reads the files of a directory and passes them to the sink of a
//! copy. Tenants may change the directory during the copy. Therefore each file is opened by its
//! name in an open directory, without following symbolic links. A missing file is skipped only
//! after the server has confirmed that the name does not exist: if a server does not respond,
//! system calls fail as if the file was removed.

use super::super::error::at;
use super::super::tar::{Entry, Type};
use super::super::tree::{self, INSIDE, retry};
use super::report::Report;
use super::{DEPTH_MAX, Item, Sink, Stop, attributes};
use belay_server::call::Failure;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of attempts to copy a file that tenants replace during the copy.
const ATTEMPTS: usize = 4;

/// Passes a directory, and all files in it, to a sink.
///
/// # Errors
/// Returns `Precondition` if the directory has files that cannot be copied; the errors of the sink
/// and of the server.
pub(in super::super) fn directory(
    from: &OwnedFd,
    shown: &str,
    sink: &mut impl Sink,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let walked = Walk { sink, report }.fill(from, b"./", shown, 0);
    walked.map_err(|stop| {
        stop.failure(|why| Failure::precondition(format!("{shown:?} in the share: {why}")))
    })
}

struct Walk<'a, 'r, S> {
    sink: &'a mut S,
    report: &'a mut Report<'r>,
}

/// The name of a file that is copied, in an open directory.
struct Name<'a> {
    from: BorrowedFd<'a>,
    name: &'a CStr,
    /// The path below the root of the volume.
    path: Vec<u8>,
    shown: String,
    depth: usize,
}

impl<S: Sink> Walk<'_, '_, S> {
    fn fill(&mut self, from: &OwnedFd, path: &[u8], shown: &str, depth: usize) -> Result<(), Stop> {
        let stat = rustix::fs::fstat(from).map_err(|errno| Stop::of(at("fstat", shown)(errno)))?;
        self.sink.directory(Item {
            entry: attributes::entry(path, Type::Directory, &stat),
            from,
            stat: &stat,
            shown,
        })?;
        let failed = |errno| Stop::of(at("getdents64", shown)(errno));
        let own = tree::open(from, c".", shown).map_err(Stop::of)?;
        let mut reader = Dir::new(own).map_err(failed)?;
        let above: &[u8] = if depth == 0 { b"" } else { path };
        while let Some(entry) = reader.read() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.name(&Name {
                from: from.as_fd(),
                name,
                path: [above, name.to_bytes()].concat(),
                shown: format!("{shown}/{}", name.to_string_lossy()),
                depth,
            })?;
        }
        Ok(())
    }

    fn name(&mut self, it: &Name<'_>) -> Result<(), Stop> {
        let mut last = None;
        for attempt in 1..=ATTEMPTS {
            self.report.beat()?;
            // If the parent directory was removed, the caller looks up the name of the parent.
            let stat = tree::stat(it.from, it.name, &it.shown).map_err(Stop::of)?;
            let Some(stat) = stat else {
                self.report.changed(&it.shown);
                return Ok(());
            };
            let copied = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.subdirectory(it),
                FileType::RegularFile => self.file(it, attempt == ATTEMPTS),
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

    fn subdirectory(&mut self, it: &Name<'_>) -> Result<(), Stop> {
        let (shown, depth) = (&*it.shown, it.depth + 1);
        if depth > DEPTH_MAX {
            return Err(Stop::Failure(Failure::precondition(format!(
                "{shown:?} in the share: is more than {DEPTH_MAX} directories deep, and is not \
                 copied; move it up, and repeat the call"
            ))));
        }
        let from = tree::open(it.from, it.name, shown).map_err(Stop::of)?;
        let path = [&it.path[..], b"/"].concat();
        let begin = self.sink.begin()?;
        let filled = self.fill(&from, &path, shown, depth);
        if let Err(Stop::Again(_)) = &filled {
            self.sink.back(begin, &path, shown)?;
        }
        filled
    }

    fn file(&mut self, it: &Name<'_>, is_last: bool) -> Result<(), Stop> {
        let shown = &*it.shown;
        let (from, stat) = open_file(it.from, it.name, shown)?;
        let entry = Entry {
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            links: links(&stat),
            ..attributes::entry(&it.path, Type::File, &stat)
        };
        let item = Item {
            entry,
            from: &from,
            stat: &stat,
            shown,
        };
        self.sink.file(item, is_last, self.report)?;
        let now = rustix::fs::fstat(&from);
        // The file may have changed while it was read.
        if !matches!(&now, Ok(now) if key(now) == key(&stat)) {
            self.report.changed(shown);
        }
        Ok(())
    }

    /// Passes a symbolic link, a FIFO, a socket or a device to the sink.
    fn special(&mut self, it: &Name<'_>, stat: &Stat, file_type: FileType) -> Result<(), Stop> {
        let shown = &*it.shown;
        let kind = match file_type {
            FileType::Symlink => Type::Symlink,
            FileType::Fifo => Type::Fifo,
            FileType::Socket => Type::Socket,
            FileType::CharacterDevice => Type::Character,
            FileType::BlockDevice => Type::Block,
            _ => {
                return Err(Stop::Failure(Failure::precondition(format!(
                    "{shown:?} in the share: is of no type that can be copied; move it away, and \
                     repeat the call"
                ))));
            }
        };
        let mut entry = attributes::entry(&it.path, kind, stat);
        entry.links = links(stat);
        if kind == Type::Symlink {
            entry.target = link_target(it.from, it.name, shown)?.into_bytes();
        }
        if matches!(kind, Type::Character | Type::Block) {
            let device = stat.st_rdev;
            entry.device = (rustix::fs::major(device), rustix::fs::minor(device));
        }
        self.sink.special(&entry, shown)
    }
}

/// Returns the key of a file that has several names. If the file changes, its key changes, too.
fn links(stat: &Stat) -> Option<String> {
    (stat.st_nlink > 1).then(|| key(stat))
}

/// Returns the key that identifies a file during a copy. The inode number is not sufficient: if the
/// file is removed, a later file may get the same number.
fn key(stat: &Stat) -> String {
    let Stat {
        st_ino,
        st_size,
        st_mtime,
        st_mtime_nsec,
        ..
    } = stat;
    format!("{st_ino:x}.{st_size:x}.{st_mtime:x}.{st_mtime_nsec:x}")
}

/// Reads the target of a symbolic link. Returns `Again` if the file is no longer a link.
fn link_target(from: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<CString, Stop> {
    let read = || rustix::fs::readlinkat(from, name, Vec::new());
    let target = match retry_on_intr(read) {
        Err(Errno::INVAL) => Err(Errno::LOOP),
        result => result,
    };
    target.map_err(|errno| Stop::of(at("readlinkat", shown)(errno)))
}

/// Opens a file to copy. Returns `Again` if the file is no longer a regular file.
fn open_file(from: BorrowedFd<'_>, name: &CStr, shown: &str) -> Result<(OwnedFd, Stat), Stop> {
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
