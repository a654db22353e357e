//! The environment of every test: a machine, volumes, and the calls of a kubelet.

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

/// The driver of a world with only one.
pub(crate) const DRIVER: &str = "local.csi.belay.dev";

pub(crate) const MIB: u64 = 1 << 20;
/// Enough for every filesystem.
pub(crate) const BYTES: u64 = 512 * MIB;
pub(crate) const GROWN_BYTES: u64 = 1024 * MIB;

/// Much longer than udevd looks at a device.
const WATCHDOG: Duration = Duration::from_secs(20);

/// Runs an operation that no other thread sees.
pub(super) fn run<K: Kernel, T>(
    node: &Node<K>,
    operation: Operation,
    work: impl FnOnce(&operation::Context<'_, K>) -> T,
) -> T {
    operation::run(node, &Progress::default(), operation, work)
}

/// The part of a stage that needs no slot for mkfs or e2fsck.
pub(super) fn stage_once<K: Kernel>(node: &Node<K>, request: &Stage) -> Result<(), Obstacle> {
    run(node, Operation::Stage, |cx| {
        operation::stage(cx, request, Lane::Change)
    })
}

/// Waits for what the real kernel does a moment after the call, since udevd has the device open.
#[track_caller]
pub(super) fn until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < WATCHDOG, "still not so");
        std::thread::yield_now();
    }
}

/// A machine to run on.
pub(crate) trait World {
    type Kernel: Kernel;

    /// The kernel as seen by a new process.
    fn kernel(&self) -> Self::Kernel;
    /// The directory with everything of this world.
    fn base(&self) -> &Path;
    /// Makes a sparse file, or grows it.
    fn make_file(&self, path: &Path, bytes: u64);
    /// Makes a directory with its parents.
    fn make_dir(&self, path: &Path);
    /// Renames a file.
    fn move_file(&self, from: &Path, to: &Path);
    /// Removes a file; a device that is bound to it keeps its data.
    fn remove_file(&self, path: &Path);
    /// Writes into a file, bypassing the agent.
    fn write_file(&self, path: &Path, at: u64, bytes: &[u8]);
    /// Mounts, bindings and files of this world that should not be there.
    fn left(&self) -> Vec<String>;

    /// This process may grow a mounted ext4.
    fn grows_ext4(&self) -> bool {
        true
    }

    /// The directory of the volumes' files.
    fn volumes(&self) -> PathBuf {
        self.base().join("volumes")
    }

    /// The number of attempts to free a device: a process that lists all devices of a real machine
    /// has each open for a moment, and the agent then leaves it.
    fn tries_max(&self) -> usize {
        1
    }

    /// A started agent that has freed the devices which a killed one left bound. An agent with the
    /// same directory must have ended.
    fn start_swept(&self) -> Node<Self::Kernel> {
        let node = self.start();
        sweep(&node);
        node
    }

    /// A started agent next to another one; frees nothing.
    fn start(&self) -> Node<Self::Kernel> {
        self.start_driver(DRIVER, &self.volumes())
    }

    /// [`World::start`] for a driver with its volumes in that directory.
    fn start_driver(&self, driver: &str, volumes: &Path) -> Node<Self::Kernel> {
        let kernel = self.kernel();
        let loop_dir = LoopDir::open(&kernel, &driver.parse().unwrap(), volumes).unwrap();
        start_with(kernel, Transport::Loops(loop_dir), self.base())
    }

    /// A new blank volume, and the directories that a kubelet makes for it.
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
            flags: &[],
            staged_at: None,
        };
        self.make_file(&volume.file(), BYTES);
        self.mark_new(&volume.file());
        self.make_dir(&volume.staging());
        self.make_dir(volume.target(1).parent().unwrap());
        self.attached(volume)
    }

    /// Sets an attribute of a file, bypassing the agent.
    fn set_attribute(&self, path: &Path, name: &str, value: &[u8]);

    /// Sets the attributes that the controller sets on a new file.
    fn mark_new(&self, path: &Path) {
        self.set_attribute(path, NEW, IS_NEW);
        self.set_attribute(path, local::BYTES, BYTES.to_string().as_bytes());
    }

    /// The volume as its controller attaches it.
    fn attached(&self, volume: Volume) -> Volume {
        volume
    }
}

/// A started agent whose volumes are provided by that transport.
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
/// If the disks cannot be read.
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

/// The sweep after an agent's start; errors are left to the volumes' own calls.
pub(super) fn sweep<K: Kernel>(node: &Node<K>) {
    if node.is_alone().is_ok_and(|alone| alone) {
        for (number, volume) in node.remnants().into_iter().flatten() {
            drop(node.free_remnant(number, &volume));
        }
    }
}

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Ext4,
    Xfs,
    Btrfs,
    Block,
}

impl Form {
    /// The filesystem, if it is one.
    pub(crate) fn fs_type(self) -> Option<&'static str> {
        match self {
            Form::Ext4 => Some("ext4"),
            Form::Xfs => Some("xfs"),
            Form::Btrfs => Some("btrfs"),
            Form::Block => None,
        }
    }
}

/// A volume, and how it is requested.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    /// The name of the directories that a kubelet makes for it: the volume's name.
    pub(crate) folder: String,
    pub(crate) form: Form,
    pub(crate) base: PathBuf,
    pub(crate) mode: AccessMode,
    pub(crate) content: &'static str,
    /// The serial of its disk, if it is one.
    pub(crate) serial: Option<String>,
    /// The bytes of the secret of its format mark, if it has one.
    pub(crate) mark: Option<u8>,
    /// The time at which its disk was attached, if known, in seconds since 1970.
    pub(crate) attached_at: Option<u64>,
    /// Its volume context.
    pub(crate) options: &'static [(&'static str, &'static str)],
    /// Its mount flags.
    pub(crate) flags: &'static [&'static str],
    /// The path where it is staged, if that is not the usual one of the tests.
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

    /// The path that is mounted while the volume is staged.
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

    /// Makes the call as the service does.
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

    /// A request to stage it with whatever filesystem it has.
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
            secrets: Secrets::default(),
            volume_context: self.volume_context(),
        }
    }

    /// Whether a stage needs a slot for mkfs or e2fsck.
    pub(super) fn wants_slot<K: Kernel>(&self, node: &Node<K>) -> bool {
        stage_once(node, &self.stage_request()) == Err(Obstacle::NoSlot)
    }

    /// The part of a stage that has such a slot.
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
                Err(Obstacle::NoSlot) => {
                    assert_eq!(lane, Lane::Change);
                    lane = Lane::Format;
                }
                // While it waits, one uevent arrives.
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

    /// [`Volume::expand_at`], to that size in bytes.
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

    /// The usage at the first target; the volume must be healthy.
    pub(crate) fn stats<K: Kernel>(&self, node: &Node<K>) -> Result<VolumeUsage, Failure> {
        let stats = self.condition(node)?;
        assert_eq!(stats.conditions, Conditions::default());
        Ok(stats.usage)
    }

    /// [`Volume::stats`], healthy or not.
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

    /// The health reasons by severity and reason; of the first target and its staging.
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

    /// The entries of its publish context.
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
