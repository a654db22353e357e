//! Detects whether another program can write to a file. `mount -o loop`, `e2fsck` and `qemu-img`
//! take no lock on a file. But the kernel grants no read lease while any process has the file open
//! for writing (fcntl(2)). This module contains unsafe code, but no policy.

use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::Once;

/// Whether a process can write to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// No process has the file open for writing.
    None,
    /// A process has the file open for writing.
    Some,
    /// The filesystem does not support leases (NFS, FUSE), or refuses them to this user.
    Unknown(Errno),
}

/// Takes a read lease on the file and releases it at once. The file must be open read-only.
pub(super) fn writers(file: &File) -> Writers {
    static IGNORE: Once = Once::new();
    // If another process opens the file for writing between the two calls, the kernel sends SIGIO,
    // which would end this process.
    IGNORE.call_once(ignore_sigio);
    match set_lease(file, libc::F_RDLCK).and_then(|()| set_lease(file, libc::F_UNLCK)) {
        Ok(()) => Writers::None,
        Err(Errno::AGAIN) => Writers::Some,
        Err(errno) => Writers::Unknown(errno),
    }
}

#[expect(
    unsafe_code,
    reason = "rustix has no signal(2); tokio's handler would need a runtime"
)]
fn ignore_sigio() {
    // SAFETY: the signal is ignored, so no handler of this program runs, and no other code uses
    // SIGIO.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    }
}

#[expect(unsafe_code, reason = "rustix has no F_SETLEASE")]
fn set_lease(file: &File, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the descriptor remains open while `file` is borrowed, and the call receives no
    // pointer.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};

    #[test]
    fn a_writer_shows_as_long_as_it_has_the_file_open_and_a_reader_or_a_lock_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writer = File::create(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(writers(&file), Writers::Some);
        drop(writer);
        let reader = File::open(&path).unwrap();
        flock(&reader, FlockOperation::LockExclusive).unwrap();
        assert_eq!(writers(&file), Writers::None);
        // The lease must already be released, since this open would otherwise wait until the lease
        // is broken.
        File::options().write(true).open(&path).unwrap();
        assert_eq!(writers(&file), Writers::None);
    }

    #[test]
    fn the_signal_of_a_broken_lease_ends_nobody() {
        writers(&File::open("/dev/null").unwrap());
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
        assert_ne!(ignored & 1 << (libc::SIGIO - 1), 0, "{status}");
    }

    #[test]
    fn a_file_that_grants_no_lease_is_unknown() {
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(writers(&null), Writers::Unknown(_)));
    }
}
