//! The machine's state, and the resolution of paths.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Component, Path, PathBuf};
use std::thread::ThreadId;

use rustix::io::Errno;

use super::disks::{Plugged, device_dev};
use super::kept::Kept;
use super::loops::Loop;
use super::mappers::DeviceMapper;
use super::meanwhile::Meanwhile;
use super::servers::{Served, Servers};
use super::sparse::Sparse;
use super::{Call, Confusion, Fault};
use crate::kernel::{Dev, FileKind, MountAttrs, Stat};

pub(super) type Answer<T> = std::result::Result<T, Errno>;

/// The whole state of the machine, protected by one lock.
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) superblocks: BTreeMap<u64, Superblock>,
    pub(super) mounts: BTreeMap<u64, Mount>,
    /// Loop devices and disks. The numbers of disks begin with [`super::disks::DISKS`].
    pub(super) loops: BTreeMap<u32, Loop>,
    pub(super) disks: BTreeMap<u32, Plugged>,
    pub(super) mapped: DeviceMapper,
    pub(super) open: BTreeMap<u64, Description>,
    /// The description that holds the flock(2) lock of an inode.
    pub(super) locks: BTreeMap<u64, u64>,
    pub(super) calls: Vec<Call>,
    pub(super) fault: Option<Fault>,
    /// An external event, and the number of the call before which it happens.
    pub(super) meanwhile: Option<(usize, Meanwhile)>,
    /// Whether reads in the current call return half of the available bytes.
    pub(super) reads_half: bool,
    /// The calls that hang.
    pub(super) hung: BTreeSet<u64>,
    /// The highest process number that was killed by [`super::Machine::kill_all`] or a power loss.
    pub(super) dead_up_to: u64,
    /// The thread on which no call may block.
    pub(super) never_waits: Option<ThreadId>,
    pub(super) violations: Vec<String>,
    /// Whether the mount namespace belongs to process 1.
    pub(super) is_beside_first_process: bool,
    /// The wall clock, in seconds since 1970.
    pub(super) realtime: u64,
    /// Whether leases are refused to all processes, as on NFS.
    pub(super) grants_no_leases: bool,
    /// Whether openat2(2) with `RESOLVE_CACHED` finds no name in memory.
    pub(super) has_cold_names: bool,
    /// The directory in which every lookup waits for a server that does not respond.
    pub(super) silent: Option<PathBuf>,
    /// Whether `/dev` accepts no new names.
    pub(super) has_fixed_dev: bool,
    /// Whether disks that are plugged in later have no sequence number, as before Linux 5.15.
    pub(super) has_no_diskseq: bool,
    /// Whether all filesystems are mounted with project quotas.
    pub(super) has_project_quotas: bool,
    /// The size and the used bytes of the first filesystem, which contains the volumes' files.
    pub(super) storage: (u64, u64),
    /// The logical block size of every device.
    pub(super) device_block_bytes: u32,
    pub(super) has_no_mount_ids: bool,
    /// The installed tools.
    pub(super) tools: super::mkfs::Tools,
    /// Whether `SEEK_DATA` always returns the start of the file, wherever the search begins.
    pub(super) maps_backwards: bool,
    pub(super) servers: Servers,
    /// Whether SELinux is enabled.
    pub(super) has_labels: bool,
    /// Whether statmount(2) omits the labels of mounts.
    pub(super) hides_labels: bool,
    /// The treatment of devices whose btrfs have the same ID, as before Linux 6.7.
    pub(super) btrfs_confusion: Option<Confusion>,
    /// Symlinks, and the directories that they point to.
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    numbers: u64,
}

pub(super) struct Inode {
    pub(super) superblock: u64,
    pub(super) kind: InodeKind,
}

/// The names in a directory, and their inodes.
pub(super) type Names = Kept<BTreeMap<String, u64>>;

pub(super) enum InodeKind {
    Directory(Names),
    File(File),
    Loop(u32),
}

#[derive(Default)]
pub(super) struct File {
    pub(super) contents: Kept<Sparse>,
    /// The inode's extended attributes.
    pub(super) attributes: Kept<BTreeMap<String, Vec<u8>>>,
    /// Whether the file was truncated, so that its content may be incomplete.
    pub(super) cut: bool,
    /// Whether the file was mounted, or written to from outside, and may contain a user's data.
    pub(super) used: bool,
    /// The number of completed mkfs runs on the file.
    pub(super) formats: u32,
}

/// A filesystem that is mounted, or is being mounted.
pub(super) struct Superblock {
    pub(super) fs_type: String,
    pub(super) dev: Dev,
    /// The number of the device that the filesystem has claimed.
    pub(super) on: Option<u32>,
    pub(super) read_only: bool,
    pub(super) shut_down: bool,
    /// Whether the filesystem is an ext4 that a journal replay grew after the kernel had counted
    /// the groups.
    pub(super) is_miscounted: bool,
    /// The filesystem's error count.
    pub(super) errors: u64,
    /// The SELinux label of all files.
    pub(super) label: Option<String>,
    /// The server and the directory, for a network filesystem.
    pub(super) served: Option<Served>,
    pub(super) root: u64,
}

pub(super) struct Mount {
    pub(super) superblock: u64,
    pub(super) root: u64,
    /// The path of the mount's root when it was mounted; empty for the root of the filesystem.
    pub(super) name: PathBuf,
    pub(super) attrs: MountAttrs,
    /// The peer group; `None` if the mount is private.
    pub(super) group: Option<u64>,
    /// The location that the mount is attached to; `None` while it is detached.
    pub(super) on: Option<Location>,
    pub(super) point: PathBuf,
}

/// An inode, and the mount through which it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) mount: u64,
    pub(super) ino: u64,
}

/// An open file description.
pub(super) struct Description {
    /// The process that opened the description; `None` if only a loop device keeps it open.
    pub(super) owner: Option<u64>,
    pub(super) object: Object,
    pub(super) path: String,
}

pub(super) enum Object {
    /// An `O_PATH` descriptor, a directory or a mount.
    Name(Location),
    File {
        location: Location,
        writable: bool,
    },
    Device {
        location: Location,
        number: u32,
        writable: bool,
        exclusive: bool,
        /// Whether the device was opened without `O_DIRECT`, so that it uses the page cache.
        buffered: bool,
    },
    Context(Context),
}

/// A filesystem context (fsopen(2)).
pub(super) struct Context {
    pub(super) fs_type: String,
    pub(super) source: Option<PathBuf>,
    pub(super) read_only: bool,
    pub(super) label: Option<String>,
    /// The parameters of a network filesystem: name, and value if it has one.
    pub(super) parameters: Vec<(String, Option<String>)>,
    pub(super) superblock: Option<u64>,
}

impl Object {
    pub(super) fn location(&self) -> Answer<Location> {
        match self {
            Object::Name(location)
            | Object::File { location, .. }
            | Object::Device { location, .. } => Ok(*location),
            Object::Context(_) => Err(Errno::BADF),
        }
    }

    pub(super) fn device(&self) -> Answer<u32> {
        match self {
            Object::Device { number, .. } => Ok(*number),
            _ => Err(Errno::NOTTY),
        }
    }
}

impl State {
    pub(super) fn new() -> State {
        let mut state = State {
            inodes: BTreeMap::new(),
            superblocks: BTreeMap::new(),
            mounts: BTreeMap::new(),
            loops: BTreeMap::new(),
            disks: BTreeMap::new(),
            mapped: DeviceMapper::default(),
            open: BTreeMap::new(),
            locks: BTreeMap::new(),
            calls: Vec::new(),
            fault: None,
            meanwhile: None,
            reads_half: false,
            hung: BTreeSet::new(),
            dead_up_to: 0,
            never_waits: None,
            violations: Vec::new(),
            is_beside_first_process: true,
            realtime: 1_800_000_000,
            grants_no_leases: false,
            has_cold_names: false,
            silent: None,
            has_fixed_dev: false,
            has_no_diskseq: false,
            has_project_quotas: false,
            storage: (100 << 30, 1 << 30),
            device_block_bytes: 512,
            has_no_mount_ids: false,
            tools: super::mkfs::Tools::default(),
            maps_backwards: false,
            servers: Servers::default(),
            has_labels: false,
            hides_labels: false,
            btrfs_confusion: None,
            links: BTreeMap::new(),
            numbers: 0,
        };
        let root = state.make_superblock("ext4", Dev { major: 8, minor: 1 }, None);
        let mount = state.make_mount(root, MountAttrs::default());
        // Like the kubelet's directory, `/` propagates mounts: every mount below gets a peer group.
        let group = Some(state.number());
        let on = Some(Location { mount: 0, ino: 0 });
        let point = PathBuf::from("/");
        let host = state.mounts.get_mut(&mount).unwrap();
        (host.group, host.on, host.point) = (group, on, point);
        state.make_dir(Path::new("/dev"));
        let dev = state.make_superblock("devtmpfs", Dev { major: 0, minor: 6 }, None);
        let mount = state.make_mount(dev, MountAttrs::default());
        let onto = state.walk(Path::new("/dev")).unwrap();
        state.attach(mount, onto, Path::new("/dev")).unwrap();
        state.load_device_mapper();
        state
    }

    /// Returns a number that was never returned before.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn describe(&mut self, owner: u64, object: Object, path: String) -> u64 {
        let id = self.number();
        let owner = Some(owner);
        let description = Description {
            owner,
            object,
            path,
        };
        self.open.insert(id, description);
        id
    }

    pub(super) fn object(&self, id: u64) -> Answer<&Object> {
        self.open.get(&id).map(|d| &d.object).ok_or(Errno::BADF)
    }

    pub(super) fn make_inode(&mut self, superblock: u64, kind: InodeKind) -> u64 {
        let ino = self.number();
        self.inodes.insert(ino, Inode { superblock, kind });
        ino
    }

    /// Resolves a path, through all mounts.
    pub(super) fn walk(&self, path: &Path) -> Answer<Location> {
        let (&mount, host) = self.mounts.iter().next().ok_or(Errno::NOENT)?;
        let mut at = Location {
            mount,
            ino: host.root,
        };
        for component in self.without_links(path).components() {
            let Component::Normal(name) = component else {
                continue;
            };
            let ino = self.child(at.ino, name.to_str().ok_or(Errno::NOENT)?)?;
            at = self.topmost(Location { ino, ..at });
        }
        Ok(at)
    }

    /// Returns the root of the topmost mount on the location; the location itself if there is none.
    pub(super) fn topmost(&self, mut at: Location) -> Location {
        let upon = |at| self.mounts.iter().find(|(_, mount)| mount.on == Some(at));
        while let Some((&mount, upper)) = upon(at) {
            at = Location {
                mount,
                ino: upper.root,
            };
        }
        at
    }

    pub(super) fn child(&self, directory: u64, name: &str) -> Answer<u64> {
        match &self.inode(directory)?.kind {
            InodeKind::Directory(names) => names.get(name).copied().ok_or(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn inode(&self, ino: u64) -> Answer<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    pub(super) fn stat_of(&self, location: Location) -> Answer<Stat> {
        let inode = self.inode(location.ino)?;
        let no_device = Dev { major: 0, minor: 0 };
        let (kind, rdev, bytes) = match &inode.kind {
            InodeKind::Directory(_) => (FileKind::Directory, no_device, 4096),
            InodeKind::File(file) => (FileKind::File, no_device, file.contents.bytes()),
            InodeKind::Loop(number) => (FileKind::BlockDevice, device_dev(*number), 0),
        };
        // The simulated mkfs writes only a few blocks, the real tools write more.
        let allocated = match &inode.kind {
            InodeKind::File(file) if file.contents.is_blank() => 0,
            _ => bytes,
        };
        Ok(Stat {
            kind,
            dev: self.superblocks[&inode.superblock].dev,
            rdev,
            ino: location.ino,
            bytes,
            allocated,
            links: self.links_to(location.ino),
            mount_root: self
                .mounts
                .get(&location.mount)
                .is_some_and(|m| m.root == location.ino),
            // A root that is described from mountinfo has no mount ID, as in the real
            // implementation.
            mount_id: match self.has_no_mount_ids || self.superblocks[&inode.superblock].shut_down {
                true => 0,
                false => location.mount,
            },
        })
    }

    /// Returns the number of hard links to a file.
    fn links_to(&self, ino: u64) -> u32 {
        let names = self.inodes.values().map(|inode| match &inode.kind {
            InodeKind::Directory(names) => names.values().filter(|named| **named == ino).count(),
            _ => 0,
        });
        u32::try_from(names.sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// Returns the parent directory and the last component of a path.
    pub(super) fn parent(&self, path: &Path) -> Answer<(Location, String)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let parent = self.walk(path.parent().ok_or(Errno::BUSY)?)?;
        Ok((parent, name.ok_or(Errno::INVAL)?.to_owned()))
    }

    /// Returns all paths in the first filesystem, for [`super::Picture`].
    pub(super) fn host_names(&self) -> Vec<(PathBuf, u64)> {
        let host = self.mounts.values().next();
        host.map_or(Vec::new(), |host| self.names_in(host))
    }

    /// Returns all paths in a mount.
    pub(super) fn names_in(&self, mount: &Mount) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        let mut left = VecDeque::from([(mount.point.clone(), mount.root)]);
        while let Some((path, ino)) = left.pop_front() {
            if let Ok(InodeKind::Directory(names)) = self.inode(ino).map(|it| &it.kind) {
                left.extend(names.iter().map(|(name, ino)| (path.join(name), *ino)));
            }
            found.push((path, ino));
        }
        found
    }
}
