//! Binding a volume's file to a loop device.

use belay_server::call::Failure;

use super::bound::{Bound, Device};
use super::file::VolumeFile;
use super::sysfs::loop_path;
use crate::device::{Held, Purpose};
use crate::kernel::{self, Cause, Dev, Kernel, LoopMode, Open, Openers, Patience, while_busy};

/// How often another process may take the free device before this stops retrying. LOOP_CTL_GET_FREE
/// only returns a device that was free at the time.
const SNATCHED_MAX: u32 = 64;

/// Whether a mount shows the device of that number.
pub(crate) type IsShown<'a> = &'a dyn Fn(Dev) -> kernel::Result<bool>;

impl Purpose {
    /// A mount keeps its device bound until the last close; a bind mount does not.
    fn mode(self) -> LoopMode {
        match self {
            Purpose::Filesystem => LoopMode {
                read_only: false,
                autoclear: true,
            },
            Purpose::Raw { read_only } => LoopMode {
                read_only,
                autoclear: false,
            },
        }
    }
}

impl<K: Kernel> VolumeFile<K> {
    /// A device for that purpose, which has this file: a new one that no mount `is_shown` by, or
    /// that of [`VolumeFile::left`]. One for a filesystem detaches itself at its last close, any
    /// other by [`Held::release`].
    ///
    /// # Errors
    /// `ABORTED` if no device can be bound, or while another process has the file open or uses the
    /// device that is left; `NOT_FOUND` if the file was deleted meanwhile.
    pub(crate) fn hold(
        self,
        kernel: &K,
        left: Option<Device<K>>,
        purpose: Purpose,
        is_shown: IsShown<'_>,
    ) -> Result<Device<K>, Failure> {
        match left {
            None => self.bind(kernel, purpose.mode(), is_shown),
            Some(left) => self.take_over(kernel, left, purpose.mode(), is_shown),
        }
    }

    /// Binds the file, whose lock must be held: the device keeps it.
    fn bind(self, kernel: &K, mode: LoopMode, is_shown: IsShown<'_>) -> Result<Device<K>, Failure> {
        self.refuse_deleted(kernel)?;
        // Before binding: the device would keep the lease, even after this process has exited.
        let is_checked = self.refuse_opened(kernel, mode.read_only)?;
        for _ in 0..SNATCHED_MAX {
            let number = free_number(kernel, is_shown)?;
            let path = loop_path(number);
            let fd = kernel.open(&path, Open::DeviceRead)?;
            match self.configure(kernel, &fd, mode) {
                Ok(()) => {
                    let guard = Bound {
                        number,
                        mode: Some(mode),
                        inode: None,
                        file: Some(self),
                    };
                    return Ok(Held {
                        fd,
                        path,
                        guard,
                        is_shared: false,
                        is_checked,
                    });
                }
                Err(error) if error.cause() == Cause::Busy => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::busy(format!(
            "other processes took {SNATCHED_MAX} free loop devices in a row before they could be \
             bound; retry"
        )))
    }

    /// Uses a device that is bound already, if its mode is right; else unbinds it and binds
    /// another.
    fn take_over(
        self,
        kernel: &K,
        mut left: Device<K>,
        mode: LoopMode,
        is_shown: IsShown<'_>,
    ) -> Result<Device<K>, Failure> {
        // A mounted device may be mounted once more, but no process may write under the mount: a
        // device without AUTOCLEAR is a raw one.
        let is_shared = left.is_claimed(kernel)?;
        if is_shared && !mode.autoclear {
            return Err(left.claimed());
        }
        match left.ask(kernel)? {
            Some(status) if status.mode.read_only == mode.read_only => {
                if status.mode.autoclear != mode.autoclear {
                    kernel.loop_set_autoclear(&left.fd, mode.autoclear)?;
                }
                left.is_shared = is_shared;
                Ok(left.with(self))
            }
            _ => {
                self.free(kernel, left)?;
                self.bind(kernel, mode, is_shown)
            }
        }
    }

    /// Refuses a file that another process has open, since tools that write to images take no lock;
    /// a read-only one may have other readers. Returns whether the filesystem reports openers.
    fn refuse_opened(&self, kernel: &K, read_only: bool) -> Result<bool, Failure> {
        // A device that was just unbound closes its file a moment later.
        let is_open = |found: &kernel::Result<Openers>| matches!(found, Ok(Openers::Others));
        let openers = || kernel.openers(self.fd(), !read_only);
        match while_busy(kernel, Patience::Second, is_open, openers)? {
            Openers::None => Ok(true),
            Openers::Unknown => Ok(false),
            Openers::Others => {
                let path = self.path().display();
                let what = if read_only { " for writing" } else { "" };
                Err(Failure::busy(format!(
                    "{path} is open{what} in another process or on a loop device that is not \
                     Belay's, and both would write to it: `fuser --verbose {path}` and `losetup \
                     --associated {path}` name it; end it, or wait until a copy or check is done"
                )))
            }
        }
    }

    /// Binds the held device. A device that is not open for writing would be bound read-only, and
    /// one that stays open for writing cannot be mounted on every kernel: so that descriptor is
    /// closed at once.
    fn configure(&self, kernel: &K, held: &K::Fd, mode: LoopMode) -> kernel::Result<()> {
        if mode.read_only {
            return kernel.loop_configure(held, self.fd(), mode, self.name().as_str());
        }
        let writable = kernel.reopen(held, Open::DeviceWrite)?;
        kernel.loop_configure(&writable, self.fd(), mode, self.name().as_str())
    }
}

/// The number of a device that is not bound and that no mount shows. The bind mount of a device
/// that was detached by force still shows its number, which is usually the lowest free one: the pod
/// behind that mount would read and write the next volume.
fn free_number<K: Kernel>(kernel: &K, is_shown: IsShown<'_>) -> kernel::Result<u32> {
    let mut number = kernel.loop_get_free()?;
    let mut is_free = true;
    while !is_free || is_shown(kernel.loop_dev(number))? {
        number += 1;
        is_free = kernel.loop_add(number)? || kernel.loop_file(number)?.is_none();
    }
    Ok(number)
}
