//! Starts a driver: opens and locks its directories or lists the disks, then reads the mounts, and
//! retries until all this succeeds. Then frees devices that a killed agent left bound. A hung disk,
//! or a directory that is missing or in use by another agent, delays only its own volumes: each
//! directory is opened separately, and the driver is ready as soon as one is open.

mod open;

pub(crate) use open::Source;

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belay_server::call::Failure;
use belay_server::endpoint::Endpoint;
use belay_server::identity::DriverName;
use belay_server::lock::Lock;
use belay_server::readiness::{Readiness, State};
use belay_server::request::VolumeId;
use tokio::sync::oneshot;

use crate::arrivals;
use crate::config::{Config, Driver};
use crate::device::DiskIndex;
use crate::identify::Identification;
use crate::kernel::linux::Linux;
use crate::operation::remote::RemoteNode;
use crate::operation::{KubeletDir, Shared};
use crate::rpc::NodeService;
use crate::{stale, work};
use open::Refused;

/// The pause between two attempts to open or lock a directory. The agent receives no event when a
/// disk responds again, or when a killed process has exited.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum pause between two reads of the cloud's metadata, which all nodes share, and between two
/// attempts to open a directory of a driver that serves other disks: the node may lack the disk.
const PAUSE_MAX: Duration = Duration::from_secs(60);

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
}

/// A driver that is being started with one of its sources.
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
        let (mut first, mut pause, mut last) = (Some(first), PAUSE, String::new());
        let is_beside_socket = loop {
            let why = match self.identify_and_open(&mut unknown).await {
                Ok(is_beside_socket) => break is_beside_socket,
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
            self.fails(&why, &mut last);
            drop(first.take().map(|first| first.send(Ok(()))));
            tokio::time::sleep(pause).await;
            pause = match unknown.is_some() || self.service.node().is_ok() {
                true => PAUSE_MAX.min(2 * pause),
                false => PAUSE,
            };
        };
        let is_late = first.is_none();
        self.readiness.set(self.up.clone());
        if is_late {
            let what = match &self.source {
                Source::Folder(dirs, disk) => format!("--loop-dir {}", dirs.path(*disk).display()),
                Source::Disks(..) => "the driver".to_owned(),
            };
            tracing::info!(driver = self.name.as_str(), "{what} is ready");
        }
        drop(first.take().map(|first| first.send(Ok(()))));
        // Only volumes that are files have devices to free: a cloud detaches its disks itself.
        let Source::Folder(dirs, disk) = &self.source else {
            // The call fails only if the driver is not ready, and the driver is ready here.
            drop(self.service.unmount_removed().await);
            return;
        };
        let folder = dirs.path(*disk);
        if is_beside_socket {
            tracing::warn!(
                "--loop-dir {} is the directory of a socket, whose lock a start needs: devices and \
                 mounts that a killed agent or kubelet left are not freed; use a separate \
                 directory for the volumes' files",
                folder.display()
            );
            return;
        }
        self.look_after(folder, *disk).await;
    }

    async fn identify_and_open(
        &self,
        unknown: &mut Option<Identification>,
    ) -> Result<bool, Refused> {
        if let Some(identification) = unknown {
            let identity = identification.read().await;
            self.service.identify(identity.map_err(Refused::ForNow)?);
            *unknown = None;
        }
        self.open().await
    }

    async fn open(&self) -> Result<bool, Refused> {
        let (machine, name) = (Arc::clone(&self.machine), self.name.clone());
        let (source, service) = (self.source.clone(), Arc::clone(&self.service));
        let opened = work::apart(move || machine.open(&name, &source, &service)).await;
        opened.unwrap_or_else(|failure| Err(Refused::ForNow(failure.message)))
    }

    /// Reports why the driver cannot serve the source, unless the reason is still `last`.
    fn fails(&self, why: &str, last: &mut String) {
        let why = format!("{}: {why}; retrying", self.name);
        if *last == why {
            return;
        }
        last.clone_from(&why);
        if let Source::Folder(dirs, disk) = &self.source {
            dirs.fails(*disk, &why);
        }
        tracing::error!(driver = self.name.as_str(), "cannot serve: {why}");
        // Otherwise, the driver serves its other disks.
        if self.service.node().is_err() {
            self.service.fails(&why);
            self.readiness.set(State::Starting(why));
        }
    }

    /// Waits for the directory's lock, and then frees what a killed agent or kubelet left behind.
    async fn look_after(&self, folder: &Path, disk: usize) {
        if self.lock(folder, disk).await.is_err() {
            return;
        }
        if let Err(failure) = self.sweep(disk).await {
            tracing::warn!("devices that a killed agent left bound are not freed: {failure}");
        }
        if self.machine.kubelet_dir.is_some() {
            stale::watch_deletions(folder.to_owned(), Arc::clone(&self.service)).await;
        }
    }

    /// Waits until no thread of a killed agent, which may wait for a disk, holds the lock.
    async fn lock(&self, folder: &Path, disk: usize) -> Result<(), Failure> {
        let folder = folder.display();
        let mut last = None;
        loop {
            let node = self.service.node()?;
            let why = match work::apart(move || node.try_lock_directory(disk)).await? {
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

    async fn sweep(&self, disk: usize) -> Result<(), Failure> {
        let node = self.service.node()?;
        for (number, volume) in work::apart(move || node.remnants(disk)).await?? {
            // Use a task for each device, so that a hung disk does not delay the other devices.
            let service = Arc::clone(&self.service);
            drop(tokio::spawn(free(service, disk, number, volume)));
        }
        Ok(())
    }
}

async fn free(service: Arc<NodeService<Linux>>, disk: usize, number: u32, volume: VolumeId) {
    let id = volume.as_str().to_owned();
    match service.free_remnant(disk, number, volume).await {
        Ok(false) => {}
        Ok(true) => tracing::info!(id, "/dev/loop{number} was left bound; freed"),
        Err(failure) => tracing::warn!(id, "/dev/loop{number} stays bound: {failure}"),
    }
}

#[cfg(test)]
mod tests {
    use super::open::{inode, is_folder_of};
    use super::*;
    use crate::device::LoopDirs;
    use crate::work::Pool;
    use belay_contract::drivers::LOCAL;
    use std::path::PathBuf;
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

    /// Returns the sources of a driver with a disk in each of these directories.
    fn sources<const N: usize>(name: &str, folders: [&Path; N]) -> [Source; N] {
        let disks = folders.map(|folder| (folder.display().to_string(), folder.to_owned()));
        let dirs = Arc::new(LoopDirs::new(&name.parse().unwrap(), disks));
        std::array::from_fn(|disk| Source::Folder(Arc::clone(&dirs), disk))
    }

    fn service() -> Arc<NodeService<Linux>> {
        Arc::new(NodeService::new("not yet", Pool::new(), &LOCAL))
    }

    /// Opens a directory for a driver that serves nothing yet. Returns its service, and whether the
    /// directory contains a socket.
    fn open(
        machine: &Machine,
        name: &str,
        folder: &Path,
    ) -> Result<(Arc<NodeService<Linux>>, bool), Refused> {
        let ([source], service) = (sources(name, [folder]), service());
        let is_beside_socket = machine.open(&name.parse().unwrap(), &source, &service)?;
        Ok((service, is_beside_socket))
    }

    #[test]
    fn the_source_of_a_driver_is_its_directory_or_the_disks_and_says_what_it_waits_for() {
        let opening = |words: &[&str]| {
            let config = config(words);
            let driver = config.drivers().next().unwrap();
            Source::of(driver)[0].opening(&driver.common.driver_name)
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
        let [a, b] = ["a.belay.dev", "b.belay.dev"];

        let Err(Refused::ForNow(why)) = open(&agent, a, &link) else {
            panic!("a directory that does not exist");
        };
        assert!(
            why.starts_with(&format!("--loop-dir {}: ", link.display()))
                && why.contains("; mount its disk, or create it"),
            "{why}"
        );
        std::fs::create_dir(&volumes).unwrap();
        let opened = open(&agent, a, &link).ok().unwrap();
        assert!(!opened.1);
        let Err(Refused::Taken(why)) = open(&agent, b, &volumes) else {
            panic!("the directory of another driver");
        };
        let expected = format!(
            "--loop-dir {}: another driver has it, a.belay.dev; give each its own",
            volumes.display()
        );
        assert_eq!(why, expected);
        // The first agent holds the lock while it is running.
        let Err(Refused::ForNow(why)) = open(&machine(sockets.path()), a, &volumes) else {
            panic!("the directory of another agent");
        };
        let holder = format!("process {} has its lock", std::process::id());
        assert!(why.contains(&holder), "{why}");
        drop(opened);
        let next = machine(sockets.path());
        open(&next, a, &volumes).ok().unwrap();
    }

    #[test]
    fn the_directory_of_a_socket_is_served_although_its_lock_is_another_ones() {
        let dir = TempDir::new().unwrap();
        let open = || open(&machine(dir.path()), "a.belay.dev", dir.path()).ok();
        let (one, two) = (open().unwrap(), open().unwrap());
        assert!(one.1 && two.1);
    }

    type Coming = (Arc<NodeService<Linux>>, Readiness);

    /// Returns the starts of a driver with a disk in each of these directories.
    fn starts<const N: usize>(
        machine: &Arc<Machine>,
        name: &str,
        folders: [&Path; N],
    ) -> ([Start; N], Coming) {
        let config = config(&["--endpoint=/csi/csi.sock", "--loop-dir=/volumes"]);
        let mut driver = config.drivers().next().unwrap().clone();
        driver.common.driver_name = name.parse().unwrap();
        let service = service();
        let readiness = Readiness::new(State::Starting("not yet".to_owned()));
        let start = |source| {
            let own = readiness.clone();
            Start::new(machine, &driver, source, &service, own, State::Ready)
        };
        let starts = sources(name, folders).map(start);
        (starts, (service, readiness))
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_whose_directory_is_missing_comes_up_once_it_exists() {
        let dir = TempDir::new().unwrap();
        let volumes = dir.path().join("volumes");
        let machine = Arc::new(machine(Path::new("/elsewhere")));
        let ([start], (service, readiness)) = starts(&machine, "a.belay.dev", [&volumes]);
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
    async fn a_driver_serves_the_disks_that_it_has_and_the_others_later() {
        let dir = TempDir::new().unwrap();
        let [volumes, missing] = ["volumes", "missing"].map(|name| dir.path().join(name));
        std::fs::create_dir(&volumes).unwrap();
        let machine = Arc::new(machine(Path::new("/elsewhere")));
        let (starts, (service, readiness)) =
            starts(&machine, "a.belay.dev", [&missing, &volumes, &volumes]);
        let [(late, tried_late), (first, tried), (same, tried_same)] = starts.map(|start| {
            let (first, tried) = oneshot::channel();
            (tokio::spawn(start.run(first, None)), tried)
        });
        first.await.unwrap();
        assert_eq!((tried_late.await, tried.await), (Ok(Ok(())), Ok(Ok(()))));
        let why = tried_same.await.unwrap().unwrap_err();
        assert!(why.contains("another disk of this driver has it"), "{why}");
        same.await.unwrap();
        assert_eq!(readiness.own(), State::Ready);
        let node = service.node().unwrap();
        let disks = || node.folders().unwrap().open().count();
        assert_eq!(disks(), 1);
        std::fs::create_dir(&missing).unwrap();
        late.await.unwrap();
        assert_eq!(disks(), 2);
        assert_eq!(readiness.own(), State::Ready);
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_of_another_driver_ends_the_start_with_the_drivers_name() {
        let dir = TempDir::new().unwrap();
        let machine = Arc::new(machine(Path::new("/elsewhere")));
        let ([one], (up, _)) = starts(&machine, "a.belay.dev", [dir.path()]);
        let (first, tried) = oneshot::channel();
        one.run(first, None).await;
        assert_eq!(tried.await, Ok(Ok(())));
        let ([two], (refused, _)) = starts(&machine, "b.belay.dev", [dir.path()]);
        let (first, tried) = oneshot::channel();
        two.run(first, None).await;
        let why = tried.await.unwrap().unwrap_err();
        let begin = format!("b.belay.dev: --loop-dir {}: another", dir.path().display());
        assert!(why.starts_with(&begin), "{why}");
        assert!(refused.node().is_err() && up.node().is_ok());
    }
}
