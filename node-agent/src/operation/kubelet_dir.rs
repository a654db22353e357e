//! The kubelet's directory: all paths of requests must be under it, and mounts under it must reach
//! the kubelet. Knows no request.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::AbsPath;

use super::Node;
use crate::kernel::{self, Kernel, MountEntry};

/// The directory of `--kubelet-dir`.
pub(crate) struct KubeletDir {
    /// The path as the operator specified it.
    named: PathBuf,
    /// The path without symlinks.
    real: PathBuf,
    /// The reason why the kubelet does not see mounts under the directory, as a lowercase fragment;
    /// `None` if it sees them.
    hidden: Option<String>,
}

impl KubeletDir {
    /// Resolves the path, and checks whether mounts under it reach the kubelet.
    ///
    /// # Errors
    /// The kernel's error; [`kernel::Cause::Missing`] if it does not exist.
    pub(crate) fn open<K: Kernel>(kernel: &K, named: &Path) -> kernel::Result<Self> {
        // This descriptor proves that it is an accessible directory.
        drop(kernel.open(named, kernel::Open::Directory)?);
        let real = kernel.real(named)?.unwrap_or_else(|| named.to_owned());
        let hidden = (!is_seen(kernel, &real)?).then(|| {
            format!(
                "the kubelet does not see mounts under {} (--kubelet-dir), since the mount that \
                 contains it is not shared: in a container, its volumeMount needs \
                 mountPropagation: Bidirectional; elsewhere, run `mount --make-shared` on its \
                 mount point; then start belay-node again",
                named.display()
            )
        });
        let named = named.to_owned();
        Ok(KubeletDir {
            named,
            real,
            hidden,
        })
    }

    /// The reason why the kubelet does not see mounts under the directory; `None` if it sees them.
    pub(crate) fn hidden(&self) -> Option<&str> {
        self.hidden.as_deref()
    }

    /// Whether something was mounted over the directory or a parent of it, as far as the table
    /// shows: two mounts have the same path.
    pub(super) fn is_covered(&self, mounts: &[MountEntry]) -> bool {
        let above = self.real.ancestors().filter(|path| path.parent().is_some());
        let mut counts = above.map(|path| mounts.iter().filter(|it| it.point == path).count());
        counts.any(|count| count > 1)
    }

    /// The `staging_target_path` of a mount at `path`, if the kubelet stages volumes of that driver
    /// there: `.../csi/<driver>/<hash>/globalmount`, and for a raw device
    /// `.../csi/volumeDevices/staging/<volume>` (Kubernetes 1.36, `pkg/volume/csi`).
    pub(super) fn staging_of(&self, driver: &DriverName, path: &Path) -> Option<AbsPath> {
        let staging = match self.beneath_plugin(path)?[..] {
            [of, _, "globalmount"] if of == driver.as_str() => path,
            ["volumeDevices", "staging", _, "device"] => path.parent()?,
            _ => return None,
        };
        AbsPath::new("staging_target_path", staging.to_str()?.to_owned()).ok()
    }

    /// Whether the kubelet bound a raw device to that path for a pod that no longer exists:
    /// `.../csi/volumeDevices/publish/<volume>/<pod>`, `.../csi/volumeDevices/<volume>/dev/<pod>`
    /// (Kubernetes 1.36, `pkg/volume/csi`, `pkg/volume/util`). The kubelet removes the directory of
    /// a pod only when none of its containers runs (`cleanupOrphanedPodDirs` of `pkg/kubelet`).
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn is_orphan<K: Kernel>(&self, kernel: &K, path: &Path) -> kernel::Result<bool> {
        let pod = match self.beneath_plugin(path).unwrap_or_default()[..] {
            // The staging path of a volume with that name.
            ["volumeDevices", "staging", ..] => return Ok(false),
            ["volumeDevices", "publish", _, pod] | ["volumeDevices", _, "dev", pod] => pod,
            _ => return Ok(false),
        };
        let pods = self.real.join("pods");
        Ok(kernel.look(&pods)?.is_some() && kernel.look(&pods.join(pod))?.is_none())
    }

    /// The components of the path in the directory of the kubelet's plugin for CSI; `None` for
    /// another path, and for one that is not UTF-8, which no kubelet makes.
    fn beneath_plugin<'a>(&self, path: &'a Path) -> Option<Vec<&'a str>> {
        let beneath = [&self.named, &self.real]
            .into_iter()
            .find_map(|folder| path.strip_prefix(folder).ok())?;
        let beneath = beneath.strip_prefix("plugins/kubernetes.io/csi").ok()?;
        beneath.iter().map(OsStr::to_str).collect()
    }

    /// Refuses an absolute path that is not under this directory. The operation itself refuses a
    /// relative path.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` naming `field`, the path and the flag.
    pub(super) fn admit<K: Kernel>(
        &self,
        kernel: &K,
        field: &str,
        path: &Path,
    ) -> Result<(), Failure> {
        if path.is_relative() || self.holds(kernel, path)? {
            return Ok(());
        }
        let why = format!(
            "{} is not under {} (--kubelet-dir); nothing was changed",
            path.display(),
            self.named.display()
        );
        Err(Failure::invalid(field, why))
    }

    /// Whether the path is under this directory according to its name. Follows no symlink.
    fn names(&self, path: &Path) -> bool {
        let is_under = |folder: &PathBuf| path != folder && path.starts_with(folder);
        let goes_up = || path.components().any(|it| it == Component::ParentDir);
        [&self.named, &self.real].into_iter().any(is_under) && !goes_up()
    }

    /// Refuses mounts under this directory if the pod would not see them: it would write to the
    /// node's own disk.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`.
    pub(super) fn admit_mounts(&self) -> Result<(), Failure> {
        let hidden = self.hidden();
        hidden.map_or(Ok(()), |why| Err(Failure::precondition(why)))
    }

    /// The same directory for tests that mount in a namespace without a kubelet.
    #[cfg(test)]
    pub(crate) fn assumed_seen(self) -> Self {
        KubeletDir {
            hidden: None,
            ..self
        }
    }

    /// Whether the last component of `path` is under it. That component may be a symlink, which no
    /// operation follows; a path that does not exist counts as in its last existing directory.
    fn holds<K: Kernel>(&self, kernel: &K, path: &Path) -> kernel::Result<bool> {
        for folder in path.ancestors().skip(1) {
            // Usually: the kubelet's own names, without symlinks.
            if folder.starts_with(&self.real) {
                match kernel.has_no_links(folder)? {
                    Some(true) => return Ok(true),
                    Some(false) => {}
                    None => continue,
                }
            }
            if let Some(real) = kernel.real(folder)? {
                return Ok(real.starts_with(&self.real));
            }
        }
        Ok(false)
    }
}

/// Whether mounts under the directory reach the kubelet. Mounts on a shared mount do. Other mounts
/// exist only in this mount namespace. It is the kubelet's unless this process is in a container:
/// as process 1, or if process 1 has another namespace, and the directory was mounted into this
/// one.
fn is_seen<K: Kernel>(kernel: &K, folder: &Path) -> kernel::Result<bool> {
    let holder = kernel.mount_holding(folder)?;
    if holder.is_some_and(|mount| mount.peer_group != 0) {
        return Ok(true);
    }
    let is_mounted = kernel.look(folder)?.is_some_and(|stat| stat.mount_root);
    Ok(!is_mounted && kernel.is_beside_first_process())
}

impl<K: Kernel> Node<K> {
    /// Refuses a path that is not under `--kubelet-dir`, if that is set. The operation itself
    /// refuses a relative path.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` naming `field`, the path and the flag.
    pub(super) fn admit(&self, field: &str, path: &Path) -> Result<(), Failure> {
        match &self.kubelet_dir {
            Some(kubelet_dir) => kubelet_dir.admit(&self.kernel, field, path),
            None => Ok(()),
        }
    }

    /// Whether the path is under `--kubelet-dir`, if that is set, as far as its name says.
    pub(super) fn is_admitted_by_name(&self, path: &Path) -> bool {
        let kubelet_dir = self.kubelet_dir.as_deref();
        kubelet_dir.is_none_or(|it| it.names(path))
    }

    /// Refuses mounts that the pod would not see: it would write to the node's own disk.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`.
    pub(super) fn admit_mounts(&self) -> Result<(), Failure> {
        self.kubelet_dir
            .as_ref()
            .map_or(Ok(()), |it| it.admit_mounts())
    }

    /// Whether this process's mount table has all mounts of the node, as far as it can know: if the
    /// mount of the kubelet's directory is not shared with us, or something was mounted over it, a
    /// device in use may be in no table.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn sees_all_mounts(&self) -> Result<bool, Failure> {
        let Some(kubelet_dir) = self.kubelet_dir.as_deref() else {
            return Ok(true);
        };
        if kubelet_dir.hidden().is_some() {
            return Ok(false);
        }
        let is_covered = kubelet_dir.is_covered(&self.kernel.mounts()?);
        if is_covered {
            tracing::warn!(
                "something is mounted over the directory of --kubelet-dir: devices that no call \
                 names are not freed; unmount it"
            );
        }
        Ok(!is_covered)
    }
}
