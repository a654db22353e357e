//! Reads directories.

use super::error::{Result, at};
use super::tree;
use rustix::fs::{Dir as Reader, FileType};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;

/// The most names that are held at once.
const NAMES_MAX: usize = 4096;

/// A name in a directory.
pub(super) struct Entry {
    pub(super) name: CString,
    /// As far as the server says so; a hint.
    pub(super) may_be_directory: bool,
}

/// The names in a directory, or as many as are held at once. `.` and `..` are none.
pub(super) fn entries(directory: &OwnedFd, shown: &str) -> Result<Vec<Entry>> {
    entries_of(directory, "", shown)
}

/// Those that begin so. Others are skipped, however many there are.
pub(super) fn entries_of(directory: &OwnedFd, prefix: &str, shown: &str) -> Result<Vec<Entry>> {
    // Its own position, so that each call begins at the start.
    let own = tree::open(directory, ".", shown)?;
    let failed = |errno: Errno| at("getdents64", shown)(errno);
    let reader = Reader::new(own).map_err(failed)?;
    let mut found = Vec::new();
    for entry in reader {
        let entry = entry.map_err(|errno| at("getdents64", shown)(errno))?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || !name.starts_with(prefix.as_bytes()) {
            continue;
        }
        found.push(Entry {
            name: entry.file_name().to_owned(),
            may_be_directory: matches!(entry.file_type(), FileType::Directory | FileType::Unknown),
        });
        if found.len() == NAMES_MAX {
            break;
        }
    }
    Ok(found)
}
