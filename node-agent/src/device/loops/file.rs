//! The file of a volume: known by its inode, guarded by its lock.
//!
//! The lock passes to the loop device when that is bound, and stays until it is unbound, so no
//! second device can be bound to the same file.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;

use super::bound::Device;
use super::name::{Bearer, Name};
use super::sysfs::candidates;
use crate::kernel::{self, Inode, Kernel, LoopStatus, Patience, Stat, while_busy};

/// Maximum number of names of a volume's file: its own, and the one that its controller gives it
/// while the volume is attached.
const NAMES_MAX: u32 = 2;

/// Explains why a file at `path` with so many names must not be used as that of a volume; `None` if
/// no other volume can have it.
pub(crate) fn linked(path: &Path, names: u32) -> Option<String> {
    belay_contract::drivers::local::names_refusal(path, names.into(), NAMES_MAX.into())
}

/// A volume's file.
pub(crate) struct VolumeFile<K: Kernel> {
    fd: K::Fd,
    path: PathBuf,
    name: Name,
    inode: Inode,
    bytes: u64,
    names: u32,
}

/// The owner of a file's lock.
enum Owner<K: Kernel> {
    Us,
    Device(Device<K>),
    /// A device that was bound for another volume, with its name.
    Another(Device<K>, String),
    /// Another process; or, briefly, a child of ours before its exec, or a device that is being
    /// unbound.
    Unseen,
}

impl<K: Kernel> VolumeFile<K> {
    /// The file of `fd`, which was opened at `path` and belongs to the volume of that name.
    pub(super) fn new(fd: K::Fd, path: PathBuf, name: Name, stat: &Stat) -> Self {
        VolumeFile {
            fd,
            path,
            name,
            inode: stat.inode(),
            bytes: stat.bytes,
            names: stat.links,
        }
    }

    /// The open file.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Which file it is.
    pub(in crate::device) fn inode(&self) -> Inode {
        self.inode
    }

    /// Where it is, or was.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The name that its devices are bound under.
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Its size in bytes when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a device of that status has exactly this file.
    pub(super) fn is_behind(&self, status: &LoopStatus) -> bool {
        status.inode() == self.inode
    }

    /// Refuses a file that may be another volume's too, by the number of names that it had when it
    /// was opened.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, with the remedy.
    pub(in crate::device) fn refuse_linked(&self) -> Result<(), Failure> {
        match linked(&self.path, self.names) {
            Some(why) => Err(Failure::precondition(why)),
            None => Ok(()),
        }
    }

    /// A process that deletes a volume locks its file meanwhile, and the file may have been opened
    /// here before that. So this is conclusive once the lock is ours.
    ///
    /// # Errors
    /// `NOT_FOUND` when the file was deleted.
    pub(super) fn refuse_deleted(&self, kernel: &K) -> Result<(), Failure> {
        if kernel.stat(&self.fd)?.links > 0 {
            return Ok(());
        }
        Err(Failure::not_found(format!(
            "{} was deleted meanwhile",
            self.path.display()
        )))
    }

    /// Locks the file, or finds the device that has its lock: an earlier operation left it bound.
    ///
    /// # Errors
    /// `ABORTED` if another process has it; `FAILED_PRECONDITION` if another volume has it.
    pub(crate) fn left(&self, kernel: &K) -> Result<Option<Device<K>>, Failure> {
        let owner = while_busy(
            kernel,
            Patience::Second,
            |owner| matches!(owner, Ok(Owner::Unseen)),
            || {
                if kernel.flock(&self.fd)? {
                    return Ok(Owner::Us);
                }
                self.device(kernel)
            },
        );
        match owner? {
            Owner::Us => Ok(None),
            Owner::Device(device) => Ok(Some(device)),
            Owner::Another(device, name) => Err(Failure::precondition(format!(
                "{} is the file of volume {name}, which has it on {}; it was moved here while it \
                 was in use: move it back, and restore this volume's own",
                self.path.display(),
                device.path().display()
            ))),
            Owner::Unseen => Err(Failure::busy(format!(
                "{path} is locked by another process, such as a copy, or by a loop device that \
                 has no node in /dev: `lslocks` and `losetup --associated {path}` name it",
                path = self.path.display()
            ))),
        }
    }

    /// Unbinds a device without a known mount, and locks the file.
    ///
    /// # Errors
    /// `ABORTED` while another process has the device open.
    pub(crate) fn free(&self, kernel: &K, left: Device<K>) -> Result<(), Failure> {
        left.refuse_claimed(kernel)?;
        let (path, _) = left.unbind(kernel)?;
        if while_busy(
            kernel,
            Patience::Second,
            |locked| matches!(locked, Ok(false)),
            || kernel.flock(&self.fd),
        )? {
            return Ok(());
        }
        Err(still_open(&path))
    }

    /// The loop device that this file is bound to, if any, perhaps since a crash.
    fn device(&self, kernel: &K) -> kernel::Result<Owner<K>> {
        for (number, _) in candidates(kernel, &self.path)? {
            if let Some((found, status)) = Device::open_bound(kernel, number)?
                && self.is_behind(&status)
            {
                return Ok(match self.name.bearer(&status) {
                    Bearer::Another => Owner::Another(found, status.name),
                    _ => Owner::Device(found),
                });
            }
        }
        Ok(Owner::Unseen)
    }
}

/// The error about a device that could not be unbound.
pub(super) fn still_open(device: &Path) -> Failure {
    Failure::busy(format!(
        "{} is still open in another process; it is freed when that process closes it",
        device.display()
    ))
}
