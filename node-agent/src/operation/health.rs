//! `NodeGetVolumeHealth` and `NodeGetStorageHealth`: report errors that the kernel has recorded.
//!
//! The functions here collect facts, and [`causes`] derives the health reasons from these facts.
//! Health reasons are never guessed: no reason is reported for a fact that cannot be read or for a
//! volume that is not staged.

mod causes;
mod storage;

pub(crate) use storage::{StorageCondition, storage_hangs, storage_health, volumes_hang};

use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::{NodeVolumeHealth, Stats, VolumeId};

use super::{Context, Node, Thread};
use crate::device::{Backing, Intent, Verdict};
use crate::kernel::{Dev, FileKind, Kernel, MountAttrs, MountFacts, Open, Stat, Usage};
use crate::mounts::block_path;
use causes::{Filesystem, Observation, judge, unreadable};

/// Returns the health of a volume on this node. May block on a disk.
///
/// # Errors
/// Returns `NOT_FOUND` if the volume has no storage on this node and is not mounted; otherwise the
/// kernel's error.
pub(crate) fn health<K: Kernel>(
    cx: &Context<'_, K>,
    request: &NodeVolumeHealth,
) -> Result<Conditions, Failure> {
    for (field, path) in [
        ("staging_target_path", &request.staging),
        ("volume_publish_path", &request.target),
    ] {
        if let Some(path) = path {
            cx.admit(field, path)?;
        }
    }
    let volume = &request.id;
    // Check this first: if the volume's file cannot be read, all other checks would fail with the
    // same error.
    if let Some(error) = cx.transport.unreadable(&cx.kernel, volume)? {
        return Ok(unreadable(&error));
    }
    let mut is_mounted = false;
    // Check all paths: if a raw volume was staged again after its device was detached by force, a
    // pod may still use the former device.
    for path in paths(cx, request)? {
        let Some(conditions) = at(cx, request, &path)? else {
            continue;
        };
        if !conditions.is_empty() {
            return Ok(conditions);
        }
        is_mounted = true;
    }
    if is_mounted || cx.transport.is_here(&cx.kernel, volume)? {
        return Ok(Conditions::default());
    }
    Err(Failure::not_found(format!(
        "volume {volume}: its storage ({}) is not on this node, and it is not mounted at the paths \
         given; check the ID, or call the node that has the volume",
        cx.transport.named(&cx.kernel, volume)?.display()
    )))
}

/// Returns the health of the volume that is mounted at `path`; `None` if the volume is not mounted
/// there.
fn at<K: Kernel>(
    node: &Node<K>,
    request: &NodeVolumeHealth,
    path: &Path,
) -> Result<Option<Conditions>, Failure> {
    let Some(stat) = node.kernel.look(path)?.filter(|stat| stat.mount_root) else {
        return Ok(None);
    };
    match of_mount(node, request, path, &stat) {
        Ok(None) => Ok(None),
        // If the volume was unmounted meanwhile, its health is unknown, even if an error was found.
        _ if !node.mounts().still_shows(path, &stat)? => Ok(None),
        found => found,
    }
}

/// Returns the health of the volume; `None` if the mount on `path`, whose root `stat` describes, is
/// not the volume's.
fn of_mount<K: Kernel>(
    node: &Node<K>,
    request: &NodeVolumeHealth,
    path: &Path,
    stat: &Stat,
) -> Result<Option<Conditions>, Failure> {
    let staging = request.staging.as_deref();
    let Some((device, backing, refuses_writes)) = behind(node, &request.id, staging, path, stat)?
    else {
        return Ok(None);
    };
    let filesystem = match stat.kind {
        FileKind::BlockDevice => None,
        _ => match facts(node, path, stat)? {
            Some(facts) => Some(filesystem(node, path, device, facts, staging)?),
            None => None,
        },
    };
    let storage = storage_of(node, &request.id, &backing)?;
    let at = (&request.id, path, device);
    let seen = (backing, refuses_writes, storage);
    condition(node, at, seen, filesystem).map(Some)
}

/// Returns the health of the volume's filesystem on `device`. `facts` describes the mount on
/// `path`; `None` if the mount no longer exists. On the event loop ([`Thread::Only`]), returns
/// `None` if a disk would have to be read.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn of_mounted<K: Kernel>(
    node: &Node<K>,
    request: &Stats,
    device: Dev,
    facts: Option<MountFacts>,
    thread: Thread,
) -> Result<Option<Conditions>, Failure> {
    let (kernel, volume, path) = (&node.kernel, &request.id, &request.volume_path);
    if !node.transport.carries_volumes(kernel, device)? {
        return Ok(Some(Conditions::default()));
    }
    let behind = (device, node.index.file_behind(device));
    let may_wait = thread == Thread::Pool;
    let Some(backing) = node.transport.behind(kernel, volume, behind, may_wait)? else {
        return Ok(None);
    };
    if let Backing::Unreadable(error) = &backing {
        return Ok(Some(unreadable(error)));
    }
    let filesystem = match facts {
        Some(facts) => {
            let staging = request.staging.as_deref();
            Some(filesystem(node, path, device, facts, staging)?)
        }
        None => None,
    };
    // Pass `false` for `refuses_writes`: if a device is set read-only after its filesystem was
    // mounted, that filesystem can still write to the device.
    let seen = (backing, false, None);
    condition(node, (volume, path, device), seen, filesystem).map(Some)
}

/// Returns the health of the volume that is mounted at `path` from `device`. `refuses_writes` is
/// set if a process has set the device read-only. `filesystem` is `None` if the volume is a raw
/// device.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn condition<K: Kernel>(
    node: &Node<K>,
    (volume, path, device): (&VolumeId, &Path, Dev),
    (backing, refuses_writes, storage): (Backing, bool, Option<Usage>),
    filesystem: Option<Filesystem>,
) -> Result<Conditions, Failure> {
    let (kernel, transport) = (&node.kernel, &node.transport);
    let partitions = match backing {
        Backing::There { .. } => transport.partitions(kernel, device, filesystem.is_none())?,
        // The device number may belong to a different volume by now, so do not read the partitions
        // of the device.
        _ => Vec::new(),
    };
    let device = transport.node_of(kernel, device)?;
    Ok(judge(&Observation {
        file: &transport.named(kernel, volume)?,
        path,
        device: &device.unwrap_or_default(),
        partitions: &partitions,
        refuses_writes,
        backing,
        storage,
        filesystem,
    }))
}

/// Returns the usage of the filesystem that contains the volume's file. Returns `None` if the
/// volume is a disk, or if its file has no holes, because writes to such a file need no more space.
/// May block on a disk.
fn storage_of<K: Kernel>(
    node: &Node<K>,
    volume: &VolumeId,
    backing: &Backing,
) -> Result<Option<Usage>, Failure> {
    match backing {
        Backing::There {
            bytes,
            allocated: Some(allocated),
            ..
        } if allocated < bytes => match node.transport.folder(&node.kernel, volume)? {
            Some(dir) => Ok(Some(node.kernel.fstatfs(dir.fd())?)),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Returns the state of the storage behind an open device. `device_bytes` is the size of the
/// transport's device, which must be read before this call reads the size of the file: while a
/// volume grows, the file grows first.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn behind_held<K: Kernel>(
    kernel: &K,
    verdict: &Verdict<K>,
    device_bytes: u64,
) -> Result<Backing, Failure> {
    Ok(match verdict {
        Verdict::Ours(device) => match device.bottom().backing_file() {
            Some(file) => {
                let file = kernel.stat(file)?;
                Backing::There {
                    bytes: file.bytes,
                    device_bytes,
                    allocated: Some(file.allocated),
                    names: Some(file.links),
                }
            }
            // A disk has no backing file.
            None => Backing::There {
                bytes: device_bytes,
                device_bytes,
                allocated: None,
                names: None,
            },
        },
        Verdict::Stale(_) => Backing::Gone,
        Verdict::Removed => Backing::Unplugged,
        Verdict::Unbound | Verdict::Foreign => Backing::Lost,
    })
}

/// Whether a process has set the volume's device read-only after the device was attached for
/// writing.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn refuses_writes<K: Kernel>(kernel: &K, verdict: &Verdict<K>) -> Result<bool, Failure> {
    match verdict.held() {
        Some(held) if held.is_read_only() == Some(false) => Ok(kernel.refuses_writes(held.fd())?),
        _ => Ok(false),
    }
}

/// Returns the paths at which the volume may be mounted: the paths in the request, and the paths in
/// the mount index.
fn paths<K: Kernel>(node: &Node<K>, request: &NodeVolumeHealth) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    if let Some(staging) = &request.staging {
        paths.extend([staging.clone(), block_path(staging)]);
    }
    paths.extend(request.target.clone());
    paths.retain(|path| path.is_absolute());
    for path in node.mounts().may_be_of(&request.id)? {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Returns facts about the mount on `path`, whose root `stat` describes: its device, the state of
/// the storage behind the device, and whether a process has set the device read-only. Returns
/// `None` if the mount is not the volume's.
fn behind<K: Kernel>(
    node: &Node<K>,
    volume: &VolumeId,
    staging: Option<&Path>,
    path: &Path,
    stat: &Stat,
) -> Result<Option<(Dev, Backing, bool)>, Failure> {
    let kernel = &node.kernel;
    let (device, verdict) = node.mounts().verdict(volume, path, stat, Intent::Use)?;
    // Do not check the device number if the disk was removed: after a restart of the agent, the
    // number of a btrfs on a removed disk is unknown.
    let is_removed = matches!(verdict, Verdict::Removed);
    if !is_removed && !node.transport.carries_volumes(kernel, device)? {
        return Ok(None);
    }
    let is_block = stat.kind == FileKind::BlockDevice;
    let is_noted = node.index.is_noted_for(path, stat, volume)
        || verdict.held().is_none() && node.mounts().is_labelled(volume, path, stat)?;
    let backing = match &verdict {
        Verdict::Ours(held) => {
            let device_bytes = kernel.device_bytes(held.bottom().fd())?;
            behind_held(kernel, &verdict, device_bytes)?
        }
        Verdict::Stale(_) => Backing::Gone,
        Verdict::Removed if is_noted || is_of(staging, path) || staging == Some(path) => {
            Backing::Unplugged
        }
        Verdict::Unbound if is_block && is_of(staging, path) => Backing::Lost,
        // A bind mount of a raw device does not keep the device attached to the volume's file.
        _ if is_block && is_noted => Backing::Lost,
        _ => return Ok(None),
    };
    Ok(Some((device, backing, refuses_writes(kernel, &verdict)?)))
}

/// Whether a raw device would be staged at `path`, according to the staging path `staging`.
fn is_of(staging: Option<&Path>, path: &Path) -> bool {
    staging.is_some_and(|staging| block_path(staging) == path)
}

/// Returns the kernel's facts about the mount on `path`, whose root `stat` describes; `None` if the
/// mount no longer exists.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn facts<K: Kernel>(
    node: &Node<K>,
    path: &Path,
    stat: &Stat,
) -> Result<Option<MountFacts>, Failure> {
    Ok(match node.kernel.statmount_of(stat.mount_id)? {
        Some(facts) => Some(facts),
        None => node.kernel.statmount(path)?,
    })
}

/// Returns the state of the mounted filesystem that these facts describe.
fn filesystem<K: Kernel>(
    node: &Node<K>,
    path: &Path,
    device: Dev,
    facts: MountFacts,
    staging: Option<&Path>,
) -> Result<Filesystem, Failure> {
    let kernel = &node.kernel;
    let stopped = facts.superblock_read_only && !is_meant(node, &facts, path, staging)?;
    let ext4 = match facts.fs_type.as_str() {
        "ext4" => node.transport.ext4_errors(kernel, device)?,
        _ => None,
    };
    let btrfs = match facts.fs_type.as_str() {
        "btrfs" if !facts.shut_down => {
            Some(kernel.btrfs_errors(&kernel.open(path, Open::Directory)?)?)
        }
        _ => None,
    };
    Ok(Filesystem {
        shut_down: facts.shut_down,
        fs_type: facts.fs_type,
        stopped,
        ext4,
        btrfs,
    })
}

/// Whether the filesystem is read-only on purpose, that is, whether its staging mount is read-only.
fn is_meant<K: Kernel>(
    node: &Node<K>,
    facts: &MountFacts,
    path: &Path,
    staging: Option<&Path>,
) -> Result<bool, Failure> {
    if !facts.attrs.contains(MountAttrs::READ_ONLY) {
        return Ok(false);
    }
    // A target may be mounted read-only although the volume is writable, so check the staging
    // mount.
    let Some(staging) = staging.filter(|staging| *staging != path && staging.is_absolute()) else {
        return Ok(true);
    };
    let staged = node.kernel.statmount(staging)?;
    Ok(staged.is_none_or(|staged| staged.attrs.contains(MountAttrs::READ_ONLY)))
}
