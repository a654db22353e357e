//! Detects whether other processes have a file open, by taking and immediately releasing a lease
//! (fcntl(2), "Leases"). The kernel grants a lease only if no other open file description
//! conflicts.

#![expect(
    unsafe_code,
    reason = "rustix has no calls for leases, nor for ignoring a signal"
)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;

use rustix::fs::fstatfs;
use rustix::io::Errno;

use super::files::of;
use crate::kernel::{Openers, Result};

/// Filesystems that refuse a lease only if another process has the file open (`f_type` of
/// statfs(2)): ext4, xfs, btrfs, tmpfs and overlayfs. NFS and SMB also refuse a lease if the client
/// has no delegation.
const TRUTHFUL: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630];

/// Implements [`crate::kernel::Kernel::openers`].
pub(super) fn openers(file: &OwnedFd, readers_too: bool) -> Result<Openers> {
    ignore_breaks();
    let kind = match readers_too {
        true => libc::F_WRLCK,
        false => libc::F_RDLCK,
    };
    match set(file, kind) {
        Ok(()) => {
            set(file, libc::F_UNLCK).map_err(of("F_SETLEASE", file))?;
            Ok(Openers::None)
        }
        Err(Errno::AGAIN) => {
            let found = fstatfs(file).map_err(of("fstatfs", file))?;
            let is_truthful = u64::try_from(found.f_type).is_ok_and(|ty| TRUTHFUL.contains(&ty));
            Ok(match is_truthful {
                true => Openers::Others,
                false => Openers::Unknown,
            })
        }
        // Either the filesystem has no leases, or another user owns the file and CAP_LEASE is
        // missing.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOLCK | Errno::ACCESS) => Ok(Openers::Unknown),
        Err(errno) => Err(of("F_SETLEASE", file)(errno)),
    }
}

fn set(file: &OwnedFd, kind: c_int) -> rustix::io::Result<()> {
    // SAFETY: this request of fcntl takes an int and touches no memory of ours; the descriptor is
    // borrowed, so it is open.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Ignores SIGIO. If a process opens a file that has a lease, the kernel sends SIGIO to the lease's
/// holder, and the default action would end this process.
fn ignore_breaks() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        // SAFETY: no handler is installed, so none of our code runs in signal context.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    });
}
