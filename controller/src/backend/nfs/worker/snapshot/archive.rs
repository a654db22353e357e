//! Writes the files of a volume to an archive. As for a copy (`super::super::copy::walk`), tenants
//! may change the volume meanwhile: each file is opened without following a link, by its name in a
//! directory that is open. A file is in the archive whole, as it was while it was read, or not at
//! all.

use super::super::copy::attributes::{self, Attribute};
use super::super::copy::report::Report;
use super::super::copy::walk::{ATTEMPTS, DEPTH_MAX, Stop, key, link_target, open_file};
use super::super::error::at;
use super::super::tar::{self, Entry, Time, Type};
use super::super::tree;
use super::holes;
use super::output::Output;
use belay_server::call::Failure;
use rustix::fs::{Dir, FileType, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A file of at most so many bytes is read before its head is written.
const SMALL_BYTES: u64 = 256 << 10;
const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct Walk<'a, 'o, 'r> {
    output: &'a mut Output<'o>,
    report: &'a mut Report<'r>,
    buffer: Vec<u8>,
}

/// A name that is archived.
struct Name<'a> {
    from: BorrowedFd<'a>,
    name: &'a CStr,
    /// Below the root of the volume.
    path: Vec<u8>,
    shown: String,
    depth: usize,
}

impl<'a, 'o, 'r> Walk<'a, 'o, 'r> {
    pub(super) fn new(output: &'a mut Output<'o>, report: &'a mut Report<'r>) -> Self {
        Self {
            output,
            report,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    /// Writes a directory, and all that is in it.
    pub(super) fn directory(&mut self, from: &OwnedFd, shown: &str) -> Result<(), Failure> {
        self.fill(from, b"./", shown, 0).map_err(Stop::failure)
    }

    fn fill(&mut self, from: &OwnedFd, path: &[u8], shown: &str, depth: usize) -> Result<(), Stop> {
        let stat = rustix::fs::fstat(from).map_err(|errno| Stop::of(at("fstat", shown)(errno)))?;
        let attributes = attributes::read(from, shown)?;
        // They are not kept while what is in it is archived.
        self.output
            .write(&tar::head(&entry(path, Type::Directory, &stat, attributes)))?;
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
            // If the directory above is gone, it is asked for by its name.
            let stat = tree::stat(it.from, it.name, &it.shown).map_err(Stop::of)?;
            let Some(stat) = stat else {
                self.report.changed(&it.shown);
                return Ok(());
            };
            let archived = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.subdirectory(it),
                FileType::RegularFile => self.file(it, attempt == ATTEMPTS),
                other => self.special(it, &stat, other),
            };
            match archived {
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
                 archived; move it up, and repeat the call"
            ))));
        }
        let from = tree::open(it.from, it.name, shown).map_err(Stop::of)?;
        let path = [&it.path[..], b"/"].concat();
        self.or_nothing(|walk| walk.fill(&from, &path, shown, depth))
    }

    /// Takes out what an attempt that failed has written: the archive has all of a name, or
    /// nothing. The next attempt may find a file of another type there.
    fn or_nothing(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let begin = self.output.begin()?;
        let written = write(self);
        if let Err(Stop::Again(_)) = &written {
            self.output.back(begin)?;
        }
        written
    }

    fn file(&mut self, it: &Name<'_>, is_last: bool) -> Result<(), Stop> {
        let shown = &*it.shown;
        let (from, stat) = open_file(it.from, it.name, shown)?;
        let attributes = attributes::read(&from, shown)?;
        let mut entry = entry(&it.path, Type::File, &stat, attributes);
        entry.size = u64::try_from(stat.st_size).unwrap_or_default();
        // The same key as that of a copy: a file that changes gets another one.
        entry.links = (stat.st_nlink > 1).then(|| key(&stat));
        match entry.size <= SMALL_BYTES {
            true => self.small(&from, entry, shown)?,
            false => {
                entry.segments =
                    holes::segments(&from, &stat, &mut self.buffer, self.report, shown)?;
                self.or_nothing(|walk| walk.content(&from, &entry, shown, is_last))?;
            }
        }
        let now = rustix::fs::fstat(&from);
        // It was whole when it was read.
        if !matches!(&now, Ok(now) if key(now) == key(&stat)) {
            self.report.changed(shown);
        }
        Ok(())
    }

    fn small(&mut self, from: &OwnedFd, mut entry: Entry, shown: &str) -> Result<(), Stop> {
        let size = usize::try_from(entry.size).unwrap_or_default();
        let mut content = vec![0; size];
        let mut length = 0;
        while length < size {
            match read_at(from, &mut content[length..], length as u64, shown)? {
                0 => break,
                read => length += read,
            }
        }
        // It may be shorter by now.
        entry.size = length as u64;
        self.output.write(&tar::head(&entry))?;
        self.output.write(&content[..length])?;
        self.pad(tar::padding(entry.size))?;
        self.report.copied.bytes += entry.size;
        Ok(())
    }

    /// A large file. One that is shorter by now is read once more; the last attempt fills it with
    /// zeros, since its size is written before it.
    fn content(
        &mut self,
        from: &OwnedFd,
        entry: &Entry,
        shown: &str,
        is_last: bool,
    ) -> Result<(), Stop> {
        let again = || Stop::Again(at("pread", shown)(Errno::NXIO));
        self.output.write(&tar::head(entry))?;
        for segment in entry.pieces().iter() {
            let (mut here, end) = (segment.offset, segment.offset + segment.length);
            while here < end {
                let length = usize::try_from(end - here).unwrap_or(BUFFER_BYTES);
                let buffer = &mut self.buffer[..length.min(BUFFER_BYTES)];
                let mut read = read_at(from, buffer, here, shown)?;
                if read == 0 && !is_last {
                    return Err(again());
                }
                if read == 0 {
                    buffer.fill(0);
                    read = buffer.len();
                }
                self.output.write(&self.buffer[..read])?;
                here += read as u64;
                self.report.copied.bytes += read as u64;
                self.report.beat()?;
            }
        }
        let size = rustix::fs::fstat(from).map(|now| now.st_size);
        // Without its end, that may have been taken for a hole.
        if !is_last && size.is_ok_and(|size| size.unsigned_abs() < entry.size) {
            return Err(again());
        }
        self.pad(tar::padding(entry.stored()))
    }

    fn pad(&mut self, length: usize) -> Result<(), Stop> {
        Ok(self.output.write(&[0; tar::BLOCK][..length])?)
    }

    /// A link, a FIFO, a socket or a device.
    fn special(&mut self, it: &Name<'_>, stat: &Stat, file_type: FileType) -> Result<(), Stop> {
        let shown = &*it.shown;
        let kind = match file_type {
            FileType::Symlink => Type::Symlink,
            FileType::Fifo => Type::Fifo,
            FileType::CharacterDevice => Type::Character,
            FileType::BlockDevice => Type::Block,
            // No format of archives has it, and its process makes it again.
            FileType::Socket => return Ok(()),
            _ => {
                return Err(Stop::Failure(Failure::precondition(format!(
                    "{shown:?} in the share: is of no type that can be archived; move it away, and \
                     repeat the call"
                ))));
            }
        };
        let mut entry = entry(&it.path, kind, stat, Vec::new());
        entry.links = (stat.st_nlink > 1).then(|| key(stat));
        if kind == Type::Symlink {
            entry.target = link_target(it.from, it.name, shown)?.into_bytes();
        }
        if matches!(kind, Type::Character | Type::Block) {
            entry.device = (
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            );
        }
        Ok(self.output.write(&tar::head(&entry))?)
    }
}

/// At most as much as the buffer has; 0 at the end of the file.
pub(super) fn read_at(
    from: &OwnedFd,
    buffer: &mut [u8],
    offset: u64,
    shown: &str,
) -> Result<usize, Stop> {
    let read = retry_on_intr(|| rustix::io::pread(from, &mut *buffer, offset));
    read.map_err(|errno| Stop::of(at("pread", shown)(errno)))
}

fn entry(path: &[u8], kind: Type, stat: &Stat, attributes: Vec<Attribute>) -> Entry {
    let time = |seconds: i64, nanoseconds: u64| Time {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
    };
    let attributes = attributes.into_iter();
    Entry {
        path: path.to_vec(),
        kind,
        mode: stat.st_mode & 0o7777,
        user: stat.st_uid,
        group: stat.st_gid,
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        accessed: Some(time(stat.st_atime, stat.st_atime_nsec)),
        attributes: attributes
            .map(|(name, value)| (name.into_bytes(), value))
            .collect(),
        ..Entry::default()
    }
}
