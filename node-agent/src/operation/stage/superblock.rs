//! Configures and creates the kernel's superblock of a filesystem, and detects a superblock with
//! wrong counts. When the filesystem context is closed, the kernel releases a superblock that is
//! not mounted.

use super::super::Node;
use super::Obstacle;
use super::check::not_replayed;
use super::spec::{MountSpec, Mounting};
use crate::device::OpenDevice;
use crate::filesystem::{FsType, LABELS, ext4_blocks};
use crate::kernel::{Cause, Error, Kernel};
use crate::operation::Context;
use crate::work::Phase;
use belay_server::call::Failure;

/// The field of the request that contains the mount flags.
const FLAGS: &str = "volume_capability.mount.mount_flags";

/// Configures the filesystem with fsopen(2) and fsconfig(2), and returns the filesystem context.
/// Does not read the device.
pub(super) fn configure<K: Kernel>(
    node: &Node<K>,
    device: &OpenDevice<K>,
    mounting: &Mounting,
) -> Result<K::Fd, Failure> {
    let kernel = &node.kernel;
    let context = kernel.fsopen(mounting.fs.name())?;
    kernel.fsconfig_set(&context, "source", device.path().to_str())?;
    for (key, value) in &mounting.options.superblock {
        kernel
            .fsconfig_set(&context, key, value.as_deref())
            .map_err(|error| refused_flag(key, &error))?;
    }
    if mounting.is_reader() {
        kernel.fsconfig_set(&context, "ro", None)?;
    }
    Ok(context)
}

/// Returns the error for a mount flag that the kernel refuses.
fn refused_flag(key: &str, error: &Error) -> Failure {
    match LABELS.contains(&key) {
        true => Failure::invalid(
            FLAGS,
            format!(
                "{error}; a label needs a kernel with SELinux enabled, and must be valid in its \
                 policy: if this node has no SELinux, remove the flag, or set seLinuxMount of the \
                 CSIDriver object to false"
            ),
        ),
        false => Failure::invalid(FLAGS, format!("{error}; correct or remove the flag")),
    }
}

/// Creates the superblock in the filesystem context `context`, or in a new context if a second
/// attempt is needed.
pub(super) fn create<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &OpenDevice<K>,
    mounting: &Mounting,
    context: K::Fd,
) -> Result<K::Fd, Failure> {
    let attempt = |context: K::Fd| {
        // If a different mount namespace still has a mount of the device, share the superblock of
        // that mount.
        let create = || cx.kernel.fsconfig_create(&context, device.is_shared);
        cx.phase(Phase::Mount, create).map(|()| context)
    };
    let is = |error: &Error, cause| mounting.fs == FsType::Btrfs && error.cause() == cause;
    let has_same_id = |error: &Error| is(error, Cause::Exists);
    let created = match attempt(context) {
        // Since Linux 6.7, the kernel can mount a clone of a btrfs in addition to its original.
        // However, if the mount of an earlier btrfs on the same device number was refused, the
        // kernel may mistake the clone for that btrfs. The kernel then returns EEXIST if the clone
        // has more transactions, and EINVAL otherwise. The failed attempt removes the kernel's
        // stale entry, so a second attempt succeeds.
        Err(error) if has_same_id(&error) || is(&error, Cause::Invalid) => {
            attempt(configure(cx, device, mounting)?)
        }
        created => created,
    };
    created.map_err(|error| match error.cause() {
        Cause::Busy => device.claimed(),
        _ if has_same_id(&error) => same_id_elsewhere(spec, &error.to_string()),
        Cause::Invalid | Cause::Missing | Cause::Unsupported => {
            of_flags(cx, device, mounting, &error).unwrap_or_else(|| error.into())
        }
        _ => error.into(),
    })
}

/// Tries to create a read-only superblock without the mount flags of the request. If this succeeds,
/// one of the flags has caused `error`, and the returned error lists all flags, because few
/// filesystems report which flag was wrong. Returns `None` if the mount flags are not the cause, or
/// if the request contains no mount flags.
fn of_flags<K: Kernel>(
    cx: &Context<'_, K>,
    device: &OpenDevice<K>,
    mounting: &Mounting,
    error: &Error,
) -> Option<Failure> {
    let plain = mounting.without_flags().ok()?;
    let plain_options = &plain.options.superblock;
    let all = mounting.options.superblock.iter();
    let flags = all.filter(|flag| !plain_options.contains(flag));
    let names: Vec<&str> = flags.map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let context = configure(cx, device, &plain).ok()?;
    let create = || cx.kernel.fsconfig_create(&context, device.is_shared);
    cx.phase(Phase::Mount, create).ok()?;
    let why = format!(
        "{error}; the {} can be mounted without these flags, and not with them: {}",
        mounting.fs,
        names.join(", ")
    );
    Some(Failure::invalid(FLAGS, why))
}

/// Makes the kernel replay the journal, by creating a superblock that is never mounted.
pub(super) fn replay<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &OpenDevice<K>,
    mounting: &Mounting,
) -> Result<(), Failure> {
    let context = configure(cx, device, mounting)?;
    cx.kernel.fsconfig_set(&context, "ro", None)?;
    let created = create(cx, spec, device, mounting, context);
    created
        .map(drop)
        .map_err(|failure| not_replayed(cx, spec, failure))
}

/// Refuses the kernel's superblock of an ext4 if it has a wrong count of block groups. The count is
/// wrong if a power loss interrupted an expansion: the kernel counts the block groups before it
/// replays the journal, and the journal then enlarges the ext4. On Linux 6.1 and 7.2, reads, writes
/// and growth of the new groups fail (EUCLEAN) until the filesystem is mounted again.
///
/// `blocks` is the number of blocks in the superblock on the disk before the replay; `None` if
/// there was no journal to replay.
///
/// # Errors
/// Returns [`Obstacle::Miscount`] if the count is wrong. Returns [`Obstacle::Failure`] if the
/// superblock on the disk cannot be read, or if the count is wrong and another process has the
/// device open.
pub(super) fn refuse_miscounted<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &OpenDevice<K>,
    blocks: Option<u64>,
) -> Result<(), Obstacle> {
    let Some(before) = blocks else {
        return Ok(());
    };
    let now = cx.phase(Phase::Check, || ext4_blocks(&cx.kernel, device.fd()))?;
    if now == before {
        return Ok(());
    }
    // The superblock is shared with another process, for example with an agent that is being
    // killed, so mounting again would not help.
    if device.is_shared {
        return Err(device.claimed().into());
    }
    tracing::info!(
        volume = %spec.request.id, before, now,
        "an interrupted expansion of the ext4 was completed from its journal; mounting it again, \
         since the kernel counted its blocks before"
    );
    Err(Obstacle::Miscount)
}

/// Returns the error for a btrfs whose clone or original is already mounted. Before Linux 6.7, the
/// kernel confuses the clone with the original: it refuses the mount, or mounts the wrong device.
pub(super) fn same_id_elsewhere(spec: &MountSpec<'_>, what: &str) -> Failure {
    Failure::precondition(format!(
        "volume {}: a btrfs with the same id, its clone or its original, is mounted on this node, \
         and the kernel cannot mount both; use another node, or Linux 6.7 or later ({what})",
        spec.request.id
    ))
}
