//! `NodeExpandVolume`: grows a mounted filesystem to the new size of its file or disk.

use std::path::{Path, PathBuf};

use belay_server::call::{Failure, Kind};
use belay_server::request::NodeExpand;
use belay_server::size::Exact;

use super::stage::warn_of_groups;
use super::{Context, Node};
use crate::device::{Intent, OpenDevice, Verdict};
use crate::filesystem::{FsType, GrowError, grow};
use crate::kernel::{FileKind, Kernel, Open, Stat};
use crate::mounts::block_path;
use crate::work::Phase;

/// Grows the device at the volume path to the new size of its backing file or disk, then grows the
/// filesystem on the device, if any. Returns the size of the device in bytes.
///
/// # Errors
/// Returns `NOT_FOUND` if the volume is not mounted there; `UNAVAILABLE` if its file or disk has
/// not grown yet; `FAILED_PRECONDITION` if this process may not grow a mounted filesystem, if the
/// filesystem is mounted read-only, or if the file has several names, because it may then also
/// belong to a different volume.
pub(crate) fn expand<K: Kernel>(cx: &Context<'_, K>, request: &NodeExpand) -> Result<u64, Failure> {
    let path = &request.volume_path;
    cx.admit("volume_path", path)?;
    if let Some(staging) = &request.staging {
        cx.admit("staging_target_path", staging)?;
    }
    let (mounted, stat) = find(cx, request, path)?;
    let (_, verdict) = cx
        .mounts()
        .verdict(&request.id, &mounted, &stat, Intent::Use)?;
    let Verdict::Ours(device) = verdict else {
        return Err(not_there(request, path));
    };
    device.refuse_linked()?;
    let requested = request.range.map_or(0, |range| range.required_bytes);
    let required = cx.transport.least_of_device(requested);
    let bytes = cx.phase(Phase::Grow, || device.bytes(&cx.kernel, required))?;
    if bytes < required {
        return Err(Failure::new(
            Kind::Unreachable,
            format!(
                "volume {}: has {}, but {} is required; the controller must expand it first",
                request.id,
                Exact(bytes),
                Exact(required)
            ),
        ));
    }
    cx.phase(Phase::Grow, || device.resize(&cx.kernel))?;
    if stat.kind == FileKind::Directory {
        grow_mounted(cx, request, &stat, &device)?;
    }
    Ok(bytes)
}

/// Returns the path of the mount and the stat of its root. For a raw device, the request may
/// contain the staging path; the device is then bound at a path below the staging path.
fn find<K: Kernel>(
    node: &Node<K>,
    request: &NodeExpand,
    path: &Path,
) -> Result<(PathBuf, Stat), Failure> {
    if !path.is_absolute() {
        return Err(not_there(request, path));
    }
    for candidate in [path.to_owned(), block_path(path)] {
        if let Some(stat) = node.mounts().look("volume_path", &candidate)?
            && stat.mount_root
        {
            return Ok((candidate, stat));
        }
    }
    Err(not_there(request, path))
}

fn not_there(request: &NodeExpand, path: &Path) -> Failure {
    Failure::not_found(format!(
        "volume_path: volume {0} is neither staged nor published at {1}; `belayctl where {0}` \
         shows its mounts",
        request.id,
        path.display()
    ))
}

/// Returns the path of the mount that is opened to grow the filesystem. A target may be a read-only
/// mount of a writable filesystem, so this prefers the staging path of the request if the same
/// filesystem is mounted there.
fn writable_path<'a, K: Kernel>(
    node: &Node<K>,
    request: &'a NodeExpand,
    volume: &Stat,
) -> Result<&'a Path, Failure> {
    if let Some(staging) = request.staging.as_deref()
        && let Some(stat) = node.mounts().look("staging_target_path", staging)?
        && stat.mount_root
        && stat.is_same_root(volume)
    {
        return Ok(staging);
    }
    Ok(&request.volume_path)
}

fn grow_mounted<K: Kernel>(
    cx: &Context<'_, K>,
    request: &NodeExpand,
    volume: &Stat,
    device: &OpenDevice<K>,
) -> Result<(), Failure> {
    let kernel = &cx.kernel;
    let path = writable_path(cx, request, volume)?;
    let facts = kernel
        .statmount(path)?
        .ok_or_else(|| not_there(request, path))?;
    let fs = FsType::parse(&facts.fs_type).ok_or_else(|| {
        Failure::precondition(format!("{} cannot be grown by this driver", facts.fs_type))
    })?;
    let root = kernel.open(path, Open::Directory)?;
    match cx.phase(Phase::Grow, || grow(kernel, &root, device.fd(), fs)) {
        Ok(grown) => {
            warn_of_groups(&request.id, grown);
            Ok(())
        }
        // The kernel's errno depends on the order of its checks, so test the state of the
        // filesystem instead.
        Err(_) if facts.superblock_read_only => {
            Err(Failure::precondition(takes_no_writes(request, fs)))
        }
        Err(GrowError::NeedsCapability { .. }) => {
            let errors = cx.transport.ext4_errors(kernel, device.dev(kernel)?)?;
            let errors = errors.map_or(0, |errors| errors.count);
            Err(Failure::precondition(not_permitted(request, fs, errors)))
        }
        Err(GrowError::Failed(failure)) => Err(failure),
    }
}

/// Returns the message for a read-only filesystem, which cannot grow.
fn takes_no_writes(request: &NodeExpand, fs: FsType) -> String {
    format!(
        "volume {}: its {} is mounted read-only and cannot grow: either it was staged read-only, \
         and grows when the volume is next staged for writing, or the kernel refuses writes \
         after an error (see the volume's health)",
        request.id,
        fs.name()
    )
}

/// Returns the message that explains EPERM. The kernel returns EPERM if a capability is missing,
/// and also, regardless of capabilities, if the superblock of an ext4 counts errors.
fn not_permitted(request: &NodeExpand, fs: FsType, errors: u64) -> String {
    let (id, fs) = (&request.id, fs.name());
    match errors {
        0 => format!(
            "volume {id}: growing a mounted {fs} needs CAP_SYS_RESOURCE, which this process does \
             not have; add it to the node agent"
        ),
        _ => format!(
            "volume {id}: its {fs} has counted {errors} errors since it was last checked, and the \
             kernel does not grow an ext4 with errors; stop the pods that use it, wait until it \
             is unstaged, and start them again, which runs e2fsck (growing it also needs \
             CAP_SYS_RESOURCE)"
        ),
    }
}
