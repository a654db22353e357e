//! Stages a volume as a filesystem.

use std::path::Path;

use belay_contract::publish_context::PublishContext;
use belay_server::call::{Failure, Kind};
use belay_server::request::{MountFlags, Stage, Unstage};

use super::super::plan::{asked_fs, fit, is_read_only};
use super::check::repair;
use super::format::{format_options, grow_to_device, make};
use super::permit::{Decision, Need, judge};
use super::spec::{MountSpec, Mounting};
use super::superblock::{configure, create, refuse_miscounted, replay, same_id_elsewhere};
use super::{Obstacle, attach, encrypt, refuse_in_use};
use crate::device::{Intent, OpenDevice, Purpose, Search, Verdict};
use crate::filesystem::{
    DeviceUnderTest, FsType, MountOptions, Permit, Probed, Unfinished, examine, examine_ends,
    is_same_label,
};
use crate::kernel::{BtrfsDevice, Dev, Kernel, MountAttrs, Open, Stat};
use crate::mounts::{block_path, something_else};
use crate::operation::Context;
use crate::operation::unstage::unmount_removed;
use crate::work::{Lane, Phase};

pub(super) fn stage<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    flags: &MountFlags,
    plan: &PublishContext,
    staging: &Stat,
    lane: Lane,
) -> Result<(), Obstacle> {
    let spec = MountSpec {
        request,
        fs: asked_fs(&request.capability.access)?,
        flags,
        read_only: is_read_only(plan, &request.capability),
    };
    // Check the mount flags before anything is changed. If no filesystem type is requested, check
    // them for ext4, because most flags are the same for all types.
    spec.options(spec.fs.unwrap_or(FsType::Ext4))?;
    let kernel = &cx.kernel;
    let raw = kernel.look(&block_path(&request.staging))?;
    if raw.is_some_and(|stat| stat.mount_root) {
        return Err(Failure::incompatible(format!(
            "volume {}: staged at {} as a raw block device; unstage it first",
            request.id,
            request.staging.display()
        ))
        .into());
    }
    if staging.mount_root && staged_before(cx, &spec, plan, staging)? {
        return Ok(cx.transport.end_claim(kernel, &request.id)?);
    }
    let purpose = Purpose::Filesystem;
    let contexts = (plan, &request.volume_context);
    let encrypted = encrypt::encrypted(request, lane)?;
    let storage = match cx.transport.find(kernel, &request.id, contexts, purpose)? {
        Search::Found(storage) => storage,
        Search::Missing(missing) => return Err(Obstacle::NoDisk(missing)),
    };
    let mut device = attach(cx, &request.id, storage, purpose, encrypted.is_some())?;
    let mut unfinished = None;
    if let Some(encrypted) = &encrypted {
        (device, unfinished) = encrypt::unlock(cx, (&spec, plan), device, encrypted)?;
    }
    let staged = on_device(cx, (&spec, plan), &device, unfinished, lane);
    if staged.is_ok() {
        // Finally, remove the attribute by which the controller asks for the volume to be unstaged
        // and deleted: the controller may have set this attribute during a long mkfs.
        return Ok(device.end_claim(kernel)?);
    }
    match device.close(kernel) {
        Ok(()) => staged,
        Err(left) => {
            tracing::warn!(id = request.id.as_str(), "its mapper stays open: {left}");
            Err(match staged {
                Err(Obstacle::Failure(failure)) => failure.may_be_running().into(),
                _ => left.may_be_running().into(),
            })
        }
    }
}

/// Stages the volume on its device. `unfinished` is the permission to format the content of an
/// encrypted volume.
fn on_device<K: Kernel>(
    cx: &Context<'_, K>,
    (spec, plan): (&MountSpec<'_>, &PublishContext),
    device: &OpenDevice<K>,
    mut unfinished: Option<Unfinished>,
    lane: Lane,
) -> Result<(), Obstacle> {
    let (kernel, request) = (&cx.kernel, spec.request);
    let is_mapper = device.is_mapper();
    let under_test = DeviceUnderTest {
        fd: device.fd(),
        bytes: match is_mapper {
            true => kernel.device_bytes(device.fd())?,
            false => fit(cx, &request.id, plan, device)?,
        },
        backing: device.backing_file(),
        volume: request.id.as_str(),
        secrets: if is_mapper { &[] } else { &plan.marks },
        is_new: !is_mapper && plan.is_new_at(kernel.realtime()),
        accepts_uncleared: !is_mapper && cx.transport.accepts_uncleared(),
        progress: cx.progress(),
    };
    let mut attempt = || {
        let unfinished = unfinished.take();
        prepare(cx, spec, plan, device, (&under_test, unfinished), lane)
    };
    let mut staged = attempt();
    if matches!(staged, Err(Obstacle::Miscount)) {
        // Mount again, now without a journal to replay. First check that the kernel has released
        // the superblock: a child process that is being started may have inherited the filesystem
        // context, which keeps the superblock in use.
        device.refuse_claimed(kernel)?;
        staged = attempt();
    }
    // Add the volume and its file to the kernel's error, which names only the device.
    if let Err(Obstacle::Failure(failure)) = &mut staged
        && failure.kind == Kind::Quota
    {
        let (id, file) = (&request.id, cx.transport.named(kernel, &request.id)?);
        failure.message = format!("volume {id}: {}: {}", file.display(), failure.message);
    }
    staged
}

/// Decides which filesystem to mount, formats or repairs it if needed, and mounts it.
fn prepare<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    plan: &PublishContext,
    device: &OpenDevice<K>,
    (under_test, unfinished): (&DeviceUnderTest<'_, K::Fd>, Option<Unfinished>),
    lane: Lane,
) -> Result<(), Obstacle> {
    let judged = match unfinished {
        Some(unfinished) => Decision::format(spec, Permit::Unfinished(unfinished)),
        None => decide(cx, spec, plan, device, under_test, lane)?,
    };
    let mut mounting = spec.mounting(judged.fs, judged.panics)?;
    let fs = mounting.fs;
    // The kernel checks the mount flags here, before anything is formatted or repaired.
    let mut context = cx.phase(Phase::Configure, || configure(cx, device, &mounting))?;
    let blocks_before_replay = match judged.need {
        Need::Format(permit) => {
            let options = format_options(spec, fs, &cx.kernel, under_test)?;
            refuse_in_use(device)?;
            if !lane.may_format() {
                return Err(Obstacle::NoSlot(Lane::Format));
            }
            make(cx, under_test, (fs, options), permit)?;
            None
        }
        // NodeStageVolume must not repair a filesystem that it mounts read-only.
        Need::Check if mounting.is_reader() => judged.blocks_before_replay,
        // A mount elsewhere uses the device, or an e2fsck that a killed agent has started. This
        // e2fsck may be exiting now, with only half of its repairs on the disk.
        Need::Check if device.is_shared => return Err(device.claimed().into()),
        Need::Check if !lane.may_format() => return Err(Obstacle::NoSlot(Lane::Format)),
        Need::Check => {
            replay(cx, spec, device, &mounting)?;
            repair(cx, spec, under_test)?;
            // The journal replay and e2fsck may have changed the superblock, so read the superblock
            // again.
            let judged = decide(cx, spec, plan, device, under_test, lane)?;
            mounting = spec.mounting(judged.fs, judged.panics)?;
            context = configure(cx, device, &mounting)?;
            None
        }
        Need::Nothing => judged.blocks_before_replay,
    };
    if device.is_mapper() {
        encrypt::begin(cx, &spec.request.id, device, mounting.is_reader())?;
    }
    let context = create(cx, spec, device, &mounting, context)?;
    refuse_miscounted(cx, spec, device, blocks_before_replay)?;
    let may_have_projects = judged.may_have_projects;
    Ok(mount(
        cx,
        spec,
        device,
        (&mounting, may_have_projects),
        &context,
    )?)
}

/// Checks that the existing mount on the staging path is this volume with the requested options. If
/// the volume's disk was removed, unmounts the filesystem and returns `false`.
fn staged_before<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    plan: &PublishContext,
    staging: &Stat,
) -> Result<bool, Failure> {
    let request = spec.request;
    let path = &request.staging;
    let mounts = cx.mounts().said_by(Some(plan));
    let (dev, verdict) = mounts.verdict(&request.id, path, staging, Intent::Use)?;
    let device = match verdict {
        Verdict::Ours(device) => device,
        Verdict::Removed if cx.is_disk_gone(&request.id, dev)? => {
            let (id, staging_path) = (request.id.clone(), path.clone());
            let unstage = Unstage {
                id,
                staging: staging_path,
            };
            unmount_removed(cx, &unstage, staging)?;
            cx.close_removed(&unstage.id, dev);
            cx.forget(&unstage.id);
            return Ok(false);
        }
        Verdict::Stale(_) | Verdict::Removed => {
            let why = cx.transport.replaced(&request.id, path);
            return Err(Failure::incompatible(why));
        }
        Verdict::Unbound | Verdict::Foreign => {
            return Err(something_else("staging_target_path", &request.id, path));
        }
    };
    encrypt::refuse_other(request, &device)?;
    let facts = cx.mounts().facts(path)?;
    let mounted = FsType::parse(&facts.fs_type);
    let fs = match (mounted, spec.fs) {
        (Some(mounted), None) => mounted,
        (Some(mounted), Some(asked)) if mounted == asked => mounted,
        _ => {
            return Err(Failure::incompatible(format!(
                "volume {}: staged at {} as {}, not as {}; unstage it first",
                request.id,
                path.display(),
                facts.fs_type,
                spec.fs.map_or("the default", FsType::name)
            )));
        }
    };
    let options = spec.options(fs)?;
    let attrs = options.attrs;
    if !facts.attrs.is_like(attrs) || !has_same_label(&cx.kernel, path, &options, facts.label)? {
        return Err(Failure::incompatible(format!(
            "volume {}: staged at {} with different mount flags; unstage it first",
            request.id,
            path.display()
        )));
    }
    if !attrs.contains(MountAttrs::READ_ONLY) {
        device.bytes(&cx.kernel, 0)?;
        let root = cx.kernel.open(path, Open::Directory)?;
        grow_to_device(cx, &request.id, &root, &device, fs);
    }
    if cx.index.proven(path, staging, &request.id).is_none() {
        cx.index.note(path, staging, dev, &request.id);
        // Another process may have mounted the filesystem with project quotas.
        cx.index.note_projects(dev, true);
    }
    cx.index.note_file(dev, device.backing_inode());
    Ok(true)
}

/// Whether the SELinux label of a mount is the requested label; without a requested label, whether
/// the mount has no label.
fn has_same_label<K: Kernel>(
    kernel: &K,
    path: &Path,
    options: &MountOptions,
    shown: Option<String>,
) -> Result<bool, Failure> {
    let label = match shown {
        // The mount has no label, or statmount(2) does not report labels (before Linux 6.13).
        None if options.label().is_some() => kernel.mount_label(path)?,
        shown => shown,
    };
    Ok(match (options.label(), &label) {
        (Some(asked), Some(label)) => is_same_label(asked, label),
        (asked, label) => asked.is_none() && label.is_none(),
    })
}

/// Returns the filesystem to mount, and the step that it needs before the mount.
///
/// # Errors
/// Returns [`Obstacle::NoSlot`] if the whole device must be read, which may take as long as mkfs.
fn decide<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    plan: &PublishContext,
    device: &OpenDevice<K>,
    under_test: &DeviceUnderTest<'_, K::Fd>,
    lane: Lane,
) -> Result<Decision, Obstacle> {
    if device.is_mapper() {
        let found = encrypt::inside(cx, spec, under_test)?;
        return Ok(judge(cx, spec, plan, under_test, found)?);
    }
    let decided = cx.phase(Phase::Probe, || {
        let found = match lane.may_format() {
            true => Some(examine(&cx.kernel, under_test)),
            false => examine_ends(&cx.kernel, under_test),
        };
        found.map(|found| match found {
            // Do not remove the format mark from a disk that another process uses: another mount
            // may be writing to the disk.
            Probed::Unsettled(_) if device.is_shared && under_test.backing.is_none() => {
                Err(device.claimed())
            }
            found => judge(cx, spec, plan, under_test, found),
        })
    });
    match decided {
        // Another process uses the device. If this is a running mkfs, the probe has read an
        // incomplete filesystem.
        Some(Err(_)) if device.is_shared => Err(device.claimed().into()),
        Some(decided) => Ok(decided?),
        None => {
            refuse_in_use(device)?;
            Err(Obstacle::NoSlot(Lane::Format))
        }
    }
}

/// Mounts the filesystem, checks that the right device was mounted, grows the filesystem, and
/// finally attaches the mount to the staging path.
fn mount<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &OpenDevice<K>,
    (mounting, may_have_projects): (&Mounting, bool),
    superblock: &K::Fd,
) -> Result<(), Failure> {
    let kernel = &cx.kernel;
    let (fs, attrs) = (mounting.fs, mounting.options.attrs);
    let mounted = cx.phase(Phase::Mount, || kernel.fsmount(superblock, attrs))?;
    let held = device.dev(kernel)?;
    let root_of_mount = Stat {
        mount_root: true,
        ..kernel.stat(&mounted)?
    };
    let found = match fs {
        FsType::Ext4 | FsType::Xfs => Some(root_of_mount.dev),
        FsType::Btrfs => {
            let found = cx.phase(Phase::Check, || {
                kernel.btrfs_device(&kernel.open_root(&mounted)?)
            })?;
            match found {
                BtrfsDevice::One(dev) => Some(dev),
                BtrfsDevice::Several => None,
                BtrfsDevice::Removed => {
                    device.refuse_removed(kernel)?;
                    let what = "a removed disk was mounted instead";
                    return Err(same_id_elsewhere(spec, what));
                }
            }
        }
    };
    refuse_other_device(spec, fs, held, found)?;
    device.refuse_removed(kernel)?;
    if !mounting.is_reader() {
        let root = kernel.open_root(&mounted)?;
        grow_to_device(cx, &spec.request.id, &root, device, fs);
    }
    if cx.may_lose_devices() {
        cx.name(&spec.request.id, device.bottom())?;
    }
    let staging = &spec.request.staging;
    cx.place(&mounted, staging)?;
    // Reset this fact first: the index may still contain the fact about an earlier device with the
    // same number.
    cx.index.note_projects(held, true);
    cx.index
        .note(staging, &root_of_mount, held, &spec.request.id);
    cx.index.note_file(held, device.backing_inode());
    cx.index.note_projects(held, may_have_projects);
    Ok(())
}

/// Checks that the mounted device is the device that the agent has opened. Call it before the mount
/// is attached to a path.
fn refuse_other_device(
    spec: &MountSpec<'_>,
    fs: FsType,
    held: Dev,
    found: Option<Dev>,
) -> Result<(), Failure> {
    let why = |found| format!("{found} was mounted instead of {held}");
    match found {
        Some(found) if found == held => Ok(()),
        Some(found) if fs == FsType::Btrfs => Err(same_id_elsewhere(spec, &why(found))),
        Some(found) => Err(Failure::bug(why(found))),
        None => Err(Failure::precondition(format!(
            "volume {}: contains one of several devices of a btrfs filesystem; a volume is one \
             device",
            spec.request.id
        ))),
    }
}

#[cfg(test)]
mod tests {
    use belay_server::request::{
        AbsPath, Access, AccessMode, Capability, Context, Secrets, VolumeId,
    };

    use super::*;

    #[test]
    fn only_the_device_that_is_held_may_have_been_mounted() {
        let request = Stage {
            id: VolumeId::new("vol").unwrap(),
            publish_context: Context::default(),
            staging: AbsPath::new("path", "/staging".to_owned()).unwrap(),
            capability: Capability {
                access: Access::Block,
                mode: AccessMode::SingleNodeWriter,
            },
            secrets: Secrets::default(),
            volume_context: Context::default(),
        };
        let spec = MountSpec {
            request: &request,
            fs: None,
            flags: &MountFlags::default(),
            read_only: false,
        };
        let [held, other] = [1, 2].map(|minor| Dev { major: 7, minor });
        for fs in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
            let refused = |found| refuse_other_device(&spec, fs, held, found).err();
            assert_eq!(refused(Some(held)), None);
            let failure = refused(Some(other)).unwrap();
            let (kind, words) = match fs {
                FsType::Btrfs => (Kind::Precondition, "a btrfs with the same id"),
                FsType::Ext4 | FsType::Xfs => (Kind::Bug, "7:2 was mounted instead of 7:1"),
            };
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.message.contains(words), "{failure}");
            let several = refused(None).unwrap();
            assert_eq!(several.kind, Kind::Precondition, "{several}");
        }
    }
}
