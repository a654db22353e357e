//! Determines the relation of a loop device to a volume.

use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::bound::{Bound, Device};
use super::file::{Bearer, VolumeFile};
use super::folder::{LoopDir, file_name};
use super::sysfs::{size_of, unmarked};
use crate::device::{Backing, Intent, Verdict};
use crate::kernel::{Cause, Dev, FileKind, Inode, Kernel, LoopStatus, Open};

impl<K: Kernel> LoopDir<K> {
    /// Returns the relation of the device with number `dev` to the volume. If a sequence number is
    /// given, the device must still have this sequence number, because the device may have been
    /// unbound and bound to another file since.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name; otherwise the kernel's error,
    /// including if the device cannot be identified without the file.
    pub(crate) fn verdict(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, diskseq): (Dev, Option<u64>),
        intent: Intent,
    ) -> Result<Verdict<K, Bound<K>>, Failure> {
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(Verdict::Foreign);
        };
        let failure = match self.compare(kernel, volume, (dev, diskseq), number) {
            Err(failure) if intent == Intent::TakeDown && failure.kind == Kind::System => failure,
            verdict => return verdict,
        };
        match self.is_unreadable(kernel, volume)? {
            true => self.judge_unread(kernel, volume, number)?.ok_or(failure),
            false => Err(failure),
        }
    }

    fn compare(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, diskseq): (Dev, Option<u64>),
        number: u32,
    ) -> Result<Verdict<K, Bound<K>>, Failure> {
        let Some(mut device) = Device::open(kernel, number)? else {
            return Ok(Verdict::Unbound);
        };
        if device.dev(kernel)? != dev {
            return Ok(Verdict::Foreign);
        }
        if let Some(diskseq) = diskseq
            && kernel.diskseq(device.fd())? != diskseq
        {
            return Ok(Verdict::Unbound);
        }
        let file = self.name_if_any(kernel, volume)?;
        match device.ask(kernel)? {
            None => Ok(Verdict::Unbound),
            Some(status) => Ok(self.judge(volume, (device, &status), file)),
        }
    }

    /// Returns the relation of a device with this status to the volume, whose file is `file`.
    pub(super) fn judge(
        &self,
        volume: &VolumeId,
        (device, status): (Device<K>, &LoopStatus),
        file: Option<VolumeFile<K>>,
    ) -> Verdict<K, Bound<K>> {
        let bearer = self.name_of(volume).bearer(status);
        match file {
            _ if bearer == Bearer::Another => Verdict::Foreign,
            Some(file) if file.is_behind(status) => Verdict::Ours(device.with(file)),
            _ if bearer == Bearer::Ours => Verdict::Stale(device),
            _ => Verdict::Foreign,
        }
    }

    /// Whether the volume's file name no longer refers to the file of the volume's mounted device.
    /// `known` is the device's file, if an earlier call has recorded the file. Does not query any
    /// device. Without `may_wait`, returns `None` if the check needs to read the disk.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_replaced(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
        may_wait: bool,
    ) -> Result<Option<bool>, Failure> {
        let how = match may_wait {
            true => Open::Name,
            false => Open::NameCached,
        };
        let Some(known) = known else {
            return self.is_renamed(kernel, volume, dev).map(Some);
        };
        let found = kernel.open_beneath(self.fd(), file_name(volume)?, how);
        match found.and_then(|found| kernel.stat(&found)) {
            Ok(found) => Ok(Some(found.inode() != known)),
            Err(error) => match error.cause() {
                Cause::Missing | Cause::Escapes => Ok(Some(true)),
                Cause::Again if !may_wait => Ok(None),
                // The disk of the file fails.
                _ => self.is_renamed(kernel, volume, dev).map(Some),
            },
        }
    }

    /// Whether the device's file was removed or renamed, judged by names alone. A renamed file
    /// counts only if another file has the volume's name. Queries neither the device nor the disk.
    fn is_renamed(&self, kernel: &K, volume: &VolumeId, dev: Dev) -> Result<bool, Failure> {
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(false);
        };
        let name = kernel.loop_file_name(number)?;
        let Some(name) = name.filter(|name| name != volume.as_str()) else {
            return Ok(false);
        };
        let name = Path::new(&name);
        Ok(match kernel.look(&self.path_of(volume)?)? {
            Some(file) => file.kind == FileKind::File,
            None => unmarked(name) != name,
        })
    }

    /// Returns the state of the file of a device that is known to be the volume's. If a call has
    /// seen the device's file, `known` is that file; otherwise names decide. Queries neither the
    /// device nor the disk.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn behind(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
    ) -> Result<Backing, Failure> {
        let file = self.path_of(volume)?;
        // Read the device's size before the file's: while a volume grows, the file grows first, and
        // the device afterwards.
        let device_bytes = size_of(kernel, dev)?.unwrap_or_default();
        let found = match kernel.look(&file) {
            Err(error) if error.cause() == Cause::Io => return Ok(Backing::Unreadable(error)),
            found => found?.filter(|found| found.kind == FileKind::File),
        };
        let Some(found) = found else {
            return Ok(Backing::Gone);
        };
        let is_replaced = match known {
            Some(known) => found.inode() != known,
            None => self.is_renamed(kernel, volume, dev)?,
        };
        Ok(match is_replaced {
            true => Backing::Gone,
            false => Backing::There {
                bytes: found.bytes,
                device_bytes,
                allocated: Some(found.allocated),
                names: Some(found.links),
            },
        })
    }

    /// Returns the state of the file like [`LoopDir::behind`], if the volume's file is the known
    /// file and its attributes are in memory; otherwise `None`.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn behind_in_memory(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
    ) -> Result<Option<Backing>, Failure> {
        let device_bytes = size_of(kernel, dev)?.unwrap_or_default();
        let name = file_name(volume)?;
        let found = kernel.open_beneath(self.fd(), name, Open::NameCached);
        let found = found.and_then(|found| kernel.stat(&found)).ok();
        let found = found.filter(|found| Some(found.inode()) == known);
        Ok(found.map(|found| Backing::There {
            bytes: found.bytes,
            device_bytes,
            allocated: Some(found.allocated),
            names: Some(found.links),
        }))
    }
}
