//! The verbs for volumes that are directories of a server: publish, unpublish, statistics. There is
//! no device and no stage.
//!
//! A call that may wait for the server is a [`RemoteCall`] of a helper process, which the caller
//! runs; all other code is here, and waits for nothing. So each verb is a few steps: inspect, let
//! the caller run the call, finish. Knows no gRPC and no process.

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

/// The filesystem types that a volume may have: a mount of version 4 is shown as `nfs4`.
const FS_TYPES: [&str; 2] = ["nfs", "nfs4"];

/// A driver's volumes on this node.
pub(crate) struct RemoteNode<K: Kernel> {
    pub(crate) kernel: K,
    kubelet_dir: Option<Arc<KubeletDir>>,
    shared: Arc<Shared>,
    targets: Targets,
}

/// The next step of a verb.
#[derive(PartialEq, Eq)]
pub(crate) enum Step {
    /// The verb is complete.
    Done,
    /// The caller must run this call first.
    Ask(Question),
}

/// A call for a helper process.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// The host that must answer; limits are per host.
    pub(crate) server: String,
    /// The call of the helper process.
    pub(crate) call: RemoteCall,
}

/// A mount of a server's filesystem.
pub(crate) struct ServerMount {
    /// The stat of the mount's root.
    pub(crate) stat: Stat,
    source: MountSource,
}

impl<K: Kernel> RemoteNode<K> {
    /// A node whose paths must be under `kubelet_dir`, if set. Drivers of one process share
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

    /// Whether this process knows a target of the volume.
    pub(crate) fn has_targets(&self, volume: &VolumeId) -> bool {
        !self.targets.of(volume).is_empty()
    }

    /// Refuses a path that is not under `--kubelet-dir`, or that leads through a volume, whose
    /// server might have to answer for it.
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

    /// The stat of the path; `None` if nothing is there. Refuses a symbolic link.
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

    /// The mount on `path` whose root `stat` describes, if it is a server's and no other volume was
    /// published there.
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
    /// The host in the source, `HOST:/DIRECTORY`.
    fn server(&self) -> String {
        let source = self.source.source.to_string_lossy();
        let host = source.split_once(":/").map_or(&*source, |(host, _)| host);
        without_brackets(host).to_ascii_lowercase()
    }
}

/// Names the volume in the message of a failure.
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
