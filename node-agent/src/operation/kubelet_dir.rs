//! The kubelet's directory. All paths in requests must be under this directory, and mounts under it
//! must be visible to the kubelet. This module must not depend on a particular call.

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
    /// The reason why the kubelet does not see mounts under the directory, as a message without a
    /// capital; `None` if the kubelet sees these mounts.
    hidden: Option<String>,
}

impl KubeletDir {
    /// Resolves the path, and checks whether the kubelet sees mounts under it.
    ///
    /// # Errors
    /// Returns the kernel's error; its cause is [`kernel::Cause::Missing`] if the directory does
    /// not exist.
    pub(crate) fn open<K: Kernel>(kernel: &K, named: &Path) -> kernel::Result<Self> {
        // Opening the path proves that it is a directory which this process can access.
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

    /// Returns the reason why the kubelet does not see mounts under the directory; `None` if the
    /// kubelet sees these mounts.
    pub(crate) fn hidden(&self) -> Option<&str> {
        self.hidden.as_deref()
    }

    /// Whether something was mounted over the directory or over one of its parents, so that two
    /// lines of the mount table have the same path.
    pub(super) fn is_covered(&self, mounts: &[MountEntry]) -> bool {
        let above = self.real.ancestors().filter(|path| path.parent().is_some());
        let mut counts = above.map(|path| mounts.iter().filter(|it| it.point == path).count());
        counts.any(|count| count > 1)
    }

    /// Returns the `staging_target_path` of the mount at `path`; `None` if `path` is not a path at
    /// which the kubelet stages volumes of the driver. The kubelet's paths are
    /// `.../csi/<driver>/<hash>/globalmount`, and `.../csi/volumeDevices/staging/<volume>` for a
    /// raw device (Kubernetes 1.36, `pkg/volume/csi`).
    pub(super) fn staging_of(&self, driver: &DriverName, path: &Path) -> Option<AbsPath> {
        let staging = match self.beneath_plugin(path)?[..] {
            [of, _, "globalmount"] if of == driver.as_str() => path,
            ["volumeDevices", "staging", _, "device"] => path.parent()?,
            _ => return None,
        };
        AbsPath::new("staging_target_path", staging.to_str()?.to_owned()).ok()
    }

    /// Whether the kubelet bound a raw device to `path` for a pod that no longer exists. The
    /// kubelet's paths are `.../csi/volumeDevices/publish/<volume>/<pod>` and
    /// `.../csi/volumeDevices/<volume>/dev/<pod>` (Kubernetes 1.36, `pkg/volume/csi`,
    /// `pkg/volume/util`). The kubelet removes the directory of a pod only when none of its
    /// containers runs (`cleanupOrphanedPodDirs` of `pkg/kubelet`).
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn is_orphan<K: Kernel>(&self, kernel: &K, path: &Path) -> kernel::Result<bool> {
        let pod = match self.beneath_plugin(path).unwrap_or_default()[..] {
            // Without this arm, the staging path of a volume with the name `dev` would match the
            // last pattern.
            ["volumeDevices", "staging", ..] => return Ok(false),
            ["volumeDevices", "publish", _, pod] | ["volumeDevices", _, "dev", pod] => pod,
            _ => return Ok(false),
        };
        let pods = self.real.join("pods");
        Ok(kernel.look(&pods)?.is_some() && kernel.look(&pods.join(pod))?.is_none())
    }

    /// Returns the components of the path below the directory of the kubelet's CSI plugin. Returns
    /// `None` for a path outside of this directory, or for a path that is not UTF-8, which a
    /// kubelet never creates.
    fn beneath_plugin<'a>(&self, path: &'a Path) -> Option<Vec<&'a str>> {
        let beneath = [&self.named, &self.real]
            .into_iter()
            .find_map(|folder| path.strip_prefix(folder).ok())?;
        let beneath = beneath.strip_prefix("plugins/kubernetes.io/csi").ok()?;
        beneath.iter().map(OsStr::to_str).collect()
    }

    /// Refuses an absolute path that is not under this directory. Accepts a relative path, because
    /// the operation itself refuses relative paths.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` with `field`, the path and the flag.
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

    /// Whether `path` is under this directory by its name, without resolving symlinks.
    fn names(&self, path: &Path) -> bool {
        let is_under = |folder: &PathBuf| path != folder && path.starts_with(folder);
        let goes_up = || path.components().any(|it| it == Component::ParentDir);
        [&self.named, &self.real].into_iter().any(is_under) && !goes_up()
    }

    /// Refuses to mount under this directory if the kubelet does not see mounts there: the pod
    /// would not see the mount, and would write to the node's own disk.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION`.
    pub(super) fn admit_mounts(&self) -> Result<(), Failure> {
        let hidden = self.hidden();
        hidden.map_or(Ok(()), |why| Err(Failure::precondition(why)))
    }

    /// Returns this directory as if the kubelet saw mounts there, for tests in a mount namespace
    /// without a kubelet.
    #[cfg(test)]
    pub(crate) fn assumed_seen(self) -> Self {
        KubeletDir {
            hidden: None,
            ..self
        }
    }

    /// Whether the parent of `path` is under this directory after resolving symlinks. The last
    /// component of `path` may be a symlink, because no operation follows such a symlink. If the
    /// parent does not exist, checks its nearest existing ancestor.
    fn holds<K: Kernel>(&self, kernel: &K, path: &Path) -> kernel::Result<bool> {
        for folder in path.ancestors().skip(1) {
            // Check the usual case first: the path below this directory contains no symlinks.
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

/// Whether the kubelet sees mounts under the directory. The kubelet sees every mount that is made
/// under a shared mount. Any other mount exists only in the mount namespace of this process, which
/// the kubelet shares unless this process runs in a container. This process runs in a container if
/// the directory itself is a mount point, if this is process 1, or if process 1 has a different
/// mount namespace.
fn is_seen<K: Kernel>(kernel: &K, folder: &Path) -> kernel::Result<bool> {
    let holder = kernel.mount_holding(folder)?;
    if holder.is_some_and(|mount| mount.peer_group != 0) {
        return Ok(true);
    }
    let is_mounted = kernel.look(folder)?.is_some_and(|stat| stat.mount_root);
    Ok(!is_mounted && kernel.is_beside_first_process())
}

impl<K: Kernel> Node<K> {
    /// Refuses an absolute path that is not under `--kubelet-dir`, if that flag is set. Accepts a
    /// relative path, because the operation itself refuses relative paths.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` with `field`, the path and the flag.
    pub(super) fn admit(&self, field: &str, path: &Path) -> Result<(), Failure> {
        match &self.kubelet_dir {
            Some(kubelet_dir) => kubelet_dir.admit(&self.kernel, field, path),
            None => Ok(()),
        }
    }

    /// Whether `path` is under `--kubelet-dir` by its name, without resolving symlinks, or the flag
    /// is not set.
    pub(super) fn is_admitted_by_name(&self, path: &Path) -> bool {
        let kubelet_dir = self.kubelet_dir.as_deref();
        kubelet_dir.is_none_or(|it| it.names(path))
    }

    /// Refuses to mount if the kubelet would not see the mount: the pod would not see the mount,
    /// and would write to the node's own disk.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION`.
    pub(super) fn admit_mounts(&self) -> Result<(), Failure> {
        self.kubelet_dir
            .as_ref()
            .map_or(Ok(()), |it| it.admit_mounts())
    }

    /// Whether the mount table of this process lists all mounts of the kubelet, as far as this
    /// process can determine. If the mount of the kubelet's directory is not shared with this
    /// process, or if something was mounted over the directory, a device may be in use although the
    /// mount table does not list the device.
    ///
    /// # Errors
    /// Returns the kernel's error.
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
