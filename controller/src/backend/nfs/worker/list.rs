//! Reads directories.

use super::error::{Result, at};
use super::tree;
use rustix::fs::{Dir as Reader, FileType};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;

/// Maximum number of names that are kept in memory at once.
const NAMES_MAX: usize = 4096;

/// A name in a directory.
pub(super) struct Entry {
    pub(super) name: CString,
    /// The type that the server reports with the name. The type is only a hint.
    file_type: FileType,
}

impl Entry {
    pub(super) fn may_be_directory(&self) -> bool {
        matches!(self.file_type, FileType::Directory | FileType::Unknown)
    }
}

/// Returns the names in a directory, except `.` and `..`, but at most [`NAMES_MAX`] of them.
pub(super) fn entries(directory: &OwnedFd, shown: &str) -> Result<Vec<Entry>> {
    some(directory, NAMES_MAX, shown)
}

/// Returns at most `names_max` names in a directory, except `.` and `..`.
pub(super) fn some(directory: &OwnedFd, names_max: usize, shown: &str) -> Result<Vec<Entry>> {
    // A new descriptor has its own read position, so each call reads the directory from the start.
    let own = tree::open(directory, ".", shown)?;
    let failed = |errno: Errno| at("getdents64", shown)(errno);
    let reader = Reader::new(own).map_err(failed)?;
    let mut found = Vec::new();
    for entry in reader {
        let entry = entry.map_err(|errno| at("getdents64", shown)(errno))?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        found.push(Entry {
            name: entry.file_name().to_owned(),
            file_type: entry.file_type(),
        });
        if found.len() == names_max {
            break;
        }
    }
    Ok(found)
}

/// Returns the names in one of Belay's own directories, except `.nfs` files: removed files that the
/// NFS client keeps while they are open.
pub(super) fn names(directory: &OwnedFd, shown: &str) -> Result<Vec<String>> {
    let found = match entries(directory, shown) {
        // The directory was removed meanwhile.
        Err(error) if error.errno == Errno::NOENT => Vec::new(),
        result => result?,
    };
    let names = found
        .into_iter()
        .map(|entry| entry.name.to_string_lossy().into_owned());
    Ok(names.filter(|name| !name.starts_with(".nfs")).collect())
}

/// Whether the directory contains a file that is not a directory. Checks only the first
/// [`NAMES_MAX`] names.
pub(super) fn has_files(directory: &OwnedFd, shown: &str) -> Result<bool> {
    for entry in entries(directory, shown)? {
        let file_type = match entry.file_type {
            FileType::Unknown => {
                let name = entry.name.to_string_lossy();
                tree::find(directory, &name, shown)?.map(|found| found.file_type)
            }
            known => Some(known),
        };
        if file_type.is_some_and(|it| it != FileType::Directory) {
            return Ok(true);
        }
    }
    Ok(false)
}
