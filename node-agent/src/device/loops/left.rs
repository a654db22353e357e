//! Devices that are bound to a volume's file and may be without a user.

use std::ffi::OsStr;
use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::file::VolumeFile;
use super::folder::LoopDir;
use super::sysfs::with_name_of;
use super::verdict::is_old_name;
use crate::device::{Held, Verdict};
use crate::kernel::{self, Dev, Kernel, LoopFile};

impl<K: Kernel> LoopDir<K> {
    /// The device that is still bound for the volume: ours, or stale where its file was removed or
    /// renamed and another one has the volume's name.
    ///
    /// # Errors
    /// As [`VolumeFile::left`]; when sysfs or a device cannot be asked.
    pub(crate) fn left(&self, kernel: &K, volume: &VolumeId) -> Result<Verdict<K>, Failure> {
        let Some(file) = self.find_if_any(kernel, volume)? else {
            return Ok(Verdict::Unbound);
        };
        if let Some(device) = file.left(kernel)? {
            return Ok(Verdict::Ours(device.with(file)));
        }
        Ok(replaced_by(kernel, &file, volume)?.map_or(Verdict::Unbound, Verdict::Stale))
    }

    /// The devices that may have been left bound, by number, and the volumes that they may belong
    /// to: bound for good to a file of that name, and not `is_known`. Asks no device.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub(crate) fn remnants(
        &self,
        kernel: &K,
        is_known: impl Fn(Dev) -> bool,
    ) -> kernel::Result<Vec<(u32, VolumeId)>> {
        let mut found = Vec::new();
        for number in kernel.loop_bound()? {
            if !is_known(kernel.loop_dev(number)) {
                let file = kernel.loop_file(number)?;
                let volume = file.as_ref().and_then(volume_kept_by);
                found.extend(volume.map(|volume| (number, volume)));
            }
        }
        Ok(found)
    }

    /// The device of that number.
    pub(crate) fn dev_of(&self, kernel: &K, number: u32) -> Dev {
        kernel.loop_dev(number)
    }

    /// Those of [`LoopDir::remnants`] that may be the volume's.
    ///
    /// # Errors
    /// As [`LoopDir::verdict`].
    pub(crate) fn remnants_of(&self, kernel: &K, volume: &VolumeId) -> Result<Vec<u32>, Failure> {
        let found = with_name_of(kernel, &self.path_of(volume)?)?;
        let kept = found.into_iter().filter(|(_, file)| !file.autoclear);
        Ok(kept.map(|(number, _)| number).collect())
    }

    /// The device of that number, one of [`LoopDir::remnants`], if it is the volume's. One whose
    /// volume's id was too long to be its name is not.
    ///
    /// # Errors
    /// When the device or the file cannot be asked.
    pub(crate) fn remnant(
        &self,
        kernel: &K,
        volume: &VolumeId,
        number: u32,
    ) -> Result<Option<Held<K>>, Failure> {
        let kept = kernel.loop_file(number)?;
        if kept.as_ref().and_then(volume_kept_by).as_ref() != Some(volume) {
            return Ok(None);
        }
        let file = match self.find_if_any(kernel, volume) {
            // A link, a folder: what a device of somebody else's is called as well.
            Err(failure) if failure.kind == Kind::Invalid => return Ok(None),
            file => file?,
        };
        let Some(file) = file else {
            return Ok(None);
        };
        let named = Held::open_named(kernel, number, volume)?;
        let it = named.filter(|(device, status)| file.is_behind(status) && device.is_kept());
        Ok(it.map(|(device, _)| device.with(file)))
    }
}

/// The volume that a bound device may be left of. One that unbinds itself is left of none: it has a
/// user.
fn volume_kept_by(file: &LoopFile) -> Option<VolumeId> {
    let name = Path::file_name(&file.path).filter(|_| !file.autoclear);
    VolumeId::new(name.and_then(OsStr::to_str)?).ok()
}

/// The bound device of the volume's old file, which was removed or renamed since: `file` has the
/// volume's name now. sysfs names the candidates, so no other device is asked.
fn replaced_by<K: Kernel>(
    kernel: &K,
    file: &VolumeFile<K>,
    volume: &VolumeId,
) -> kernel::Result<Option<Held<K>>> {
    for number in kernel.loop_bound()? {
        let name = kernel.loop_file_name(number)?;
        if !name.is_some_and(|name| is_old_name(volume, &name)) {
            continue;
        }
        // Another driver's volume may have the same id.
        if let Some((device, status)) = Held::open_named(kernel, number, volume)?
            && file.is_beside(&status)
        {
            return Ok(Some(device));
        }
    }
    Ok(None)
}
