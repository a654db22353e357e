//! The volumes of a driver whose volumes are disks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belay_contract::disk::DiskIdentity;
use belay_contract::drivers::Profile;
use belay_contract::encryption;
use belay_contract::publish_context::{self, Content, PublishContext};
use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::{Context, VolumeId};

use super::identity::Match;
use super::index::{DiskIndex, DiskSeen, Owner};
use super::volume::{Plugged, VolumeDisk, is_plugged, node, open, words};
use crate::device::{Backing, Intent, Label, Search, Verdict, mixed_up};
use crate::kernel::{self, Dev, DiskAt, Disks, Kernel};

/// Maximum time in which a healthy disk reports its serial number. After this time, calls for a
/// volume no longer wait for the disk.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The disk volumes of a driver.
pub(crate) struct DiskVolumes {
    driver: DriverName,
    profile: &'static Profile,
    index: Arc<DiskIndex>,
    rules: DiskRules,
}

/// The kinds of disks that a driver formats, in addition to disks that are known to be blank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskRules {
    /// Whether to format a disk of unknown history if the whole disk reads as zeros.
    pub(crate) proves_unknown: bool,
    /// Whether to format a new disk that the cloud has not cleared, if it has no signature.
    pub(crate) accepts_uncleared: bool,
}

impl DiskVolumes {
    /// Returns the disk volumes of a driver, which searches the index for their disks.
    pub(crate) fn new(
        driver: &DriverName,
        profile: &'static Profile,
        index: &Arc<DiskIndex>,
        rules: DiskRules,
    ) -> Self {
        DiskVolumes {
            driver: driver.clone(),
            profile,
            index: Arc::clone(index),
            rules,
        }
    }

    /// Whether to format a new disk that the cloud has not cleared, if it has no signature.
    pub(in crate::device) fn accepts_uncleared(&self) -> bool {
        self.rules.accepts_uncleared
    }

    /// Reads the contexts of a volume's attachment and of the volume.
    ///
    /// # Errors
    /// Returns `Invalid` if the publish context is not valid for this driver, or if another driver
    /// has encrypted the volume.
    pub(in crate::device) fn read(
        &self,
        volume: &VolumeId,
        publish: &Context,
        about: &Context,
    ) -> Result<PublishContext, Failure> {
        let mut entries = about.iter();
        if let Some((key, _)) = entries.find(|entry| encryption::is_unknown(*entry)) {
            return Err(Failure::invalid(
                "volume_context",
                format_args!(
                    "{key:?}: unknown encryption, and the volume's data would look foreign; use \
                     the volume with the driver that has encrypted it"
                ),
            ));
        }
        let mut plan = PublishContext::read(volume, publish, self.profile)?;
        if self.profile.forbids_format(about) {
            plan.content = Content::Populated;
        }
        if plan.content == Content::Unknown && self.rules.proves_unknown {
            plan.content = Content::Used;
        }
        Ok(plan)
    }

    pub(in crate::device) fn profile(&self) -> &'static Profile {
        self.profile
    }

    pub(in crate::device) fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// Returns the disks to which the maximum number of volumes applies, and the user of each.
    pub(in crate::device) fn limited(&self) -> Vec<DiskSeen> {
        let names = Some(self.profile.disk_names).filter(|_| !self.profile.limits_all_disks);
        self.index.users(&self.driver, names)
    }

    pub(in crate::device) fn index(&self) -> &DiskIndex {
        &self.index
    }

    fn owner(&self, volume: &VolumeId) -> Owner {
        Owner::new(&self.driver, volume)
    }

    /// Returns the identity of the volume's disk: from its attachment, or from the volume's ID.
    /// `None` after a restart if only the attachment contains the identity.
    fn wanted(&self, volume: &VolumeId) -> Option<DiskIdentity> {
        let said = self.index.wanted(&self.owner(volume));
        let by_id = self.profile.disk_name_key.is_none();
        said.or_else(|| by_id.then(|| DiskIdentity::Names(self.profile.names_of(volume.as_str()))))
    }

    /// Returns the volume's disk. Reads the list of disks again before it reports a disk as
    /// missing.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if several disks match, or if the disk also belongs to another
    /// volume; otherwise the kernel's error.
    pub(in crate::device) fn find<K: Disks>(
        &self,
        kernel: &K,
        volume: &VolumeId,
        plan: &PublishContext,
    ) -> Result<Search<VolumeDisk>, Failure> {
        let publish_context::Transport::Disk(wanted) = &plan.transport else {
            return Err(mixed_up());
        };
        let find = || self.index.find(&self.owner(volume), wanted);
        let mut sought = find()?;
        // The agent may not have received the uevent of the last change yet.
        let is_current = match &sought {
            Search::Found(disk) => is_plugged(kernel, disk)?,
            Search::Missing(_) => false,
        };
        if !is_current {
            self.index.rescan(kernel)?;
            sought = find()?;
        }
        Ok(match sought {
            Search::Found(disk) => Search::Found(VolumeDisk::new(disk, Some(wanted.clone()))),
            Search::Missing(missing) => Search::Missing(missing),
        })
    }

    /// Returns the volume's disk; `None` if the disk is unknown or unplugged, or if several disks
    /// match.
    pub(in crate::device) fn known(&self, volume: &VolumeId) -> Option<VolumeDisk> {
        let wanted = self.wanted(volume);
        let owner = self.owner(volume);
        let found = self.index.find_if_any(&owner, wanted.as_ref());
        found.map(|disk| VolumeDisk::new(disk, wanted))
    }

    /// Returns the volume's disk as [`DiskVolumes::known`] does, for a call that must find
    /// everything that remains of the volume.
    ///
    /// # Errors
    /// Returns `ABORTED` while a disk that may belong to the volume has not responded.
    pub(in crate::device) fn find_if_any(
        &self,
        volume: &VolumeId,
    ) -> Result<Option<VolumeDisk>, Failure> {
        let known = self.known(volume);
        if known.is_none() && self.index.is_any_unknown() {
            return Err(Failure::busy(format!(
                "volume {volume}: a disk has not answered yet that may be the volume's; try again"
            )));
        }
        Ok(known)
    }

    /// Assigns to the volume the disk that a mount of the volume shows, before this mount is
    /// unmounted. If NodeUnstageVolume fails afterwards, the next call finds the disk only by this
    /// assignment.
    pub(in crate::device) fn remember(&self, volume: &VolumeId, disk: &Plugged) {
        let owner = self.owner(volume);
        let wanted = self.index.wanted(&owner);
        self.index.hold(&owner, wanted.as_ref(), disk.disk());
    }

    /// Assigns the disk with this name in `/dev/belay` to the volume in the name, because an
    /// earlier agent has staged the volume on the disk.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(in crate::device) fn adopt<K: Disks>(
        &self,
        kernel: &K,
        label: &Label,
    ) -> kernel::Result<()> {
        let (Some(volume), Some(dev)) = (label.volume(), kernel.disk_named(label.node())?) else {
            return Ok(());
        };
        match kernel.disk(dev)? {
            DiskAt::Disk(disk) if disk.diskseq == label.diskseq() => {
                self.index.hold(&self.owner(&volume), None, &disk);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the volume of this driver that the disk with this number belongs to, even if the
    /// disk was removed.
    pub(in crate::device) fn volume_on(&self, dev: Dev) -> Option<VolumeId> {
        self.index.holder_of(&self.driver, dev)
    }

    /// Whether the volume's disk can be distinguished from all others. If the disk cannot be
    /// distinguished, any disk of this cloud may belong to the volume; [`DiskVolumes::verdict`]
    /// explains the consequences.
    pub(in crate::device) fn can_recognise(&self, volume: &VolumeId) -> bool {
        self.profile.disk_name_key.is_none() || self.index.can_recognise(&self.owner(volume))
    }

    /// Removes the volume from the index. Returns the name in `/dev/belay` that the volume's disk
    /// may still have.
    pub(in crate::device) fn forget(&self, volume: &VolumeId) -> Option<Label> {
        let wanted = self.wanted(volume);
        let held = self.index.forget(&self.owner(volume), wanted.as_ref())?;
        Label::new(&self.driver, volume, held.diskseq, &node(&held.name))
    }

    /// Returns the identity of the volume's disk, for messages.
    pub(in crate::device) fn named(&self, volume: &VolumeId) -> String {
        // After a restart, part of the disk's name is unknown: show it as `*`.
        let of_cloud = || DiskIdentity::Names(self.profile.names_of("*"));
        words(&self.wanted(volume).unwrap_or_else(of_cloud))
    }

    /// Returns the relation of the device with number `dev` to the volume. If the sequence number
    /// `diskseq` is given, which comes from the device's label, the device must have this number.
    /// The volume's disk is the disk that was found for the volume, or that has the volume's name
    /// in `/dev/belay`. If no disk was found yet, the volume's disk is the disk with the identity
    /// `said`, which is from the call's attachment, or with the identity that an earlier call has
    /// named. Only in this case does this function query a disk that has not been queried before.
    /// If no call has named an identity, for example after Belay has replaced another driver, the
    /// volume's disk may be any disk of this cloud that belongs to no volume. Calls without an
    /// identity only unmount, measure or grow the mounted filesystem, and never format a disk.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if the volume will be used and another disk or volume has the
    /// same identity; `ABORTED` while the identity of a disk is unknown; otherwise the error of the
    /// kernel or the disk.
    pub(in crate::device) fn verdict<K: Kernel>(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, diskseq): (Dev, Option<u64>),
        (intent, said): (Intent, Option<&DiskIdentity>),
    ) -> Result<Verdict<K, Plugged>, Failure> {
        if dev.is_anonymous() {
            return Ok(Verdict::Foreign);
        }
        let disk = match kernel.disk(dev)? {
            DiskAt::Disk(disk) => disk,
            DiskAt::Other => return Ok(Verdict::Foreign),
            DiskAt::Nothing => return Ok(Verdict::Removed),
        };
        if diskseq.is_some_and(|diskseq| diskseq != disk.diskseq) {
            return Ok(Verdict::Removed);
        }
        let opened = |wanted: Option<&DiskIdentity>| {
            let device = open(kernel, &disk, wanted)?;
            Ok(device.map_or(Verdict::Removed, Verdict::Ours))
        };
        let owner = self.owner(volume);
        let holder = self.index.holder(&disk);
        if diskseq.is_some() || holder.as_ref() == Some(&owner) {
            return opened(None);
        }
        // The disk belongs to another volume. Both volumes can match if the serial number is
        // truncated.
        let is_taken = holder.is_some();
        let identity = match is_taken {
            true => self.index.known(&disk),
            false => self.index.identity(kernel, &disk)?,
        };
        let (identity, wanted) = match (identity, said.cloned().or_else(|| self.wanted(volume))) {
            (Some(identity), Some(wanted)) => (identity, wanted),
            (_, _) if is_taken => return Ok(Verdict::Foreign),
            // The volume has a different disk, although no call has named that disk.
            (_, None) if self.index.has_disk(&owner) => return Ok(Verdict::Foreign),
            (Some(identity), None) => {
                let of_cloud = identity.names_like(self.profile.disk_names);
                (identity, DiskIdentity::Names(of_cloud))
            }
            (None, _) => return Ok(Verdict::Removed),
        };
        match identity.matches(&wanted) {
            Match::No => return Ok(Verdict::Foreign),
            matched if intent == Intent::Use && (is_taken || matched == Match::Cut) => {
                self.index.claim(&owner, &wanted, &disk, &identity)?;
            }
            Match::Whole if said.is_some() => self.index.hold(&owner, said, &disk),
            Match::Cut | Match::Whole => {}
        }
        opened(Some(&wanted))
    }

    /// Whether the device may belong to the volume. Does not query any disk.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(in crate::device) fn may_be_of<K: Disks>(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
    ) -> kernel::Result<bool> {
        let DiskAt::Disk(disk) = kernel.disk(dev)? else {
            return Ok(false);
        };
        if let Some(holder) = self.index.holder(&disk) {
            return Ok(holder == self.owner(volume));
        }
        let both = self.index.known(&disk).zip(self.wanted(volume));
        Ok(both.is_some_and(|(known, wanted)| known.matches(&wanted) != Match::No))
    }

    /// Returns the state of the disk with this number, which belonged to a volume.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(in crate::device) fn behind<K: Disks>(kernel: &K, dev: Dev) -> kernel::Result<Backing> {
        Ok(match kernel.disk(dev)? {
            DiskAt::Disk(disk) => Backing::There {
                bytes: disk.bytes,
                device_bytes: disk.bytes,
                allocated: None,
                names: None,
            },
            DiskAt::Nothing => Backing::Unplugged,
            DiskAt::Other => Backing::Lost,
        })
    }

    /// Whether the device is a disk, or a disk that was removed.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(in crate::device) fn carries_volumes<K: Disks>(
        kernel: &K,
        dev: Dev,
    ) -> kernel::Result<bool> {
        Ok(!dev.is_anonymous() && kernel.disk(dev)? != DiskAt::Other)
    }

    /// Returns the path of a disk's node; `None` if the device is not a disk, or was removed.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(in crate::device) fn node_of<K: Disks>(
        kernel: &K,
        dev: Dev,
    ) -> kernel::Result<Option<PathBuf>> {
        Ok(match kernel.disk(dev)? {
            DiskAt::Disk(disk) => Some(node(&disk.name)),
            DiskAt::Other | DiskAt::Nothing => None,
        })
    }

    /// Returns the number of the disk named like the last component of `path`.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(in crate::device) fn dev_named<K: Disks>(
        kernel: &K,
        path: &Path,
    ) -> kernel::Result<Option<Dev>> {
        let path = path.to_str().unwrap_or_default();
        let path = path.strip_suffix("//deleted").unwrap_or(path);
        match path.rsplit_once('/') {
            Some((_, name)) if !name.is_empty() => kernel.disk_named(name),
            _ => Ok(None),
        }
    }
}
