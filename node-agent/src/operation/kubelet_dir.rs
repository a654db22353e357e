//! The kubelet's folder: all paths of requests must lie beneath it, and mounts made there must
//! reach the kubelet. Knows no request.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::AbsPath;

use super::Node;
use crate::kernel::{self, Kernel, MountEntry};

/// The folder of `--kubelet-dir`.
pub(crate) struct KubeletDir {
    /// As the operator calls it.
    named: PathBuf,
    /// Where it is, without links.
    real: PathBuf,
    /// Why the kubelet will not see what is mounted beneath it; a lowercase fragment.
    hidden: Option<String>,
}

impl KubeletDir {
    /// Looks where it is, and what becomes of mounts beneath it.
    ///
    /// # Errors
    /// What the kernel refused; [`kernel::Cause::Missing`] where nothing is.
    pub(crate) fn open<K: Kernel>(kernel: &K, named: &Path) -> kernel::Result<Self> {
        // Its own descriptor proves that it is a directory that can be had.
        drop(kernel.open(named, kernel::Open::Directory)?);
        let real = kernel.real(named)?.unwrap_or_else(|| named.to_owned());
        let hidden = (!is_seen(kernel, &real)?).then(|| {
            format!(
                "the kubelet does not see what is mounted beneath {} (--kubelet-dir), since the \
                 mount that holds it is not shared: in a container, its volumeMount needs \
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

    /// Why the kubelet will not see what is mounted there.
    pub(crate) fn hidden(&self) -> Option<&str> {
        self.hidden.as_deref()
    }

    /// Whether something was mounted over the folder, or over one above it, where the table shows
    /// that: two mounts are at one path.
    pub(super) fn is_covered(&self, mounts: &[MountEntry]) -> bool {
        let above = self.real.ancestors().filter(|path| path.parent().is_some());
        let mut counts = above.map(|path| mounts.iter().filter(|it| it.point == path).count());
        counts.any(|count| count > 1)
    }

    /// The `staging_target_path` of what is mounted at `path`, if that is where the kubelet has
    /// volumes of that driver staged: `.../csi/<driver>/<hash>/globalmount`, and for a raw device
    /// `.../csi/volumeDevices/staging/<volume>` (Kubernetes 1.36, `pkg/volume/csi`).
    pub(super) fn staging_of(&self, driver: &DriverName, path: &Path) -> Option<AbsPath> {
        let beneath = [&self.named, &self.real]
            .into_iter()
            .find_map(|folder| path.strip_prefix(folder).ok())?;
        let beneath = beneath.strip_prefix("plugins/kubernetes.io/csi").ok()?;
        let names: Vec<_> = beneath.iter().filter_map(OsStr::to_str).collect();
        let staging = match names[..] {
            [of, _, "globalmount"] if of == driver.as_str() => path,
            ["volumeDevices", "staging", _, "device"] => path.parent()?,
            _ => return None,
        };
        AbsPath::new("staging_target_path", staging.to_str()?.to_owned()).ok()
    }

    /// The same folder where tests, in a namespace without a kubelet, may mount.
    #[cfg(test)]
    pub(crate) fn assumed_seen(self) -> Self {
        KubeletDir {
            hidden: None,
            ..self
        }
    }

    /// Whether the name at the end of `path` lies beneath. That name may itself be a link, which
    /// no operation follows; what does not exist lies where the last folder is that does.
    fn holds<K: Kernel>(&self, kernel: &K, path: &Path) -> kernel::Result<bool> {
        for folder in path.ancestors().skip(1) {
            // As a rule: the kubelet's own names, and no link among them.
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

/// Whether mounts beneath the folder reach the kubelet. Those on a shared mount do. Others are seen
/// in this mount namespace alone, which is the kubelet's only if it is no container's: there this
/// is the first process or the first one is elsewhere, and the folder was mounted into it.
fn is_seen<K: Kernel>(kernel: &K, folder: &Path) -> kernel::Result<bool> {
    let holder = kernel.mount_holding(folder)?;
    if holder.is_some_and(|mount| mount.peer_group != 0) {
        return Ok(true);
    }
    let is_mounted = kernel.look(folder)?.is_some_and(|stat| stat.mount_root);
    Ok(!is_mounted && kernel.is_beside_first_process())
}

impl<K: Kernel> Node<K> {
    /// Refuses a path that is not beneath the kubelet's folder, if that is told. A relative one is
    /// nowhere, which the operation itself answers.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` naming `field`, the path and the flag.
    pub(super) fn admit(&self, field: &str, path: &Path) -> Result<(), Failure> {
        let Some(kubelet_dir) = &self.kubelet_dir else {
            return Ok(());
        };
        if path.is_relative() || kubelet_dir.holds(&self.kernel, path)? {
            return Ok(());
        }
        let why = format!(
            "{} is not beneath {} (--kubelet-dir); it was left alone",
            path.display(),
            kubelet_dir.named.display()
        );
        Err(Failure::invalid(field, why))
    }

    /// Refuses to mount what the pod would not see: it would write to the node's own disk.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`.
    pub(super) fn admit_mounts(&self) -> Result<(), Failure> {
        let hidden = self.kubelet_dir.as_deref().and_then(KubeletDir::hidden);
        hidden.map_or(Ok(()), |why| Err(Failure::precondition(why)))
    }

    /// Whether all mounts of the node are in this process's table, as far as it can know: where the
    /// kubelet's folder does not share its mounts with us, or something was mounted over it, a
    /// device that is in use may be in no table.
    ///
    /// # Errors
    /// What the kernel refused.
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
                "something is mounted over the folder of --kubelet-dir: no device is freed that no \
                 call names; unmount it"
            );
        }
        Ok(!is_covered)
    }
}
