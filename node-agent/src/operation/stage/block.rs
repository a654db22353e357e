//! Staging as a raw block device: the device node is bound onto `<staging>/device`.
//!
//! A bind does not hold the device open, so it must stay bound by itself: without AUTOCLEAR, and so
//! released by hand where the stage fails. What a crash leaves bound, the next stage or unstage of
//! the volume finds by the lock on its file.

use std::path::Path;

use belay_server::failure::Failure;
use belay_server::request::Stage;

use super::super::plan::Plan;
use super::super::staged::{Owner, block_path};
use super::super::{Node, Staged};
use crate::device::Attached;
use crate::kernel::{FileKind, Kernel, LoopMode, MountAttrs, Stat};

/// The bind target needs no permissions: what is on it decides.
const DEVICE_MODE: u32 = 0o600;

pub(super) fn stage<K: Kernel>(
    node: &Node<K>,
    request: &Stage,
    plan: &Plan,
    staging: &Stat,
) -> Result<Staged, Failure> {
    let path = block_path(&request.staging);
    let read_only = plan.is_read_only(&request.capability);
    if staging.mount_root {
        return Err(Failure::incompatible(format!(
            "a filesystem is mounted at {}; unstage it before staging a raw block device there",
            request.staging.display()
        )));
    }
    match node.look("staging_target_path", &path)? {
        None => {}
        Some(stat) if stat.mount_root && stat.kind == FileKind::BlockDevice => {
            match node.owner(&request.id, &path, &stat)? {
                Owner::Ours(device) => {
                    return staged_before(node, request, &path, &stat, &device, read_only);
                }
                // What a device left behind when it was taken away: the bind would show the next
                // volume that gets its number.
                Owner::NotOurs | Owner::FileGone(_) => node.umount(&path)?,
            }
        }
        Some(stat) if stat.kind == FileKind::File && stat.bytes == 0 => {}
        Some(_) => {
            return Err(Failure::precondition(format!(
                "{} is in the way; it is neither an empty file nor a device that was staged",
                path.display()
            )));
        }
    }
    let backing = node
        .loop_dir
        .backing(&node.kernel, &request.id, read_only)?;
    let mode = LoopMode {
        read_only,
        autoclear: false,
    };
    let device = node.attach(&request.id, backing, mode)?;
    let bound = plan
        .fit(&node.kernel, &device)
        .and_then(|_| bind(node, request, &path, &device));
    if let Err(failure) = bound {
        device.release(&node.kernel)?;
        return Err(failure.rolled_back());
    }
    Ok(Staged::Done)
}

/// The volume's device is bound there; it must be in the same access mode, and it must stay bound.
fn staged_before<K: Kernel>(
    node: &Node<K>,
    request: &Stage,
    path: &Path,
    stat: &Stat,
    device: &Attached<K>,
    read_only: bool,
) -> Result<Staged, Failure> {
    let bound = node
        .kernel
        .loop_status(device.fd())?
        .map(|status| status.mode);
    if bound.is_some_and(|mode| mode.read_only != read_only) {
        return Err(Failure::incompatible(format!(
            "volume {} is staged at {} {}",
            request.id,
            request.staging.display(),
            if read_only {
                "for writing"
            } else {
                "for reading only"
            }
        )));
    }
    device.refresh(&node.kernel)?;
    if bound.is_some_and(|mode| mode.autoclear) {
        // An unstage was killed half-way, and the device only waits for its last user to close it.
        node.kernel.loop_set_autoclear(device.fd(), false)?;
    }
    node.index.note(path, stat, device.dev(), &request.id);
    Ok(Staged::Done)
}

/// Binds the device node onto `path`, which is made if need be.
fn bind<K: Kernel>(
    node: &Node<K>,
    request: &Stage,
    path: &Path,
    device: &Attached<K>,
) -> Result<(), Failure> {
    let kernel = &node.kernel;
    let held = kernel.stat(device.fd())?;
    let device_node = kernel.open_path(&device.path())?;
    if kernel.stat(&device_node)?.rdev != held.rdev {
        return Err(Failure::bug(format!(
            "{} is not device {} any more",
            device.path().display(),
            held.rdev
        )));
    }
    let bind = kernel.open_tree(&device_node)?;
    kernel.mount_setattr(&bind, MountAttrs::default())?;
    if kernel.look(path)?.is_none() {
        kernel.create_file(path, DEVICE_MODE)?;
    }
    if let Err(error) = attach_to(kernel, &bind, path) {
        kernel.unlink(path)?;
        return Err(Failure::from(error).rolled_back());
    }
    if let Some(stat) = kernel.look(path)? {
        node.index.note(path, &stat, device.dev(), &request.id);
    }
    Ok(())
}

fn attach_to<K: Kernel>(kernel: &K, mount: &K::Fd, path: &Path) -> crate::kernel::Result<()> {
    let onto = kernel.open_path(path)?;
    kernel.move_mount(mount, &onto)
}
