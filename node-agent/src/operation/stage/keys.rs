//! The key derivations of an encrypted volume: waits for a turn, opens the volume with the
//! passphrases of its Secret, and replaces the previous passphrase in its header.

use std::time::{Duration, Instant};

use belay_contract::encryption::{Encryption, Passphrases, Pbkdf};
use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::spec::MountSpec;
use super::tally;
use crate::device::OpenDevice;
use crate::device::crypt::{self, Key, Opening};
use crate::kernel::{Descriptors, Kernel, Mapper};
use crate::operation::Context;
use crate::operation::checks::Running;

/// Maximum duration of the key derivations of an attempt that opens a volume with one passphrase,
/// and of another attempt.
const OPEN_MAX: Duration = Duration::from_secs(120);
const MORE_MAX: Duration = Duration::from_secs(240);
/// Maximum time that an attempt waits until the key derivation of another volume is complete, and
/// the pause between two checks.
const TURN_MAX: Duration = Duration::from_secs(30);
const TURN_PAUSE: Duration = Duration::from_millis(50);

/// An opened mapper, and the descriptor of its node.
pub(super) type Mapped<K> = (Mapper, <K as Descriptors>::Fd);

/// The encryption of a volume, and its passphrases.
pub(super) struct Encrypted<'a> {
    pub(super) encryption: Encryption,
    pub(super) passphrases: Passphrases<'a>,
}

/// The passphrases of a volume, as keys for cryptsetup.
pub(super) struct Keys<'a, K: Kernel> {
    cx: &'a Context<'a, K>,
    encrypted: &'a Encrypted<'a>,
    current: Key<K>,
    previous: Option<Key<K>>,
}

impl<'a, K: Kernel> Keys<'a, K> {
    pub(super) fn new(
        cx: &'a Context<'a, K>,
        encrypted: &'a Encrypted<'a>,
    ) -> Result<Self, Failure> {
        let passphrases = &encrypted.passphrases;
        let previous = passphrases.previous.as_ref();
        Ok(Keys {
            cx,
            encrypted,
            current: Key::new(&cx.kernel, &passphrases.current)?,
            previous: previous.map(|it| Key::new(&cx.kernel, it)).transpose()?,
        })
    }

    /// Waits until no other volume of the node derives a key, because a derivation needs much
    /// memory. Returns a guard for the derivations.
    ///
    /// # Errors
    /// Returns `ABORTED` while another volume derives a key.
    pub(super) fn turn(&self, is_new: bool) -> Result<Running<'a>, Failure> {
        let at_most = match is_new || self.previous.is_some() {
            true => MORE_MAX,
            false => OPEN_MAX,
        };
        let (cx, begun) = (self.cx, Instant::now());
        loop {
            match cx.shared.derivations.begin("a key derivation", at_most) {
                Err(failure) if failure.kind == Kind::Busy && begun.elapsed() < TURN_MAX => {
                    cx.progress().refuse_given_up()?;
                    cx.kernel.pause(TURN_PAUSE);
                }
                turn => return turn,
            }
        }
    }

    /// Returns the key of a new header.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the passphrase must not be used for a new header.
    pub(super) fn for_new(&self) -> Result<(&Key<K>, Pbkdf), Failure> {
        let pbkdf = self.encrypted.encryption.pbkdf;
        self.encrypted.passphrases.current.refuse_for_new(pbkdf)?;
        Ok((&self.current, pbkdf))
    }

    /// Opens the device with the current passphrase, or else with the previous one, which the
    /// current one then replaces, unless the volume is used read-only: other nodes may use it too.
    /// The mapper is called `name`; `is_unused` says that the volume was never used.
    /// A failure to replace it is logged and counted, because the volume can be used.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if no passphrase is right; otherwise the errors of
    /// [`crypt::open`].
    pub(super) fn open(
        &self,
        spec: &MountSpec<'_>,
        device: &OpenDevice<K>,
        (name, is_unused): (&str, bool),
    ) -> Result<Mapped<K>, Failure> {
        let (kernel, id) = (&self.cx.kernel, &spec.request.id);
        let opening = Opening {
            name,
            read_only: kernel.refuses_writes(device.fd())?,
            discards: self.encrypted.encryption.discards,
        };
        let may_replace = !spec.read_only && !opening.read_only;
        let (current, previous) = (&self.current, self.previous.as_ref());
        let wrong = match crypt::open(kernel, device, current, &opening)? {
            Ok(mapped) => {
                // An attempt to replace it may have been cut off.
                if let Some(previous) = previous.filter(|_| may_replace) {
                    report(id, crypt::remove(kernel, device.fd(), previous));
                }
                return Ok(mapped);
            }
            Err(wrong) => wrong,
        };
        let passphrases = &self.encrypted.passphrases;
        let key = passphrases.current.key;
        let (Some(previous), Some(other)) = (previous, passphrases.previous) else {
            return Err(wrong.failure(key, is_unused));
        };
        let mapped = crypt::open(kernel, device, previous, &opening)?
            .map_err(|wrong| wrong.failure(&format!("{key}, and of {}", other.key), is_unused))?;
        if may_replace {
            let replaced = self.for_new().and_then(|(current, pbkdf)| {
                crypt::replace(kernel, device.fd(), (previous, current), pbkdf)
            });
            report(id, replaced.map(|()| true));
        }
        Ok(mapped)
    }
}

/// Logs and counts an attempt to replace the passphrase, which returned whether there was one
/// to remove.
fn report(id: &VolumeId, replaced: Result<bool, Failure>) {
    let id = id.as_str();
    match &replaced {
        Ok(false) => return,
        Ok(true) => tracing::info!(id, "its previous passphrase was replaced"),
        Err(failure) => tracing::warn!(
            id,
            "its previous passphrase was not replaced, and still opens it: {failure}"
        ),
    }
    tally::replaced_passphrase(replaced.is_ok());
}
