//! The node's mounts and the volumes that they belong to. This module knows paths and devices, but
//! no CSI requests.

mod behind;
mod index;
mod mirrors;
mod refuse;
mod table;

pub(crate) use index::{MountIndex, without_links};
pub(crate) use table::Covered;

use std::path::{Path, PathBuf};

use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{self, PublishContext};
use belay_server::call::Failure;
use belay_server::request::VolumeId;

use crate::device::{Backing, Intent, Label, OpenDevice, Transport, Verdict};
use crate::kernel::{self, Dev, FileKind, Kernel, MountFacts, Stat};
use behind::{Behind, device_behind};

/// Returns the path in the staging directory onto which a raw block device is bound. The bind mount
/// at this path is the record of which device is staged.
pub(crate) fn block_path(staging: &Path) -> PathBuf {
    staging.join("device")
}

/// Returns the error for a mount at `path` that is not the volume's; the request contains `path` in
/// `field`.
pub(crate) fn something_else(field: &str, volume: &VolumeId, path: &Path) -> Failure {
    Failure::incompatible(format!(
        "{field}: something else is mounted at {}, not volume {volume}; name an unused path",
        path.display()
    ))
}

/// The device of a mount that is known to be a volume's.
pub(crate) struct Proven<K: Kernel> {
    /// The number of the device.
    pub(crate) device: Dev,
    /// The open raw device; `None` for a filesystem. The device's number is not reused for a
    /// different volume until this is closed.
    pub(crate) raw: Option<OpenDevice<K>>,
}

/// The node's mounts, with the kernel, the transport and the index that a driver needs to query
/// these mounts.
pub(crate) struct Mounts<'a, K: Kernel> {
    pub(crate) kernel: &'a K,
    pub(crate) transport: &'a Transport<K>,
    pub(crate) index: &'a MountIndex,
    /// The identity of the volume's disk, if the publish context of the current call contains it.
    pub(crate) said: Option<&'a DiskIdentity>,
}

impl<'a, K: Kernel> Mounts<'a, K> {
    /// Adds the identity of the volume's disk, if the publish context `plan` of the current call
    /// contains it.
    pub(crate) fn said_by(self, plan: Option<&'a PublishContext>) -> Self {
        let said = match plan.map(|plan| &plan.transport) {
            Some(publish_context::Transport::Disk(wanted)) => Some(wanted),
            _ => None,
        };
        Mounts { said, ..self }
    }
}

impl<K: Kernel> Mounts<'_, K> {
    /// Returns the stat of a path where a mount is expected; `None` if the path does not exist.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` with the name `field` if the last component is a symlink.
    pub(crate) fn look(&self, field: &str, path: &Path) -> Result<Option<Stat>, Failure> {
        let stat = self.kernel.look(path)?;
        if stat.is_some_and(|s| s.kind == FileKind::Symlink) {
            return Err(Failure::invalid(
                field,
                format!(
                    "{} is a symbolic link; symlinks are not followed",
                    path.display()
                ),
            ));
        }
        Ok(stat)
    }

    /// Whether the path still shows the root of the mount that `before` describes.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn still_shows(&self, path: &Path, before: &Stat) -> kernel::Result<bool> {
        let now = self.kernel.look(path)?;
        Ok(now.is_some_and(|now| now.mount_id == before.mount_id && now.is_same_root(before)))
    }

    /// Returns the attributes of the mount that was just seen at `path`.
    ///
    /// # Errors
    /// Returns `ABORTED` if the mount no longer exists; otherwise the kernel's error.
    pub(crate) fn facts(&self, path: &Path) -> Result<MountFacts, Failure> {
        self.kernel.statmount(path)?.ok_or_else(|| {
            Failure::busy(format!(
                "{} was unmounted by another process meanwhile; retry",
                path.display()
            ))
        })
    }

    /// Returns the device of the mount on `path`, whose root `stat` describes.
    fn behind(&self, volume: &VolumeId, path: &Path, stat: &Stat) -> Result<Behind, Failure> {
        match self.index.proven(path, stat, volume) {
            Some(device) => Ok(Behind::Device(device)),
            None => device_behind(self.kernel, path, stat),
        }
    }

    /// Returns the device number of the removed disk of a mounted btrfs, if the index contains the
    /// number. The number is not reused while the filesystem is mounted.
    fn removed(&self, volume: &VolumeId, path: &Path, stat: &Stat) -> Option<Dev> {
        let is_unplugged = |dev: &Dev| matches!(self.is_unplugged(volume, *dev), Ok(true));
        let recorded = self.index.recorded(path, stat, volume);
        recorded.filter(is_unplugged)
    }

    /// Whether the volume's disk, which had this device number, was removed. Does not block.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_unplugged(&self, volume: &VolumeId, dev: Dev) -> Result<bool, Failure> {
        let behind = self
            .transport
            .behind(self.kernel, volume, (dev, None), false)?;
        Ok(matches!(behind, Some(Backing::Unplugged)))
    }

    /// Returns the number of the mount's device, and the relation of the device to the volume.
    /// `stat` describes the root of the mount on `path`. The returned number is anonymous if the
    /// device is unknown.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn verdict(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
        intent: Intent,
    ) -> Result<(Dev, Verdict<K>), Failure> {
        let device = match self.behind(volume, path, stat) {
            Ok(Behind::Device(device)) => device,
            unknown => {
                let device = match (self.removed(volume, path, stat), unknown) {
                    (Some(device), _) => device,
                    (None, Ok(_)) => stat.dev,
                    (None, Err(failure)) => return Err(failure),
                };
                return Ok((device, self.transport.verdict_on_removed()));
            }
        };
        let label = self.label(path, stat)?;
        let label = label.as_ref();
        let verdict =
            self.transport
                .verdict(self.kernel, volume, device, label, (intent, self.said))?;
        Ok((device, verdict))
    }

    /// Whether any mount shows the device, regardless of the volume for which the mount was made.
    /// `volume` is the caller's volume.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    pub(crate) fn is_shown(&self, volume: &VolumeId, device: Dev) -> kernel::Result<bool> {
        Covered::new(self.kernel, self.transport, volume, device).is_anywhere()
    }

    /// Returns the label of a raw device's bind mount, which is the name in `/dev/belay` that the
    /// mount table shows. `None` for a filesystem, and for a bind mount of a device node outside of
    /// `/dev/belay`.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn label(&self, path: &Path, stat: &Stat) -> kernel::Result<Option<Label>> {
        if stat.kind != FileKind::BlockDevice || !stat.mount_root {
            return Ok(None);
        }
        let root = self.kernel.mount_root(path, stat.mount_id)?;
        Ok(root.as_deref().and_then(Label::read))
    }

    /// Whether the name under which a raw device is bound was removed, so that the mount cannot be
    /// cloned.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn has_lost_name(&self, path: &Path, stat: &Stat) -> kernel::Result<bool> {
        match self.label(path, stat)? {
            Some(label) => Ok(!label.is_there(self.kernel)?),
            None => Ok(false),
        }
    }

    /// Whether the label of a raw device's bind mount names the volume.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_labelled(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<bool, Failure> {
        let label = self.label(path, stat)?;
        Ok(label.is_some_and(|label| self.transport.is_named(volume, &label)))
    }

    /// Whether the label names a different volume.
    pub(super) fn is_of_another(&self, label: Option<&Label>, volume: &VolumeId) -> bool {
        label.is_some_and(|label| !self.transport.is_named(volume, label))
    }

    /// Returns the paths of mounts that were recorded for the volume. Also returns the paths where
    /// the startup scan found a device that may be the volume's. The scan judges by the label of
    /// the mount, or by the present or former name of the backing file. A path is left out once a
    /// call has proven which volume its device belongs to.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn may_be_of(&self, volume: &VolumeId) -> Result<Vec<PathBuf>, Failure> {
        let mut paths = self.index.of_volume(volume);
        for (path, device, label) in self.index.unproven() {
            let may_be = match label {
                Some(label) => self.transport.is_named(volume, &label),
                None => self.transport.may_be_of(self.kernel, volume, device)?,
            };
            if may_be {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    /// Returns the volume's device if the mount whose root `stat` describes is the volume's. As
    /// proof, accepts that the agent made the mount, or that a check of the device succeeds now.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn prove(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<Option<Proven<K>>, Failure> {
        let proven = self.index.proven(path, stat, volume);
        if !stat.mount_root || proven.is_some() {
            return Ok(proven.map(|device| Proven { device, raw: None }));
        }
        // Read this before the device is checked: meanwhile, a concurrent call may make the disk's
        // identity known.
        let is_certain = self.is_certain(volume);
        let (device, verdict) = self.verdict(volume, path, stat, Intent::Use)?;
        let Verdict::Ours(held) = verdict else {
            return Ok(None);
        };
        self.note((path, stat), device, volume, is_certain);
        // Another process may have mounted the device, so an existing record about project quotas
        // may be about an earlier filesystem.
        self.index.note_projects(device, true);
        if stat.kind == FileKind::BlockDevice {
            let raw = Some(held);
            return Ok(Some(Proven { device, raw }));
        }
        self.index.note_file(device, held.backing_inode());
        Ok(Some(Proven { device, raw: None }))
    }

    /// Whether the volume's device can be distinguished from the devices of all other volumes, if
    /// necessary by the publish context of this call. If not, any disk of the cloud is accepted as
    /// the volume's.
    pub(crate) fn is_certain(&self, volume: &VolumeId) -> bool {
        self.said.is_some() || self.transport.can_recognise(volume)
    }

    /// Records a mount of the volume's device in the index. If `is_certain` is not set, later calls
    /// do not accept the record as proof that the device is the volume's.
    pub(crate) fn note(
        &self,
        (path, stat): (&Path, &Stat),
        device: Dev,
        volume: &VolumeId,
        is_certain: bool,
    ) {
        let mount_id = if is_certain { stat.mount_id } else { 0 };
        let stat = Stat { mount_id, ..*stat };
        self.index.note(path, &stat, device, volume);
    }

    /// Whether the target at `path` may be unmounted for the volume. If the index records the mount
    /// of a raw device for the volume, it may be unmounted even if the device is unbound or has a
    /// different backing file by now.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn may_unmount(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<bool, Failure> {
        if let Some(noted) = self.index.noted(path, stat) {
            return Ok(noted == *volume);
        }
        let (_, verdict) = self.verdict(volume, path, stat, Intent::TakeDown)?;
        Ok(match verdict {
            Verdict::Ours(_) | Verdict::Stale(_) => true,
            Verdict::Unbound => stat.kind == FileKind::BlockDevice,
            // The volume of a removed device is unknown, and the device can be neither read nor
            // written.
            Verdict::Removed => true,
            Verdict::Foreign => false,
        })
    }
}
