//! The keys of a LUKS header: replaces a passphrase by another one.
//!
//! At each moment, at least one of the two passphrases opens the volume: the new one is added and
//! proven to open the volume, before the old one is removed. An attempt that is cut off is
//! continued by the next one.

use belay_contract::encryption::{Passphrase, Pbkdf};
use belay_server::call::{Failure, Kind};

use super::{Header, child};
use crate::kernel::Kernel;

/// Maximum number of the key slots of a header (LUKS2 On-Disk Format Specification 1.1).
const SLOTS_MAX: u8 = 32;

/// A passphrase in a sealed file in memory.
pub(crate) struct Key<K: Kernel> {
    pub(super) file: K::Fd,
}

/// A key opens no key slot of a header. Contains the message of cryptsetup.
#[derive(Debug)]
pub(crate) struct Wrong(pub(super) String);

impl<K: Kernel> Key<K> {
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn new(kernel: &K, passphrase: &Passphrase<'_>) -> Result<Self, Failure> {
        let file = kernel.sealed_file(passphrase.text.as_bytes())?;
        Ok(Key { file })
    }
}

impl Wrong {
    /// Returns the error for the passphrases that the Secret has as `keys`, for a volume that was
    /// never used if `is_unused`.
    pub(crate) fn failure(self, keys: &str, is_unused: bool) -> Failure {
        let note = match is_unused {
            true => "; the volume was never used, so it can be deleted",
            false => "",
        };
        Failure::precondition(format!(
            "the passphrase of the Secret's key {keys} opens no key slot of the volume's LUKS \
             header; nothing was changed{note}: {}",
            self.0
        ))
    }
}

/// Replaces the key `old`, which opens the device, by `new`. A new key slot of a LUKS2 header has
/// this key derivation.
///
/// # Errors
/// Returns the message of cryptsetup, or the kernel's error. At least one of the keys opens the
/// device afterwards.
pub(crate) fn replace<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    (old, new): (&Key<K>, &Key<K>),
    pbkdf: Pbkdf,
) -> Result<(), Failure> {
    let header = Header::read(kernel, device)?;
    let pbkdf = header
        .is_some_and(|it| it.is_second_version())
        .then_some(pbkdf);
    child::add_key(kernel, device, (old, new), pbkdf)?;
    kernel.fsync(device)?;
    // luksRemoveKey would also remove the last key.
    match child::test_key(kernel, device, new)? {
        Ok(()) => remove(kernel, device, old).map(drop),
        Err(Wrong(why)) => Err(Failure::new(
            Kind::System,
            format!("cryptsetup luksAddKey reported success, but the key opens no slot: {why}"),
        )),
    }
}

/// Removes all key slots that the key opens. Another key must have opened the device. Returns
/// whether there was one.
///
/// # Errors
/// Returns the message of cryptsetup.
pub(crate) fn remove<K: Kernel>(kernel: &K, device: &K::Fd, key: &Key<K>) -> Result<bool, Failure> {
    let mut is_removed = false;
    for _ in 0..SLOTS_MAX {
        if child::remove_key(kernel, device, key)?.is_err() {
            break;
        }
        is_removed = true;
    }
    Ok(is_removed)
}
