//! Binding a volume's file to a loop device.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;

use super::bound::{Bound, Device};
use super::file::VolumeFile;
use super::sysfs::loop_path;
use crate::device::{OpenDevice, Purpose};
use crate::kernel::{self, Cause, Dev, Kernel, LoopMode, Open, Openers, Patience, while_busy};

/// Maximum number of attempts to bind a free device. Other processes may bind the device first,
/// because LOOP_CTL_GET_FREE only returns a device that was free at the time of the call.
const SNATCHED_MAX: u32 = 64;

/// The node of the loop driver's control device, which returns a free device.
const CONTROL: &str = "/dev/loop-control";

/// Returns whether a mount shows the node of the device with this number.
pub(crate) type IsShown<'a> = &'a dyn Fn(Dev) -> kernel::Result<bool>;

impl Purpose {
    /// Returns the mode for this purpose. A mount keeps its device bound until the last close; a
    /// bind mount does not.
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
    /// Returns a device for this purpose, bound to this file: a new device that no mount shows
    /// (`is_shown`), or the device `left`, which an earlier operation left bound
    /// ([`VolumeFile::left`]). A device for a filesystem unbinds itself at its last close; any
    /// other device is unbound by [`OpenDevice::release`].
    /// # Errors
    /// Returns `ABORTED` if no device can be bound, or while another process has the file open or
    /// uses the device `left`; `NOT_FOUND` if the file was deleted in the meantime.
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

    /// Binds the file, whose lock must be held. The device keeps the lock.
    fn bind(self, kernel: &K, mode: LoopMode, is_shown: IsShown<'_>) -> Result<Device<K>, Failure> {
        self.refuse_deleted(kernel)?;
        // Check for other openers before binding: afterwards, the device's own open file would
        // conflict with the lease, even after this process has exited.
        let is_checked = self.refuse_opened(kernel, mode.read_only)?;
        let mut in_use = Vec::new();
        for _ in 0..SNATCHED_MAX {
            let number = free_number(kernel, &in_use, is_shown)?;
            let Some((fd, path)) = open_plain(kernel, number, &mut in_use)? else {
                continue;
            };
            match self.configure(kernel, &fd, mode) {
                Ok(()) => {
                    let guard = Bound {
                        number,
                        mode: Some(mode),
                        inode: None,
                        file: Some(self),
                    };
                    let device = OpenDevice {
                        fd,
                        path,
                        guard,
                        is_shared: false,
                        is_checked,
                    };
                    return device.reset_or_unbind(kernel);
                }
                Err(error) if error.cause() == Cause::Busy => in_use.push(number),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::busy(format!(
            "other processes took {SNATCHED_MAX} free loop devices in a row before they could be \
             bound; retry"
        )))
    }

    /// Uses the bound device if its mode is correct; otherwise unbinds it and binds a new device.
    fn take_over(
        self,
        kernel: &K,
        mut left: Device<K>,
        mode: LoopMode,
        is_shown: IsShown<'_>,
    ) -> Result<Device<K>, Failure> {
        // A device that is in use by a mount may be mounted again, but a raw device (without
        // AUTOCLEAR) must not be claimed, because its user would write under the mount.
        let is_shared = left.is_claimed(kernel)?;
        if is_shared && !mode.autoclear {
            return Err(left.claimed());
        }
        match left.ask(kernel)? {
            Some(status)
                if status.mode.read_only == mode.read_only
                    && (is_shared || left.is_plain(kernel)?) =>
            {
                left.reset(kernel)?;
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

    /// Refuses a file that another process has open, since tools that write to images take no lock.
    /// A read-only file may have other readers. Returns whether the filesystem reports openers.
    fn refuse_opened(&self, kernel: &K, read_only: bool) -> Result<bool, Failure> {
        // A device that was just unbound closes its file with a short delay.
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

    /// Binds the open device. Binding needs a descriptor that is open for writing, otherwise the
    /// kernel binds read-only; but on some kernels a device that is open for writing cannot be
    /// mounted. Therefore the descriptor for writing is closed immediately.
    fn configure(&self, kernel: &K, held: &K::Fd, mode: LoopMode) -> kernel::Result<()> {
        if mode.read_only {
            return kernel.loop_configure(held, self.fd(), mode, self.name().as_str());
        }
        let writable = kernel.reopen(held, Open::DeviceWrite)?;
        kernel.loop_configure(&writable, self.fd(), mode, self.name().as_str())
    }
}

/// Returns the number of a device that is not bound, not in `in_use`, and not shown by a mount. The
/// bind mount of a device that was detached by force still shows its number, which is usually the
/// lowest free one: the pod with that mount would read and write the next volume.
fn free_number<K: Kernel>(
    kernel: &K,
    in_use: &[u32],
    is_shown: IsShown<'_>,
) -> Result<u32, Failure> {
    let free = kernel.loop_get_free();
    let mut number = free.map_err(|error| match error.cause() {
        Cause::Missing => no_node(Path::new(CONTROL)),
        _ => Failure::from(error),
    })?;
    let mut is_free = true;
    while !is_free || in_use.contains(&number) || is_shown(kernel.loop_dev(number))? {
        number += 1;
        is_free = kernel.loop_add(number)? || kernel.loop_file(number)?.is_none();
    }
    Ok(number)
}

/// Opens the free device with this number. Returns the device's descriptor and node. While another
/// volume used the device, a process may have added partitions to it, or opened its node to other
/// users, who could then read and write the next volume. The function removes a device with such
/// changes, since a new device with the same number has no partitions and no other users. If the
/// device cannot be removed, or must not be used immediately, its number is added to `in_use`.
fn open_plain<K: Kernel>(
    kernel: &K,
    number: u32,
    in_use: &mut Vec<u32>,
) -> Result<Option<(K::Fd, PathBuf)>, Failure> {
    if !kernel.loop_partitions(number, false)?.is_empty() {
        if !kernel.loop_remove(number)? {
            in_use.push(number);
        }
        return Ok(None);
    }
    let path = loop_path(number);
    match kernel.open(&path, Open::DeviceRead) {
        Ok(fd) if kernel.is_private(&fd)? => Ok(Some((fd, path))),
        // The kernel creates a new node, accessible only to root. On a static /dev, the node
        // remains.
        Ok(fd) => {
            drop(fd);
            kernel.loop_remove(number)?;
            in_use.push(number);
            Ok(None)
        }
        // A concurrent NodeStageVolume call has just removed the device.
        Err(error) if error.cause() == Cause::NoDevice => Ok(None),
        Err(error) if error.cause() == Cause::Missing => match kernel.loop_bytes(number)? {
            Some(_) => Err(no_node(&path)),
            None => Ok(None),
        },
        Err(error) => Err(error.into()),
    }
}

/// Returns the reason why no volume can be bound: the agent's `/dev` has no nodes for new loop
/// devices. Returns `None` if there is no such problem.
pub(crate) fn lacking_nodes<K: Kernel>(kernel: &K) -> Option<String> {
    let path = match kernel.loop_get_free() {
        Ok(number) => loop_path(number),
        Err(error) if error.cause() == Cause::Missing => PathBuf::from(CONTROL),
        // NodeStageVolume reports any other error.
        Err(_) => return None,
    };
    let is_missing = matches!(kernel.look(&path), Ok(None));
    is_missing.then(|| no_node(&path).message)
}

fn no_node(path: &Path) -> Failure {
    let path = path.display();
    Failure::precondition(format!(
        "{path} does not exist, and volumes need it: load the driver (`modprobe loop`), and mount \
         devtmpfs on /dev, or in a container the node's /dev (in a pod: a hostPath volume); on a \
         static /dev, create the nodes with mknod"
    ))
}
