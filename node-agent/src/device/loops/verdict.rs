//! What a loop device is to a volume.

use std::ffi::OsStr;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::bound::{is_named, is_of_another};
use super::folder::LoopDir;
use crate::device::{Held, Intent, Verdict};
use crate::kernel::{Dev, FileKind, Kernel};

impl<K: Kernel> LoopDir<K> {
    /// What that device is to the volume.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that can name no file; else what the kernel refused, also where
    /// nothing proves without the file whose the device is.
    pub(crate) fn verdict(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
        intent: Intent,
    ) -> Result<Verdict<K>, Failure> {
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(Verdict::Foreign);
        };
        let failure = match self.compare(kernel, volume, dev, number) {
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
        dev: Dev,
        number: u32,
    ) -> Result<Verdict<K>, Failure> {
        let Some(mut device) = Held::open(kernel, number)? else {
            return Ok(Verdict::Unbound);
        };
        if device.dev(kernel)? != dev {
            return Ok(Verdict::Foreign);
        }
        let file = self.name_if_any(kernel, volume)?;
        let Some(status) = device.ask(kernel)? else {
            return Ok(Verdict::Unbound);
        };
        Ok(match file {
            _ if is_of_another(&status, volume.as_str()) => Verdict::Foreign,
            Some(file) if file.is_behind(&status) => Verdict::Ours(device.with(file)),
            Some(file) if !file.is_beside(&status) => Verdict::Foreign,
            // Another driver's volume may have the same id: its file still has the name.
            Some(_) if !has_lost_name(kernel, volume, number)? => Verdict::Foreign,
            _ if is_named(&status, volume) => Verdict::Stale(device),
            _ => Verdict::Foreign,
        })
    }

    /// The device, if it is still bound under the name of the volume, wherever its file is: for a
    /// mount that is known to be the volume's.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn named(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<Option<Held<K>>, Failure> {
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(None);
        };
        let named = Held::open_named(kernel, number, volume)?;
        Ok(named.map(|(device, _)| device))
    }

    /// Whether the device of a mount that is known to be the volume's has another file than the
    /// one that has the volume's name now. Asks neither the device nor the disk.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn is_replaced(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<bool, Failure> {
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(false);
        };
        if !has_lost_name(kernel, volume, number)? {
            return Ok(false);
        }
        let file = kernel.look(&self.path_of(volume)?)?;
        Ok(file.is_some_and(|file| file.kind == FileKind::File))
    }

    /// Whether the device may be, or have been, the volume's, by what its file is called. Asks no
    /// device.
    ///
    /// # Errors
    /// As [`LoopDir::verdict`].
    pub(crate) fn may_be_of(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<bool, Failure> {
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(false);
        };
        let Some(name) = kernel.loop_file_name(number)? else {
            return Ok(false);
        };
        // Without a file here, one that has the volume's name is of another driver.
        Ok(is_old_name(volume, &name)
            || name == *volume.as_str() && self.name_if_any(kernel, volume)?.is_some())
    }
}

/// The file of a bound device is not called as the volume is: it was renamed or deleted.
fn has_lost_name<K: Kernel>(
    kernel: &K,
    volume: &VolumeId,
    number: u32,
) -> crate::kernel::Result<bool> {
    let name = kernel.loop_file_name(number)?;
    Ok(name.is_some_and(|name| name != *volume.as_str()))
}

/// What a file is called that was moved aside (`vol-1.bad`), or removed (`vol-1 (deleted)`).
pub(super) fn is_old_name(volume: &VolumeId, name: &OsStr) -> bool {
    let rest = name
        .to_str()
        .and_then(|it| it.strip_prefix(volume.as_str()));
    let next = rest.and_then(|rest| rest.chars().next());
    next.is_some_and(|next| !next.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_begins_with_the_volumes_and_is_not_that_of_another_volume() {
        let is_old = |name: &str| is_old_name(&VolumeId::new("vol-1").unwrap(), name.as_ref());
        for old in ["vol-1.bad", "vol-1~", "vol-1 (deleted)"] {
            assert!(is_old(old), "{old}");
        }
        for other in ["vol-1", "vol-12", "vol-12 (deleted)", "old-vol-1", ""] {
            assert!(!is_old(other), "{other}");
        }
    }
}
