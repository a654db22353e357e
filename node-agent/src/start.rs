//! Starts a driver: opens and locks its directory or lists the disks, then reads the mounts, and
//! retries until all this succeeds. Then frees devices that a killed agent left bound. A hung disk,
//! or a directory that is missing or in use by another agent, delays only its own driver.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belay_contract::drivers::Profile;
use belay_server::call::Failure;
use belay_server::endpoint::Endpoint;
use belay_server::identity::DriverName;
use belay_server::lock::Lock;
use belay_server::process;
use belay_server::readiness::{Readiness, State};
use belay_server::request::VolumeId;
use tokio::sync::oneshot;

use crate::arrivals;
use crate::config::{Config, Driver};
use crate::device::{DiskIndex, DiskRules, DiskVolumes, LoopDir, Transport, lacking_nodes};
use crate::identify::Identification;
use crate::kernel::linux::Linux;
use crate::kernel::{self, Kernel as _};
use crate::mounts::MountIndex;
use crate::operation::remote::RemoteNode;
use crate::operation::{KubeletDir, Node, Shared};
use crate::rpc::NodeService;
use crate::{stale, work};

/// The pause between two attempts to open or lock a directory. The agent receives no event when a
/// disk responds again, or when a killed process has exited.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum pause between two reads of the cloud's metadata. All nodes share that service.
const METADATA_PAUSE_MAX: Duration = Duration::from_secs(60);

/// State that all drivers of the process share.
pub(crate) struct Machine {
    kernel: Linux,
    kubelet_dir: Option<Arc<KubeletDir>>,
    shared: Arc<Shared>,
    disks: Arc<DiskIndex>,
    /// The directories of drivers that are ready, by device number and inode number.
    folders: Lock<HashMap<(u64, u64), DriverName>>,
    /// The sockets of all drivers. Binding a socket locks the socket's directory.
    beside_sockets: Vec<Endpoint>,
}

/// The reason why a driver did not start.
enum Refused {
    /// A temporary reason, so the start is retried.
    ForNow(String),
    /// A different driver of this process uses the directory.
    Taken(String),
}

/// The source of a driver's volumes.
#[derive(Clone)]
pub(crate) enum Source {
    /// Files in this directory.
    Folder(PathBuf),
    /// Disks that match the driver's profile, and the rules for formatting them.
    Disks(&'static Profile, DiskRules),
}

impl Source {
    pub(crate) fn of(driver: &Driver) -> Self {
        match driver.folder() {
            Some(folder) => Source::Folder(folder.to_owned()),
            None => Source::Disks(driver.common.kind.profile(), driver.disk_rules()),
        }
    }

    /// Returns the status message of a driver whose source is being opened.
    pub(crate) fn opening(&self, driver: &DriverName) -> String {
        match self {
            Source::Folder(folder) => format!(
                "{driver}: --loop-dir {} is being opened; while this persists, its disk does not \
                 answer",
                folder.display()
            ),
            Source::Disks(..) => format!("{driver}: the disks of the node are being listed"),
        }
    }
}

/// A driver whose source was opened.
struct Opened {
    node: Node<Linux>,
    /// Whether the directory contains a socket, so that other processes may lock the directory.
    is_beside_socket: bool,
}

impl Machine {
    pub(crate) fn new(config: &Config, kernel: Linux, kubelet_dir: Option<KubeletDir>) -> Self {
        let endpoints = config.drivers().map(|driver| &driver.common.endpoint);
        Machine {
            kernel,
            kubelet_dir: kubelet_dir.map(Arc::new),
            shared: Arc::default(),
            disks: Arc::new(DiskIndex::new()),
            folders: Lock::default(),
            beside_sockets: endpoints.cloned().collect(),
        }
    }

    /// Keeps the index of the disks up to date while the agent serves calls.
    pub(crate) fn keep_disks(&self) -> impl Future<Output = Infallible> + use<> {
        arrivals::keep(Arc::clone(&self.disks), self.kernel.clone())
    }

    /// Returns the source of the node's identity; `None` if the flags contain the whole identity.
    pub(crate) fn identification(&self, driver: &Driver) -> Option<Identification> {
        Identification::of(driver, &self.kernel)
    }

    /// Returns the node of a driver whose volumes are directories of a server.
    pub(crate) fn remote_node(&self) -> RemoteNode<Linux> {
        let (kernel, shared) = (self.kernel.clone(), Arc::clone(&self.shared));
        RemoteNode::new(kernel, self.kubelet_dir.clone(), shared)
    }

    /// Opens the source of the driver's volumes. May block on a disk.
    fn open(&self, name: &DriverName, source: &Source) -> Result<Opened, Refused> {
        match source {
            Source::Folder(folder) => self.open_folder(name, folder),
            Source::Disks(profile, rules) => self.open_disks(name, profile, *rules),
        }
    }

    fn open_disks(
        &self,
        name: &DriverName,
        profile: &'static Profile,
        rules: DiskRules,
    ) -> Result<Opened, Refused> {
        let for_now = |error: kernel::Error| Refused::ForNow(error.to_string());
        self.disks.rescan(&self.kernel).map_err(for_now)?;
        let volumes = DiskVolumes::new(name, profile, &self.disks, rules);
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
        node.read_names();
        Ok(node.sharing(&self.shared))
    }

    fn open_folder(&self, name: &DriverName, folder: &Path) -> Result<Opened, Refused> {
        let for_now =
            |why: &dyn Display| Refused::ForNow(format!("--loop-dir {}: {why}", folder.display()));
        // Resolve symlinks, as the kernel does in mount tables; the dot refuses a file.
        let real = folder.join(".").canonicalize().map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::NotFound => "mount its disk, or create it",
                _ => "name a directory",
            };
            for_now(&format!(
                "{error}; {advice} (`volumes` in the controller's --state-dir)"
            ))
        })?;
        lacking_nodes(&self.kernel).map_or(Ok(()), |why| Err(Refused::ForNow(why)))?;
        let loop_dir = LoopDir::open(&self.kernel, name, &real).map_err(|error| for_now(&error))?;
        let inode = inode(&real).map_err(|error| for_now(&error))?;
        let mut folders = self.folders.lock();
        // If two drivers used the same directory, each would free the other's devices as left over.
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
        // Read the mounts after the lock was checked: an earlier agent may have mounted volumes.
        let node = self.node(Transport::Loops(loop_dir));
        let node = node.map_err(|error| for_now(&error))?;
        folders.insert(inode, name.clone());
        drop(folders);
        Ok(Opened {
            node,
            is_beside_socket,
        })
    }

    /// Fails while another running agent serves the directory: each would free the other's devices.
    fn refuse_served(&self, loop_dir: &LoopDir<Linux>) -> Result<(), String> {
        let failed = |error: kernel::Error| error.to_string();
        if loop_dir.is_ours_alone(&self.kernel).map_err(failed)? {
            return Ok(());
        }
        let folder = self.kernel.stat(loop_dir.fd()).map_err(failed)?;
        match process::with_lock_on((folder.dev.major, folder.dev.minor), folder.ino) {
            None => Ok(()),
            Some(pid) => Err(format!(
                "process {pid} has its lock: another node agent serves it; stop one of them"
            )),
        }
    }
}

/// Whether the socket is in the directory with this device number and inode number.
fn is_folder_of(endpoint: &Endpoint, folder: (u64, u64)) -> bool {
    let beside = endpoint.path.parent().map(inode);
    beside.is_some_and(|beside| beside.is_ok_and(|beside| beside == folder))
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|found| (found.dev(), found.ino()))
}

/// A driver that is being started.
pub(crate) struct Start {
    name: DriverName,
    source: Source,
    machine: Arc<Machine>,
    service: Arc<NodeService<Linux>>,
    readiness: Readiness,
    /// The readiness to report when the driver has started.
    up: State,
}

impl Start {
    /// Creates a start. The driver's part `readiness` becomes `up` when the driver is ready.
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

    /// Starts the driver, and then frees leftover devices and mounts. After the first attempt,
    /// sends `Ok` to `first`, or an error if no retry can succeed.
    pub(crate) async fn run(
        self,
        first: oneshot::Sender<Result<(), String>>,
        mut unknown: Option<Identification>,
    ) {
        let (mut first, mut pause) = (Some(first), PAUSE);
        let opened = loop {
            let why = match self.identify_and_open(&mut unknown).await {
                Ok(opened) => break opened,
                Err(Refused::ForNow(why)) => why,
                Err(Refused::Taken(why)) => {
                    let fatal = Err(format!("{}: {why}", self.name));
                    // Otherwise, other drivers are already served, so the agent must not exit.
                    if first.take().is_some_and(|first| first.send(fatal).is_ok()) {
                        return;
                    }
                    why
                }
            };
            self.fails(&why);
            drop(first.take().map(|first| first.send(Ok(()))));
            tokio::time::sleep(pause).await;
            let doubled = METADATA_PAUSE_MAX.min(2 * pause);
            pause = unknown.as_ref().map_or(PAUSE, |_| doubled);
        };
        let is_late = first.is_none();
        self.service.come_up(opened.node);
        self.readiness.set(self.up.clone());
        if is_late {
            tracing::info!(driver = self.name.as_str(), "the driver is ready");
        }
        drop(first.take().map(|first| first.send(Ok(()))));
        // Only volumes that are files have devices to free: a cloud detaches its disks itself.
        let Source::Folder(folder) = &self.source else {
            // The call fails only if the driver is not ready, and the driver is ready here.
            drop(self.service.unmount_removed().await);
            return;
        };
        if opened.is_beside_socket {
            tracing::warn!(
                "--loop-dir {} is the directory of a socket, whose lock a start needs: devices and \
                 mounts that a killed agent or kubelet left are not freed; use a separate \
                 directory for the volumes' files",
                folder.display()
            );
            return;
        }
        self.look_after(folder).await;
    }

    async fn identify_and_open(
        &self,
        unknown: &mut Option<Identification>,
    ) -> Result<Opened, Refused> {
        if let Some(identification) = unknown {
            let identity = identification.read().await;
            self.service.identify(identity.map_err(Refused::ForNow)?);
            *unknown = None;
        }
        self.open().await
    }

    async fn open(&self) -> Result<Opened, Refused> {
        let (machine, name) = (Arc::clone(&self.machine), self.name.clone());
        let source = self.source.clone();
        let opened = work::apart(move || machine.open(&name, &source)).await;
        opened.unwrap_or_else(|failure| Err(Refused::ForNow(failure.message)))
    }

    /// Reports why the driver cannot serve. Logs the reason only if it has changed.
    fn fails(&self, why: &str) {
        let why = format!("{}: {why}; retrying", self.name);
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

    /// Waits for the directory's lock, and then frees what a killed agent or kubelet left behind.
    async fn look_after(&self, folder: &Path) {
        if self.lock(folder).await.is_err() {
            return;
        }
        if let Err(failure) = self.sweep().await {
            tracing::warn!("devices that a killed agent left bound are not freed: {failure}");
        }
        if self.machine.kubelet_dir.is_some() {
            stale::watch_deletions(folder.to_owned(), Arc::clone(&self.service)).await;
        }
    }

    /// Waits until no thread of a killed agent, which may wait for a disk, holds the lock.
    async fn lock(&self, folder: &Path) -> Result<(), Failure> {
        let folder = folder.display();
        let mut last = None;
        loop {
            let node = self.service.node()?;
            let why = match work::apart(move || node.try_lock_directory()).await? {
                Ok(true) => break,
                Ok(false) => "another process has it, perhaps an exiting agent".to_owned(),
                Err(failure) => failure.message,
            };
            if last.as_ref() != Some(&why) {
                tracing::warn!(
                    "the lock of --loop-dir {folder}: {why}; until it is free, devices and mounts \
                     that a killed agent or kubelet left are not freed"
                );
            }
            last = Some(why);
            tokio::time::sleep(PAUSE).await;
        }
        if last.is_some() {
            tracing::info!("locked --loop-dir {folder}");
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), Failure> {
        let node = self.service.node()?;
        for (number, volume) in work::apart(move || node.remnants()).await?? {
            // Use a task for each device, so that a hung disk does not delay the other devices.
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
        Ok(true) => tracing::info!(id, "/dev/loop{number} was left bound; freed"),
        Err(failure) => tracing::warn!(id, "/dev/loop{number} stays bound: {failure}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Pool;
    use tempfile::TempDir;

    #[test]
    fn a_socket_is_in_the_directory_that_contains_it_by_whatever_path() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let endpoint = |path: PathBuf| Endpoint { path };
        let socket = endpoint(other.join("../csi.sock"));
        assert!(is_folder_of(&socket, inode(dir.path()).unwrap()));
        assert!(!is_folder_of(&socket, inode(&other).unwrap()));
        let nowhere = endpoint(dir.path().join("absent/csi.sock"));
        assert!(!is_folder_of(&nowhere, inode(dir.path()).unwrap()));
    }
    fn config(words: &[&str]) -> Config {
        Config::of_words(["belay-node", "--node-id=n1"].iter().chain(words))
    }

    fn source(folder: &Path) -> Source {
        Source::Folder(folder.to_owned())
    }

    #[test]
    fn the_source_of_a_driver_is_its_directory_or_the_disks_and_says_what_it_waits_for() {
        let opening = |words: &[&str]| {
            let config = config(words);
            let driver = config.drivers().next().unwrap();
            Source::of(driver).opening(&driver.common.driver_name)
        };
        let files = opening(&["--endpoint=/csi/csi.sock", "--loop-dir=/volumes"]);
        let expected = "local.csi.belay.dev: --loop-dir /volumes is being opened; while this \
                        persists, its disk does not answer";
        assert_eq!(files, expected);
        let disks = opening(&["--endpoint=/csi/csi.sock", "--driver-kind=openstack"]);
        assert!(
            disks.ends_with(": the disks of the node are being listed"),
            "{disks}"
        );
    }

    /// Returns an agent with two drivers, whose sockets are in the directory `sockets`.
    fn machine(sockets: &Path) -> Machine {
        let endpoints = ["a", "b"].map(|name| format!("--endpoint={}/{name}", sockets.display()));
        let words = [
            "--loop-dir=/a",
            &endpoints[0],
            "--next-driver",
            "--driver-name=b.belay.dev",
            "--node-id=n1",
            "--loop-dir=/b",
            &endpoints[1],
        ];
        Machine::new(&config(&words), Linux::detect().unwrap(), None)
    }

    #[test]
    fn a_directory_is_that_of_one_driver_and_of_one_agent() {
        let (dir, sockets) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let (volumes, link) = (dir.path().join("volumes"), dir.path().join("link"));
        std::os::unix::fs::symlink(&volumes, &link).unwrap();
        let agent = machine(sockets.path());
        let [a, b]: [DriverName; 2] = ["a.belay.dev", "b.belay.dev"].map(|it| it.parse().unwrap());

        let Err(Refused::ForNow(why)) = agent.open(&a, &source(&link)) else {
            panic!("a directory that does not exist");
        };
        assert!(
            why.starts_with(&format!("--loop-dir {}: ", link.display()))
                && why.contains("; mount its disk, or create it"),
            "{why}"
        );
        std::fs::create_dir(&volumes).unwrap();
        let opened = agent.open(&a, &source(&link)).ok().unwrap();
        assert!(!opened.is_beside_socket);
        let Err(Refused::Taken(why)) = agent.open(&b, &source(&volumes)) else {
            panic!("the directory of another driver");
        };
        let expected = format!(
            "--loop-dir {}: another driver has it, a.belay.dev; give each its own",
            volumes.display()
        );
        assert_eq!(why, expected);
        // The first agent holds the lock while it is running.
        let Err(Refused::ForNow(why)) = machine(sockets.path()).open(&a, &source(&volumes)) else {
            panic!("the directory of another agent");
        };
        let holder = format!("process {} has its lock", std::process::id());
        assert!(why.contains(&holder), "{why}");
        drop(opened);
        let next = machine(sockets.path());
        next.open(&a, &source(&volumes)).ok().unwrap();
    }

    #[test]
    fn the_directory_of_a_socket_is_served_although_its_lock_is_another_ones() {
        let dir = TempDir::new().unwrap();
        let name = "a.belay.dev".parse().unwrap();
        let one = machine(dir.path()).open(&name, &source(dir.path()));
        let two = machine(dir.path()).open(&name, &source(dir.path()));
        assert!(one.ok().unwrap().is_beside_socket && two.ok().unwrap().is_beside_socket);
    }

    type Coming = (Arc<NodeService<Linux>>, Readiness);

    fn start(machine: &Arc<Machine>, name: &str, folder: &Path) -> (Start, Coming) {
        let config = config(&["--endpoint=/csi/csi.sock", "--loop-dir=/volumes"]);
        let mut driver = config.drivers().next().unwrap().clone();
        driver.common.driver_name = name.parse().unwrap();
        let profile = driver.common.kind.profile();
        let service = Arc::new(NodeService::new("not yet", Pool::new(), profile));
        let readiness = Readiness::new(State::Starting("not yet".to_owned()));
        let own = readiness.clone();
        let start = Start::new(
            machine,
            &driver,
            source(folder),
            &service,
            own,
            State::Ready,
        );
        (start, (service, readiness))
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_whose_directory_is_missing_comes_up_once_it_exists() {
        let dir = TempDir::new().unwrap();
        let volumes = dir.path().join("volumes");
        let machine = Arc::new(machine(Path::new("/elsewhere")));
        let (start, (service, readiness)) = start(&machine, "a.belay.dev", &volumes);
        let (first, tried) = oneshot::channel();
        let run = tokio::spawn(start.run(first, None));
        assert_eq!(tried.await, Ok(Ok(())));
        let State::Starting(why) = readiness.own() else {
            panic!("it is up");
        };
        let begin = format!("a.belay.dev: --loop-dir {}: ", volumes.display());
        assert!(
            why.starts_with(&begin) && why.ends_with("; retrying"),
            "{why}"
        );
        let failure = service.node().err().unwrap();
        assert_eq!(failure.message, why);
        std::fs::create_dir(&volumes).unwrap();
        // Without `--kubelet-dir`, the agent does not watch file attributes.
        run.await.unwrap();
        assert_eq!(readiness.own(), State::Ready);
        assert!(service.node().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_of_another_driver_ends_the_start_with_the_drivers_name() {
        let dir = TempDir::new().unwrap();
        let machine = Arc::new(machine(Path::new("/elsewhere")));
        let (one, (up, _)) = start(&machine, "a.belay.dev", dir.path());
        let (first, tried) = oneshot::channel();
        one.run(first, None).await;
        assert_eq!(tried.await, Ok(Ok(())));
        let (two, (refused, _)) = start(&machine, "b.belay.dev", dir.path());
        let (first, tried) = oneshot::channel();
        two.run(first, None).await;
        let why = tried.await.unwrap().unwrap_err();
        let begin = format!("b.belay.dev: --loop-dir {}: another", dir.path().display());
        assert!(why.starts_with(&begin), "{why}");
        assert!(refused.node().is_err() && up.node().is_ok());
    }
}
