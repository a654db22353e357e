//! The mount table: stacked mounts, peer groups, and the reasons why umount fails.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::disks::device_dev;
use super::state::{Answer, Context, InodeKind, Location, Mount, Names, Object, State, Superblock};
use super::superblock::{self, Whole};
use super::{ext4, fsck, mkfs, xfs};
use crate::kernel::{Dev, MountAttrs, MountEntry, MountFacts};

impl State {
    pub(super) fn make_superblock(&mut self, fs_type: &str, dev: Dev, on: Option<u32>) -> u64 {
        let id = self.number();
        let root = self.make_inode(id, InodeKind::Directory(Names::default()));
        let superblock = Superblock {
            fs_type: fs_type.to_owned(),
            dev,
            on,
            read_only: false,
            shut_down: false,
            is_miscounted: false,
            errors: 0,
            label: None,
            served: None,
            root,
        };
        self.superblocks.insert(id, superblock);
        id
    }

    /// Creates a detached mount of the whole filesystem.
    pub(super) fn make_mount(&mut self, superblock: u64, attrs: MountAttrs) -> u64 {
        let id = self.number();
        let mount = Mount {
            superblock,
            root: self.superblocks[&superblock].root,
            name: PathBuf::new(),
            attrs,
            group: None,
            on: None,
            point: PathBuf::new(),
        };
        self.mounts.insert(id, mount);
        id
    }

    /// Attaches a mount to a location, and to the same location in all peers of the parent mount.
    pub(super) fn attach(&mut self, id: u64, onto: Location, point: &Path) -> Answer<()> {
        let below = self.mounts.get(&onto.mount).ok_or(Errno::INVAL)?;
        if below.root == onto.ino && below.point != Path::new("/") {
            self.violations
                .push(format!("{} has mounts stacked on it", point.display()));
        }
        let group = below.group;
        let within = point.strip_prefix(&below.point).unwrap_or(point);
        let within = within.to_owned();
        let peers: Vec<u64> = self
            .mounts
            .iter()
            .filter(|(peer, m)| {
                **peer != onto.mount && m.on.is_some() && group.is_some() && m.group == group
            })
            .map(|(peer, _)| *peer)
            .collect();
        let own_group = self.number();
        let mount = self.mounts.get_mut(&id).ok_or(Errno::INVAL)?;
        mount.on = Some(onto);
        point.clone_into(&mut mount.point);
        if group.is_some() && mount.group.is_none() {
            mount.group = Some(own_group);
        }
        let (superblock, root, attrs, group) =
            (mount.superblock, mount.root, mount.attrs, mount.group);
        let name = mount.name.clone();
        for peer in peers {
            let copy = self.number();
            let on = Some(Location {
                mount: peer,
                ..onto
            });
            let point = self.mounts[&peer].point.join(&within);
            let mount = Mount {
                superblock,
                root,
                name: name.clone(),
                attrs,
                group,
                on,
                point,
            };
            self.mounts.insert(copy, mount);
        }
        Ok(())
    }

    /// Copies one mount. The root of the copy is the location of `fd`. The copy joins the peer
    /// group of the original mount.
    pub(super) fn clone_mount(&mut self, fd: u64) -> Answer<Object> {
        let location = self.object(fd)?.location()?;
        let original = self.mounts.get(&location.mount).ok_or(Errno::INVAL)?;
        let opened = Path::new(&self.open[&fd].path);
        let below = opened.strip_prefix(&original.point).unwrap_or(opened);
        let name = match location.ino == original.root {
            true => original.name.clone(),
            false => original.name.join(below),
        };
        let mount = Mount {
            superblock: original.superblock,
            root: location.ino,
            name,
            attrs: original.attrs,
            group: original.group,
            on: None,
            point: PathBuf::new(),
        };
        let id = self.number();
        self.mounts.insert(id, mount);
        Ok(Object::Name(Location {
            mount: id,
            ..location
        }))
    }

    /// Returns the mount whose root the description refers to.
    pub(super) fn mount_of(&mut self, fd: u64) -> Answer<(u64, &mut Mount)> {
        let location = self.object(fd)?.location()?;
        let mount = self.mounts.get_mut(&location.mount).ok_or(Errno::INVAL)?;
        match mount.root == location.ino {
            true => Ok((location.mount, mount)),
            false => Err(Errno::INVAL),
        }
    }

    pub(super) fn mount_setattr(&mut self, fd: u64, attrs: MountAttrs) -> Answer<()> {
        let (_, mount) = self.mount_of(fd)?;
        let mut kept = mount.attrs;
        if attrs.bits() & MountAttrs::ATIME_CHOICE.bits() != 0 {
            kept = kept.without(MountAttrs::ATIME_CHOICE);
        }
        mount.attrs = kept.with(attrs);
        mount.group = None;
        Ok(())
    }

    pub(super) fn move_mount(&mut self, mount: u64, onto: u64) -> Answer<()> {
        let (mount, moved) = self.mount_of(mount)?;
        if moved.on.is_some() {
            return Err(Errno::INVAL);
        }
        if !self.is_named(&self.mounts[&mount]) {
            return Err(Errno::NOENT);
        }
        let is_directory = matches!(
            self.inode(self.mounts[&mount].root)?.kind,
            InodeKind::Directory(_)
        );
        self.expect_counted(mount);
        let point = PathBuf::from(&self.open[&onto].path);
        let onto = self.topmost(self.object(onto)?.location()?);
        let onto_directory = matches!(self.inode(onto.ino)?.kind, InodeKind::Directory(_));
        if is_directory != onto_directory {
            return Err(Errno::NOTDIR);
        }
        self.attach(mount, onto, &point)?;
        self.note_raw_use(mount);
        Ok(())
    }

    pub(super) fn mount_root(&self, path: &Path) -> Answer<Option<PathBuf>> {
        let location = self.walk(path)?;
        let mount = &self.mounts[&location.mount];
        Ok((mount.root == location.ino).then(|| self.root_name(mount)))
    }

    /// Returns the root of a mount as mountinfo shows it.
    fn root_name(&self, mount: &Mount) -> PathBuf {
        let name = Path::new("/").join(&mount.name);
        match self.is_named(mount) {
            true => name,
            false => PathBuf::from(format!("{}//deleted", name.display())),
        }
    }

    /// Whether the root of the mount can still be reached by its original name.
    fn is_named(&self, mount: &Mount) -> bool {
        let mut found = self.superblocks[&mount.superblock].root;
        let mut names = mount.name.iter().filter_map(|name| name.to_str());
        names.all(|name| {
            let child = self.child(found, name);
            child.map(|child| found = child).is_ok()
        }) && found == mount.root
    }

    pub(super) fn umount(&mut self, path: &Path) -> Answer<()> {
        let location = self.walk(path)?;
        let mount = self.mounts.get(&location.mount).ok_or(Errno::INVAL)?;
        if mount.root != location.ino {
            return Err(Errno::INVAL);
        }
        let carries = |m: &Mount| m.on.is_some_and(|on| on.mount == location.mount);
        if self.held_mounts().contains(&location.mount) || self.mounts.values().any(carries) {
            return Err(Errno::BUSY);
        }
        self.mounts.remove(&location.mount);
        self.clean();
        Ok(())
    }

    pub(super) fn statmount(&self, path: &Path) -> Answer<Option<MountFacts>> {
        let location = self.walk(path)?;
        let is_root = self.mounts[&location.mount].root == location.ino;
        Ok(is_root.then(|| self.facts(location.mount)))
    }

    pub(super) fn facts(&self, id: u64) -> MountFacts {
        let mount = &self.mounts[&id];
        let superblock = &self.superblocks[&mount.superblock];
        MountFacts {
            fs_type: superblock.fs_type.clone(),
            attrs: mount.attrs,
            superblock_read_only: superblock.read_only,
            shut_down: superblock.shut_down,
            counts_in_memory: self.counts_in_memory(mount.superblock),
            peer_group: mount.group.unwrap_or(0),
            label: superblock.label.clone().filter(|_| !self.hides_labels),
        }
    }

    /// Whether statfs(2) of the descriptor's filesystem does not wait for a disk.
    pub(super) fn counts_of(&self, fd: u64) -> bool {
        let location = self.object(fd).and_then(Object::location);
        location
            .is_ok_and(|location| self.counts_in_memory(self.mounts[&location.mount].superblock))
    }

    /// Whether statfs(2) of the superblock does not wait for its disk.
    pub(super) fn counts_in_memory(&self, superblock: u64) -> bool {
        let fs_type = self.superblocks[&superblock].fs_type.as_str();
        ["ext4", "xfs"].contains(&fs_type) && !self.has_project_quotas
    }

    pub(super) fn mount_entries(&self) -> Vec<MountEntry> {
        let attached = self.mounts.iter();
        attached
            .filter_map(|(id, mount)| {
                let on = mount.on?;
                let superblock = &self.superblocks[&mount.superblock];
                let device = |number| Path::new("/dev").join(self.device_name(number));
                let served = superblock.served.as_ref();
                let source = superblock.on.map(device);
                let source = source.or(served.map(|it| it.source.clone().into()));
                Some(MountEntry {
                    id: *id,
                    parent: on.mount,
                    dev: superblock.dev,
                    root: self.root_name(mount),
                    point: mount.point.clone(),
                    fs_type: superblock.fs_type.clone(),
                    source: source.unwrap_or_else(|| PathBuf::from("none")),
                    peer_group: mount.group.unwrap_or(0),
                })
            })
            .collect()
    }

    pub(super) fn context(&mut self, fd: u64) -> Answer<&mut Context> {
        match self.open.get_mut(&fd).map(|d| &mut d.object) {
            Some(Object::Context(context)) => Ok(context),
            _ => Err(Errno::BADF),
        }
    }

    /// Sets a parameter that the agent uses: a source, `ro`, and parameters of the filesystem.
    pub(super) fn fsconfig(&mut self, fd: u64, key: &str, value: Option<&str>) -> Answer<()> {
        let has_labels = self.has_labels;
        if self.context(fd)?.fs_type == "nfs" {
            return self.set_parameter(fd, key, value);
        }
        let context = self.context(fd)?;
        match (key, value) {
            ("context", Some(label)) if has_labels => context.label = Some(label.to_owned()),
            ("source", Some(source)) => context.source = Some(PathBuf::from(source)),
            ("ro", None) => context.read_only = true,
            ("nouuid", None) if context.fs_type == "xfs" => {}
            ("errors", Some(_)) | ("prjquota", None) if context.fs_type == "ext4" => {
                let parameter = (key.to_owned(), value.map(str::to_owned));
                context.parameters.push(parameter);
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// Reads the superblock through the device, and claims the device.
    pub(super) fn create_superblock(&mut self, fd: u64, number: u32, shared: bool) -> Answer<()> {
        let context = self.context(fd)?;
        let (fs_type, read_only) = (context.fs_type.clone(), context.read_only);
        let (label, parameters) = (context.label.clone(), context.parameters.clone());
        let mut mounted = self
            .superblocks
            .iter()
            .filter(|(_, s)| s.on == Some(number));
        if shared && let Some((&superblock, _)) = mounted.next() {
            self.context(fd)?.superblock = Some(superblock);
            return self.wait_for_replay(&fs_type, number);
        }
        if self.is_claimed(number) || self.loops[&number].running_down {
            return Err(Errno::BUSY);
        }
        let binding = self.loops[&number].binding.as_ref().ok_or(Errno::NXIO)?;
        let (ino, bytes) = (binding.ino, binding.bytes);
        if binding.mode.read_only && !read_only {
            return Err(Errno::ROFS);
        }
        if self.refuses_writes(number) && !read_only {
            return Err(Errno::ACCESS);
        }
        let already = self.superblocks.values().filter_map(|s| s.on);
        if already.filter_map(|n| self.behind(n)).any(|i| i == ino) {
            self.violations
                .push(format!("inode {ino} is mounted by two devices"));
        }
        // The kernel reads the bytes through the device's cache.
        self.flush_cache(number, 0..u64::MAX);
        let may_be_damaged = read_only || self.tools.lacks_e2fsck || fs_type != "ext4";
        let file = self.file(ino)?;
        match superblock::read(&file.contents) {
            Some(Whole {
                fs_type: found,
                bytes: size,
            }) if found == fs_type && size <= bytes => {}
            _ => return Err(Errno::INVAL),
        }
        let halts = fs_type == "ext4" && ext4::halts(&file.contents, &parameters)?;
        let is_whole = file.formats == 0 || file.cut || mkfs::is_whole(&file.contents, &fs_type);
        if fs_type == "xfs" && !read_only {
            file.contents.change(xfs::log);
        }
        let is_miscounted = fs_type == "ext4" && file.contents.change(ext4::replay);
        if fs_type == "ext4" {
            file.contents.sync();
        }
        let is_damaged = !may_be_damaged && fsck::is_damaged(&file.contents);
        self.note_use(number);
        let wrong = [
            (is_damaged, "was mounted with errors"),
            (halts, "was mounted and halts the machine after an error"),
            (!is_whole, "was mounted, and mkfs has not ended"),
        ];
        for (_, what) in wrong.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.violations.push(format!("inode {ino} {what}"));
        }
        let dev = match fs_type.as_str() {
            "btrfs" => self.anonymous_dev(),
            _ => device_dev(number),
        };
        let superblock = self.make_superblock(&fs_type, dev, Some(number));
        let made = self.superblocks.get_mut(&superblock).unwrap();
        (made.read_only, made.label) = (read_only, label);
        made.is_miscounted = is_miscounted;
        self.context(fd)?.superblock = Some(superblock);
        Ok(())
    }

    /// Replays the journal of an ext4 before its existing superblock is mounted again.
    fn wait_for_replay(&mut self, fs_type: &str, number: u32) -> Answer<()> {
        if fs_type == "ext4" {
            let binding = self.loops[&number].binding.as_ref().ok_or(Errno::NXIO)?;
            let ino = binding.ino;
            self.file(ino)?.contents.change(ext4::replay);
        }
        Ok(())
    }

    /// Records a violation if the filesystem has miscounted its groups: its users would get
    /// EUCLEAN.
    pub(super) fn expect_counted(&mut self, mount: u64) {
        let superblock = self.mounts[&mount].superblock;
        if self.superblocks[&superblock].is_miscounted {
            self.violations.push(format!(
                "superblock {superblock} is used with miscounted groups"
            ));
        }
    }

    pub(super) fn anonymous_dev(&mut self) -> Dev {
        let taken = |minor: u32| self.superblocks.values().any(|s| s.dev.minor == minor);
        let minor = (64..).find(|minor| !taken(*minor)).unwrap();
        Dev { major: 0, minor }
    }

    pub(super) fn fsmount(&mut self, fd: u64, attrs: MountAttrs) -> Answer<Object> {
        let superblock = self.context(fd)?.superblock.ok_or(Errno::INVAL)?;
        let mount = self.make_mount(superblock, attrs);
        let ino = self.mounts[&mount].root;
        Ok(Object::Name(Location { mount, ino }))
    }
}
