//! Opens the source of a driver's volumes: a directory, or the disks of the node.

use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use belay_contract::drivers::Profile;
use belay_contract::drivers::local::{HOME, place_at};
use belay_server::endpoint::Endpoint;
use belay_server::identity::DriverName;
use belay_server::process;

use super::Machine;
use crate::config::{DiskDir, Driver};
use crate::device::{DiskRules, DiskVolumes, LoopDir, LoopDirs, Transport, lacking_nodes};
use crate::kernel::linux::Linux;
use crate::kernel::{self, Kernel as _};
use crate::mounts::MountIndex;
use crate::operation::Node;
use crate::rpc::NodeService;

/// The reason why a driver did not start.
pub(super) enum Refused {
    /// A temporary reason, so the start is retried.
    ForNow(String),
    /// A different driver of this process, or a different disk of the driver, has the directory.
    Taken(String),
}

/// A source of a driver's volumes.
#[derive(Clone)]
pub(crate) enum Source {
    /// Files in the directory of the disk with this number.
    Folder(Arc<LoopDirs<Linux>>, usize),
    /// Disks that match the driver's profile, and the rules for formatting them.
    Disks(&'static Profile, DiskRules),
}

impl Source {
    /// Returns the sources of the driver, which is at least one.
    pub(crate) fn of(driver: &Driver) -> Vec<Self> {
        if driver.has_disks() {
            let profile = driver.common.kind.profile();
            return vec![Source::Disks(profile, driver.disk_rules())];
        }
        let disks = driver.disk_dirs.iter();
        let disks = disks.map(|DiskDir { disk, dir }| (disk.clone(), dir.clone()));
        let dirs = Arc::new(LoopDirs::new(&driver.common.driver_name, disks));
        let disks = 0..driver.disk_dirs.len();
        disks
            .map(|disk| Source::Folder(Arc::clone(&dirs), disk))
            .collect()
    }

    /// Returns the status message of a driver whose source is being opened.
    pub(crate) fn opening(&self, driver: &DriverName) -> String {
        match self {
            Source::Folder(dirs, disk) => dirs.why(*disk),
            Source::Disks(..) => format!("{driver}: the disks of the node are being listed"),
        }
    }
}

impl Machine {
    /// Opens a source of the driver's volumes, and makes the driver ready if it was not. Returns
    /// whether the directory contains a socket, so that other processes may lock the directory. May
    /// block on a disk.
    pub(super) fn open(
        &self,
        name: &DriverName,
        source: &Source,
        service: &NodeService<Linux>,
    ) -> Result<bool, Refused> {
        match source {
            Source::Folder(dirs, disk) => self.open_folder(dirs, *disk, service),
            Source::Disks(profile, rules) => {
                let for_now = |error: kernel::Error| Refused::ForNow(error.to_string());
                self.disks.rescan(&self.kernel).map_err(for_now)?;
                let volumes = DiskVolumes::new(name, profile, &self.disks, *rules);
                let node = self.node(Transport::Disks(volumes)).map_err(for_now)?;
                service.come_up(node);
                Ok(false)
            }
        }
    }

    fn node(&self, transport: Transport<Linux>) -> kernel::Result<Node<Linux>> {
        let index = MountIndex::scan(&self.kernel, &transport)?;
        let kubelet_dir = self.kubelet_dir.clone();
        let node = Node::new(self.kernel.clone(), transport, index, kubelet_dir);
        node.read_names();
        Ok(node.sharing(&self.shared))
    }

    fn open_folder(
        &self,
        dirs: &Arc<LoopDirs<Linux>>,
        disk: usize,
        service: &NodeService<Linux>,
    ) -> Result<bool, Refused> {
        let (name, folder) = (dirs.driver(), dirs.path(disk));
        let for_now =
            |why: &dyn Display| Refused::ForNow(format!("--loop-dir {}: {why}", folder.display()));
        // Resolve symlinks, as the kernel does in mount tables; the dot refuses a file.
        let real = folder.join(".").canonicalize();
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        dirs.note_absent(disk, real.as_ref().is_err_and(is_missing));
        let real = real.map_err(|error| {
            let advice = match is_missing(&error) {
                true => "mount its disk, or create it",
                false => "name a directory",
            };
            for_now(&format!(
                "{error}; {advice} (`volumes` in the controller's --state-dir)"
            ))
        })?;
        lacking_nodes(&self.kernel).map_or(Ok(()), |why| Err(Refused::ForNow(why)))?;
        let loop_dir = LoopDir::open(&self.kernel, name, &real).map_err(|error| for_now(&error))?;
        let home = self.kernel.xattr(loop_dir.fd(), HOME);
        let home = home.map_err(|error| for_now(&error))?.unwrap_or_default();
        let place = service.id().and_then(|node| place_at(&home, node));
        place.inspect(|place| service.set_place(place));
        let inode = inode(&real).map_err(|error| for_now(&error))?;
        let mut folders = self.folders.lock();
        // If two drivers used the same directory, each would free the other's devices as left over.
        if let Some(owner) = folders.get(&inode) {
            let (folder, what) = (folder.display(), ["driver", "disk of this driver"]);
            let what = what[usize::from(owner == name)];
            return Err(Refused::Taken(format!(
                "--loop-dir {folder}: another {what} has it, {owner}; give each its own"
            )));
        }
        let mut endpoints = self.beside_sockets.iter();
        let is_beside_socket = endpoints.any(|endpoint| is_folder_of(endpoint, inode));
        if !is_beside_socket {
            self.refuse_served(&loop_dir).map_err(|why| for_now(&why))?;
        }
        // Read the mounts after the lock was checked: an earlier agent may have mounted volumes.
        match service.node() {
            Ok(node) => {
                node.find_mounts().map_err(|error| for_now(&error))?;
                dirs.set(disk, loop_dir);
            }
            Err(_) => {
                let node = self.node(Transport::Loops(Arc::clone(dirs)));
                let node = node.map_err(|error| for_now(&error))?;
                dirs.set(disk, loop_dir);
                service.come_up(node);
            }
        }
        folders.insert(inode, name.clone());
        drop(folders);
        Ok(is_beside_socket)
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
pub(super) fn is_folder_of(endpoint: &Endpoint, folder: (u64, u64)) -> bool {
    let beside = endpoint.path.parent().map(inode);
    beside.is_some_and(|beside| beside.is_ok_and(|beside| beside == folder))
}

pub(super) fn inode(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|found| (found.dev(), found.ino()))
}
