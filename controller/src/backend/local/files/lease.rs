//! Detects whether another program can write to a file. `mount -o loop`, `e2fsck` and `qemu-img`
//! take no lock, but the kernel grants no read lease while any descriptor for writing is open
//! (fcntl(2)). Contains unsafe code, but no policy.

use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::Once;

/// Whether other programs can write to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// No process has the file open for writing.
    None,
    /// A process has the file open for writing.
    Some,
    /// The filesystem grants no leases (NFS, FUSE), or none to this user.
    Unknown(Errno),
}

/// Takes a read lease and releases it at once; the descriptor must be read-only.
pub(super) fn writers(file: &File) -> Writers {
    static IGNORE: Once = Once::new();
    // If the file is opened for writing in between, SIGIO is sent, which would end this process.
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
    // SAFETY: no code of ours runs as a handler, and no other code here uses SIGIO.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    }
}

#[expect(unsafe_code, reason = "rustix has no F_SETLEASE")]
fn set_lease(file: &File, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed; no memory is passed.
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
        // The lease is released; otherwise this would wait for the lease to break.
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
