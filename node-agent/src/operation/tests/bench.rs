//! The test environment: a machine with its kernel, volumes, and the calls of a kubelet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use belay_contract::drivers::local::{self, IS_NEW, NEW};
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::{
    AbsPath, Access, AccessMode, Capability, CapacityRange, Context, MountFlags, NodeExpand,
    NodeVolumeHealth, Publish, Secrets, Stage, Stats, Unpublish, Unstage, VolumeId,
};

use crate::device::{LoopDir, Transport};
use crate::kernel::Kernel;
use crate::mounts::MountIndex;
use crate::operation::{self, KubeletDir, Node, Obstacle, Thread, VolumeStats, VolumeUsage};
use crate::work::{Lane, Operation, Progress};

/// The name of the driver in tests with only one driver.
pub(crate) const DRIVER: &str = "local.csi.belay.dev";

/// The volume context of an encrypted volume, and the passphrase in its Secret.
pub(super) const ENCRYPTED: &[(&str, &str)] = &[("encrypted", "true")];
pub(super) const PASSPHRASE: &str = "correct horse battery staple";
/// The passphrase that replaces the other one.
pub(super) const NEXT_PASSPHRASE: &str = "another passphrase of the tests";

pub(crate) const MIB: u64 = 1 << 20;
/// The size of a volume in bytes, which is large enough for every filesystem type.
pub(crate) const BYTES: u64 = 512 * MIB;
pub(crate) const GROWN_BYTES: u64 = 1024 * MIB;

/// A timeout that is longer than udevd ever keeps a device open.
const WATCHDOG: Duration = Duration::from_secs(20);

/// Runs an operation without access to its progress for other threads.
pub(super) fn run<K: Kernel, T>(
    node: &Node<K>,
    operation: Operation,
    work: impl FnOnce(&operation::Context<'_, K>) -> T,
) -> T {
    operation::run(node, &Progress::default(), operation, work)
}

/// Runs NodeStageVolume up to the step that needs a slot for mkfs or e2fsck.
pub(super) fn stage_once<K: Kernel>(node: &Node<K>, request: &Stage) -> Result<(), Obstacle> {
    run(node, Operation::Stage, |cx| {
        operation::stage(cx, request, Lane::Change)
    })
}

/// Waits until the condition is true. On the real kernel, a device is detached only after udevd has
/// closed the device.
#[track_caller]
pub(super) fn until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < WATCHDOG, "still not so");
        std::thread::yield_now();
    }
}

/// A test world: the machine on which a test runs, with its kernel and files.
pub(crate) trait World {
    type Kernel: Kernel;

    /// Returns the kernel for a new process.
    fn kernel(&self) -> Self::Kernel;
    /// Returns the directory that contains all paths of this world.
    fn base(&self) -> &Path;
    /// Creates a sparse file, or enlarges it.
    fn make_file(&self, path: &Path, bytes: u64);
    /// Creates a directory and its parents.
    fn make_dir(&self, path: &Path);
    /// Renames a file.
    fn move_file(&self, from: &Path, to: &Path);
    /// Removes a file. The data remains accessible through a device that is bound to the file.
    fn remove_file(&self, path: &Path);
    /// Writes to a file as a process other than the agent.
    fn write_file(&self, path: &Path, at: u64, bytes: &[u8]);
    /// Returns the mounts, bound devices and files of this world that should not exist at the end
    /// of a test.
    fn left(&self) -> Vec<String>;

    /// Whether this process may grow a mounted ext4.
    fn grows_ext4(&self) -> bool {
        true
    }

    /// Returns the directory of the volumes' files.
    fn volumes(&self) -> PathBuf {
        self.base().join("volumes")
    }

    /// Returns the maximum number of attempts to free a device. On a real machine, a process that
    /// lists all devices has each device open for a moment, and meanwhile the agent does not free
    /// that device.
    fn tries_max(&self) -> usize {
        1
    }

    /// Starts an agent, and frees the devices that a killed agent left bound. Any previous agent
    /// with the same directory must have exited.
    fn start_swept(&self) -> Node<Self::Kernel> {
        let node = self.start();
        sweep(&node);
        node
    }

    /// Starts an agent, even if another agent is running. Does not free any device.
    fn start(&self) -> Node<Self::Kernel> {
        self.start_driver(DRIVER, &self.volumes())
    }

    /// Starts an agent like [`World::start`], for the driver `driver` with its volumes in the
    /// directory `volumes`.
    fn start_driver(&self, driver: &str, volumes: &Path) -> Node<Self::Kernel> {
        let kernel = self.kernel();
        let loop_dir = LoopDir::open(&kernel, &driver.parse().unwrap(), volumes).unwrap();
        start_with(kernel, Transport::Loops(loop_dir.into()), self.base())
    }

    /// Returns a new blank volume, and creates the directories that a kubelet creates for it.
    fn volume(&self, id: &str, form: Form) -> Volume {
        let volume = Volume {
            id: id.to_owned(),
            folder: id.to_owned(),
            form,
            base: self.base().to_owned(),
            mode: AccessMode::SingleNodeMultiWriter,
            content: "new",
            serial: None,
            mark: None,
            attached_at: None,
            options: &[],
            passphrase: None,
            previous: None,
            flags: &[],
            staged_at: None,
        };
        self.make_file(&volume.file(), BYTES);
        self.mark_new(&volume.file());
        self.make_dir(&volume.staging());
        self.make_dir(volume.target(1).parent().unwrap());
        self.attached(volume)
    }

    /// Sets an extended attribute of a file as a process other than the agent.
    fn set_attribute(&self, path: &Path, name: &str, value: &[u8]);

    /// Sets the attributes that the controller sets on a new file.
    fn mark_new(&self, path: &Path) {
        self.set_attribute(path, NEW, IS_NEW);
        self.set_attribute(path, local::BYTES, BYTES.to_string().as_bytes());
    }

    /// Returns the volume with the publish context that its controller would return.
    fn attached(&self, volume: Volume) -> Volume {
        volume
    }
}

/// Starts an agent for a driver with this transport.
pub(crate) fn start_with<K: Kernel>(kernel: K, transport: Transport<K>, base: &Path) -> Node<K> {
    let index = MountIndex::scan(&kernel, &transport).unwrap();
    let kubelet_dir = KubeletDir::open(&kernel, base).unwrap();
    let kubelet_dir = Some(Arc::new(kubelet_dir.assumed_seen()));
    let node = Node::new(kernel, transport, index, kubelet_dir);
    node.read_names();
    node
}

/// Handles a uevent about the disks.
///
/// # Errors
/// Returns an error if the disks cannot be read.
pub(crate) fn hear<K: Kernel>(node: &Node<K>) -> Result<(), Failure> {
    if let Some(disks) = node.transport.disks() {
        disks.forgive();
        disks.rescan(&node.kernel)?;
        for disk in disks.take_unasked() {
            disks.ask(&node.kernel, &disk);
        }
    }
    Ok(())
}

/// Frees the devices that a killed agent left bound, as the agent does after startup. Ignores
/// errors.
pub(super) fn sweep<K: Kernel>(node: &Node<K>) {
    for disk in 0..node.folders().map_or(0, |dirs| dirs.paths().count()) {
        if node.try_lock_directory(disk).is_ok_and(|alone| alone) {
            for (number, volume) in node.remnants(disk).into_iter().flatten() {
                drop(node.free_remnant(disk, number, &volume));
            }
        }
    }
}

/// The filesystem type with which a volume is used, or its use as a raw device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Ext4,
    Xfs,
    Btrfs,
    Block,
}

impl Form {
    /// Returns the filesystem type; `None` for a raw device.
    pub(crate) fn fs_type(self) -> Option<&'static str> {
        match self {
            Form::Ext4 => Some("ext4"),
            Form::Xfs => Some("xfs"),
            Form::Btrfs => Some("btrfs"),
            Form::Block => None,
        }
    }
}

/// A volume, and the parameters of the requests for it.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    /// The name of the directories that a kubelet creates for the volume, usually the volume's ID.
    pub(crate) folder: String,
    pub(crate) form: Form,
    pub(crate) base: PathBuf,
    pub(crate) mode: AccessMode,
    pub(crate) content: &'static str,
    /// The serial number of the volume's disk; `None` if the volume is a file.
    pub(crate) serial: Option<String>,
    /// The byte that fills the secret of the volume's format mark; `None` if there is no secret.
    pub(crate) mark: Option<u8>,
    /// The time at which the volume's disk was attached, in seconds since 1970; `None` if unknown.
    pub(crate) attached_at: Option<u64>,
    /// The volume context of the volume.
    pub(crate) options: &'static [(&'static str, &'static str)],
    /// The passphrase in the secrets of NodeStageVolume.
    pub(crate) passphrase: Option<&'static str>,
    pub(crate) previous: Option<&'static str>,
    /// The mount flags of the volume.
    pub(crate) flags: &'static [&'static str],
    /// The staging path of the volume; `None` for the usual path of the tests.
    pub(crate) staged_at: Option<PathBuf>,
}

/// A call of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Stage,
    Unstage,
    Publish(u8),
    Unpublish(u8),
    Expand,
    Stats,
    Health,
}

impl Volume {
    pub(crate) fn file(&self) -> PathBuf {
        self.base.join("volumes").join(&self.id)
    }

    pub(crate) fn staging(&self) -> PathBuf {
        let usual = || self.base.join("staging").join(&self.folder);
        self.staged_at.clone().unwrap_or_else(usual)
    }

    /// Returns the path on which the volume is mounted while it is staged.
    pub(crate) fn staging_mount(&self) -> PathBuf {
        match self.form {
            Form::Block => self.staging().join("device"),
            _ => self.staging(),
        }
    }

    pub(crate) fn target(&self, number: u8) -> PathBuf {
        let name = format!("{}-{number}", self.folder);
        self.base.join("pods").join(name)
    }

    /// Makes the call with the same functions as the gRPC service.
    pub(crate) fn call<K: Kernel>(&self, node: &Node<K>, verb: Verb) -> Result<(), Failure> {
        match verb {
            Verb::Stage => self.stage(node),
            Verb::Publish(target) => self.publish(node, target),
            Verb::Unstage => {
                let request = Unstage {
                    id: self.volume_id(),
                    staging: path(&self.staging()),
                };
                run(node, Operation::Unstage, |cx| {
                    operation::unstage(cx, &request)
                })
            }
            Verb::Unpublish(target) => {
                let request = Unpublish {
                    id: self.volume_id(),
                    target: path(&self.target(target)),
                };
                run(node, Operation::Unpublish, |cx| {
                    operation::unpublish(cx, &request, &AtomicBool::default())
                })
            }
            Verb::Expand => self.expand(node).map(drop),
            Verb::Stats => self.condition(node).map(drop),
            Verb::Health => self.health(node).map(drop),
        }
    }

    /// Returns a NodeStageVolume request without a filesystem type.
    pub(super) fn untyped(&self) -> Stage {
        let mut request = self.stage_request();
        if let Access::Mount { fs_type, .. } = &mut request.capability.access {
            fs_type.clear();
        }
        request
    }

    pub(super) fn stage_request(&self) -> Stage {
        Stage {
            id: self.volume_id(),
            publish_context: self.context(),
            staging: path(&self.staging()),
            capability: self.capability(),
            secrets: self.secrets(),
            volume_context: self.volume_context(),
        }
    }

    /// Whether NodeStageVolume needs a slot for mkfs or e2fsck.
    pub(super) fn wants_slot<K: Kernel>(&self, node: &Node<K>) -> bool {
        stage_once(node, &self.stage_request()) == Err(Obstacle::NoSlot(Lane::Format))
    }

    /// Runs NodeStageVolume with a slot for mkfs or e2fsck.
    pub(super) fn stage_in_slot<K: Kernel>(&self, node: &Node<K>) -> Result<(), Failure> {
        let request = self.stage_request();
        let staged = run(node, Operation::Stage, |cx| {
            operation::stage(cx, &request, Lane::Format)
        });
        staged.map_err(Obstacle::into_failure)
    }

    fn stage<K: Kernel>(&self, node: &Node<K>) -> Result<(), Failure> {
        let request = self.stage_request();
        let mut lane = Lane::Change;
        let mut missing = None;
        loop {
            match run(node, Operation::Stage, |cx| {
                operation::stage(cx, &request, lane)
            }) {
                Ok(()) => return Ok(()),
                Err(Obstacle::NoSlot(needed)) => {
                    assert_eq!(lane, Lane::Change);
                    lane = needed;
                }
                // Simulate one uevent while NodeStageVolume waits for the disk.
                Err(Obstacle::NoDisk(_)) if missing.is_none() => missing = Some(hear(node)?),
                Err(obstacle) => return Err(obstacle.into_failure()),
            }
        }
    }

    fn publish<K: Kernel>(&self, node: &Node<K>, target: u8) -> Result<(), Failure> {
        let target = self.target(target);
        let mut published = self.publish_at(node, &target, Thread::Only)?;
        if published.is_none() {
            published = self.publish_at(node, &target, Thread::Pool)?;
        }
        assert_eq!(published, Some(()));
        Ok(())
    }

    pub(super) fn publish_request(&self, target: &Path) -> Publish {
        Publish {
            id: self.volume_id(),
            publish_context: self.context(),
            staging: Some(path(&self.staging())),
            target: path(target),
            capability: self.capability(),
            read_only: false,
            volume_context: Context::default(),
        }
    }

    pub(crate) fn publish_at<K: Kernel>(
        &self,
        node: &Node<K>,
        target: &Path,
        thread: Thread,
    ) -> Result<Option<()>, Failure> {
        self.publish_from(node, &self.staging(), target, thread)
    }

    pub(super) fn publish_from<K: Kernel>(
        &self,
        node: &Node<K>,
        staging: &Path,
        target: &Path,
        thread: Thread,
    ) -> Result<Option<()>, Failure> {
        let request = Publish {
            staging: Some(path(staging)),
            ..self.publish_request(target)
        };
        run(node, Operation::Publish, |cx| {
            operation::publish(cx, &request, thread)
        })
    }

    pub(crate) fn expand<K: Kernel>(&self, node: &Node<K>) -> Result<u64, Failure> {
        self.expand_at(node, &self.staging(), &self.staging())
    }

    pub(super) fn expand_at<K: Kernel>(
        &self,
        node: &Node<K>,
        path: &Path,
        staging: &Path,
    ) -> Result<u64, Failure> {
        self.expand_by(node, path, staging, None)
    }

    /// Expands the volume to this size in bytes, like [`Volume::expand_at`].
    pub(super) fn expand_to<K: Kernel>(
        &self,
        node: &Node<K>,
        path: &Path,
        staging: &Path,
        bytes: u64,
    ) -> Result<u64, Failure> {
        let range = CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        };
        self.expand_by(node, path, staging, Some(range))
    }

    fn expand_by<K: Kernel>(
        &self,
        node: &Node<K>,
        path: &Path,
        staging: &Path,
        range: Option<CapacityRange>,
    ) -> Result<u64, Failure> {
        let request = NodeExpand {
            id: self.volume_id(),
            volume_path: path.to_owned(),
            range,
            staging: Some(staging.to_owned()),
            capability: None,
        };
        run(node, Operation::Expand, |cx| {
            operation::expand(cx, &request)
        })
    }

    /// Returns the usage of the volume at its first target. Panics if the volume is unhealthy.
    pub(crate) fn stats<K: Kernel>(&self, node: &Node<K>) -> Result<VolumeUsage, Failure> {
        let stats = self.condition(node)?;
        assert_eq!(stats.conditions, Conditions::default());
        Ok(stats.usage)
    }

    /// Returns the statistics of the volume at its first target, even if the volume is unhealthy.
    pub(crate) fn condition<K: Kernel>(&self, node: &Node<K>) -> Result<VolumeStats, Failure> {
        self.stats_of(node, &self.target(1), &self.staging())
    }

    pub(super) fn stats_of<K: Kernel>(
        &self,
        node: &Node<K>,
        path: &Path,
        staging: &Path,
    ) -> Result<VolumeStats, Failure> {
        let request = Stats {
            id: self.volume_id(),
            volume_path: path.to_owned(),
            staging: Some(staging.to_owned()),
        };
        let on = |thread| {
            run(node, Operation::Stats, |cx| {
                operation::stats(cx, &request, thread)
            })
        };
        for thread in [Thread::Only, Thread::Pool] {
            if let Some(stats) = on(thread)? {
                return Ok(stats);
            }
        }
        panic!("statistics want the pool on the pool");
    }

    /// Returns the health reasons of the volume at its first target and its staging path.
    pub(super) fn health<K: Kernel>(&self, node: &Node<K>) -> Result<Conditions, Failure> {
        let request = NodeVolumeHealth {
            id: self.volume_id(),
            staging: Some(self.staging()),
            target: Some(self.target(1)),
        };
        run(node, Operation::Health, |cx| {
            operation::health(cx, &request)
        })
    }

    pub(crate) fn volume_id(&self) -> VolumeId {
        VolumeId::new(self.id.as_str()).unwrap()
    }

    fn context(&self) -> Context {
        Context::new("publish_context", self.entries()).unwrap()
    }

    fn volume_context(&self) -> Context {
        let entries = self.options.iter();
        let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Context::new("volume_context", entries).unwrap()
    }

    /// Returns the volume with the parameters and the passphrase of an encrypted volume.
    pub(super) fn encrypted(self) -> Volume {
        Volume {
            options: ENCRYPTED,
            passphrase: Some(PASSPHRASE),
            ..self
        }
    }

    /// Makes the current passphrase the previous one.
    pub(super) fn replace_passphrase(&mut self) {
        self.previous = self.passphrase.replace(NEXT_PASSPHRASE);
    }

    fn secrets(&self) -> Secrets {
        let entries = [
            ("encryptionPassphrase", self.passphrase),
            ("encryptionPassphrasePrevious", self.previous),
        ];
        let entries = entries.into_iter();
        let entries = entries.filter_map(|(key, text)| Some((key.to_owned(), text?.to_owned())));
        Secrets::new(entries.collect()).unwrap()
    }

    /// Returns the entries of the volume's publish context.
    pub(crate) fn entries(&self) -> Vec<(String, String)> {
        let Some(serial) = &self.serial else {
            return Vec::new();
        };
        let bytes = BYTES.to_string();
        let entries = [
            ("transport", "disk"),
            ("serial", serial),
            ("bytes", &bytes),
            ("content", self.content),
        ];
        let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut entries = Vec::from(entries);
        if let Some(seconds) = self.attached_at {
            entries.push(("attached_at".to_owned(), seconds.to_string()));
        }
        if let Some(byte) = self.mark {
            entries.push(("mark".to_owned(), format!("{byte:02x}").repeat(32)));
        }
        entries
    }

    fn capability(&self) -> Capability {
        let Some(fs_type) = self.form.fs_type() else {
            return Capability {
                access: Access::Block,
                mode: self.mode,
            };
        };
        let access = Access::Mount {
            fs_type: fs_type.to_owned(),
            flags: MountFlags::new(self.flags.iter().map(|flag| (*flag).to_owned()).collect()),
            group: String::new(),
        };
        Capability {
            access,
            mode: self.mode,
        }
    }
}

fn path(path: &Path) -> AbsPath {
    AbsPath::new("path", path.to_str().unwrap().to_owned()).unwrap()
}
