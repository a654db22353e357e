//! How a driver comes up: its folder is opened and locked, or the disks are listed, and the mounts
//! are read, again and again until that works; then what a killed agent left is freed. A disk that
//! fails or hangs, a folder that its controller has not made yet or that another agent serves,
//! delays one driver and nothing else.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belay_contract::drivers::Profile;
use belay_server::call::Failure;
use belay_server::endpoint::Endpoint;
use belay_server::identity::DriverName;
use belay_server::readiness::{Readiness, State};
use belay_server::request::VolumeId;
use tokio::sync::oneshot;

use crate::arrivals;
use crate::config::{Config, Driver};
use crate::device::{DiskIndex, DiskVolumes, LoopDir, Transport};
use crate::forgotten;
use crate::holder;
use crate::kernel::linux::Linux;
use crate::kernel::{self, Kernel as _};
use crate::mounts::MountIndex;
use crate::operation::{KubeletDir, Node};
use crate::pool;
use crate::rpc::NodeService;

/// Between two tries to open a folder, and to have its lock. No event tells that a disk answers
/// again, or that a dead process has ended.
const PAUSE: Duration = Duration::from_secs(2);

/// What all drivers of the process share.
pub(crate) struct Machine {
    kernel: Linux,
    kubelet_dir: Option<Arc<KubeletDir>>,
    placing: Arc<Mutex<()>>,
    disks: Arc<DiskIndex>,
    /// The folders that drivers have, by device and inode.
    folders: Mutex<HashMap<(u64, u64), DriverName>>,
    /// The folders of all sockets.
    beside_sockets: Vec<Endpoint>,
}

/// Why a driver does not come up.
enum Refused {
    /// It is tried again.
    ForNow(String),
    /// Another driver has its folder.
    Taken(String),
}

/// Where the volumes of a driver are.
#[derive(Clone)]
pub(crate) enum Source {
    /// In that folder, as files.
    Folder(PathBuf),
    /// On disks, as the profile says.
    Disks(&'static Profile),
}

impl Source {
    pub(crate) fn of(driver: &Driver) -> Self {
        match driver.folder() {
            Some(folder) => Source::Folder(folder.to_owned()),
            None => Source::Disks(driver.common.kind.profile()),
        }
    }

    /// What is reported of a driver that has not been opened yet: if it stays, its disk hangs.
    pub(crate) fn opening(&self, driver: &DriverName) -> String {
        match self {
            Source::Folder(folder) => format!(
                "{driver}: --loop-dir {} is being opened; while this stays, its disk does not \
                 answer",
                folder.display()
            ),
            Source::Disks(_) => format!("{driver}: the disks of the node are being listed"),
        }
    }
}

/// A driver, opened.
struct Opened {
    node: Node<Linux>,
    /// A socket is in that folder, so others need its lock.
    is_beside_socket: bool,
}

impl Machine {
    pub(crate) fn new(config: &Config, kernel: Linux, kubelet_dir: Option<KubeletDir>) -> Self {
        let endpoints = config.drivers().map(|driver| &driver.common.endpoint);
        Machine {
            kernel,
            kubelet_dir: kubelet_dir.map(Arc::new),
            placing: Arc::default(),
            disks: Arc::new(DiskIndex::new()),
            folders: Mutex::default(),
            beside_sockets: endpoints.cloned().collect(),
        }
    }

    /// Keeps the index of the disks up to date, for as long as the agent serves.
    pub(crate) fn keep_disks(&self) -> impl Future<Output = Infallible> + use<> {
        arrivals::keep(Arc::clone(&self.disks), self.kernel.clone())
    }

    /// Opens what that driver has its volumes in. May wait for a disk.
    fn open(&self, name: &DriverName, source: &Source) -> Result<Opened, Refused> {
        match source {
            Source::Folder(folder) => self.open_folder(name, folder),
            Source::Disks(profile) => self.open_disks(name, profile),
        }
    }

    fn open_disks(&self, name: &DriverName, profile: &'static Profile) -> Result<Opened, Refused> {
        let for_now = |error: kernel::Error| Refused::ForNow(error.to_string());
        self.disks.rescan(&self.kernel).map_err(for_now)?;
        let volumes = DiskVolumes::new(name, profile, &self.disks);
        let node = self.node(Transport::Disks(volumes)).map_err(for_now)?;
        Ok(Opened {
            node,
            is_beside_socket: false,
        })
    }

    fn node(&self, transport: Transport<Linux>) -> kernel::Result<Node<Linux>> {
        let index = MountIndex::scan(&self.kernel, &transport)?;
        let kubelet_dir = self.kubelet_dir.clone();
        let node = Node::new(self.kernel.clone(), transport, index, kubelet_dir);
        Ok(node.placing_by_turns(&self.placing))
    }

    fn open_folder(&self, name: &DriverName, folder: &Path) -> Result<Opened, Refused> {
        let for_now =
            |why: &dyn Display| Refused::ForNow(format!("--loop-dir {}: {why}", folder.display()));
        // Without links, as the kernel will name the files in it.
        let real = folder.canonicalize().map_err(|error| for_now(&error))?;
        let loop_dir = LoopDir::open(&self.kernel, name, &real).map_err(|error| for_now(&error))?;
        let inode = inode(&real).map_err(|error| for_now(&error))?;
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        // What one driver does not know of, it takes for left behind.
        if let Some(owner) = folders.get(&inode) {
            let folder = folder.display();
            return Err(Refused::Taken(format!(
                "--loop-dir {folder}: another driver has it, {owner}; give each its own"
            )));
        }
        let mut endpoints = self.beside_sockets.iter();
        let is_beside_socket = endpoints.any(|endpoint| is_folder_of(endpoint, inode));
        if !is_beside_socket {
            self.refuse_served(&loop_dir).map_err(|why| for_now(&why))?;
        }
        // Only now, since another agent may have mounted until it ended.
        let node = self.node(Transport::Loops(loop_dir));
        let node = node.map_err(|error| for_now(&error))?;
        folders.insert(inode, name.clone());
        drop(folders);
        Ok(Opened {
            node,
            is_beside_socket,
        })
    }

    /// Takes the folder's lock. Of two agents that serve it each would take the other's devices for
    /// left behind. One that was killed serves nobody, whatever it still holds.
    fn refuse_served(&self, loop_dir: &LoopDir<Linux>) -> Result<(), String> {
        let failed = |error: kernel::Error| error.to_string();
        if loop_dir.is_ours_alone(&self.kernel).map_err(failed)? {
            return Ok(());
        }
        let folder = self.kernel.stat(loop_dir.fd()).map_err(failed)?;
        match holder::agent_with(folder.dev, folder.ino) {
            None => Ok(()),
            Some(pid) => Err(format!(
                "process {pid} has its lock: another node agent serves this folder; end one of them"
            )),
        }
    }
}

/// Whether the socket is in that folder.
fn is_folder_of(endpoint: &Endpoint, folder: (u64, u64)) -> bool {
    let beside = endpoint.path.parent().map(inode);
    beside.is_some_and(|beside| beside.is_ok_and(|beside| beside == folder))
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|found| (found.dev(), found.ino()))
}

/// A driver on its way.
pub(crate) struct Start {
    name: DriverName,
    source: Source,
    machine: Arc<Machine>,
    service: Arc<NodeService<Linux>>,
    readiness: Readiness,
    /// How it is when it is up.
    up: State,
}

impl Start {
    /// The readiness is the driver's own part, which is `up` when it has come up.
    pub(crate) fn new(
        machine: &Arc<Machine>,
        driver: &Driver,
        source: Source,
        service: &Arc<NodeService<Linux>>,
        readiness: Readiness,
        up: State,
    ) -> Self {
        Start {
            name: driver.common.driver_name.clone(),
            source,
            machine: Arc::clone(machine),
            service: Arc::clone(service),
            readiness,
            up,
        }
    }

    /// Brings the driver up and looks after it, for as long as the agent serves. The first try is
    /// reported: an error of it is one of the configuration, which no second try mends.
    pub(crate) async fn run(self, first: oneshot::Sender<Result<(), String>>) {
        let mut first = Some(first);
        let opened = loop {
            let why = match self.open().await {
                Ok(opened) => break opened,
                Err(Refused::ForNow(why)) => why,
                Err(Refused::Taken(why)) => {
                    let fatal = Err(format!("{}: {why}", self.name));
                    // Where nobody waits for it any more, others are served already.
                    if first.take().is_some_and(|first| first.send(fatal).is_ok()) {
                        return;
                    }
                    why
                }
            };
            self.fails(&why);
            drop(first.take().map(|first| first.send(Ok(()))));
            tokio::time::sleep(PAUSE).await;
        };
        let is_late = first.is_none();
        self.service.come_up(opened.node);
        self.readiness.set(self.up.clone());
        if is_late {
            tracing::info!(driver = self.name.as_str(), "the driver has come up");
        }
        drop(first.take().map(|first| first.send(Ok(()))));
        // What a cloud attaches, it detaches.
        let Source::Folder(folder) = &self.source else {
            return;
        };
        if opened.is_beside_socket {
            tracing::warn!(
                "--loop-dir {} is the folder of a socket, whose lock a start needs: what a killed \
                 agent or kubelet left is not freed; give the volumes' files a folder of their own",
                folder.display()
            );
            return;
        }
        self.look_after(folder).await;
    }

    async fn open(&self) -> Result<Opened, Refused> {
        let (machine, name) = (Arc::clone(&self.machine), self.name.clone());
        let source = self.source.clone();
        let opened = pool::apart(move || machine.open(&name, &source)).await;
        opened.unwrap_or_else(|failure| Err(Refused::ForNow(failure.message)))
    }

    /// What was said the last time is not said again.
    fn fails(&self, why: &str) {
        let why = format!("{}: {why}; it is tried again", self.name);
        let state = State::Starting(why.clone());
        if self.readiness.own() == state {
            return;
        }
        tracing::error!(
            driver = self.name.as_str(),
            "the driver cannot serve: {why}"
        );
        self.service.fails(&why);
        self.readiness.set(state);
    }

    /// Has the folder's lock in the end, and then frees what a killed agent left, and what a killed
    /// kubelet leaves.
    async fn look_after(&self, folder: &Path) {
        if self.lock(folder).await.is_err() {
            return;
        }
        if let Err(failure) = self.sweep().await {
            tracing::warn!("what a killed agent left bound is not looked for: {failure}");
        }
        if self.machine.kubelet_dir.is_some() {
            forgotten::look_after(folder.to_owned(), Arc::clone(&self.service)).await;
        }
    }

    /// Returns when the lock is ours: an agent that was killed keeps it while one of its threads
    /// waits for a disk.
    async fn lock(&self, folder: &Path) -> Result<(), Failure> {
        let folder = folder.display();
        let mut last = None;
        loop {
            let node = self.service.node()?;
            let why = match pool::apart(move || node.is_alone()).await? {
                Ok(true) => break,
                Ok(false) => "another process has it, perhaps an agent that was killed and has \
                              not ended"
                    .to_owned(),
                Err(failure) => failure.message,
            };
            if last.as_ref() != Some(&why) {
                tracing::warn!(
                    "the lock of --loop-dir {folder}: {why}; until it can be had, what a killed \
                     agent or kubelet left is not freed"
                );
            }
            last = Some(why);
            tokio::time::sleep(PAUSE).await;
        }
        if last.is_some() {
            tracing::info!("the lock of --loop-dir {folder} is ours now");
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), Failure> {
        let node = self.service.node()?;
        for (number, volume) in pool::apart(move || node.remnants()).await?? {
            // Each by itself: one whose disk hangs holds up no other.
            let service = Arc::clone(&self.service);
            drop(tokio::spawn(free(service, number, volume)));
        }
        Ok(())
    }
}

async fn free(service: Arc<NodeService<Linux>>, number: u32, volume: VolumeId) {
    let id = volume.as_str().to_owned();
    match service.free_remnant(number, volume).await {
        Ok(false) => {}
        Ok(true) => tracing::info!(id, "/dev/loop{number} was left bound, and is freed"),
        Err(failure) => tracing::warn!(id, "/dev/loop{number} is left as it is: {failure}"),
    }
}
