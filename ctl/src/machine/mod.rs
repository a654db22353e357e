//! Information about drivers and volumes on this machine: sockets, mounts, block devices, the
//! kubelet's directory, and processes. The functions only read, and make no calls to a driver's
//! services.

pub(crate) mod device;
pub(crate) mod kubelet;
pub(crate) mod mounts;
pub(crate) mod pages;
pub(crate) mod process;
pub(crate) mod sockets;
pub(crate) mod users;

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the paths in a directory; empty if the directory cannot be read.
fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
