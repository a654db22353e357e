//! Calls on names and bytes: opens, directories, reads, writes and locks.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::state::{Answer, File, InodeKind, Location, Names, Object, State};
use crate::kernel::{MountAttrs, Open, Openers, Usage};

/// Alignment that `O_DIRECT` requires: the logical block size, which is 512 bytes for a loop
/// device.
const SECTOR: usize = 512;

impl State {
    pub(super) fn real(&self, path: &Path) -> Answer<Option<PathBuf>> {
        match self.walk(path) {
            Ok(_) => Ok(Some(self.without_links(path).into_owned())),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the path with its symlink resolved. In this simulation, no symlink points to another
    /// symlink.
    pub(super) fn without_links<'a>(&self, path: &'a Path) -> Cow<'a, Path> {
        let mut links = self.links.iter();
        let real = links.find_map(|(link, to)| Some(to.join(path.strip_prefix(link).ok()?)));
        real.map_or(Cow::Borrowed(path), Cow::Owned)
    }

    pub(super) fn file(&mut self, ino: u64) -> Answer<&mut File> {
        match self.inodes.get_mut(&ino).map(|inode| &mut inode.kind) {
            Some(InodeKind::File(file)) => Ok(file),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn open_location(&mut self, location: Location, how: Open) -> Answer<Object> {
        self.refuse_shut_down(&Object::Name(location))?;
        match (&self.inode(location.ino)?.kind, how) {
            (InodeKind::Directory(_), Open::Directory) => Ok(Object::Name(location)),
            (_, Open::Directory) => Err(Errno::NOTDIR),
            (InodeKind::Directory(_), Open::FileRead) | (_, Open::Name | Open::NameCached) => {
                Ok(Object::Name(location))
            }
            (InodeKind::Directory(_), _) => Err(Errno::ISDIR),
            (InodeKind::Loop(number), _) => self.open_device(location, *number, how),
            (InodeKind::File(_), _) => Ok(Object::File {
                location,
                writable: matches!(how, Open::FileWrite | Open::DeviceWrite),
            }),
        }
    }

    pub(super) fn open_beneath(&mut self, dir: u64, name: &str, how: Open) -> Answer<Object> {
        let dir = self.object(dir)?.location()?;
        if how == Open::NameCached && self.has_cold_names {
            return Err(Errno::AGAIN);
        }
        let ino = self.child(dir.ino, name)?;
        let location = Location { ino, ..dir };
        match self.topmost(location) == location {
            true => self.open_location(location, how),
            false => Err(Errno::XDEV),
        }
    }

    pub(super) fn add_name(&mut self, directory: u64, name: &str, ino: u64) {
        if let Some(InodeKind::Directory(names)) =
            self.inodes.get_mut(&directory).map(|inode| &mut inode.kind)
        {
            let name = name.to_owned();
            names.change(move |names| names.insert(name.clone(), ino));
        }
    }

    /// Simulates mkdir(2), and open(2) with `O_CREAT | O_EXCL`.
    pub(super) fn create(&mut self, path: &Path, kind: InodeKind) -> Answer<()> {
        let (parent, name) = self.parent(path)?;
        match self.child(parent.ino, &name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let mount = &self.mounts[&parent.mount];
        if mount.attrs.contains(MountAttrs::READ_ONLY) {
            return Err(Errno::ROFS);
        }
        let superblock = mount.superblock;
        let ino = self.make_inode(superblock, kind);
        self.add_name(parent.ino, &name, ino);
        Ok(())
    }

    /// rmdir(2) and unlink(2).
    pub(super) fn remove(&mut self, path: &Path, is_directory: bool) -> Answer<()> {
        let (parent, name) = self.parent(path)?;
        let ino = self.child(parent.ino, &name)?;
        let location = Location { ino, ..parent };
        if self.topmost(location) != location {
            return Err(Errno::BUSY);
        }
        match (&self.inode(ino)?.kind, is_directory) {
            (InodeKind::Directory(names), true) if names.is_empty() => {}
            (InodeKind::Directory(_), true) => return Err(Errno::NOTEMPTY),
            (InodeKind::Directory(_), false) => return Err(Errno::ISDIR),
            (_, true) => return Err(Errno::NOTDIR),
            (_, false) => {}
        }
        if let Some(InodeKind::Directory(names)) =
            self.inodes.get_mut(&parent.ino).map(|i| &mut i.kind)
        {
            names.change(move |names| names.remove(&name));
        }
        Ok(())
    }

    /// link(2). Fails with EROFS if `/dev` accepts no names.
    pub(super) fn link(&mut self, path: &Path, name: &Path) -> Answer<()> {
        let (from, to) = (self.walk(path)?, self.parent(name)?);
        if self.has_fixed_dev {
            return Err(Errno::ROFS);
        }
        match self.child(to.0.ino, &to.1) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        if from.mount != to.0.mount {
            return Err(Errno::XDEV);
        }
        self.add_name(to.0.ino, &to.1, from.ino);
        Ok(())
    }

    pub(super) fn names(&self, path: &Path) -> Answer<Vec<String>> {
        let location = match self.walk(path) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            location => location?,
        };
        match &self.inode(location.ino)?.kind {
            InodeKind::Directory(names) => Ok(names.keys().cloned().collect()),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn flock(&mut self, fd: u64) -> Answer<bool> {
        let ino = self.object(fd)?.location()?.ino;
        Ok(*self.locks.entry(ino).or_insert(fd) == fd)
    }

    /// Whether other open file descriptions refer to the file, including the description that a
    /// bound loop device keeps open.
    pub(super) fn openers_of(&mut self, fd: u64, readers_too: bool) -> Answer<Openers> {
        let ino = self.object(fd)?.location()?.ino;
        if self.grants_no_leases {
            return Ok(Openers::Unknown);
        }
        let is_in_the_way = |object: &Object| match object {
            Object::File { location, writable } => {
                location.ino == ino && (readers_too || *writable)
            }
            _ => false,
        };
        let mut others = self.open.iter().filter(|(id, _)| **id != fd);
        Ok(
            match others.any(|(_, other)| is_in_the_way(&other.object)) {
                true => Openers::Others,
                false => Openers::None,
            },
        )
    }

    /// Returns the inode of the file that holds the bytes of `fd`, and the size of the device;
    /// `u64::MAX` if `fd` refers to the file itself.
    fn bytes_of(&mut self, fd: u64) -> Answer<(u64, u64)> {
        if let Object::File { location, .. } = *self.object(fd)? {
            return Ok((location.ino, u64::MAX));
        }
        match self.binding(fd) {
            Ok(Some(binding)) => Ok((binding.ino, binding.bytes)),
            Ok(None) => Err(Errno::IO),
            Err(_) => Err(Errno::ISDIR),
        }
    }

    pub(super) fn pread(&mut self, fd: u64, buffer: &mut [u8], at: u64) -> Answer<usize> {
        self.refuse_unaligned(fd, buffer.len(), at)?;
        let (ino, end) = self.bytes_of(fd)?;
        let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let length = match self.reads_half {
            true => buffer.len().min(left) / 2,
            false => buffer.len().min(left),
        };
        if let Ok(number) = self.object(fd)?.device() {
            self.flush_cache(number, at..at + length as u64);
        }
        let read = self.file(ino)?.contents.read(at, &mut buffer[..length]);
        if end == u64::MAX {
            return Ok(read);
        }
        // A device whose file was truncated reads as zeros behind the file's end.
        buffer[read..length].fill(0);
        Ok(length)
    }

    pub(super) fn pwrite(&mut self, fd: u64, bytes: &[u8], at: u64) -> Answer<usize> {
        self.refuse_unaligned(fd, bytes.len(), at)?;
        let (writable, cached) = match *self.object(fd)? {
            Object::File { writable, .. } => (writable, None),
            Object::Device {
                number,
                writable,
                buffered,
                ..
            } => (writable, buffered.then_some(number)),
            _ => (false, None),
        };
        if !writable {
            return Err(Errno::BADF);
        }
        if let Ok(number) = self.object(fd)?.device()
            && self.refuses_writes(number)
        {
            return Err(Errno::PERM);
        }
        let (ino, end) = self.bytes_of(fd)?;
        if at + bytes.len() as u64 > end {
            return Err(Errno::NOSPC);
        }
        let range = at..at + bytes.len() as u64;
        let bytes: Box<[u8]> = bytes.into();
        if let Some(number) = cached {
            let length = bytes.len();
            self.write_cached(number, range, move |contents| {
                contents.write(at, &bytes);
            });
            return Ok(length);
        }
        if let Ok(number) = self.object(fd)?.device() {
            self.flush_cache(number, range);
        }
        let contents = &mut self.file(ino)?.contents;
        Ok(contents.change(move |contents| contents.write(at, &bytes)))
    }

    /// Simulates fsync(2). An fsync of a loop device writes the device's cache to the file, and the
    /// file's data to the disk, but not the file's attributes: the kernel does not promise this
    /// (drivers/block/loop.c, `lo_req_flush`). An fsync of a file writes all data and attributes of
    /// the file, but no device's cache. A mapper passes the flush to the device below.
    pub(super) fn fsync(&mut self, fd: u64) -> Answer<()> {
        let (ino, _) = match *self.object(fd)? {
            Object::File { .. } | Object::Device { .. } => self.bytes_of(fd)?,
            _ => return Err(Errno::BADF),
        };
        match self.object(fd)?.device() {
            Ok(number) => {
                self.flush_cache(number, 0..u64::MAX);
                for ino in self.files_of(number) {
                    self.file(ino)?.contents.sync();
                }
            }
            Err(_) => self.file(ino)?.sync(),
        }
        Ok(())
    }

    fn refuse_unaligned(&self, fd: u64, length: usize, at: u64) -> Answer<()> {
        let is_direct = matches!(
            self.object(fd)?,
            Object::Device {
                buffered: false,
                ..
            }
        );
        let sector = SECTOR as u64;
        match is_direct && (!length.is_multiple_of(SECTOR) || !at.is_multiple_of(sector)) {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    pub(super) fn seek(&mut self, fd: u64, from: u64, data: bool) -> Answer<Option<u64>> {
        let ino = self.object(fd)?.location()?.ino;
        let is_backwards = self.maps_backwards;
        let contents = &self.file(ino)?.contents;
        Ok(match data {
            true if is_backwards => Some(0),
            true => contents.data(from),
            false => contents.hole(from),
        })
    }

    /// Simulates statfs(2). Every filesystem on a device reports the usage of an empty filesystem.
    pub(super) fn statfs(&mut self, location: Location) -> Answer<Usage> {
        let superblock = self.mounts[&location.mount].superblock;
        if self.superblocks[&superblock].served.is_some() {
            return self.statfs_served(location.ino);
        }
        let (total, used) = match self.superblocks[&superblock].on {
            None => self.storage,
            Some(_) => {
                let ino = self.backing_of(superblock)?;
                let whole = super::superblock::read(&self.file(ino)?.contents);
                (whole.ok_or(Errno::IO)?.bytes, 1 << 20)
            }
        };
        Ok(Usage {
            total_bytes: total,
            used_bytes: used,
            available_bytes: total.saturating_sub(used),
            total_inodes: 1000,
            used_inodes: 11,
            free_inodes: 989,
        })
    }

    pub(super) fn make_dir(&mut self, path: &Path) {
        for part in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if self.walk(part).is_err() {
                self.create(part, InodeKind::Directory(Names::default()))
                    .unwrap();
                self.sync_names(part.parent().unwrap());
            }
        }
    }

    pub(super) fn make_file(&mut self, path: &Path, bytes: u64) {
        self.make_dir(path.parent().unwrap());
        if self.walk(path).is_err() {
            self.create(path, InodeKind::File(File::default())).unwrap();
        }
        let file = self.file_at(path);
        file.contents.change(move |contents| contents.grow(bytes));
        file.sync();
        self.sync_names(path.parent().unwrap());
    }

    /// Syncs the names in a directory.
    fn sync_names(&mut self, folder: &Path) {
        let ino = self.walk(folder).unwrap().ino;
        if let Some(InodeKind::Directory(names)) = self.inodes.get_mut(&ino).map(|i| &mut i.kind) {
            names.sync();
        }
    }

    pub(super) fn file_at(&mut self, path: &Path) -> &mut File {
        let location = self.walk(path).unwrap();
        self.file(location.ino).unwrap()
    }
}
