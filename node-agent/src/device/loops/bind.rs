//! Loop devices: a volume's file as a block device.
//!
//! A device is ours when its backing inode is the volume's file; names of files and numbers of
//! devices prove nothing.

use std::path::PathBuf;

use belay_server::call::Failure;

use super::file::{Backing, Leftover};
use crate::kernel::{Cause, Kernel, LoopMode, Open, Openers, Patience, failed_busy, while_busy};

/// How often another process may snatch the free device before we give up. LOOP_CTL_GET_FREE only
/// says which was free a moment ago.
const SNATCHED_MAX: u32 = 64;

/// The device node of loop device `number`.
pub(crate) fn loop_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Whether somebody has the open device to himself: a mount in any namespace, or a running mkfs. A
/// mere reader does not.
///
/// # Errors
/// When the device cannot be opened at all.
pub(crate) fn is_claimed<K: Kernel>(kernel: &K, device: &K::Fd) -> crate::kernel::Result<bool> {
    let exclusive = || kernel.reopen(device, Open::DeviceExclusive);
    match while_busy(kernel, Patience::Moment, failed_busy, exclusive) {
        Ok(_) => Ok(false),
        Err(error) if error.cause() == Cause::Busy => Ok(true),
        Err(error) => Err(error),
    }
}

/// For what needs the open device of that number to itself.
///
/// # Errors
/// `ABORTED` while somebody has claimed it.
pub(super) fn refuse_claimed<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    number: u32,
) -> Result<(), Failure> {
    match is_claimed(kernel, device)? {
        false => Ok(()),
        true => Err(claimed(number)),
    }
}

/// What to say when that device is claimed.
pub(super) fn claimed(number: u32) -> Failure {
    Failure::busy(format!(
        "{} is still in use for this volume, by a mount elsewhere or by a mkfs that outlived an \
         earlier attempt",
        loop_path(number).display()
    ))
}

/// A loop device bound to a volume's file, held open: its number cannot be reused meanwhile.
pub(crate) struct Attached<K: Kernel> {
    // Declared before the backing file: the device is closed first.
    fd: K::Fd,
    backing: Backing<K>,
    number: u32,
    is_claimed: bool,
    is_checked: bool,
}

impl<K: Kernel> Attached<K> {
    /// Binds the file to a loop device. With `autoclear` the device unbinds itself at its last
    /// close; without, somebody must call [`Attached::release`]. The file's lock must be held (see
    /// [`Backing::leftover`]): the device keeps it.
    ///
    /// # Errors
    /// `ABORTED` when no device can be had or somebody has the file open, `NOT_FOUND` when the file
    /// was deleted meanwhile.
    pub(crate) fn attach(kernel: &K, backing: Backing<K>, mode: LoopMode) -> Result<Self, Failure> {
        backing.refuse_deleted(kernel)?;
        // Before the device has the file: a lease would stay with it and outlive this process.
        let is_checked = refuse_opened(kernel, &backing, mode.read_only)?;
        for _ in 0..SNATCHED_MAX {
            let number = kernel.loop_get_free()?;
            let fd = kernel.open(&loop_path(number), Open::DeviceRead)?;
            match configure(kernel, &fd, &backing, mode) {
                Ok(()) => {
                    return Ok(Attached {
                        fd,
                        backing,
                        number,
                        is_claimed: false,
                        is_checked,
                    });
                }
                Err(error) if error.cause() == Cause::Busy => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::busy(format!(
            "other processes took {SNATCHED_MAX} free loop devices in a row before they could be \
             bound; try again"
        )))
    }

    /// Goes on with a device that is bound already, if it is bound as wanted; else unbinds it and
    /// binds another.
    ///
    /// # Errors
    /// `ABORTED` while somebody else works on the device.
    pub(crate) fn take_over(
        kernel: &K,
        backing: Backing<K>,
        leftover: Leftover<K>,
        mode: LoopMode,
    ) -> Result<Self, Failure> {
        // What is mounted may be mounted once more, but nobody may write beneath it: a device that
        // stays bound by itself is a raw one.
        let is_claimed = is_claimed(kernel, leftover.fd())?;
        if is_claimed && !mode.autoclear {
            return Err(leftover.claimed());
        }
        match kernel.loop_status(leftover.fd())? {
            Some(status) if status.mode.read_only == mode.read_only => {
                if status.mode.autoclear != mode.autoclear {
                    kernel.loop_set_autoclear(leftover.fd(), mode.autoclear)?;
                }
                let (fd, number) = leftover.into_parts();
                Ok(Attached {
                    fd,
                    backing,
                    number,
                    is_claimed,
                    is_checked: true,
                })
            }
            _ => {
                backing.release(kernel, leftover)?;
                Self::attach(kernel, backing, mode)
            }
        }
    }

    /// Somebody has the device to himself: a mount that we do not see, or a mkfs that outlived us.
    pub(crate) fn is_claimed(&self) -> bool {
        self.is_claimed
    }

    /// What to say where it must not be claimed. A filesystem on it may be mounted once more, but
    /// not made.
    pub(crate) fn claimed(&self) -> Failure {
        claimed(self.number)
    }

    /// Unbinds the device as soon as nobody has it open any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn release(self, kernel: &K) -> crate::kernel::Result<()> {
        clr_fd(kernel, &self.fd)
    }

    /// An already bound device that is known to belong to the file.
    pub(crate) fn held(fd: K::Fd, backing: Backing<K>, number: u32) -> Self {
        Attached {
            fd,
            backing,
            number,
            is_claimed: true,
            is_checked: true,
        }
    }

    /// The file's filesystem could tell, when the device was bound, that nobody else had it open.
    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// The file behind it.
    pub(crate) fn backing(&self) -> &Backing<K> {
        &self.backing
    }

    /// Its name, which is what mount shows as the source.
    pub(crate) fn path(&self) -> PathBuf {
        loop_path(self.number)
    }

    /// Takes over a grown file and returns the device's size in bytes.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub(crate) fn refresh(&self, kernel: &K) -> crate::kernel::Result<u64> {
        let bytes = kernel.device_bytes(&self.fd)?;
        if bytes >= self.backing.bytes() {
            return Ok(bytes);
        }
        kernel.loop_set_capacity(&self.fd)?;
        kernel.device_bytes(&self.fd)
    }
}

/// Refuses a file that somebody else has open, since tools that write to images take no lock;
/// one that is to be read only may have other readers. Whether the filesystem could tell.
///
/// # Errors
/// `ABORTED` while another process or a loop device has it open.
fn refuse_opened<K: Kernel>(
    kernel: &K,
    backing: &Backing<K>,
    read_only: bool,
) -> Result<bool, Failure> {
    // A device that was just unbound closes its file a moment later.
    let is_open = |found: &crate::kernel::Result<Openers>| matches!(found, Ok(Openers::Others));
    let openers = || kernel.openers(backing.fd(), !read_only);
    match while_busy(kernel, Patience::Second, is_open, openers)? {
        Openers::None => Ok(true),
        Openers::Unknown => Ok(false),
        Openers::Others => {
            let path = backing.path().display();
            let what = if read_only { " for writing" } else { "" };
            Err(Failure::busy(format!(
                "{path} is open{what} in another process or on a loop device that is not \
                 Belay's, and both would write to it: `fuser --verbose {path}` and `losetup \
                 --associated {path}` name it; end it, or wait until a copy or check is done"
            )))
        }
    }
}

/// Binds the held device. A device that is not open for writing would be bound read-only, and one
/// that stays open for writing cannot be mounted on every kernel: so that descriptor goes at once.
fn configure<K: Kernel>(
    kernel: &K,
    held: &K::Fd,
    backing: &Backing<K>,
    mode: LoopMode,
) -> crate::kernel::Result<()> {
    if mode.read_only {
        return kernel.loop_configure(held, backing.fd(), mode, backing.name());
    }
    let writable = kernel.reopen(held, Open::DeviceWrite)?;
    kernel.loop_configure(&writable, backing.fd(), mode, backing.name())
}

/// Unbinds at the last close. That the device is unbound already is as good.
pub(super) fn clr_fd<K: Kernel>(kernel: &K, device: &K::Fd) -> crate::kernel::Result<()> {
    match kernel.loop_clr_fd(device) {
        Err(error) if error.cause() == Cause::NoDevice => Ok(()),
        result => result,
    }
}
