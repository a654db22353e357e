//! Makes the files of an archive in a directory that no other user can write in. The archive may be
//! hostile: each name is looked up in a directory that is open, without following a link, so that
//! nothing outside is reached, whatever the archive has made before.

use super::super::claim::nonce;
use super::super::copy::attributes::{self, Attribute};
use super::super::copy::content::{BLOCK_BYTES, SYNC_BYTES};
use super::super::copy::report::Report;
use super::super::copy::walk::{created, made_anew, make_node};
use super::super::error::{Result as Done, at};
use super::super::tar::{Entry, Reader, Segment, Time, Type};
use super::super::tree::{self, alive};
use super::found::{Archive, Found};
use super::target::{Out, Place, Target};
use belay_server::call::{Failure, Kind};
use belay_server::size::Rounded;
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CString;
use std::io::Read;
use std::os::fd::OwnedFd;

const BUFFER_BYTES: usize = 1 << 20;
/// For more than so many bytes, the server is asked for room before.
const ROOM_BYTES: u64 = 16 << 20;

/// Makes all files of an archive, and gives the directory the attributes of its root. `links` gets
/// a link to each file that has several.
///
/// # Errors
/// `Precondition` if the archive is damaged or hostile, or has what cannot be made; `Quota` if it
/// is larger than the room on the server; those of the server.
pub(in super::super) fn restore(
    found: &Found,
    (target, links): (&OwnedFd, &OwnedFd),
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let root = target.try_clone().map_err(|error| system(&error))?;
    let mut restore = Restore {
        found,
        links,
        report,
        target: Target::new(root),
        buffer: vec![0; BUFFER_BYTES],
        unsynced: 0,
    };
    let mut reader = Reader::new(Archive::open(found)?);
    while let Some(entry) = reader.next().map_err(|wrong| found.failure(wrong))? {
        restore.report.beat()?;
        restore.entry(&entry, &mut reader)?;
        restore.report.copied.files += 1;
    }
    // What follows has the checksum of the last part.
    reader.end().map_err(|wrong| found.failure(wrong))?;
    restore.target.end()
}

struct Restore<'a, 'r> {
    found: &'a Found,
    links: &'a OwnedFd,
    report: &'a mut Report<'r>,
    target: Target,
    buffer: Vec<u8>,
    unsynced: u64,
}

impl Restore<'_, '_> {
    fn entry<R: Read>(&mut self, entry: &Entry, reader: &mut Reader<R>) -> Result<(), Failure> {
        let shown = String::from_utf8_lossy(&entry.path).into_owned();
        let refused = |why: String| self.found.refused(&format!("{shown:?}: {why}"));
        let names = names(&entry.path).map_err(refused)?;
        let extended = attributes::archived(&entry.attributes).map_err(refused)?;
        let Some((name, above)) = names.split_last() else {
            return match entry.kind {
                Type::Directory => self.target.root(entry.clone(), extended),
                _ => Err(refused("is the volume itself, and no directory".to_owned())),
            };
        };
        let found = self.found;
        let out = |out: Out| out.failure(found, &shown);
        let here = self.target.above(above).map_err(out)?.try_clone();
        let here = here.map_err(|error| system(&error))?;
        let place = Place {
            name,
            shown: &shown,
        };
        self.make_way(&here, &place, entry.kind)?;
        if entry.kind == Type::Directory {
            return self.target.directory(&names, entry, extended).map_err(out);
        }
        match entry.kind {
            Type::File => self.file(&here, &place, entry, &extended, reader),
            Type::Link => self.link(&here, &place, entry),
            _ => self.special(&here, &place, entry),
        }
    }

    /// Moves away what has the name, if it is of another type: the later entry counts. Belay reads
    /// the names of a directory while tenants change it, and may find one twice, as a directory and
    /// as a file. Archives of other programs are refused then.
    fn make_way(&self, here: &OwnedFd, place: &Place<'_>, kind: Type) -> Result<(), Failure> {
        if self.found.mark.is_none() {
            return Ok(());
        }
        let Some(stat) = tree::stat(here, place.name, place.shown)? else {
            return Ok(());
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory == (kind == Type::Directory) {
            return Ok(());
        }
        let new = nonce()?;
        let moved = tree::rename((here, place.name), (self.links, &*new), place.shown);
        Ok(moved?)
    }

    fn file<R: Read>(
        &mut self,
        here: &OwnedFd,
        place: &Place<'_>,
        entry: &Entry,
        extended: &[Attribute],
        reader: &mut Reader<R>,
    ) -> Result<(), Failure> {
        if let Some(key) = &entry.links
            && self.linked(here, place, key)?
        {
            return self.pass(reader);
        }
        self.make_sure_of_room(entry, place)?;
        let file = self.made(created(here, place.name, place.shown), place)?;
        for segment in entry.pieces().iter() {
            self.content(&file, *segment, self.may_have_holes(entry), place, reader)?;
        }
        // It may end with a hole.
        let cut = || {
            alive()?;
            rustix::fs::ftruncate(&file, entry.size)
        };
        retry_on_intr(cut).map_err(at("ftruncate", place.shown))?;
        // Before: a client that writes later sets the time of modification.
        tree::sync(&file, place.shown)?;
        let stat = stat(&file, entry, place.shown)?;
        attributes::apply(extended, &file, &stat, place.shown)?;
        tree::sync(&file, place.shown)?;
        self.kept(here, place, entry)
    }

    fn content<R: Read>(
        &mut self,
        file: &OwnedFd,
        Segment { offset, length }: Segment,
        may_have_holes: bool,
        place: &Place<'_>,
        reader: &mut Reader<R>,
    ) -> Result<(), Failure> {
        let (mut here, end) = (offset, offset + length);
        while here < end {
            let rest = usize::try_from(end - here).unwrap_or(BUFFER_BYTES);
            let length = self.filled(rest.min(BUFFER_BYTES), reader)?;
            for block in self.buffer[..length].chunks(BLOCK_BYTES) {
                if !may_have_holes || block.iter().any(|byte| *byte != 0) {
                    write(file, block, here, place.shown)?;
                    self.unsynced += block.len() as u64;
                }
                here += block.len() as u64;
            }
            self.report.copied.bytes += length as u64;
            self.report.beat()?;
            if self.unsynced >= SYNC_BYTES {
                tree::sync(file, place.shown)?;
                self.unsynced = 0;
            }
        }
        Ok(())
    }

    /// Reads the content of a file that exists.
    fn pass<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<(), Failure> {
        let failed = |wrong| self.found.failure(wrong);
        while reader.read(&mut self.buffer).map_err(failed)? > 0 {
            self.report.beat()?;
        }
        Ok(())
    }

    /// Reads so much, or less at the end of the file, into the buffer.
    fn filled<R: Read>(&mut self, length: usize, reader: &mut Reader<R>) -> Result<usize, Failure> {
        let mut filled = 0;
        while filled < length {
            let read = reader.read(&mut self.buffer[filled..length]);
            match read.map_err(|wrong| self.found.failure(wrong))? {
                0 => return Err(self.found.refused("a file is shorter than it says")),
                read => filled += read,
            }
        }
        Ok(filled)
    }

    /// A file that says that it is large, and is not, is found out before it fills the server.
    fn make_sure_of_room(&self, entry: &Entry, place: &Place<'_>) -> Result<(), Failure> {
        let bytes = entry.stored();
        if bytes < ROOM_BYTES {
            return Ok(());
        }
        let room = retry_on_intr(|| rustix::fs::fstatvfs(self.links));
        let room = room
            .map_err(at("fstatvfs", place.shown))
            .map_err(Failure::from)?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        // What has zeros only may take up none.
        if bytes <= free || self.may_have_holes(entry) {
            return Ok(());
        }
        Err(Failure::quota(format!(
            "{:?} of snapshot {}: has {}, and the server's filesystem has {} left",
            place.shown,
            self.found.id,
            Rounded(bytes),
            Rounded(free)
        )))
    }

    /// An archive of Belay says where holes are.
    fn may_have_holes(&self, entry: &Entry) -> bool {
        entry.segments.is_none() && self.found.mark.is_none()
    }

    /// What was made in the place of a name.
    fn made<T>(&self, made: Done<T>, place: &Place<'_>) -> Result<T, Failure> {
        match made {
            Err(error) if error.errno == Errno::ISDIR => {
                let shown = place.shown;
                Err(self
                    .found
                    .refused(&format!("{shown:?}: replaces a directory")))
            }
            result => Ok(result?),
        }
    }

    /// Whether the file was made by another name, and has this one as well now.
    fn linked(&self, here: &OwnedFd, place: &Place<'_>, key: &str) -> Result<bool, Failure> {
        let linked = made_anew((here, place.name), "linkat", place.shown, || {
            match rustix::fs::linkat(self.links, key, here, place.name, AtFlags::empty()) {
                Ok(()) => Ok(true),
                // It has as many links as the server allows, with the one for this.
                Err(Errno::NOENT | Errno::MLINK) => Ok(false),
                Err(errno) => Err(errno),
            }
        });
        self.made(linked, place)
    }

    /// Other names of the file are linked to this one.
    fn kept(&self, here: &OwnedFd, place: &Place<'_>, entry: &Entry) -> Result<(), Failure> {
        let Some(key) = &entry.links else {
            return Ok(());
        };
        let link = || {
            alive()?;
            rustix::fs::linkat(here, place.name, self.links, &**key, AtFlags::empty())
        };
        match retry_on_intr(link) {
            Ok(()) | Err(Errno::EXIST | Errno::MLINK) => Ok(()),
            Err(errno) => Err(at("linkat", place.shown)(errno).into()),
        }
    }

    /// A link to an earlier file of the archive.
    fn link(&mut self, here: &OwnedFd, place: &Place<'_>, entry: &Entry) -> Result<(), Failure> {
        let refused = |why: &str| self.found.refused(&format!("{:?}: {why}", place.shown));
        let names = names(&entry.target).map_err(|why| refused(&format!("its target {why}")))?;
        let Some((name, above)) = names.split_last() else {
            return Err(refused("is a link to the volume itself"));
        };
        let from = self.target.find(above);
        let from = from.map_err(|out| out.failure(self.found, place.shown))?;
        let found = tree::stat(&from, &**name, place.shown)?;
        let Some(found) = found else {
            return Err(refused("is a link to what is not in the archive before it"));
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(refused("is a link to a directory"));
        }
        let own = tree::stat(here, place.name, place.shown)?;
        if own.is_some_and(|own| own.st_ino == found.st_ino) {
            return Ok(());
        }
        let linked = made_anew((here, place.name), "linkat", place.shown, || {
            rustix::fs::linkat(&from, &**name, here, place.name, AtFlags::empty())
        });
        self.made(linked, place)
    }

    /// A symbolic link, a FIFO or a device.
    fn special(&self, here: &OwnedFd, place: &Place<'_>, entry: &Entry) -> Result<(), Failure> {
        let Place { name, shown } = *place;
        let file_type = match entry.kind {
            Type::Character => FileType::CharacterDevice,
            Type::Block => FileType::BlockDevice,
            Type::Symlink => FileType::Symlink,
            _ => FileType::Fifo,
        };
        if let Some(key) = &entry.links
            && self.linked(here, place, key)?
        {
            return Ok(());
        }
        let (major, minor) = entry.device;
        match file_type {
            FileType::Symlink => {
                let made = made_anew((here, name), "symlinkat", shown, || {
                    rustix::fs::symlinkat(&*entry.target, here, name)
                });
                self.made(made, place)?;
            }
            FileType::Fifo => make_node((here, name), file_type, 0, shown)?,
            _ => make_node(
                (here, name),
                file_type,
                rustix::fs::makedev(major, minor),
                shown,
            )?,
        }
        let own = retry_on_intr(|| rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW));
        let own = own.map_err(at("fstatat", shown)).map_err(Failure::from)?;
        attributes::apply_at(here, name, &with(own, entry), shown)?;
        self.kept(here, place, entry)
    }
}

/// What a file has to have, beginning with what it has.
pub(super) fn stat(file: &OwnedFd, entry: &Entry, shown: &str) -> Result<Stat, Failure> {
    let own = retry_on_intr(|| rustix::fs::fstat(file));
    let own = own.map_err(at("fstat", shown)).map_err(Failure::from)?;
    Ok(with(own, entry))
}

fn with(mut own: Stat, entry: &Entry) -> Stat {
    let nanoseconds = |time: Time| u64::from(time.nanoseconds);
    own.st_mode = own.st_mode & libc::S_IFMT | entry.mode & 0o7777;
    (own.st_uid, own.st_gid) = (entry.user, entry.group);
    let (modified, accessed) = (entry.modified, entry.accessed.unwrap_or(entry.modified));
    (own.st_mtime, own.st_mtime_nsec) = (modified.seconds, nanoseconds(modified));
    (own.st_atime, own.st_atime_nsec) = (accessed.seconds, nanoseconds(accessed));
    own
}

/// The names in a path of an archive, below the root of the volume.
///
/// # Errors
/// Why it is refused.
pub(super) fn names(path: &[u8]) -> Result<Vec<CString>, String> {
    if path.first() == Some(&b'/') {
        return Err("is an absolute path".to_owned());
    }
    let parts = path.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let named = parts.map(|part| match part {
        b".." => Err("leads out of the volume (\"..\")".to_owned()),
        part if part.len() > 255 => Err("has a name of more than 255 bytes".to_owned()),
        part => CString::new(part).map_err(|_| "has a zero byte in its name".to_owned()),
    });
    named.collect()
}

fn write(file: &OwnedFd, mut rest: &[u8], mut position: u64, shown: &str) -> Result<(), Failure> {
    while !rest.is_empty() {
        let write = || {
            alive()?;
            rustix::io::pwrite(file, rest, position)
        };
        let written = retry_on_intr(write).map_err(at("pwrite", shown))?;
        rest = &rest[written..];
        position += u64::try_from(written).unwrap_or_default();
    }
    Ok(())
}

fn system(error: &std::io::Error) -> Failure {
    Failure::new(Kind::System, format!("fcntl: {error}"))
}
