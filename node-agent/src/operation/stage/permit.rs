//! Decides whether a volume may be formatted, or must be checked. The decision depends on the
//! content of the volume and on its history. An attribute of the volume's file, or the entry
//! `content` in the publish context, records the history.

use std::path::Path;

use belay_contract::drivers::local::NEW;
use belay_contract::publish_context::{Content, PublishContext};
use belay_server::call::{Failure, Kind};

use super::super::Node;
use super::spec::MountSpec;
use super::tally::Refusal;
use crate::filesystem::{DeviceUnderTest, FsType, Origin, Permit, Probed, Sound, settle};
use crate::kernel::Kernel;

/// The message why a blank volume that once contained data is not formatted.
const LOST: &str = "it was restored, cloned or in use, and contains no data now: its data is lost; \
                    restore it, or delete the volume";

/// The filesystem to mount, and the step that it needs before the mount.
pub(super) struct Decision {
    pub(super) fs: FsType,
    pub(super) need: Need,
    /// The number of blocks before the journal is replayed; `None` if there is no journal to
    /// replay. See [`Sound`].
    pub(super) blocks_before_replay: Option<u64>,
    /// Whether the filesystem may be an ext4 that supports project quotas.
    pub(super) may_have_projects: bool,
    /// Whether the filesystem is an ext4 whose superblock sets `errors=panic`.
    pub(super) panics: bool,
}

/// The step that a device needs before it is mounted.
pub(super) enum Need {
    Nothing,
    /// The superblock requests a check.
    Check,
    /// The device has no filesystem and may be formatted.
    Format(Permit),
}

/// Decides which filesystem to mount, and which step the device needs before the mount, from the
/// content that the probe has found.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with the reason if the volume must not be formatted or mounted.
pub(super) fn judge<K: Kernel>(
    node: &Node<K>,
    spec: &MountSpec<'_>,
    plan: &PublishContext,
    under_test: &DeviceUnderTest<'_, K::Fd>,
    found: Probed,
) -> Result<Decision, Failure> {
    let is_disk = under_test.backing.is_none();
    if let Some((refusal, why)) = forbidden(spec, plan, &found) {
        return Err(refuse(spec, refusal, why));
    }
    let permit = match found {
        Probed::Known(found) => return known(node, spec, found),
        Probed::Unsettled(made) => {
            same_as_asked(spec, made.fs_type())?;
            return match is_disk && spec.read_only {
                // Keep the format mark on the disk until the volume is staged for writing.
                true => known(node, spec, made.unsettled()),
                false => known(node, spec, settle(&node.kernel, under_test, made)?),
            };
        }
        Probed::Emptied => {
            let file = node.transport.named(&node.kernel, &spec.request.id)?;
            return Err(refuse(spec, Refusal::Emptied, &emptied(&file)));
        }
        Probed::Blank(blank) => Permit::from(blank),
        Probed::Interrupted(interrupted) => Permit::from(interrupted),
        Probed::Foreign(foreign) => {
            return Err(refuse(
                spec,
                Refusal::Foreign,
                &format!(
                    "it contains {} at byte {}; inspect it: if the data is worthless, delete the \
                     volume and create a new one, else restore it (docs/runbook.md, \
                     BelayFormatRefused)",
                    foreign.what, foreign.at
                ),
            ));
        }
        Probed::Unreadable(failure) => {
            // `Kind::Busy` means that NodeUnstageVolume has cancelled the read; do not count this
            // as a failed read.
            if failure.kind != Kind::Busy {
                Refusal::Unreadable.count();
            }
            return Err(failure);
        }
    };
    Ok(Decision::format(spec, permit))
}

impl Decision {
    /// Returns the decision to format a device.
    pub(super) fn format(spec: &MountSpec<'_>, permit: Permit) -> Self {
        Decision {
            fs: spec.fs.unwrap_or(FsType::Ext4),
            need: Need::Format(permit),
            blocks_before_replay: None,
            // Belay's mkfs enables neither project quotas nor `errors=panic`.
            may_have_projects: false,
            panics: false,
        }
    }
}

fn known<K: Kernel>(
    node: &Node<K>,
    spec: &MountSpec<'_>,
    found: Sound,
) -> Result<Decision, Failure> {
    if let Some(why) = found.refused_options {
        let named = node.transport.named(&node.kernel, &spec.request.id)?;
        return Err(Failure::precondition(format!(
            "volume {}: not mounted: the superblock of its ext4 has mount options that are not \
             allowed: {why}; delete the pod, wait until the volume is unstaged, run tune2fs -E \
             mount_opts= on {}, and start the pod again",
            spec.request.id,
            named.display()
        )));
    }
    let need = match found.wants_check {
        true => Need::Check,
        false => Need::Nothing,
    };
    Ok(Decision {
        fs: same_as_asked(spec, found.fs)?,
        need,
        blocks_before_replay: found.blocks_before_replay,
        // A journal replay or e2fsck may enable project quotas in the superblock.
        may_have_projects: found.has_projects
            || found.wants_check
            || found.blocks_before_replay.is_some(),
        panics: found.panics,
    })
}

/// Returns the reason why a volume must not be formatted although its content would permit it;
/// `None` if the volume may be formatted.
fn forbidden(
    spec: &MountSpec<'_>,
    plan: &PublishContext,
    found: &Probed,
) -> Option<(Refusal, &'static str)> {
    match found {
        Probed::Blank(_) if plan.content == Content::Populated => Some((Refusal::Populated, LOST)),
        Probed::Interrupted(_) if plan.content == Content::Populated => {
            Some((Refusal::Populated, LOST))
        }
        Probed::Blank(_) if plan.content == Content::Unknown => Some((
            Refusal::Unknown,
            "it is blank, and its attachment does not state whether it held data \
             (publish_context[content]; docs/runbook.md, BelayFormatRefused)",
        )),
        Probed::Blank(_) if spec.read_only => Some((
            Refusal::ReadOnly,
            "it is blank, and requested read-only: use it read-write first",
        )),
        Probed::Interrupted(interrupted) if interrupted.origin() == Origin::Anyone => Some((
            Refusal::Interrupted,
            "its formatting was interrupted, and nothing proves that it was not used since; delete \
             the volume, or overwrite it with zeros (blkdiscard --zeroout)",
        )),
        Probed::Interrupted(interrupted) if interrupted.origin() == Origin::OtherKey => Some((
            Refusal::Interrupted,
            "its formatting was interrupted, and its mark was made with another key than those of \
             the controller: add that key to its --mark-key-file, or delete the volume, or \
             overwrite it with zeros (blkdiscard --zeroout)",
        )),
        Probed::Interrupted(_) if spec.read_only => Some((
            Refusal::ReadOnly,
            "its formatting was interrupted, and it is requested read-only: use it read-write \
             first",
        )),
        _ => None,
    }
}

fn same_as_asked(spec: &MountSpec<'_>, found: FsType) -> Result<FsType, Failure> {
    match spec.fs {
        Some(asked) if asked != found => {
            Refusal::OtherFilesystem.count();
            Err(Failure::precondition(format!(
                "volume {}: contains {} but {} is requested; it is never formatted again: request \
                 {} or use another volume",
                spec.request.id,
                found.name(),
                asked.name(),
                found.name()
            )))
        }
        _ => Ok(found),
    }
}

/// Returns the message for a volume's file that contains only zeros although no attribute records
/// that the file is new.
fn emptied(file: &Path) -> String {
    let file = file.display();
    format!(
        "every byte of it reads as zeros, and its file does not record that it is new ({NEW}), as \
         after an interrupted restore, a copy without its attributes, or a loss; restore {file}, \
         or delete the volume; to format it although its data is lost: setfattr --name {NEW} \
         --value 1 {file}"
    )
}

fn refuse(spec: &MountSpec<'_>, refusal: Refusal, why: &str) -> Failure {
    refusal.count();
    Failure::precondition(format!(
        "volume {}: not formatted: {why}; nothing was changed",
        spec.request.id
    ))
}
