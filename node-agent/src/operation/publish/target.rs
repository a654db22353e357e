//! Creates and removes the file or directory at a pod's target path, onto which the volume is
//! mounted.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::Publish;

use crate::kernel::{self, Cause, FileKind, Kernel, Stat};
use crate::operation::Node;

/// The mode of a target directory. The root of the mounted volume hides the target directory.
const TARGET_DIR_MODE: u32 = 0o750;
/// The mode of the file onto which a raw device is bound.
const TARGET_FILE_MODE: u32 = 0o600;

/// Creates the target if it does not exist. Returns whether the target was created.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if an object of a different type exists at the path, or if the
/// parent directory does not exist.
pub(super) fn make_target<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    found: Option<Stat>,
    kind: FileKind,
) -> Result<bool, Failure> {
    let path = &request.target;
    let is_block = kind == FileKind::BlockDevice;
    match found {
        Some(stat) if is_block && stat.kind == FileKind::File && stat.bytes == 0 => Ok(false),
        Some(stat) if !is_block && stat.kind == FileKind::Directory => Ok(false),
        Some(_) => Err(Failure::precondition(format!(
            "target_path: {} exists and is not {}; remove it",
            path.display(),
            if is_block {
                "an empty file"
            } else {
                "a directory"
            }
        ))),
        None => {
            let made = if is_block {
                node.kernel.create_file(path, TARGET_FILE_MODE)
            } else {
                node.kernel.mkdir(path, TARGET_DIR_MODE)
            };
            made.map(|()| true).map_err(|error| match error.cause() {
                Cause::Missing => Failure::precondition(format!(
                    "target_path: the parent of {} does not exist; create it first",
                    path.display()
                )),
                _ => error.into(),
            })
        }
    }
}

/// Removes the file or directory that [`make_target`] created.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn remove_target<K: Kernel>(
    node: &Node<K>,
    target: &Path,
    kind: FileKind,
) -> kernel::Result<()> {
    match kind {
        FileKind::BlockDevice => node.kernel.unlink(target),
        _ => node.kernel.rmdir(target),
    }
}
