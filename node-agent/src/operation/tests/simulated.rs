//! Implements the `World` of the tests on the simulated machine.

use std::path::Path;
use std::sync::Arc;

use belay_contract::drivers::{OPENSTACK, Profile};

use super::bench::{DRIVER, Form, Volume, World, hear, start_with};
use crate::device::{DiskIndex, DiskRules, DiskVolumes, Transport};
use crate::kernel::Kernel;
use crate::kernel::fake::{Call, Fake, Machine, Plug};
use crate::operation::Node;

/// The name of a driver whose volumes are disks.
pub(crate) const DISK_DRIVER: &str = OPENSTACK.name;

pub(crate) struct Simulated {
    pub(crate) machine: Machine,
    media: Media,
}

/// The storage of the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// The volumes are files, used through loop devices.
    Files,
    /// The volumes are disks; the medium of each disk is a file of the simulated machine.
    Disks,
}

impl Simulated {
    pub(crate) fn new() -> Simulated {
        Simulated::of(Media::Files)
    }

    pub(crate) fn of(media: Media) -> Simulated {
        let machine = Machine::new();
        machine.make_dir(Path::new("/base/volumes"));
        Simulated { machine, media }
    }

    /// Enlarges the file or the disk of a volume, as the controller or the cloud does.
    pub(crate) fn grow(&self, volume: &Volume, bytes: u64) {
        match self.media {
            Media::Files => self.machine.make_file(&volume.file(), bytes),
            Media::Disks => self.machine.grow_disk(&volume.file(), bytes),
        }
    }

    /// Starts an agent for a driver whose volumes are disks.
    pub(crate) fn start_disks(&self, driver: &str) -> Node<Fake> {
        self.start_disks_which(driver, DiskRules::default())
    }

    /// Starts an agent for a driver whose volumes are disks, with these rules for formatting.
    pub(crate) fn start_disks_which(&self, driver: &str, rules: DiskRules) -> Node<Fake> {
        self.start_disks_of(driver, &OPENSTACK, rules)
    }

    /// Starts an agent for a driver with this profile, whose volumes are disks.
    pub(crate) fn start_disks_of(
        &self,
        driver: &str,
        profile: &'static Profile,
        rules: DiskRules,
    ) -> Node<Fake> {
        let transport = disks_of(driver, profile, rules);
        let node = start_with(self.kernel(), transport, self.base());
        hear(&node).unwrap();
        node
    }
}

/// Returns the disk volumes of a driver with this profile and these rules for formatting.
pub(super) fn disks_of(
    driver: &str,
    profile: &'static Profile,
    rules: DiskRules,
) -> Transport<Fake> {
    let (driver, index) = (driver.parse().unwrap(), Arc::new(DiskIndex::new()));
    Transport::Disks(DiskVolumes::new(&driver, profile, &index, rules))
}

impl Simulated {
    /// Removes the name of the volume's disk in `/dev/belay`, as if a different driver had made the
    /// mounts before this driver replaced it.
    pub(super) fn remove_name(&self, driver: &str, volume: &Volume) {
        let (kernel, base) = (self.kernel(), Path::new("/dev/belay").join(driver));
        let beginning = format!("{}@", volume.id);
        for name in kernel.names(&base).unwrap() {
            if name.starts_with(&beginning) {
                let directory = base.join(name);
                for node in kernel.names(&directory).unwrap() {
                    kernel.unlink(&directory.join(node)).unwrap();
                }
                kernel.rmdir(&directory).unwrap();
            }
        }
    }

    /// Returns a volume on a disk, with the paths that a kubelet creates for it.
    pub(crate) fn volume_of_kubelet(&self, id: &str, form: Form) -> Volume {
        let mut volume = self.volume(id, form);
        let plugin = self.base().join("plugins/kubernetes.io/csi");
        let staging = match form {
            Form::Block => plugin.join("volumeDevices/staging").join(id),
            _ => plugin.join(DISK_DRIVER).join(id).join("globalmount"),
        };
        self.make_dir(&staging);
        volume.staged_at = Some(staging);
        volume
    }

    /// Returns the position, counted from 1, of the first matching system call that `act` makes.
    pub(super) fn first_call(&self, act: impl FnOnce(), is_it: impl Fn(&Call) -> bool) -> usize {
        self.machine.begin(None);
        act();
        self.machine.end().iter().position(is_it).unwrap() + 1
    }

    /// Returns the position, counted from 1, of the last matching system call that `act` makes.
    pub(super) fn last_call(&self, act: impl FnOnce(), is_it: impl Fn(&Call) -> bool) -> usize {
        self.machine.begin(None);
        act();
        self.machine.end().iter().rposition(is_it).unwrap() + 1
    }
}

impl World for Simulated {
    type Kernel = Fake;

    fn kernel(&self) -> Fake {
        self.machine.process()
    }

    fn base(&self) -> &Path {
        Path::new("/base")
    }

    fn start(&self) -> Node<Fake> {
        match self.media {
            Media::Files => self.start_driver(DRIVER, &self.volumes()),
            Media::Disks => self.start_disks(DISK_DRIVER),
        }
    }

    fn attached(&self, mut volume: Volume) -> Volume {
        if self.media == Media::Disks {
            // Create the filesystem now: otherwise, the agent would read the whole disk to check
            // that it is blank, which is slow.
            if let Some(fs_type) = volume.form.fs_type() {
                self.machine.make_filesystem(&volume.file(), fs_type);
            }
            self.machine.plug(Plug::virtio(&volume.file(), &volume.id));
            volume.serial = Some(volume.id.clone());
            volume.mark = Some(1);
        }
        volume
    }

    fn make_file(&self, path: &Path, bytes: u64) {
        self.machine.make_file(path, bytes);
    }

    fn set_attribute(&self, path: &Path, name: &str, value: &[u8]) {
        self.machine.set_attribute(path, name, value);
    }

    fn make_dir(&self, path: &Path) {
        self.machine.make_dir(path);
    }

    fn move_file(&self, from: &Path, to: &Path) {
        self.machine.move_file(from, to);
    }

    fn remove_file(&self, path: &Path) {
        self.machine.delete_file(path);
    }

    fn write_file(&self, path: &Path, at: u64, bytes: &[u8]) {
        self.machine.write_file(path, at, bytes);
    }

    fn left(&self) -> Vec<String> {
        let mut left = self.machine.violations();
        left.extend(self.machine.picture().beginning_with(&[
            "mount /base",
            "mount :",
            "mapper",
            "loop",
            "lock of inode",
            "lock of /base/volumes/",
            "file /base/staging",
            "file /base/pods",
            "directory /base/pods/",
            "device /dev/belay/",
        ]));
        left
    }
}
