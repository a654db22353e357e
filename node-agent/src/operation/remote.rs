//! Operations on volumes that are directories of an NFS server: NodePublishVolume,
//! NodeUnpublishVolume and the statistics. Such a volume has no device and is not staged.
//!
//! No function of this module waits for a server. If a system call may wait for a server, the
//! function returns this system call as a [`RemoteCall`], and the caller runs it in a helper
//! process. Each CSI call therefore consists of several steps: inspect the node, return a system
//! call to run, and finish. This module must not use gRPC types or start processes.

mod export;
mod publish;
mod targets;
mod unpublish;
mod usage;

use std::path::Path;
use std::sync::Arc;

use belay_contract::export::without_brackets;
use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::{KubeletDir, Shared};
use crate::kernel::{FileKind, Kernel, MountSource, RemoteCall, Stat};
pub(crate) use publish::{place, publish};
use targets::Targets;
pub(crate) use unpublish::unpublish;
pub(crate) use usage::{mounted, still_mounted};

/// The filesystem types of volumes. The kernel reports the type `nfs4` for a mount of NFS version
/// 4.
const FS_TYPES: [&str; 2] = ["nfs", "nfs4"];

/// The volumes of one driver on this node.
pub(crate) struct RemoteNode<K: Kernel> {
    pub(crate) kernel: K,
    kubelet_dir: Option<Arc<KubeletDir>>,
    shared: Arc<Shared>,
    targets: Targets,
}

/// The next step of a CSI call.
#[derive(PartialEq, Eq)]
pub(crate) enum Step {
    /// The CSI call is complete.
    Done,
    /// The caller must run this call in a helper process first.
    Ask(HelperRequest),
}

/// A system call that a helper process must make, and the server on which the call depends.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HelperRequest {
    /// The name or address of the server. Limits apply per host.
    pub(crate) server: String,
    /// The system call that the helper process makes.
    pub(crate) call: RemoteCall,
}

/// A mount of a server's directory.
pub(crate) struct ServerMount {
    /// The stat of the mount's root directory.
    pub(crate) stat: Stat,
    source: MountSource,
}

impl<K: Kernel> RemoteNode<K> {
    /// Creates the node. Paths must be under `kubelet_dir`, if set. All drivers of a process share
    /// `shared`.
    pub(crate) fn new(
        kernel: K,
        kubelet_dir: Option<Arc<KubeletDir>>,
        shared: Arc<Shared>,
    ) -> Self {
        RemoteNode {
            kernel,
            kubelet_dir,
            shared,
            targets: Targets::default(),
        }
    }

    /// Whether the volume is published at any target, according to the cache of this process.
    pub(crate) fn has_targets(&self, volume: &VolumeId) -> bool {
        !self.targets.of(volume).is_empty()
    }

    /// Refuses a path that is not under `--kubelet-dir`. Also refuses a path inside a mounted
    /// volume, because resolving it might wait for the volume's server.
    fn admit(&self, field: &str, path: &Path) -> Result<(), Failure> {
        if let Some(volume) = self.targets.around(path) {
            let why = format!(
                "{} is in volume {volume}; nothing was changed",
                path.display()
            );
            return Err(Failure::invalid(field, why));
        }
        match &self.kubelet_dir {
            Some(kubelet_dir) => kubelet_dir.admit(&self.kernel, field, path),
            None => Ok(()),
        }
    }

    /// Returns the stat of the path; `None` if the path does not exist. Refuses a symbolic link.
    fn look(&self, field: &str, path: &Path) -> Result<Option<Stat>, Failure> {
        let stat = self.kernel.look(path)?;
        if stat.is_some_and(|stat| stat.kind == FileKind::Symlink) {
            let why = format!(
                "{} is a symbolic link; symlinks are not followed",
                path.display()
            );
            return Err(Failure::invalid(field, why));
        }
        Ok(stat)
    }

    /// Returns the mount on `path`, whose root `stat` describes. Returns `None` if this is not a
    /// mount of a server's directory, or if a different volume was published there.
    fn seen(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: Stat,
    ) -> Result<Option<ServerMount>, Failure> {
        if !stat.mount_root || self.targets.is_of_another(volume, path, &stat) {
            return Ok(None);
        }
        let source = self.kernel.mount_source(path)?;
        let source = source.filter(|it| FS_TYPES.contains(&it.fs_type.as_str()));
        Ok(source.map(|source| ServerMount { stat, source }))
    }
}

impl ServerMount {
    /// Returns the host in the mount's source, which has the form `HOST:/DIRECTORY`.
    fn server(&self) -> String {
        let source = self.source.source.to_string_lossy();
        let host = source.split_once(":/").map_or(&*source, |(host, _)| host);
        without_brackets(host).to_ascii_lowercase()
    }
}

/// Adds the volume's ID to the message of a failure.
pub(crate) fn of_volume(volume: &VolumeId, failure: Failure) -> Failure {
    let message = format!("volume {volume}: {}", failure.message);
    Failure { message, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::MountAttrs;
    use crate::kernel::fake::{Fake, Machine};

    fn node() -> RemoteNode<Fake> {
        let machine = Machine::new();
        machine.make_dir(Path::new("/pods/1"));
        RemoteNode::new(machine.process(), None, Arc::default())
    }

    fn seen(stat: Stat, source: &str) -> ServerMount {
        ServerMount {
            stat,
            source: MountSource {
                fs_type: "nfs4".to_owned(),
                source: source.into(),
                attrs: MountAttrs::default(),
                superblock_read_only: false,
            },
        }
    }

    #[test]
    fn the_server_of_a_mount_is_the_host_in_its_source() {
        let stat = node().kernel.look(Path::new("/")).unwrap().unwrap();
        for (source, server) in [
            ("Filer.example:/exports/a", "filer.example"),
            ("[fd00::1]:/exports:/b", "fd00::1"),
            ("10.0.0.7:/", "10.0.0.7"),
        ] {
            assert_eq!(seen(stat, source).server(), server);
        }
    }

    #[test]
    fn a_volume_has_targets_while_one_is_noted() {
        let (node, path) = (node(), Path::new("/pods/1"));
        let stat = node.kernel.look(path).unwrap().unwrap();
        let [one, other] = ["one", "other"].map(|id| VolumeId::new(id).unwrap());
        node.targets.note(path, &stat, &one);
        assert!(node.has_targets(&one) && !node.has_targets(&other));
        node.targets.forget(path);
        assert!(!node.has_targets(&one));
    }

    #[test]
    fn usage_counts_only_for_the_mount_that_was_there_before() {
        let node = node();
        let volume = VolumeId::new("vol").unwrap();
        let root = node.kernel.look(Path::new("/")).unwrap().unwrap();
        let inside = node.kernel.look(Path::new("/pods/1")).unwrap().unwrap();
        assert!(root.mount_root && root.mount_id != 0 && !inside.mount_root);
        let is_still = |path: &str, stat: Stat| {
            let seen = seen(stat, "filer:/a");
            still_mounted(&node, &volume, Path::new(path), &seen).is_ok()
        };
        assert!(is_still("/", root));
        let mount_id = root.mount_id + 1;
        assert!(!is_still("/", Stat { mount_id, ..root }), "another mount");
        let ino = root.ino + 1;
        assert!(!is_still("/", Stat { ino, ..root }), "another directory");
        assert!(!is_still("/pods/1", inside), "no mount");
        assert!(!is_still("/pods/2", root), "nothing");
    }
}
