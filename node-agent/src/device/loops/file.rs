//! A volume's file, identified by its inode and protected by a lock. The module also defines the
//! name under which loop devices are bound to the file (`lo_file_name`). The name identifies driver
//! and volume, even after the file was renamed or moved.
//!
//! When a loop device is bound, the lock passes to the device, which keeps the lock until it is
//! unbound. Therefore no second device can be bound to the same file.

use std::path::{Path, PathBuf};

use belay_contract::drivers::local::{CLAIM, Claim};
use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use crate::device::label::fnv_1a;
use crate::kernel::{Cause, Inode, Kernel, LoopStatus, Stat};

/// Explains why a file at `path` with this number of hard links must not be used for a volume;
/// `None` if the file cannot belong to another volume.
pub(crate) fn linked(path: &Path, names: u32) -> Option<String> {
    belay_contract::drivers::local::names_refusal(path, names.into())
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

impl<K: Kernel> VolumeFile<K> {
    /// Returns the file of the descriptor `fd`, which was opened at `path` and belongs to the
    /// volume with this name.
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

    /// Returns the open file.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Returns the identity of the file.
    pub(in crate::device) fn inode(&self) -> Inode {
        self.inode
    }

    /// Returns the present or last known path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name under which loop devices are bound to the file.
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the size in bytes that the file had when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a device with this status is bound to this file.
    pub(super) fn is_behind(&self, status: &LoopStatus) -> bool {
        status.inode() == self.inode
    }

    /// Refuses a file that may also belong to another volume, judged by the number of hard links
    /// that it had when it was opened.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if the file has too many hard links; the message says what to
    /// do.
    pub(in crate::device) fn refuse_linked(&self) -> Result<(), Failure> {
        match linked(&self.path, self.names) {
            Some(why) => Err(Failure::precondition(why)),
            None => Ok(()),
        }
    }

    /// Reads the attribute by which the controller claims the file for copying or deleting; `None`
    /// if the file is not claimed.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn claim(&self, kernel: &K) -> Result<Option<Claim>, Failure> {
        let value = kernel.xattr(&self.fd, CLAIM)?;
        Ok(value.and_then(|value| Claim::parse(&value)))
    }

    /// Refuses a file that its controller is copying or deleting.
    ///
    /// # Errors
    /// Returns `ABORTED` while the file is being copied, `NOT_FOUND` while it is being removed.
    pub(crate) fn refuse_claimed(&self, kernel: &K) -> Result<(), Failure> {
        let path = self.path.display();
        match self.claim(kernel)? {
            None | Some(Claim::Delete) => Ok(()),
            Some(Claim::Deleting) => Err(Failure::not_found(format!(
                "{path}: its volume is being deleted; if the controller is down, start it; to keep \
                 the volume, restart it"
            ))),
            Some(Claim::Copy(snapshot)) => Err(Failure::busy(format!(
                "{path} is being copied to {snapshot}; repeat the call when that is ready, or \
                 delete the snapshot; if the controller is down, start it; if there is no such \
                 copy, restart it"
            ))),
        }
    }

    /// Removes the attribute by which the controller claims the file for deletion, because the
    /// volume is staged again.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn end_claim(&self, kernel: &K) -> Result<(), Failure> {
        if self.claim(kernel)? != Some(Claim::Delete) {
            return Ok(());
        }
        match kernel.remove_xattr(&self.fd, CLAIM) {
            // An xfs without free blocks cannot remove the attribute; the next NodeStageVolume call
            // retries.
            Err(error) if error.cause() == Cause::Full => {
                let path = self.path.display();
                tracing::warn!("{path}: a claim to delete the volume is left: {error}");
                Ok(())
            }
            removed => Ok(removed?),
        }
    }

    /// Refuses a file that was deleted. A process that deletes a volume locks its file, but the
    /// file may have been opened here before, so the check is conclusive only while this process
    /// holds the lock.
    ///
    /// # Errors
    /// Returns `NOT_FOUND` if the file was deleted.
    pub(super) fn refuse_deleted(&self, kernel: &K) -> Result<(), Failure> {
        if kernel.stat(&self.fd)?.links > 0 {
            return Ok(());
        }
        Err(Failure::not_found(format!(
            "{} was deleted meanwhile",
            self.path.display()
        )))
    }
}

/// Returns the error for a device that could not be unbound.
pub(super) fn still_open(device: &Path) -> Failure {
    Failure::busy(format!(
        "{} is still open in another process; it is freed when that process closes it",
        device.display()
    ))
}

/// `LO_NAME_SIZE` of include/uapi/linux/loop.h, without the terminating zero.
const NAME_BYTES: usize = 63;

/// The name of a driver's volume: `<driver>/<volume>`. A name that is too long is replaced by `~`,
/// which no driver's name contains, then a digest, and the end of the volume's ID.
#[derive(Clone, Debug)]
pub(super) struct Name(String);

/// The owner of the name of a bound device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bearer {
    /// The device was bound for the volume.
    Ours,
    /// The device was bound for another volume.
    Another,
    /// The device has no name, or a path, as losetup(8) and mount(8) set it.
    Nobody,
}

impl Name {
    pub(super) fn new(driver: &DriverName, volume: &VolumeId) -> Self {
        let whole = format!("{driver}/{volume}");
        Name(match whole.len() <= NAME_BYTES {
            true => whole,
            false => shortened(&whole),
        })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the owner of the name in a device's status.
    pub(super) fn bearer(&self, status: &LoopStatus) -> Bearer {
        match status.name.as_str() {
            name if name == self.0 => Bearer::Ours,
            "" => Bearer::Nobody,
            name if name.starts_with('/') => Bearer::Nobody,
            _ => Bearer::Another,
        }
    }
}

/// Returns a digest and the end of a long name. IDs come from controllers and administrators, who
/// gain nothing from a collision, so the digest need not resist attacks. Before the agent uses a
/// device, it also compares the device's file.
fn shortened(whole: &str) -> String {
    let digest = fnv_1a(whole.as_bytes());
    let mut name = format!("~{digest:032x}/");
    let room = NAME_BYTES - name.len();
    let tail = (whole.len() - room..whole.len()).find_map(|at| whole.get(at..));
    name.push_str(tail.unwrap_or_default());
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Dev, LoopMode};

    fn name(driver: &str, volume: &str) -> Name {
        Name::new(&driver.parse().unwrap(), &VolumeId::new(volume).unwrap())
    }

    #[track_caller]
    fn expect(name: &Name, bound: &str, bearer: Bearer) {
        let status = LoopStatus {
            name: bound.to_owned(),
            backing_dev: Dev { major: 8, minor: 1 },
            backing_ino: 2,
            mode: LoopMode {
                read_only: false,
                autoclear: true,
            },
        };
        assert_eq!(name.bearer(&status), bearer, "{bound:?}");
    }

    #[test]
    fn a_name_is_read_where_it_has_room_and_is_told_from_all_others_where_not() {
        let driver = "local.csi.belay.dev";
        let volume = "vol-0123456789abcdef0123456789abcdef";
        let short = name(driver, volume);
        assert_eq!(short.as_str(), format!("{driver}/{volume}"));
        let [long, other] = ["a", "b"].map(|begin| {
            let id = format!("{begin}{}", "x".repeat(127));
            name(driver, &id)
        });
        let umlauts = name(driver, &"ü".repeat(64));
        for name in [&long, &other, &umlauts] {
            assert!(name.as_str().len() <= NAME_BYTES && name.as_str().starts_with('~'));
            expect(name, name.as_str(), Bearer::Ours);
        }
        assert!(long.as_str().ends_with("/xxxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
        expect(&long, other.as_str(), Bearer::Another);
    }

    #[test]
    fn whose_a_device_is_says_its_name_unless_a_tool_bound_it() {
        let ours = name("one", "vol");
        for (bound, bearer) in [
            ("one/vol", Bearer::Ours),
            ("two/vol", Bearer::Another),
            ("one/vol2", Bearer::Another),
            ("vol", Bearer::Another),
            ("vol2", Bearer::Another),
            ("", Bearer::Nobody),
            ("/volumes/vol", Bearer::Nobody),
        ] {
            expect(&ours, bound, bearer);
        }
    }
}
