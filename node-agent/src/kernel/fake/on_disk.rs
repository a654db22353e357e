//! Finds the file or the filesystem that an open descriptor refers to, for calls that change it.

use rustix::io::Errno;

use super::state::{Answer, File, State};
use super::superblock::BLOCK_BYTES;
use super::{btrfs, ext4, xfs};
use crate::kernel::{BtrfsGeometry, MountAttrs, XfsGeometry};

impl State {
    /// Returns the file that was opened, regardless of mounts on it.
    pub(super) fn opened_file(&mut self, fd: u64) -> Answer<&mut File> {
        let ino = self.object(fd)?.location()?.ino;
        self.file(ino)
    }

    pub(super) fn new_uuid(&mut self) -> String {
        format!("00000000-0000-4000-8000-{:012x}", self.number())
    }

    pub(super) fn set_attribute(&mut self, fd: u64, name: &str, value: &[u8]) -> Answer<()> {
        let (name, value) = (name.to_owned(), value.to_owned());
        let attributes = &mut self.opened_file(fd)?.attributes;
        attributes.change(move |all| all.insert(name.clone(), value.clone()));
        Ok(())
    }

    pub(super) fn remove_attribute(&mut self, fd: u64, name: &str) -> Answer<()> {
        let name = name.to_owned();
        let attributes = &mut self.opened_file(fd)?.attributes;
        attributes.change(move |all| all.remove(&name));
        Ok(())
    }

    /// Returns the number of the device with the filesystem that contains a directory.
    pub(super) fn device_of(&self, fd: u64, fs_type: &str) -> Answer<u32> {
        let location = self.object(fd)?.location()?;
        let mount = self.mounts.get(&location.mount).ok_or(Errno::INVAL)?;
        let superblock = &self.superblocks[&mount.superblock];
        match superblock.fs_type == fs_type {
            true => superblock.on.ok_or(Errno::NOTTY),
            false => Err(Errno::NOTTY),
        }
    }

    /// syncfs(2) of the filesystem that contains the directory.
    pub(super) fn syncfs(&mut self, fd: u64) -> Answer<()> {
        let location = self.object(fd)?.location()?;
        let superblock = self.inode(location.ino)?.superblock;
        let superblock = &self.superblocks[&superblock];
        let (number, is_shut_down) = (superblock.on, superblock.shut_down);
        let Some(number) = number else {
            return Ok(());
        };
        self.behind(number).ok_or(Errno::IO)?;
        if is_shut_down {
            return Err(Errno::IO);
        }
        self.flush_cache(number, 0..u64::MAX);
        for ino in self.files_of(number) {
            self.file(ino)?.contents.sync();
        }
        Ok(())
    }

    /// Returns the size of the device in filesystem blocks.
    pub(super) fn room(&self, number: u32) -> u64 {
        self.loops[&number].binding.as_ref().map_or(0, |b| b.bytes) / BLOCK_BYTES
    }

    /// Returns the file with the filesystem that contains a directory. If `blocks` is given, fails
    /// if the filesystem is read-only, or if its device has fewer blocks.
    pub(super) fn mounted_file(
        &mut self,
        fd: u64,
        fs_type: &str,
        blocks: Option<u64>,
    ) -> Answer<&mut File> {
        let number = self.device_of(fd, fs_type)?;
        let location = self.object(fd)?.location()?;
        let mount = self.mounts.get(&location.mount).ok_or(Errno::INVAL)?;
        let superblock = &self.superblocks[&mount.superblock];
        let is_read_only = superblock.read_only || mount.attrs.contains(MountAttrs::READ_ONLY);
        if blocks.is_some() && is_read_only {
            return Err(Errno::ROFS);
        }
        let id = mount.superblock;
        if blocks.is_some_and(|blocks| blocks > self.room(number)) {
            return Err(Errno::INVAL);
        }
        let ino = self.backing_of(id)?;
        self.file(ino)
    }

    /// Resizes the filesystem to this number of blocks.
    pub(super) fn ext4_resize(&mut self, fd: u64, blocks: u64) -> Answer<()> {
        self.expect_counted(self.object(fd)?.location()?.mount);
        let contents = &mut self.mounted_file(fd, "ext4", Some(blocks))?.contents;
        contents.change(move |contents| ext4::log(contents, blocks));
        contents.change(move |contents| ext4::write(contents, blocks));
        Ok(())
    }

    /// Grows the filesystem to this number of blocks.
    pub(super) fn xfs_grow(&mut self, fd: u64, blocks: u64) -> Answer<()> {
        let contents = &mut self.mounted_file(fd, "xfs", Some(blocks))?.contents;
        let mut uuid = [0; 16];
        contents.read(xfs::UUID_AT, &mut uuid);
        contents.change(move |contents| xfs::write(contents, blocks, uuid, false));
        Ok(())
    }

    /// Grows the filesystem to the size of its device, which has this ID in the filesystem.
    pub(super) fn btrfs_grow(&mut self, fd: u64, id: u64) -> Answer<()> {
        if id != 1 {
            return Err(Errno::NODEV);
        }
        let blocks = self.room(self.device_of(fd, "btrfs")?);
        let contents = &mut self.mounted_file(fd, "btrfs", Some(blocks))?.contents;
        contents.change(move |contents| btrfs::write(contents, blocks, false));
        Ok(())
    }

    pub(super) fn btrfs_geometry(&mut self, fd: u64) -> Answer<BtrfsGeometry> {
        let contents = &self.mounted_file(fd, "btrfs", None)?.contents;
        Ok(BtrfsGeometry {
            devices: 1,
            last_id: 1,
            last_bytes: btrfs::blocks(contents).ok_or(Errno::IO)? * BLOCK_BYTES,
            block_bytes: u32::try_from(BLOCK_BYTES).unwrap(),
        })
    }

    pub(super) fn xfs_geometry(&mut self, fd: u64) -> Answer<XfsGeometry> {
        let contents = &self.mounted_file(fd, "xfs", None)?.contents;
        Ok(XfsGeometry {
            block_bytes: u32::try_from(BLOCK_BYTES).unwrap(),
            blocks: xfs::blocks(contents).ok_or(Errno::IO)?,
            groups: 4,
            imaxpct: 25,
        })
    }
}
