//! `NodePublishVolume`: mounts a directory of a server at a pod's target path.
//!
//! A helper process creates a detached mount, which is not visible at any path, and passes its
//! descriptor to the agent. The agent attaches this mount to the target. If the helper process is
//! killed at any time, no mount remains.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::{Access, Publish};

use super::export::Export;
use super::{HelperRequest, RemoteNode, ServerMount, Step, of_volume};
use crate::filesystem::parse_remote_flags;
use crate::kernel::{Cause, FileKind, Kernel, MountAttrs, RemoteCall, RemoteMount, Stat};
use crate::operation::publish::refuse_laxer;

/// The mode of a target directory. The root of the mounted volume hides the target directory.
const TARGET_DIR_MODE: u32 = 0o750;

/// Inspects the target, and returns the mount that a helper process must create for it.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` if the volume context, a mount flag or the path is invalid;
/// `ALREADY_EXISTS` if something else is mounted at the target, or if the volume is published there
/// with different access; `FAILED_PRECONDITION` if the access mode forbids a second target.
pub(crate) fn publish<K: Kernel>(node: &RemoteNode<K>, request: &Publish) -> Result<Step, Failure> {
    let mount = mount(request)?;
    node.admit("target_path", &request.target)?;
    if let Some(kubelet_dir) = &node.kubelet_dir {
        kubelet_dir.admit_mounts()?;
    }
    match node.look("target_path", &request.target)? {
        Some(stat) if stat.mount_root => {
            let seen = mounted_before(node, request, stat, &mount)?;
            // For a shared superblock, the kernel shows the source of its first mount, which may
            // contain a different name of the server or of the directory. If the source differs,
            // have a mount created, and let `place` compare it with the mount at the target.
            if node.targets.is_of(&request.id, &request.target, &stat) || seen.is_of(&mount.source)
            {
                node.targets.note(&request.target, &stat, &request.id);
                return Ok(Step::Done);
            }
        }
        Some(stat) if stat.kind != FileKind::Directory => {
            return Err(Failure::precondition(format!(
                "target_path: {} exists and is not a directory; remove it",
                request.target.display()
            )));
        }
        _ => {}
    }
    refuse_second_target(node, request)?;
    Ok(Step::Ask(HelperRequest {
        server: mount.server.clone(),
        call: RemoteCall::Mount(mount),
    }))
}

/// Creates the target directory if it does not exist, and attaches the mount to it. Attaching the
/// mount must be the last step, because a later failure would leave the mount visible. If the same
/// directory is already mounted at the target, keeps the existing mount.
///
/// # Errors
/// Returns `ALREADY_EXISTS` if something else is mounted at the target; `ABORTED` if another
/// process mounted something there meanwhile; otherwise the kernel's error.
pub(crate) fn place<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Publish,
    mount: &K::Fd,
) -> Result<(), Failure> {
    let (kernel, target) = (&node.kernel, &request.target);
    let shown = Stat {
        mount_root: true,
        ..kernel.stat(mount)?
    };
    let made = match node.look("target_path", target)? {
        Some(stat) if stat.mount_root => return recognise(node, request, stat, &shown),
        Some(_) => false,
        None => make_target(kernel, target)?,
    };
    if let Err(failure) = node.shared.place(&node.kernel, mount, target) {
        let is_left = made && kernel.rmdir(target).is_err();
        return Err(match is_left {
            true => failure.may_be_running(),
            false => failure.rolled_back(),
        });
    }
    node.targets.note(target, &shown, &request.id);
    Ok(())
}

/// Checks that the mount at the target shows the same directory as `made`, a new mount of the
/// volume's directory. Two mounts of the same directory have the same root, except with the mount
/// option `nosharecache`.
fn recognise<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Publish,
    stat: Stat,
    made: &Stat,
) -> Result<(), Failure> {
    let seen = mounted_before(node, request, stat, &mount(request)?)?;
    if !stat.is_same_root(made) {
        return Err(Failure::incompatible(format!(
            "target_path: {} has another mount than that of volume {}, of {}",
            request.target.display(),
            request.id,
            seen.source.source.display()
        )));
    }
    node.targets.note(&request.target, &stat, &request.id);
    Ok(())
}

fn make_target<K: Kernel>(kernel: &K, target: &Path) -> Result<bool, Failure> {
    let made = kernel.mkdir(target, TARGET_DIR_MODE);
    made.map(|()| true).map_err(|error| match error.cause() {
        Cause::Missing => Failure::precondition(format!(
            "target_path: the parent of {} does not exist; create it first",
            target.display()
        )),
        _ => error.into(),
    })
}

/// Returns the mount that the request describes.
fn mount(request: &Publish) -> Result<RemoteMount, Failure> {
    let Access::Mount { flags, .. } = &request.capability.access else {
        let why = "is block, and a directory of a server is no device; use a filesystem";
        return Err(Failure::invalid("volume_capability", why));
    };
    let export = Export::of(&request.volume_context)?;
    let mut flags = flags.as_slice().to_vec();
    flags.extend(export.options);
    let options = parse_remote_flags(&flags)?;
    let is_read_only = request.read_only || request.capability.mode.is_read_only();
    let attrs = match is_read_only {
        // Make only the mount read-only, because other volumes of the server may share the
        // filesystem.
        true => options.attrs.with(MountAttrs::READ_ONLY),
        false => options.attrs,
    };
    Ok(RemoteMount {
        server: export.server,
        source: export.source,
        attrs,
        options: options.superblock,
        // Do not change the permissions through a read-only mount: the kernel would refuse the
        // change (EROFS), and the pod does not need it.
        permissions: export
            .permissions
            .filter(|_| !attrs.contains(MountAttrs::READ_ONLY)),
    })
}

/// Returns the existing mount at the target, which this agent or another program has made, if it
/// may be the volume's and has the requested access.
fn mounted_before<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Publish,
    stat: Stat,
    wanted: &RemoteMount,
) -> Result<ServerMount, Failure> {
    let target = &request.target;
    let Some(seen) = node.seen(&request.id, target, stat)? else {
        return Err(Failure::incompatible(format!(
            "target_path: the mount at {} is not that of volume {}",
            target.display(),
            request.id
        )));
    };
    let is_read_only =
        seen.source.attrs.contains(MountAttrs::READ_ONLY) || seen.source.superblock_read_only;
    if is_read_only != wanted.attrs.contains(MountAttrs::READ_ONLY) {
        let how = if is_read_only {
            "read-only"
        } else {
            "read-write"
        };
        return Err(Failure::incompatible(format!(
            "target_path: volume {} is published at {} {how}",
            request.id,
            target.display()
        )));
    }
    refuse_laxer(request, seen.source.attrs, wanted.attrs)?;
    Ok(seen)
}

impl ServerMount {
    fn is_of(&self, source: &str) -> bool {
        is_source(&self.source.source.to_string_lossy(), source)
    }
}

/// Whether the source `shown` denotes the same directory as `ours`. Ignores the case of the host
/// and slashes at both ends of the directory, because another program may have mounted the
/// directory with a different spelling.
fn is_source(shown: &str, ours: &str) -> bool {
    let Some((host, directory)) = ours.split_once(":/") else {
        return false;
    };
    let Some(rest) = shown
        .get(..host.len())
        .filter(|start| start.eq_ignore_ascii_case(host))
        .and_then(|_| shown[host.len()..].strip_prefix(':'))
    else {
        return false;
    };
    rest.trim_matches('/') == directory
}

/// Refuses a second target unless the access mode allows several targets (CSI, NodePublishVolume,
/// second table).
fn refuse_second_target<K: Kernel>(node: &RemoteNode<K>, request: &Publish) -> Result<(), Failure> {
    if request.capability.mode.allows_several_targets() {
        return Ok(());
    }
    for other in node.targets.of(&request.id) {
        if other == *request.target {
            continue;
        }
        if node
            .kernel
            .look(&other)?
            .is_some_and(|stat| stat.mount_root)
        {
            let why = format!(
                "already published at {}, and access mode {} allows one target",
                other.display(),
                request.capability.mode.name()
            );
            return Err(of_volume(&request.id, Failure::precondition(why)));
        }
        node.targets.forget(&other);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_the_same_however_a_host_and_slashes_are_written() {
        for shown in [
            "s.example:/a/b",
            "S.Example:/a/b",
            "s.example:/a/b/",
            "s.example:a/b",
        ] {
            assert!(is_source(shown, "s.example:/a/b"), "{shown}");
        }
        assert!(is_source("[fd00::1]:/", "[fd00::1]:/"));
        for other in [
            "s.example:/a",
            "s.example:/a/b/c",
            "t.example:/a/b",
            "s.example",
            "",
            "\u{e9}",
        ] {
            assert!(!is_source(other, "s.example:/a/b"), "{other}");
        }
    }
}
