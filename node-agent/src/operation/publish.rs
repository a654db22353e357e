//! `NodePublishVolume`: shows a staged volume at a pod's target path.
//!
//! Exactly the mount that was proven to be the volume's is cloned, by descriptor, so nothing can be
//! swapped between the look and the act. The clone is made private and gets its flags before
//! anybody can see it.

use std::path::{Path, PathBuf};

use belay_server::failure::Failure;
use belay_server::request::{Access, Publish};

use super::Node;
use super::plan::asked_fs;
use super::staged::block_path;
use crate::filesystem::{FsType, parse_flags};
use crate::kernel::{Cause, Dev, FileKind, Kernel, MountAttrs, Stat};

/// Permissions of a target directory until the volume's own root covers it.
const TARGET_DIR_MODE: u32 = 0o750;
/// Permissions of the file that a raw device is bound onto.
const TARGET_FILE_MODE: u32 = 0o600;

/// Whether this run may open the staged device, which may wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Come back with [`Published::WantsProof`] instead.
    Known,
    /// It runs where it may wait.
    ByDevice,
}

/// How far a publish came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// The volume is published.
    Done,
    /// The staged mount must be proven to be the volume's first; nothing was changed.
    WantsProof,
}

/// Publishes a volume.
///
/// # Errors
/// `FAILED_PRECONDITION` when the volume is not staged there, or a second target is not allowed;
/// `ALREADY_EXISTS` when the target shows something else or shows it otherwise;
/// `INVALID_ARGUMENT` for a target that is a link.
pub(crate) fn publish<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    proof: Proof,
) -> Result<Published, Failure> {
    let kernel = &node.kernel;
    let source_path = source_path(request)?;
    let attrs = attrs(request)?;
    let (source, staged) = open_staged(node, request, &source_path)?;
    let known = node.index.proven(&source_path, &staged, &request.id);
    let device = match (known, proof) {
        (Some(device), _) => device,
        (None, Proof::Known) => return Ok(Published::WantsProof),
        (None, Proof::ByDevice) => node
            .prove(&request.id, &source_path, &staged)?
            .ok_or_else(|| not_staged(request, &source_path))?,
    };
    let source = Source {
        mount: source,
        path: source_path,
        root: staged,
        device,
    };
    let target = node.look("target_path", &request.target)?;
    if let Some(stat) = target.filter(|stat| stat.mount_root) {
        published_before(node, request, &stat, &source, attrs)?;
        return Ok(Published::Done);
    }
    refuse_second_target(node, request, &source)?;
    let clone = kernel.open_tree(&source.mount)?;
    kernel.mount_setattr(&clone, attrs)?;
    let made = make_target(node, request, target, source.root.kind)?;
    if let Err(failure) = show(node, request, &clone, &source) {
        if made {
            remove_target(node, &request.target, source.root.kind)?;
        }
        return Err(failure.rolled_back());
    }
    Ok(Published::Done)
}

/// The staged mount, proven to be the volume's.
struct Source<K: Kernel> {
    mount: K::Fd,
    path: PathBuf,
    root: Stat,
    /// The volume's device.
    device: Dev,
}

/// What is cloned: the staged filesystem, or the staged device.
fn source_path(request: &Publish) -> Result<PathBuf, Failure> {
    let staging = request.staging.as_ref().ok_or_else(|| {
        Failure::precondition("staging_target_path: is missing; stage the volume first")
    })?;
    Ok(match request.capability.access {
        Access::Block => block_path(staging),
        Access::Mount { .. } => staging.to_path_buf(),
    })
}

/// The attributes of the target's mount. Flags were applied at stage and come along with the
/// clone; here they are only read once more, so that both calls judge them alike.
fn attrs(request: &Publish) -> Result<MountAttrs, Failure> {
    let read_only = request.read_only
        || request.capability.mode.is_read_only()
        || request.publish_context.get("read_only") == Some("true");
    let mut attrs = MountAttrs::default();
    if let Access::Mount { flags, .. } = &request.capability.access {
        let fs = asked_fs(&request.capability.access)?.unwrap_or(FsType::Ext4);
        attrs = parse_flags(flags.as_slice(), fs)?.attrs;
    }
    Ok(if read_only {
        attrs.with(MountAttrs::READ_ONLY)
    } else {
        attrs
    })
}

/// The staged mount, opened before it is looked at: what is cloned later is what was seen here.
fn open_staged<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    path: &Path,
) -> Result<(K::Fd, Stat), Failure> {
    let source = match node.kernel.open_path(path) {
        Ok(source) => source,
        Err(error) if error.cause() == Cause::Missing => return Err(not_staged(request, path)),
        Err(error) => return Err(error.into()),
    };
    let staged = node.kernel.stat(&source)?;
    if !staged.mount_root {
        return Err(not_staged(request, path));
    }
    Ok((source, staged))
}

fn not_staged(request: &Publish, source: &Path) -> Failure {
    Failure::precondition(format!(
        "staging_target_path: volume {} is not mounted at {}; stage it first",
        request.id,
        source.display()
    ))
}

/// Something is mounted on the target: it must be this volume, in this way.
fn published_before<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    target: &Stat,
    source: &Source<K>,
    attrs: MountAttrs,
) -> Result<(), Failure> {
    let path = &request.target;
    if !target.is_same_root(&source.root) {
        return Err(Failure::incompatible(format!(
            "target_path: something else than volume {} is mounted at {}",
            request.id,
            path.display()
        )));
    }
    let facts = node.kernel.statmount(path)?.ok_or_else(|| {
        Failure::busy(format!(
            "{} was unmounted by somebody meanwhile; try again",
            path.display()
        ))
    })?;
    let is_read_only = facts.attrs.contains(MountAttrs::READ_ONLY);
    if is_read_only != attrs.contains(MountAttrs::READ_ONLY) {
        return Err(Failure::incompatible(format!(
            "target_path: volume {} is published at {} {}",
            request.id,
            path.display(),
            if is_read_only {
                "for reading only"
            } else {
                "for writing"
            }
        )));
    }
    node.index.note(path, target, source.device, &request.id);
    Ok(())
}

/// Only some access modes allow a second target (CSI, NodePublishVolume, second table).
fn refuse_second_target<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Source<K>,
) -> Result<(), Failure> {
    if request.capability.mode.allows_several_targets() {
        return Ok(());
    }
    let others = node.index.others(
        &node.kernel,
        source.device,
        &[&source.path, &request.target],
    )?;
    match others.first() {
        None => Ok(()),
        Some(other) => Err(Failure::precondition(format!(
            "volume {} is published at {} already, and access mode {} allows one target",
            request.id,
            other.display(),
            request.capability.mode.name()
        ))),
    }
}

/// Makes the target where it is missing; whether it did.
fn make_target<K: Kernel>(
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
                    "target_path: the parent of {} does not exist; the caller creates it",
                    path.display()
                )),
                _ => error.into(),
            })
        }
    }
}

fn show<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    clone: &K::Fd,
    source: &Source<K>,
) -> Result<(), Failure> {
    let kernel = &node.kernel;
    let onto = kernel.open_path(&request.target)?;
    if kernel.stat(&onto)?.mount_root {
        return Err(Failure::busy(format!(
            "target_path: something was mounted at {} meanwhile; try again",
            request.target.display()
        )));
    }
    kernel.move_mount(clone, &onto)?;
    let shown = Stat {
        mount_id: kernel.stat(clone)?.mount_id,
        mount_root: true,
        ..source.root
    };
    node.index
        .note(&request.target, &shown, source.device, &request.id);
    Ok(())
}

fn remove_target<K: Kernel>(
    node: &Node<K>,
    target: &Path,
    kind: FileKind,
) -> crate::kernel::Result<()> {
    match kind {
        FileKind::BlockDevice => node.kernel.unlink(target),
        _ => node.kernel.rmdir(target),
    }
}
