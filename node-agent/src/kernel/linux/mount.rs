//! Creates, changes and removes mounts, all by file descriptors.
//!
//! mount(2) is never used, because Linux 5.14, the oldest supported kernel, has all calls that
//! replace it. Numbers are from include/uapi/linux/mount.h.

#![expect(
    unsafe_code,
    reason = "neither rustix nor libc has functions for mount_setattr and FITHAW"
)]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use belay_server::file::log_of;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, opcode};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use super::files::of;
use crate::kernel::{Error, MountAttrs, Result};

/// `MS_PRIVATE`, for [`MountAttr::propagation`].
const MS_PRIVATE: u64 = 1 << 18;

/// `struct mount_attr`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// `MOUNT_ATTR_SIZE_VER0`.
const _: () = assert!(size_of::<MountAttr>() == 32);

/// Checks that the kernel has mount_setattr(2), the newest required call.
pub(super) fn require_floor() -> Result<()> {
    // The kernel refuses a struct smaller than the first version with EINVAL, before any other
    // check.
    match set_attributes(-1, &MountAttr::default(), 0) {
        Err(Errno::NOSYS) => Err(Error::new("mount_setattr", "this kernel", Errno::NOSYS)
            .because("Linux 5.14 or later is needed")),
        _ => Ok(()),
    }
}

/// Whether the kernel has `FSCONFIG_CMD_CREATE_EXCL` (Linux 6.6). The kernel checks the command
/// before the descriptor, so a descriptor that is not a filesystem context gets EINVAL if the
/// command is known, else EOPNOTSUPP.
pub(super) fn is_exclusive_create_known() -> bool {
    match rustix::fs::openat(CWD, "/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(no_context) => {
            rustix::mount::fsconfig_create_exclusive(&no_context) != Err(Errno::OPNOTSUPP)
        }
        Err(_) => false,
    }
}

/// Implements [`crate::kernel::Kernel::fsopen`].
pub(super) fn fsopen(fs_type: &str) -> Result<OwnedFd> {
    rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| {
        let error = Error::new("fsopen", fs_type, errno);
        match errno {
            Errno::NODEV => error.because("the kernel has no such filesystem, nor a module for it"),
            _ => error,
        }
    })
}

/// Implements [`crate::kernel::Kernel::fsconfig_set`].
pub(super) fn fsconfig_set(context: &OwnedFd, key: &str, value: Option<&str>) -> Result<()> {
    match value {
        Some(value) => rustix::mount::fsconfig_set_string(context, key, value),
        None => rustix::mount::fsconfig_set_flag(context, key),
    }
    .map_err(|errno| Error::new("fsconfig", key, errno).because(log_of(context)))
}

/// `FITHAW` (include/uapi/linux/fs.h).
const FITHAW: Opcode = opcode::read_write::<i32>(b'X', 120);

/// Implements [`crate::kernel::Kernel::fsconfig_create`].
///
/// `exclusive` is detected at the start instead of being tried here, because a first attempt that
/// fails leaves the context unusable, and the EBUSY of the second attempt would hide the reason of
/// the failure.
pub(super) fn fsconfig_create(context: &OwnedFd, exclusive: bool) -> Result<()> {
    let plain = || rustix::mount::fsconfig_create(context);
    let created = if exclusive {
        match rustix::mount::fsconfig_create_exclusive(context) {
            // The kernel returns EOPNOTSUPP for filesystems that do not support exclusive creation,
            // such as btrfs before Linux 6.8, and has not changed the context. If the filesystem
            // itself returned EOPNOTSUPP, the second attempt would find a used context.
            Err(Errno::OPNOTSUPP) => match plain() {
                Err(Errno::BUSY) => Err(Errno::OPNOTSUPP),
                result => result,
            },
            result => result,
        }
    } else {
        plain()
    };
    created.map_err(|errno| {
        let mut reason = log_of(context);
        if reason.is_empty() {
            // A filesystem such as btrfs writes the reason only to the kernel's log.
            reason.push_str("the kernel's log (dmesg) says why");
        }
        Error::new("fsconfig", "create", errno).because(reason)
    })
}

/// Implements `Kernel::thaw`.
pub(super) fn thaw(root: &OwnedFd) -> Result<()> {
    // SAFETY: the request takes no pointer, ignores its argument and writes no memory.
    match unsafe { rustix::ioctl::ioctl(root, NoArg::<FITHAW>::new()) } {
        // The filesystem is not frozen, or cannot be frozen.
        Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(of("FITHAW", root)(errno)),
    }
}

/// Implements [`crate::kernel::Kernel::fsmount`].
pub(super) fn fsmount(context: &OwnedFd, attrs: MountAttrs) -> Result<OwnedFd> {
    let refused = |errno| Error::new("fsmount", "new mount", errno);
    // fsmount(2) takes the attributes as 32 bits, mount_setattr(2) as 64 bits.
    let bits = u32::try_from(attrs.bits()).map_err(|_| refused(Errno::INVAL))?;
    let attrs = MountAttrFlags::from_bits_retain(bits);
    rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attrs)
        .map_err(|errno| refused(errno).because(log_of(context)))
}

/// Implements [`crate::kernel::Kernel::open_tree`].
pub(super) fn open_tree(fd: &OwnedFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(fd, "", flags).map_err(of("open_tree", fd))
}

/// Implements [`crate::kernel::Kernel::mount_setattr`].
pub(super) fn mount_setattr(mount: &OwnedFd, attrs: MountAttrs) -> Result<()> {
    let choice = MountAttrs::ATIME_CHOICE.bits();
    let wanted = MountAttr {
        attr_set: attrs.bits(),
        // The access-time bits are one value: the kernel accepts a new value only if the old one is
        // cleared.
        attr_clr: if attrs.bits() & choice == 0 {
            0
        } else {
            choice
        },
        propagation: MS_PRIVATE,
        userns_fd: 0,
    };
    set_attributes(mount.as_raw_fd(), &wanted, size_of::<MountAttr>())
        .map_err(of("mount_setattr", mount))
}

/// Implements [`crate::kernel::Kernel::move_mount`].
pub(super) fn move_mount(mount: &OwnedFd, onto: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", onto, "", flags).map_err(of("move_mount", onto))
}

/// Implements [`crate::kernel::Kernel::umount`].
pub(super) fn umount(path: &Path) -> Result<()> {
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)
        .map_err(|errno| Error::at("umount2", path, errno))
}

/// Implements [`crate::kernel::Remotes::umount_lazily`].
pub(super) fn umount_lazily(path: &Path) -> Result<()> {
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        .map_err(|errno| Error::at("umount2 MNT_DETACH", path, errno))
}

fn set_attributes(mount: RawFd, wanted: &MountAttr, size: usize) -> rustix::io::Result<()> {
    let (path, wanted): (*const _, *const _) = (c"".as_ptr(), wanted);
    // SAFETY: the path is a C string, and `wanted` a valid `struct mount_attr` of at least `size`
    // bytes; the kernel reads both and writes neither.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount,
            path,
            libc::AT_EMPTY_PATH,
            wanted,
            size,
        )
    };
    if returned == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Returns the errno of a system call made through libc.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
