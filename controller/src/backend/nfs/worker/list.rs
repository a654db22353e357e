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
    file_type: FileType,
}

impl Entry {
    pub(super) fn may_be_directory(&self) -> bool {
        matches!(self.file_type, FileType::Directory | FileType::Unknown)
    }
}

/// The names in a directory, or as many as are held at once. `.` and `..` are none.
pub(super) fn entries(directory: &OwnedFd, shown: &str) -> Result<Vec<Entry>> {
    some(directory, NAMES_MAX, shown)
}

/// The names in a directory, or as many of them.
pub(super) fn some(directory: &OwnedFd, names_max: usize, shown: &str) -> Result<Vec<Entry>> {
    // Its own position, so that each call begins at the start.
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

/// The names in a directory of Belay's own, without those that the NFS client keeps open files
/// under.
pub(super) fn names(directory: &OwnedFd, shown: &str) -> Result<Vec<String>> {
    let found = match entries(directory, shown) {
        // It was removed meanwhile.
        Err(error) if error.errno == Errno::NOENT => Vec::new(),
        result => result?,
    };
    let names = found
        .into_iter()
        .map(|entry| entry.name.to_string_lossy().into_owned());
    Ok(names.filter(|name| !name.starts_with(".nfs")).collect())
}

/// Whether there is anything but directories, as far as it is read.
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
