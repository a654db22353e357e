//! Staging as a filesystem.

use std::path::Path;

use belay_contract::publish_context::PublishContext;
use belay_server::call::Failure;
use belay_server::request::{MountFlags, Stage};

use super::super::context::Context;
use super::super::plan::{asked_fs, fit, is_read_only};
use super::super::{Formatting, Node, Staged};
use super::attach;
use super::check::{not_replayed, repair};
use super::format::{format_options, make};
use super::grow::grow_to_device;
use super::permit::{Need, judge};
use super::tally::Refusal;
use crate::device::{Held, Intent, Purpose, Sought, Verdict};
use crate::filesystem::{
    DeviceUnderTest, Found, FsType, LABELS, MountOptions, examine, examine_ends, is_same_label,
    parse_flags,
};
use crate::kernel::{BtrfsDevice, Cause, Dev, Error, Kernel, MountAttrs, Open, Stat};
use crate::mounts::{block_path, something_else};
use crate::work::Phase;

/// The requested mount.
pub(super) struct MountSpec<'a> {
    pub(super) request: &'a Stage,
    pub(super) fs: Option<FsType>,
    flags: &'a MountFlags,
    pub(super) read_only: bool,
}

impl MountSpec<'_> {
    /// The mount options for a filesystem of this type.
    fn options(&self, fs: FsType) -> Result<MountOptions, Failure> {
        let mut options = parse_flags(self.flags.as_slice(), fs)?;
        if self.read_only {
            options.attrs = options.attrs.with(MountAttrs::READ_ONLY);
        }
        Ok(options)
    }

    /// The volume is mounted read-only.
    fn is_reader(&self, fs: FsType) -> Result<bool, Failure> {
        Ok(self.options(fs)?.attrs.contains(MountAttrs::READ_ONLY))
    }
}

pub(super) fn stage<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    flags: &MountFlags,
    plan: &PublishContext,
    staging: &Stat,
    formatting: Formatting,
) -> Result<Staged, Failure> {
    let spec = MountSpec {
        request,
        fs: asked_fs(&request.capability.access)?,
        flags,
        read_only: is_read_only(plan, &request.capability),
    };
    // Checked before any change; the type matters only for its additional options.
    spec.options(spec.fs.unwrap_or(FsType::Ext4))?;
    let kernel = &cx.kernel;
    let raw = kernel.look(&block_path(&request.staging))?;
    if raw.is_some_and(|stat| stat.mount_root) {
        return Err(Failure::incompatible(format!(
            "volume {}: staged at {} as a raw block device; unstage it first",
            request.id,
            request.staging.display()
        )));
    }
    if staging.mount_root {
        return staged_before(cx, &spec, staging);
    }
    let purpose = Purpose::Filesystem;
    let storage = match cx.transport.find(kernel, &request.id, plan, purpose)? {
        Sought::Found(storage) => storage,
        Sought::Missing(missing) => return Ok(Staged::WantsDisk(missing)),
    };
    let device = attach(cx, &request.id, storage, purpose)?;
    let under_test = DeviceUnderTest {
        fd: device.fd(),
        bytes: fit(plan, kernel, &device)?,
        backing: device.backing_file(),
        volume: request.id.as_str(),
        secrets: &plan.marks,
        is_new: plan.is_new_at(kernel.realtime()),
        accepts_uncleared: cx.transport.accepts_uncleared(),
        progress: cx.progress(),
    };
    let Some((fs, need)) = decide(cx, &spec, plan, &device, &under_test, formatting)? else {
        return Ok(Staged::WantsFormat);
    };
    // The kernel checks the flags here, before anything is formatted or repaired.
    let context = cx.phase(Phase::Configure, || configure(cx, &spec, &device, fs))?;
    match need {
        Need::Format(permit) => {
            let options = format_options(&spec, fs, kernel, &under_test)?;
            refuse_in_use(&device)?;
            if formatting == Formatting::Ask {
                return Ok(Staged::WantsFormat);
            }
            make(cx, &under_test, (fs, options), permit)?;
        }
        // Who may only read must not change anything.
        Need::Check if spec.is_reader(fs)? => {}
        // By a mount elsewhere, or by an e2fsck that has outlived its agent: it may be ending now,
        // with half of its repairs on the disk.
        Need::Check if device.is_shared => return Err(device.claimed()),
        Need::Check if formatting == Formatting::Ask => return Ok(Staged::WantsFormat),
        Need::Check => {
            cx.progress().refuse_given_up()?;
            let _only = cx.beside.check_alone()?;
            replay(cx, &spec, &device, fs)?;
            repair(cx, &spec, &under_test)?;
        }
        Need::Nothing => {}
    }
    mount(cx, &spec, &device, fs, context)
}

/// Has the kernel replay the journal, by a superblock that is not mounted.
fn replay<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &Held<K>,
    fs: FsType,
) -> Result<(), Failure> {
    let context = configure(cx, spec, device, fs)?;
    cx.kernel.fsconfig_set(&context, "ro", None)?;
    let created = create(cx, spec, device, fs, context);
    created
        .map(drop)
        .map_err(|failure| not_replayed(cx, spec, failure))
}

/// Something is mounted on the staging path: it must be this volume, in this way.
fn staged_before<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    staging: &Stat,
) -> Result<Staged, Failure> {
    let request = spec.request;
    let path = &request.staging;
    let (dev, verdict) = cx
        .mounts()
        .verdict(&request.id, path, staging, Intent::Use)?;
    let device = match verdict {
        Verdict::Ours(device) => device,
        Verdict::Stale(_) | Verdict::Removed => {
            let why = cx.transport.replaced(&request.id, path);
            return Err(Failure::incompatible(why));
        }
        Verdict::Unbound | Verdict::Foreign => {
            return Err(something_else("staging_target_path", &request.id, path));
        }
    };
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
    cx.index.note(path, staging, dev, &request.id);
    cx.index.note_file(dev, device.backing_inode());
    Ok(Staged::Done)
}

/// Whether a mount has the requested SELinux label.
fn has_same_label<K: Kernel>(
    kernel: &K,
    path: &Path,
    options: &MountOptions,
    shown: Option<String>,
) -> Result<bool, Failure> {
    let label = match shown {
        // Statmount before Linux 6.13, or no label.
        None if options.label().is_some() => kernel.mount_label(path)?,
        shown => shown,
    };
    Ok(match (options.label(), &label) {
        (Some(asked), Some(label)) => is_same_label(asked, label),
        (asked, label) => asked.is_none() && label.is_none(),
    })
}

/// The filesystem to mount, and what it needs before; `None` if that requires
/// reading the whole device, which may take as long as mkfs and must run in its slot.
fn decide<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    plan: &PublishContext,
    device: &Held<K>,
    under_test: &DeviceUnderTest<'_, K::Fd>,
    formatting: Formatting,
) -> Result<Option<(FsType, Need)>, Failure> {
    let decided = cx.phase(Phase::Probe, || {
        let found = match formatting {
            Formatting::Ask => examine_ends(&cx.kernel, under_test),
            Formatting::Allowed => Some(examine(&cx.kernel, under_test)),
        };
        found.map(|found| match found {
            // Its mark cannot be erased: another mount may be writing there.
            Found::Unsettled(_) if device.is_shared && under_test.backing.is_none() => {
                Err(device.claimed())
            }
            found => judge(cx, spec, plan, under_test, found),
        })
    });
    match decided {
        // A filesystem that mkfs is still making can look like anything.
        Some(Err(_)) if device.is_shared => Err(device.claimed()),
        Some(decided) => decided.map(Some),
        None => refuse_in_use(device).map(|()| None),
    }
}

/// Refuses to format a device that is mounted or opened exclusively.
fn refuse_in_use<K: Kernel>(device: &Held<K>) -> Result<(), Failure> {
    if device.is_shared {
        Refusal::InUse.count();
        return Err(device.claimed());
    }
    Ok(())
}

/// The configured filesystem; nothing is read from the device yet.
fn configure<K: Kernel>(
    node: &Node<K>,
    spec: &MountSpec<'_>,
    device: &Held<K>,
    fs: FsType,
) -> Result<K::Fd, Failure> {
    let kernel = &node.kernel;
    let options = spec.options(fs)?;
    let context = kernel.fsopen(fs.name())?;
    kernel.fsconfig_set(&context, "source", device.path().to_str())?;
    for (key, value) in &options.superblock {
        kernel
            .fsconfig_set(&context, key, value.as_deref())
            .map_err(|error| refused_flag(key, &error))?;
    }
    if options.attrs.contains(MountAttrs::READ_ONLY) {
        kernel.fsconfig_set(&context, "ro", None)?;
    }
    Ok(context)
}

/// A flag that the kernel refuses.
fn refused_flag(key: &str, error: &Error) -> Failure {
    const FIELD: &str = "volume_capability.mount.mount_flags";
    match LABELS.contains(&key) {
        true => Failure::invalid(
            FIELD,
            format!(
                "{error}; a label needs a kernel with SELinux enabled, and must be valid in its \
                 policy: if this node has no SELinux, remove the flag, or set seLinuxMount of the \
                 CSIDriver object to false"
            ),
        ),
        false => Failure::invalid(FIELD, error),
    }
}

/// Mounts, checks that the right device was mounted, grows, and makes the mount visible last.
fn mount<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &Held<K>,
    fs: FsType,
    context: K::Fd,
) -> Result<Staged, Failure> {
    let kernel = &cx.kernel;
    let attrs = spec.options(fs)?.attrs;
    let context = create(cx, spec, device, fs, context)?;
    let mounted = cx.phase(Phase::Mount, || kernel.fsmount(&context, attrs))?;
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
    if !attrs.contains(MountAttrs::READ_ONLY) {
        let root = kernel.open_root(&mounted)?;
        grow_to_device(cx, &spec.request.id, &root, device, fs);
    }
    let staging = &spec.request.staging;
    cx.place(&mounted, staging)?;
    cx.index
        .note(staging, &root_of_mount, held, &spec.request.id);
    cx.index.note_file(held, device.backing_inode());
    Ok(Staged::Done)
}

/// Creates the superblock, in this context or in another one.
fn create<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    device: &Held<K>,
    fs: FsType,
    context: K::Fd,
) -> Result<K::Fd, Failure> {
    let attempt = |context: K::Fd| {
        // A mount that leaked into another namespace still has the superblock, and shares it.
        let create = || cx.kernel.fsconfig_create(&context, device.is_shared);
        cx.phase(Phase::Mount, create).map(|()| context)
    };
    let has_same_id = |error: &Error| fs == FsType::Btrfs && error.cause() == Cause::Exists;
    let created = match attempt(context) {
        // Since 6.7 the kernel can mount a clone next to its original, but may mistake it for
        // another btrfs whose mount on the same device number was refused. The first attempt has
        // cleared that entry.
        Err(error) if has_same_id(&error) => attempt(configure(cx, spec, device, fs)?),
        created => created,
    };
    created.map_err(|error| match error.cause() {
        Cause::Busy => device.claimed(),
        _ if has_same_id(&error) => same_id_elsewhere(spec, &error.to_string()),
        _ => error.into(),
    })
}

/// The mounted device must be the held one; checked before the mount is visible.
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

/// Before Linux 6.7 btrfs confuses a clone with its original: it refuses the mount, or mounts the
/// other device.
fn same_id_elsewhere(spec: &MountSpec<'_>, what: &str) -> Failure {
    Failure::precondition(format!(
        "volume {}: a btrfs with the same id, its clone or its original, is mounted on this node, \
         and the kernel cannot mount both; use another node, or Linux 6.7 or later ({what})",
        spec.request.id
    ))
}
