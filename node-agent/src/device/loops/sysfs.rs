//! Which of the bound loop devices may carry a volume's file, judged by sysfs alone.
//!
//! To ask a device itself means to ask the filesystem of its backing file, which hangs where that
//! is somebody else's dead server. The folder in a device's path means nothing: an agent in a
//! container bound it by a path of a mount namespace that is gone since. The name of the file does.

use std::ffi::OsStr;
use std::path::Path;

use crate::kernel::{Kernel, Result};

/// The numbers of the bound devices whose files have the name of the file at `path`. First those
/// whose path is that one too: another file of that name may be on a disk that hangs.
///
/// # Errors
/// When sysfs cannot be read.
pub(super) fn with_name_of<K: Kernel>(kernel: &K, path: &Path) -> Result<Vec<u32>> {
    let (mut same_path, mut same_name) = (Vec::new(), Vec::new());
    for number in kernel.loop_bound()? {
        let Some(found) = kernel.loop_file(number)? else {
            continue;
        };
        if found.path == path {
            same_path.push(number);
        } else if found.path.file_name() == path.file_name() {
            same_name.push(number);
        }
    }
    same_path.append(&mut same_name);
    Ok(same_path)
}

/// The name of the file behind a device that stays bound by itself.
///
/// # Errors
/// When sysfs cannot be read.
pub(super) fn kept_name<K: Kernel>(kernel: &K, number: u32) -> Result<Option<String>> {
    let found = kernel.loop_file(number)?.filter(|found| !found.autoclear);
    let path = found.map(|found| found.path);
    let name = path.as_deref().and_then(Path::file_name);
    Ok(name.and_then(OsStr::to_str).map(str::to_owned))
}
