//! The memory that a guest shares with its disks. This module does not depend on the queues in the
//! memory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap};

/// A region of the memory, as VHOST_USER_SET_MEM_TABLE describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The address in the guest.
    pub(super) guest: u64,
    /// The size in bytes.
    pub(super) size: u64,
    /// The address in the guest's process.
    pub(super) user: u64,
    /// The offset in the region's file.
    pub(super) offset: u64,
}

/// All memory regions that the guest shares.
#[derive(Debug)]
pub(super) struct Memory {
    map: GuestMemoryMmap,
    regions: Vec<Region>,
}

impl Memory {
    /// Maps the regions. Each region has a file.
    pub(super) fn map(regions: Vec<Region>, files: Vec<OwnedFd>) -> io::Result<Self> {
        let ranges: Vec<_> = regions
            .iter()
            .zip(files)
            .map(|(region, file)| {
                let size = usize::try_from(region.size).map_err(io::Error::other)?;
                let file = FileOffset::new(File::from(file), region.offset);
                Ok((GuestAddress(region.guest), size, Some(file)))
            })
            .collect::<io::Result<_>>()?;
        let map = GuestMemoryMmap::from_ranges_with_files(ranges).map_err(io::Error::other)?;
        Ok(Memory { map, regions })
    }

    /// Converts an address in the guest's process, as in VHOST_USER_SET_VRING_ADDR, to a guest
    /// address.
    pub(super) fn of_user(&self, user: u64) -> io::Result<u64> {
        let is_in = |region: &&Region| {
            user.checked_sub(region.user)
                .is_some_and(|at| at < region.size)
        };
        let region = self.regions.iter().find(is_in);
        let region = region.ok_or_else(|| io::Error::other("a queue outside of the memory"))?;
        Ok(region.guest + (user - region.user))
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.map
            .read_slice(into, GuestAddress(at))
            .map_err(io::Error::other)
    }

    /// Reads data that the guest writes to the disk. Linux 7 writes zeros from a page within its
    /// own image (`empty_zero_page`, mm/mm_init.c), which User-mode Linux does not share: this page
    /// lies below the first region.
    pub(super) fn read_data(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let first = self.regions.iter().map(|region| region.guest).min();
        if first.is_some_and(|first| at < first) {
            into.fill(0);
            return Ok(());
        }
        self.read(at, into)
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.map
            .write_slice(data, GuestAddress(at))
            .map_err(io::Error::other)
    }

    /// Reads a value that the guest has stored, ordered after all earlier writes of the guest.
    pub(super) fn acquire(&self, at: u64) -> io::Result<u16> {
        self.map
            .load(GuestAddress(at), Ordering::Acquire)
            .map_err(io::Error::other)
    }

    /// Stores a value for the guest, ordered after all earlier writes.
    pub(super) fn release(&self, at: u64, value: u16) -> io::Result<()> {
        self.map
            .store(value, GuestAddress(at), Ordering::Release)
            .map_err(io::Error::other)
    }
}
