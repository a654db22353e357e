//! Simulated NFS servers, with the behaviour that mounts of the agent depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use rustix::io::Errno;

use super::state::{Answer, State};
use super::{Fake, Fd, Machine};
use crate::kernel::{Answered, RemoteCall, Usage};

/// The function that a helper process runs: makes the call and returns its result.
pub(crate) type Work = fn(&Fake, &RemoteCall) -> Answered<Fd>;

/// An NFS server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// The protocol versions that the server supports.
    pub(crate) versions: Vec<&'static str>,
    /// The server's directories, and the permissions of each.
    pub(crate) directories: BTreeMap<String, u32>,
}

/// The NFS servers and the helper processes of the machine.
#[derive(Default)]
pub(super) struct Servers {
    pub(super) by_address: BTreeMap<IpAddr, Server>,
    pub(super) names: BTreeMap<String, Vec<IpAddr>>,
    /// The sources that the mount table shows instead of the sources that were mounted.
    pub(super) shown: BTreeMap<String, String>,
    pub(super) work: Option<Work>,
    /// The processes that were killed.
    pub(super) killed: BTreeSet<u64>,
    /// Whether a killed process remains until its server responds, instead of exiting immediately.
    pub(super) die_hard: bool,
    /// Whether every call that may wait hangs.
    pub(super) hang: bool,
    /// The number of helpers that were started, and the number that have not exited.
    pub(super) started: usize,
    pub(super) running: usize,
}

/// The server and the directory of a superblock.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) source: String,
    pub(super) address: IpAddr,
    pub(super) directory: String,
    /// Whether the filesystem was mounted with `nosharecache`.
    pub(super) is_separate: bool,
}

impl Machine {
    /// Adds a server with this address.
    pub(crate) fn serve_nfs(&self, address: &str, server: Server) {
        let address = address.parse().unwrap();
        self.lock().servers.by_address.insert(address, server);
    }

    /// Sets the addresses of a host name.
    pub(crate) fn name_host(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|it| it.parse().unwrap()).collect();
        self.lock().servers.names.insert(name.to_owned(), addresses);
    }

    /// Makes the mount table show the source `given` as `shown`, as if the superblock had first
    /// been mounted from `shown`.
    pub(crate) fn show_source(&self, given: &str, shown: &str) {
        let (given, shown) = (given.to_owned(), shown.to_owned());
        self.lock().servers.shown.insert(given, shown);
    }

    /// Returns a copy of the present state of the server with this address.
    pub(crate) fn server_of(&self, address: &str) -> Server {
        self.lock().servers.by_address[&address.parse().unwrap()].clone()
    }

    /// Sets the function that helper processes run.
    pub(crate) fn let_helpers(&self, work: Work) {
        self.lock().servers.work = Some(work);
    }

    /// Sets whether killed helpers remain until their server responds.
    pub(crate) fn let_helpers_die_hard(&self, die_hard: bool) {
        self.lock().servers.die_hard = die_hard;
    }

    /// Makes all servers stop responding, or respond again, which also ends hung calls.
    pub(crate) fn let_servers_hang(&self, hang: bool) {
        self.lock().servers.hang = hang;
        if !hang {
            self.let_go();
        }
    }

    /// Returns the number of helpers that have not exited.
    pub(crate) fn helpers_running(&self) -> usize {
        self.lock().servers.running
    }

    /// Returns the number of helpers that have been started.
    pub(crate) fn helpers_started(&self) -> usize {
        self.lock().servers.started
    }
}

impl Machine {
    /// Mounts a directory of a server, as another program does.
    pub(crate) fn mount_nfs(&self, source: &str, address: &str, on: &Path) {
        let mut state = self.lock();
        let superblock = state
            .make_served(source, address.parse().unwrap(), false)
            .unwrap();
        let mount = state.make_mount(superblock, crate::kernel::MountAttrs::default());
        let onto = state.walk(on).unwrap();
        state.attach(mount, onto, on).unwrap();
    }
}

impl State {
    /// Returns the server's address and directory for a descriptor.
    pub(super) fn served(&self, fd: u64) -> Answer<(IpAddr, String)> {
        self.served_at(self.object(fd)?.location()?.ino)
    }

    /// Returns a size that no other filesystem of the machine has. Returns ESTALE if the server no
    /// longer has the directory.
    pub(super) fn statfs_served(&self, ino: u64) -> Answer<Usage> {
        let (address, directory) = self.served_at(ino)?;
        let server = self
            .servers
            .by_address
            .get(&address)
            .ok_or(Errno::TIMEDOUT)?;
        if !server.directories.contains_key(&directory) {
            return Err(Errno::STALE);
        }
        Ok(Usage {
            total_bytes: 7 << 30,
            used_bytes: 1 << 30,
            available_bytes: 6 << 30,
            total_inodes: 70,
            used_inodes: 10,
            free_inodes: 60,
        })
    }

    fn served_at(&self, ino: u64) -> Answer<(IpAddr, String)> {
        let superblock = self.inode(ino)?.superblock;
        let served = self.superblocks[&superblock]
            .served
            .as_ref()
            .ok_or(Errno::INVAL)?;
        Ok((served.address, served.directory.clone()))
    }

    /// Returns the superblock of a server's directory. All mounts of a directory share one
    /// superblock, unless `is_separate`.
    pub(super) fn make_served(
        &mut self,
        source: &str,
        address: IpAddr,
        is_separate: bool,
    ) -> Answer<u64> {
        let (_, directory) = source.split_once(":/").ok_or(Errno::INVAL)?;
        let server = self
            .servers
            .by_address
            .get(&address)
            .ok_or(Errno::CONNREFUSED)?;
        if !server.directories.contains_key(directory) {
            return Err(Errno::NOENT);
        }
        let is_it = |served: &Served| {
            !is_separate
                && !served.is_separate
                && (&served.address, &*served.directory) == (&address, directory)
        };
        let mut existing = self.superblocks.iter();
        if let Some((shared, _)) = existing.find(|(_, it)| it.served.as_ref().is_some_and(is_it)) {
            return Ok(*shared);
        }
        let dev = self.anonymous_dev();
        let superblock = self.make_superblock("nfs4", dev, None);
        let served = Served {
            source: source.to_owned(),
            directory: directory.to_owned(),
            address,
            is_separate,
        };
        self.superblocks.get_mut(&superblock).unwrap().served = Some(served);
        Ok(superblock)
    }

    /// fsconfig(2) that creates the superblock of an NFS mount, after all parameters are set.
    pub(super) fn create_served(&mut self, fd: u64) -> Answer<()> {
        let parameters = self.context(fd)?.parameters.clone();
        let value = |key: &str| {
            let found = parameters.iter().rev().find(|(name, _)| name == key);
            found.and_then(|(_, value)| value.clone())
        };
        let source = value("source").ok_or(Errno::INVAL)?;
        let address = value("addr")
            .ok_or(Errno::INVAL)?
            .parse()
            .map_err(|_| Errno::INVAL)?;
        let version = value("nfsvers")
            .or(value("vers"))
            .ok_or(Errno::PROTONOSUPPORT)?;
        let server = self
            .servers
            .by_address
            .get(&address)
            .ok_or(Errno::CONNREFUSED)?;
        if !server.versions.contains(&version.as_str()) {
            return Err(Errno::PROTONOSUPPORT);
        }
        let is_separate = parameters.iter().any(|(name, _)| name == "nosharecache");
        let superblock = self.make_served(&source, address, is_separate)?;
        self.context(fd)?.superblock = Some(superblock);
        Ok(())
    }

    pub(super) fn set_parameter(&mut self, fd: u64, key: &str, value: Option<&str>) -> Answer<()> {
        if !PARAMETERS.contains(&key) {
            return Err(Errno::INVAL);
        }
        let parameter = (key.to_owned(), value.map(str::to_owned));
        self.context(fd)?.parameters.push(parameter);
        Ok(())
    }
}

/// The NFS mount parameters that the simulated kernel accepts.
const PARAMETERS: [&str; 11] = [
    "source",
    "addr",
    "vers",
    "nfsvers",
    "hard",
    "soft",
    "nolock",
    "nosharecache",
    "mountproto",
    "timeo",
    "sync",
];
