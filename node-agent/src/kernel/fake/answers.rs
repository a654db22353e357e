//! Which errnos are answers rather than failures, and how a call names what it is done to.

use std::path::Path;

use rustix::io::Errno;

use super::Fd;

/// "It is not there" is an answer, which the real kernel gives only where it is so.
pub(super) const GONE: &[Errno] = &[Errno::NOENT];
/// Of umount2: "nothing is mounted there".
pub(super) const NOT_MOUNTED: &[Errno] = &[Errno::NOENT, Errno::INVAL];
pub(super) const NONE: &[Errno] = &[];

/// The path by which a descriptor was opened.
pub(super) fn named(fd: &Fd) -> String {
    let state = fd.machine.lock();
    let found = state.open.get(&fd.id);
    found.map_or_else(String::new, |d| d.path.clone())
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}
