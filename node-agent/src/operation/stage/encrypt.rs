//! Opens the device of an encrypted volume, and creates its LUKS header if the volume may be
//! formatted.
//!
//! Only the outer device is proven blank, because the content of a new mapper is noise. The format
//! mark on the outer device covers the time until the header is complete; then the label in the
//! header, which luksFormat writes with the header itself, shows that the content has not been
//! used. A header without that label is only opened, and nothing inside is ever formatted.

use belay_contract::encryption::{Encryption, Passphrases};
use belay_contract::publish_context::{Content, PublishContext};
use belay_server::call::{Failure, Kind};
use belay_server::request::{Stage, VolumeId};

use super::keys::{Encrypted, Keys, Mapped};
use super::permit::{Need, judge};
use super::spec::MountSpec;
use super::tally::Refusal;
use super::{Obstacle, refuse_in_use};
use crate::device::OpenDevice;
use crate::device::crypt::{self, Header};
use crate::filesystem::{
    DeviceUnderTest, FsType, Permit, Probed, Unfinished, begin_use, encrypt, examine, examine_ends,
};
use crate::kernel::{Dev, Kernel};
use crate::operation::plan::fit;
use crate::operation::{Context, Node};
use crate::work::{Lane, Phase};

fn requested(request: &Stage) -> Result<Option<Encryption>, Failure> {
    Encryption::requested("volume_context", &request.volume_context)
}

/// Returns the encryption of the volume; `None` if it has none.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` if the volume context is malformed, or if the secrets do not contain
/// exactly one passphrase; [`Obstacle::NoSlot`] on another lane.
pub(super) fn encrypted(request: &Stage, lane: Lane) -> Result<Option<Encrypted<'_>>, Obstacle> {
    let Some(encryption) = requested(request)? else {
        return Ok(None);
    };
    let mode = request.capability.mode;
    if mode.is_multi_node() && !mode.is_read_only() {
        // Two nodes would create its header, or replace its passphrase, at the same time.
        let why = "an encrypted volume cannot be written on several nodes";
        return Err(Failure::invalid("volume_capability.access_mode", why).into());
    }
    let passphrases = Passphrases::read(&request.secrets)?;
    if lane != Lane::Unlock {
        return Err(Obstacle::NoSlot(Lane::Unlock));
    }
    Ok(Some(Encrypted {
        encryption,
        passphrases,
    }))
}

/// Refuses a device that is staged already if it is encrypted and the request is not, or the
/// reverse.
///
/// # Errors
/// Returns `ALREADY_EXISTS`, or `INVALID_ARGUMENT` if the volume context is malformed.
pub(super) fn refuse_other<K: Kernel>(
    request: &Stage,
    device: &OpenDevice<K>,
) -> Result<(), Failure> {
    if requested(request)?.is_some() == device.is_mapper() {
        return Ok(());
    }
    let is = if device.is_mapper() {
        "from"
    } else {
        "without"
    };
    Err(Failure::incompatible(format!(
        "volume {}: staged at {} {is} an encrypted device; unstage it first",
        request.id,
        request.staging.display()
    )))
}

/// Opens the encrypted device of the volume. Returns its mapper, which owns the device, and the
/// permission to format the content if it was never used. After an error, the device is detached.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the passphrase is wrong, if the device must not be formatted,
/// or if it has other content than a LUKS header; `ABORTED` while another volume is opened.
pub(super) fn unlock<K: Kernel>(
    cx: &Context<'_, K>,
    (spec, plan): (&MountSpec<'_>, &PublishContext),
    outer: OpenDevice<K>,
    encrypted: &Encrypted<'_>,
) -> Result<(OpenDevice<K>, Option<Unfinished>), Failure> {
    match open(cx, (spec, plan), &outer, encrypted) {
        Ok((opened, unfinished)) => Ok((outer.under(opened), unfinished)),
        Err(failure) => Err(match outer.release(&cx.kernel) {
            Ok(()) => failure,
            Err(_) => failure.may_be_running(),
        }),
    }
}

fn open<K: Kernel>(
    cx: &Context<'_, K>,
    (spec, plan): (&MountSpec<'_>, &PublishContext),
    outer: &OpenDevice<K>,
    encrypted: &Encrypted<'_>,
) -> Result<(Mapped<K>, Option<Unfinished>), Failure> {
    let (kernel, id) = (&cx.kernel, &spec.request.id);
    refuse_in_use(outer)?;
    let under_test = DeviceUnderTest {
        fd: outer.fd(),
        bytes: fit(cx, id, plan, outer)?,
        backing: outer.backing_file(),
        volume: id.as_str(),
        secrets: &plan.marks,
        is_new: plan.is_new_at(kernel.realtime()),
        accepts_uncleared: cx.transport.accepts_uncleared(),
        progress: cx.progress(),
    };
    let permit = cx.phase(Phase::Probe, || to_format(cx, (spec, plan), &under_test))?;
    let keys = Keys::new(cx, encrypted)?;
    let turn = keys.turn(permit.is_some())?;
    let unfinished = match permit {
        Some(permit) => {
            cx.progress().refuse_given_up()?;
            let key = keys.for_new()?;
            let create =
                |attempt: &str| crypt::format(kernel, outer.fd(), key, &crypt::label(attempt));
            Some(cx.phase(Phase::Encrypt, || {
                encrypt(kernel, &under_test, &permit, create)
            })?)
        }
        // A copy of an unfinished volume is not the volume that the attempt has begun to format.
        None if plan.content == Content::Populated => None,
        None => {
            let header = Header::read(kernel, outer.fd())?;
            Unfinished::read(kernel, &under_test, |attempt| {
                let label = header.as_ref().and_then(Header::unfinished);
                label == Some(&crypt::label(attempt))
            })?
        }
    };
    if unfinished.is_some() && spec.read_only {
        Refusal::ReadOnly.count();
        return Err(Failure::precondition(format!(
            "volume {id}: not formatted: it has only a new LUKS header, and is requested \
             read-only: use it read-write first"
        )));
    }
    let name = crypt::name(cx.transport.driver(), id);
    let opened = cx.phase(Phase::Unlock, || {
        cx.close_removed(id, outer.dev(kernel)?);
        keys.open(spec, outer, (&name, unfinished.is_some()))
    });
    drop(turn);
    let opened = opened.map_err(|failure| Failure {
        message: format!("volume {id}: not opened: {}", failure.message),
        ..failure
    })?;
    Ok((opened, unfinished))
}

/// Returns the permission to create a LUKS header; `None` if the device has a header that can be
/// opened.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with the reason if the device has neither, and must not be
/// formatted.
fn to_format<K: Kernel>(
    cx: &Context<'_, K>,
    (spec, plan): (&MountSpec<'_>, &PublishContext),
    under_test: &DeviceUnderTest<'_, K::Fd>,
) -> Result<Option<Permit>, Failure> {
    let found = examine(&cx.kernel, under_test);
    let header = || Header::read(&cx.kernel, under_test.fd);
    match &found {
        Probed::Foreign(_) if header()?.is_some() => return Ok(None),
        // A bad sector elsewhere must not prevent the use of a valid header.
        Probed::Unreadable(failure) if failure.kind != Kind::Busy => {
            let header = header().ok().flatten();
            if header.is_some_and(|header| header.unfinished().is_none()) {
                return Ok(None);
            }
        }
        _ => {}
    }
    // The filesystem that the request names is inside of the encrypted device.
    let outer = MountSpec { fs: None, ..*spec };
    let is_foreign = matches!(found, Probed::Foreign(_));
    let judged =
        judge(cx, &outer, plan, under_test, found).map_err(|failure| match is_foreign {
            false => failure,
            true => Failure {
                message: format!(
                    "{}; it has no LUKS header: if both copies were damaged, see cryptsetup repair",
                    failure.message
                ),
                ..failure
            },
        })?;
    match judged.need {
        Need::Format(permit) => Ok(Some(permit)),
        Need::Check | Need::Nothing => {
            Refusal::Foreign.count();
            Err(Failure::precondition(format!(
                "volume {}: not mounted: the volume is encrypted by its StorageClass, but contains \
                 an unencrypted {}, as after a restore of a volume of another class; use a class \
                 without encryption; its data was not changed",
                spec.request.id, judged.fs
            )))
        }
    }
}

/// Checks the content of an opened device whose header the agent has not just created.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with the commands to run if there is no filesystem, because
/// nothing inside of such a device is ever formatted.
pub(super) fn inside<K: Kernel>(
    node: &Node<K>,
    spec: &MountSpec<'_>,
    under_test: &DeviceUnderTest<'_, K::Fd>,
) -> Result<Probed, Failure> {
    let what = match examine_ends(&node.kernel, under_test) {
        Some(found @ (Probed::Known(_) | Probed::Unreadable(_))) => return Ok(found),
        Some(Probed::Foreign(foreign)) => foreign.to_string(),
        _ => "nothing at its start and its end".to_owned(),
    };
    Refusal::Foreign.count();
    let (id, fs) = (&spec.request.id, spec.fs.unwrap_or(FsType::Ext4));
    // The device is detached now, and its number may soon be that of another volume.
    let named = node.transport.named(&node.kernel, id)?;
    Err(Failure::precondition(format!(
        "volume {id}: not formatted: it was opened, and has {what}, but its LUKS header does not \
         record that Belay was formatting it; if it holds no data, delete its pods, and then: \
         cryptsetup open FILE_OR_DISK new (here {}), mkfs.{fs} /dev/mapper/new, and cryptsetup \
         close new; nothing was changed",
        named.display()
    )))
}

/// Records that the volume is in use, before users can write to it: removes the label that a header
/// has since its creation, and changes the record of the backing file.
///
/// # Errors
/// Returns the errors of [`crypt::finish`], or the error of the disk with the file.
pub(super) fn begin<K: Kernel>(
    cx: &Context<'_, K>,
    volume: &VolumeId,
    device: &OpenDevice<K>,
    read_only: bool,
) -> Result<(), Failure> {
    let (kernel, outer) = (&cx.kernel, device.bottom());
    cx.phase(Phase::Format, || {
        crypt::finish(kernel, volume, outer.fd(), device.fd(), read_only)
    })?;
    match outer.backing_file() {
        Some(file) => begin_use(kernel, file),
        None => Ok(()),
    }
}

impl<K: Kernel> Node<K> {
    /// Closes the mapper over a device that an earlier attempt has left open. Returns whether there
    /// was one.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` while a mapper is mounted or bound, or if it has another name
    /// than the agent's, because an operator may be about to use it; `ABORTED` while it is in
    /// use in another way; otherwise the kernel's error.
    pub(in crate::operation) fn close_over(
        &self,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<bool, Failure> {
        let mappers = crypt::over(&self.kernel, dev)?;
        for mapper in &mappers {
            self.mounts().refuse_others(volume, mapper.dev)?;
            self.mounts().refuse_shown(volume, mapper.dev, &[])?;
            if mapper.name != crypt::name(self.transport.driver(), volume) {
                return Err(Failure::precondition(format!(
                    "volume {volume}: another program has opened it as {0}; close it: cryptsetup \
                     close {0}",
                    mapper.name
                )));
            }
            crypt::close(&self.kernel, mapper)?;
            tracing::info!(id = volume.as_str(), "closed the mapper {}", mapper.name);
        }
        Ok(!mappers.is_empty())
    }

    /// Calls [`Node::try_close_removed`], and only logs a failure.
    pub(in crate::operation) fn close_removed(&self, volume: &VolumeId, dev: Dev) {
        if let Err(failure) = self.try_close_removed(volume, Some(dev)) {
            tracing::warn!(id = volume.as_str(), "its mapper stays open: {failure}");
        }
    }

    /// Closes the mapper of the volume, or the mapper with the number `dev`, if its disk was
    /// removed. Otherwise, the mapper would keep its name, with which the volume is opened the next
    /// time.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` while the mapper is mounted or bound; `ABORTED` while it is in
    /// use in another way; otherwise the kernel's error.
    pub(in crate::operation) fn try_close_removed(
        &self,
        volume: &VolumeId,
        dev: Option<Dev>,
    ) -> Result<(), Failure> {
        let name = crypt::name(self.transport.driver(), volume);
        for mapper in crypt::removed(&self.kernel)? {
            if Some(mapper.dev) == dev || mapper.name == name {
                self.mounts().refuse_others(volume, mapper.dev)?;
                self.mounts().refuse_shown(volume, mapper.dev, &[])?;
                crypt::close(&self.kernel, &mapper)?;
            }
        }
        Ok(())
    }
}
