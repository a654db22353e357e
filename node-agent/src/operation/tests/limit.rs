//! Tests of the maximum number of volumes on a node that also has disks which are not volumes of
//! the driver.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::{DIGITALOCEAN, OPENSTACK, Profile};

use super::bench::{Form, Verb, Volume, World, hear};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use super::suite::all_ok;
use crate::device::{DiskIndex, DiskRules, DiskVolumes, Transport};
use crate::kernel::fake::{Fake, Plug};
use crate::kernel::{DiskFacts, ScsiFacts, Surroundings};
use crate::mounts::MountIndex;
use crate::operation::{KubeletDir, Node};

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

fn world() -> Simulated {
    Simulated::of(Media::Disks)
}

fn volumes_max(node: &Node<Fake>, disks_max: u32) -> u32 {
    crate::operation::volumes_max(node, disks_max, Instant::now())
}

/// Returns the limit after a time in which every attached volume would have been staged or
/// detached.
fn settled_max(node: &Node<Fake>, disks_max: u32) -> u32 {
    let then = Instant::now() + Duration::from_secs(5 * 60);
    crate::operation::volumes_max(node, disks_max, then)
}

/// Attaches a disk that belongs to no driver.
fn plug(world: &Simulated, medium: &str, serial: &str) {
    let medium = Path::new("/media").join(medium);
    world.machine.make_file(&medium, 1 << 20);
    world.machine.plug(Plug::virtio(&medium, serial));
}

#[test]
fn disks_of_others_are_subtracted_and_the_limit_follows_each_change() {
    let world = world();
    let node = world.start();
    let max = || {
        hear(&node).unwrap();
        settled_max(&node, 26)
    };
    assert_eq!(max(), 26);
    // Attach a root disk without a serial number, and then a disk with a serial number.
    plug(&world, "root", "");
    assert_eq!(max(), 25);
    plug(&world, "second", "01234567-89ab-cdef-0123");
    assert_eq!(max(), 25, "it may be a volume that no call has named");
    world.machine.divide(Path::new("/media/second"));
    assert_eq!(max(), 24);
    world.machine.unplug(Path::new("/media/second"));
    assert_eq!(max(), 25);
}

#[test]
fn a_volume_of_the_driver_does_not_lower_its_limit_at_any_time() {
    for form in FORMS {
        let world = world();
        let mut node = world.start();
        let volume = world.volume_of_kubelet("vol", form);
        for verb in [Verb::Stage, Verb::Publish(1), Verb::Unpublish(1)] {
            hear(&node).unwrap();
            assert_eq!(volumes_max(&node, 26), 26, "{form:?}, before {verb:?}");
            all_ok(&node, &volume, &[verb]);
            if verb == Verb::Stage {
                // The kernel also finds partitions on a raw volume.
                world.machine.divide(&volume.file());
            }
        }
        assert_eq!(volumes_max(&node, 26), 26, "{form:?}");
        node = world.start();
        assert_eq!(volumes_max(&node, 26), 26, "{form:?}, restarted");
        all_ok(&node, &volume, &[Verb::Stage]);
        assert_eq!(volumes_max(&node, 26), 26, "{form:?}, staged again");
    }
}

/// The mapper of an encrypted volume uses its disk, as the mapper of an operator does.
#[test]
fn an_encrypted_volume_does_not_lower_the_limit_after_a_restart() {
    for form in FORMS {
        let world = world();
        let mut volume = world.volume_of_kubelet("vol", form).encrypted();
        world.machine.discard(&volume.file());
        volume.attached_at = Some(world.kernel().realtime());
        all_ok(&world.start(), &volume, &[Verb::Stage]);
        let node = world.start();
        hear(&node).unwrap();
        assert_eq!(settled_max(&node, 26), 26, "{form:?}");
    }
}

/// Only `--kubelet-dir` shows whether a mount that existed before the agent started belongs to a
/// volume.
#[test]
fn without_the_kubelets_directory_a_mounted_disk_is_not_subtracted() {
    let world = world();
    let volume = world.volume_of_kubelet("vol", Form::Ext4);
    all_ok(&world.start(), &volume, &[Verb::Stage]);
    let mut node = world.start();
    node.kubelet_dir = None;
    hear(&node).unwrap();
    assert_eq!(volumes_max(&node, 26), 26);
}

/// Starts a second driver in the same process; the drivers share the index of disks.
fn beside(world: &Simulated, driver: &str, index: &Arc<DiskIndex>) -> Node<Fake> {
    of_profile(world, &OPENSTACK, driver, index)
}

fn of_profile(
    world: &Simulated,
    profile: &'static Profile,
    driver: &str,
    index: &Arc<DiskIndex>,
) -> Node<Fake> {
    let kernel = world.kernel();
    let driver = driver.parse().unwrap();
    let volumes = DiskVolumes::new(&driver, profile, index, DiskRules::default());
    let transport = Transport::Disks(volumes);
    let mounts = MountIndex::scan(&kernel, &transport).unwrap();
    let kubelet_dir = KubeletDir::open(&kernel, world.base()).unwrap();
    let node = Node::new(kernel, transport, mounts, Some(Arc::new(kubelet_dir)));
    hear(&node).unwrap();
    node
}

/// DigitalOcean attaches 15 volumes to a droplet, in addition to its root disk.
#[test]
fn only_disks_that_are_volumes_of_a_cloud_count_if_it_limits_only_volumes() {
    let world = world();
    let index = Arc::new(DiskIndex::new());
    let node = of_profile(&world, &DIGITALOCEAN, DISK_DRIVER, &index);
    let other = beside(&world, "other.csi.example", &index);
    let both = || {
        hear(&node).unwrap();
        [&node, &other].map(|node| settled_max(node, 15))
    };
    assert_eq!(both(), [15, 15]);
    plug(&world, "root", "");
    plug(&world, "data", "01234567-89ab-cdef-0123");
    world.machine.divide(Path::new("/media/data"));
    assert_eq!(both(), [15, 13]);
    let name = b"foreign";
    let page = [&[0, 0x83, 0, 4 + 7, 2, 0, 0, 7], &name[..]].concat();
    let volume = Plug {
        medium: "/media/foreign".into(),
        facts: DiskFacts::Scsi(ScsiFacts {
            vendor: "DO".to_owned(),
            model: "Volume".to_owned(),
            serial_page: Vec::new(),
            id_page: page,
        }),
        serial: String::new(),
    };
    world.machine.make_file(&volume.medium, 1 << 20);
    world.machine.plug(volume.clone());
    assert_eq!(
        both(),
        [15, 13],
        "it may be a volume that no call has named"
    );
    world.machine.divide(&volume.medium);
    assert_eq!(both(), [14, 12]);
}

#[test]
fn a_volume_of_another_driver_is_subtracted() {
    const OTHER: &str = "other.csi.example";
    for form in FORMS {
        let world = world();
        let index = Arc::new(DiskIndex::new());
        let [ours, theirs] = [DISK_DRIVER, OTHER].map(|driver| beside(&world, driver, &index));
        let mut volume = world.volume_of_kubelet("vol", form);
        if form != Form::Block {
            let staged = volume
                .staging()
                .to_str()
                .unwrap()
                .replace(DISK_DRIVER, OTHER);
            world.make_dir(Path::new(&staged));
            volume.staged_at = Some(staged.into());
        }
        hear(&ours).unwrap();
        all_ok(&theirs, &volume, &[Verb::Stage]);
        let both = |ours: &Node<Fake>, theirs: &Node<Fake>| {
            [ours, theirs].map(|node| volumes_max(node, 26))
        };
        assert_eq!(both(&ours, &theirs), [25, 26], "{form:?}");
        // The mounts also identify the disks of a driver that runs in a different process.
        let [one, other] = [DISK_DRIVER, OTHER].map(|driver| {
            let index = Arc::new(DiskIndex::new());
            beside(&world, driver, &index)
        });
        assert_eq!(both(&one, &other), [25, 26], "{form:?}, restarted");
        all_ok(&theirs, &volume, &[Verb::Unstage]);
        assert_eq!(both(&ours, &theirs), [26, 26], "{form:?}, unstaged");
    }
}

#[test]
fn the_limit_is_never_below_the_volumes_in_use_and_never_none() {
    let world = world();
    let node = world.start();
    for number in 0..3 {
        plug(&world, &format!("root-{number}"), "");
    }
    hear(&node).unwrap();
    for disks_max in [1, 2, 3, 4] {
        // In CSI, 0 would mean that there is no limit.
        assert_eq!(volumes_max(&node, disks_max), 1, "{disks_max}");
    }
    assert_eq!(volumes_max(&node, 5), 2);
    let volumes: [Volume; 4] =
        ["a", "b", "c", "d"].map(|id| world.volume_of_kubelet(id, Form::Block));
    hear(&node).unwrap();
    for volume in &volumes {
        all_ok(&node, volume, &[Verb::Stage]);
    }
    assert_eq!(volumes_max(&node, 5), 4);
}

/// With multipath, the kernel lists each path as a disk, and all these disks have the same
/// worldwide name.
#[test]
fn several_paths_to_one_unit_are_one_disk() {
    let world = world();
    let node = world.start();
    let unit = |medium: &str, name: u8| Plug {
        medium: Path::new("/media").join(medium),
        facts: DiskFacts::Scsi(ScsiFacts {
            vendor: "ACME".to_owned(),
            model: "array".to_owned(),
            serial_page: Vec::new(),
            id_page: vec![0, 0x83, 0, 12, 1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, name],
        }),
        serial: String::new(),
    };
    for (medium, name) in [("one", 1), ("again", 1), ("third", 1), ("other", 2)] {
        let plug = unit(medium, name);
        world.machine.make_file(&plug.medium, 1 << 20);
        world.machine.plug(plug.clone());
        // The device mapper is listed in sysfs as holder of each path.
        world.machine.divide(&plug.medium);
    }
    hear(&node).unwrap();
    assert_eq!(settled_max(&node, 26), 24);
    world.machine.unplug(Path::new("/media/one"));
    hear(&node).unwrap();
    assert_eq!(settled_max(&node, 26), 24);
    for medium in ["again", "third"] {
        world.machine.unplug(&Path::new("/media").join(medium));
    }
    hear(&node).unwrap();
    assert_eq!(settled_max(&node, 26), 25);
}

/// A raw volume can contain a partition table, too. The scheduler counts the volume from its
/// attachment to its detachment.
#[test]
fn a_volume_with_partitions_is_not_subtracted_before_its_stage_and_after_its_unstage() {
    for is_restarted in [false, true] {
        let world = world();
        let mut node = world.start();
        hear(&node).unwrap();
        let volume = world.volume_of_kubelet("vol", Form::Block);
        world.machine.divide(&volume.file());
        hear(&node).unwrap();
        assert_eq!(volumes_max(&node, 26), 26, "attached");
        assert_eq!(settled_max(&node, 26), 25, "no call has named it");
        all_ok(&node, &volume, &[Verb::Stage]);
        if is_restarted {
            node = world.start();
            hear(&node).unwrap();
        }
        assert_eq!(settled_max(&node, 26), 26, "staged");
        all_ok(&node, &volume, &[Verb::Unstage]);
        assert_eq!(volumes_max(&node, 26), 26, "unstaged: {is_restarted}");
        assert_eq!(settled_max(&node, 26), 25, "it was not detached");
        world.machine.unplug(&volume.file());
        hear(&node).unwrap();
        assert_eq!(settled_max(&node, 26), 26, "detached");
    }
}

/// An example of such a disk is the root disk.
#[test]
fn a_disk_with_partitions_that_was_there_first_is_subtracted_at_once() {
    let world = world();
    plug(&world, "root", "01234567-89ab-cdef-0123");
    world.machine.divide(Path::new("/media/root"));
    let node = world.start();
    hear(&node).unwrap();
    assert_eq!(volumes_max(&node, 26), 25);
}

/// If the sysfs attributes of a disk cannot be read, the disk does not lower the limit.
#[test]
fn a_disk_that_cannot_be_checked_counts_as_a_volume() {
    use crate::kernel::fake::Fault;

    let world = world();
    let node = world.start();
    plug(&world, "second", "01234567-89ab-cdef-0123");
    world.machine.divide(Path::new("/media/second"));
    hear(&node).unwrap();
    world.machine.begin(Some(Fault::FailFrom(1, "EIO")));
    assert_eq!(settled_max(&node, 26), 26);
    world.machine.end();
    assert_eq!(settled_max(&node, 26), 25);
}
