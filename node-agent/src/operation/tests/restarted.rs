//! Tests that an agent recognizes mounts that an earlier agent has made.

use std::path::Path;
use std::sync::Arc;

use belay_contract::drivers::{CIVO, DIGITALOCEAN, OPENSTACK, Profile};
use belay_server::call::Kind;
use belay_server::request::AccessMode;

use super::bench::{Form, Verb, Volume, World, start_with};
use super::disks::{refused, scsi};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::{DiskIndex, DiskRules, DiskVolumes, Transport};
use crate::kernel::Kernel;
use crate::kernel::fake::{Fake, Plug};
use crate::operation::{Node, Thread};

#[test]
fn nothing_is_opened_on_the_one_thread_for_a_mount_that_was_found_at_the_start() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let world = Simulated::new();
        let mut volume = world.volume("vol", form);
        let before = world.start();
        for verb in [Verb::Stage, Verb::Publish(1)] {
            volume.call(&before, verb).unwrap();
        }
        drop(before);
        let node = world.start();
        volume.mode = AccessMode::SingleNodeSingleWriter;
        // NodeStageVolume proves that the staged mount is the volume's, but does not prove this for
        // the first target.
        volume.call(&node, Verb::Stage).unwrap();
        let target = volume.target(2);
        let publish = |thread| volume.publish_at(&node, &target, thread);
        for _ in 0..2 {
            world.machine.never_wait_here(true);
            let on_thread = publish(Thread::Only);
            world.machine.never_wait_here(false);
            if on_thread.is_ok_and(|published| published.is_none()) {
                publish(Thread::Pool).unwrap_err();
            }
        }
        assert_eq!(world.machine.violations(), Vec::<String>::new(), "{form:?}");
        for verb in [Verb::Unpublish(1), Verb::Unstage] {
            volume.call(&node, verb).unwrap();
        }
        drop(node);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// A volume that was staged by an agent which has exited.
struct Left {
    world: Simulated,
    volume: Volume,
    profile: &'static Profile,
}

impl Left {
    /// Returns a volume whose disk the agent recognizes by this name or serial number.
    fn staged(profile: &'static Profile, plug: impl Fn(&Path) -> Plug, serial: &str) -> Left {
        let world = Simulated::of(Media::Disks);
        let mut volume = world.volume("7f8b1c2d-1111-4222-8333-444455556666", Form::Ext4);
        world.machine.unplug(&volume.file());
        world.machine.plug(plug(&volume.file()));
        volume.serial = Some(serial.to_owned());
        let left = Left {
            world,
            volume,
            profile,
        };
        all_ok(&left.start(), &left.volume, &[Verb::Stage]);
        left
    }

    fn start(&self) -> Node<Fake> {
        let rules = DiskRules::default();
        let (name, profile) = (self.profile.name, self.profile);
        self.world.start_disks_of(name, profile, rules)
    }

    /// Keeps the filesystem in use by another process, without a mount in the mount table.
    fn keep(&self) -> impl Sized + use<> {
        let kernel = self.world.kernel();
        let staging = kernel.open_path(&self.volume.staging()).unwrap();
        (kernel.open_tree(&staging).unwrap(), kernel)
    }
}

/// The names of DigitalOcean's disks do not contain the volume's ID. The disk can be found only by
/// a name in `/dev/belay`, or by the mount, which the first call has unmounted.
#[test]
fn an_unstage_that_was_refused_after_a_restart_is_refused_again() {
    let id = "7f8b1c2d-1111-4222-8333-444455556666";
    let digitalocean = || Left::staged(&DIGITALOCEAN, |it| scsi(it, "DO", "pvc-1"), "pvc-1");
    let civo = || Left::staged(&CIVO, |it| super::civo::disk(it, id), id);
    for (left, is_named) in [
        (digitalocean(), true),
        (digitalocean(), false),
        (civo(), true),
        (civo(), false),
    ] {
        let name = left.profile.name;
        if !is_named {
            left.world.remove_name(name, &left.volume);
        }
        let kept = left.keep();
        let mut node = left.start();
        for attempt in 0..3 {
            let failure = left.volume.call(&node, Verb::Unstage).err();
            let kind = failure.map(|failure| failure.kind);
            assert!(
                matches!(kind, Some(Kind::Precondition | Kind::Busy)),
                "{name}, {attempt}: {kind:?}"
            );
            if is_named {
                node = left.start();
            }
        }
        drop(kept);
        all_ok(&node, &left.volume, &[Verb::Unstage, Verb::Unstage]);
        nothing_left(&left.world);
    }
}

/// A virtio disk does not report its serial number before earlier writes are complete.
#[test]
fn nothing_is_unstaged_while_a_disk_has_not_answered() {
    let world = Simulated::of(Media::Disks);
    let volume = world.volume("vol", Form::Ext4);
    let node = world.start();
    let disks = node.transport.disks().unwrap();
    world.machine.unplug(&volume.file());
    world.machine.plug(Plug::virtio(&volume.file(), "vol"));
    disks.rescan(&node.kernel).unwrap();
    let failure = volume.call(&node, Verb::Unstage).unwrap_err();
    assert_eq!(failure.kind, Kind::Busy, "{failure}");
    assert!(failure.message.contains("volume vol: a disk has not"));
    for disk in disks.take_unasked() {
        // A disk may never respond to this query.
        disks.is_late(&disk);
    }
    all_ok(&node, &volume, &[Verb::Unstage]);
}

/// Starts an agent that has listed the disks but has not read their serial numbers.
fn start_unasked(world: &Simulated) -> Node<Fake> {
    let index = Arc::new(DiskIndex::new());
    let driver = DISK_DRIVER.parse().unwrap();
    let volumes = DiskVolumes::new(&driver, &OPENSTACK, &index, DiskRules::default());
    let node = start_with(world.kernel(), Transport::Disks(volumes), world.base());
    index.rescan(&node.kernel).unwrap();
    node
}

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

/// If the agent read the serial number of the disk, the read would hang.
#[test]
fn a_pod_ends_whether_or_not_its_disk_answers() {
    for (form, answers_with_error) in FORMS.map(|form| [(form, false), (form, true)]).concat() {
        let world = Simulated::of(Media::Disks);
        let volume = world.volume("vol", form);
        all_ok(&world.start(), &volume, &[Verb::Stage, Verb::Publish(1)]);
        let node = start_unasked(&world);
        let disks = node.transport.disks().unwrap();
        for disk in disks.take_unasked() {
            match answers_with_error {
                true => disks.has_failed(&disk, "EOPNOTSUPP"),
                false => disks.is_late(&disk),
            }
        }
        world.machine.begin(None);
        let unpublished = volume.call(&node, Verb::Unpublish(1));
        let calls = world.machine.end();
        assert!(unpublished.is_ok(), "{form:?}: {unpublished:?}");
        let is_query = |name: &str| name == "VIRTIO_BLK_T_GET_ID";
        assert!(!calls.iter().any(|call| is_query(call.name)), "{form:?}");
        assert!(node.kernel.look(&volume.target(1)).unwrap().is_none());
        let staged = node.kernel.look(&volume.staging_mount()).unwrap();
        assert!(staged.unwrap().mount_root, "{form:?}");
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(&world);
    }
}

#[test]
fn a_silent_disk_that_is_known_as_another_volumes_stays_published() {
    for form in [Form::Ext4, Form::Block] {
        let world = Simulated::of(Media::Disks);
        let (volume, other) = (world.volume("vol", form), world.volume("other", form));
        let before = world.start();
        for volume in [&volume, &other] {
            all_ok(&before, volume, &[Verb::Stage, Verb::Publish(1)]);
        }
        let node = start_unasked(&world);
        let disks = node.transport.disks().unwrap();
        let silent = world.machine.disk_dev(&volume.file());
        for disk in disks.take_unasked() {
            match disk.dev == silent {
                true => disks.is_late(&disk),
                false => disks.ask(&node.kernel, &disk),
            }
        }
        let mixed_up = Volume {
            folder: volume.folder.clone(),
            ..other.clone()
        };
        let failure = mixed_up.call(&node, Verb::Unpublish(1)).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        let target = node.kernel.look(&volume.target(1)).unwrap().unwrap();
        assert!(target.mount_root, "{form:?}");
        for volume in [&volume, &other] {
            all_ok(&node, volume, &[Verb::Unpublish(1), Verb::Unstage]);
        }
        nothing_left(&world);
    }
}

/// A read of the serial number was in progress when a call read the serial number itself; the first
/// read has failed since.
#[test]
fn a_silent_disk_that_a_volume_has_taken_stays_published_for_that_one() {
    let world = Simulated::of(Media::Disks);
    let (volume, other) = (
        world.volume("7f8b1c2d-1111-4222-8333-444455556666", Form::Ext4),
        world.volume("other", Form::Ext4),
    );
    world.machine.unplug(&other.file());
    let up = [Verb::Stage, Verb::Publish(1), Verb::Publish(2)];
    all_ok(&world.start(), &volume, &up);
    let node = start_unasked(&world);
    let disks = node.transport.disks().unwrap();
    let disk = disks.take_unasked().remove(0);
    all_ok(&node, &volume, &[Verb::Publish(1)]);
    disks.has_failed(&disk, "EIO");
    let mixed_up = Volume {
        folder: volume.folder.clone(),
        ..other
    };
    let unpublished = mixed_up.call(&node, Verb::Unpublish(2));
    let why = ["the mount at /base/pods/", "is not that of volume other"];
    refused(unpublished, Kind::Precondition, &why);
    let down = [Verb::Unpublish(2), Verb::Unpublish(1), Verb::Unstage];
    all_ok(&node, &volume, &down);
    nothing_left(&world);
}

/// The name of the disk is in the publish context, and cannot be derived from the volume's ID.
#[test]
fn a_publish_after_a_restart_learns_from_the_attachment_which_disk_is_the_volumes() {
    for form in FORMS {
        let world = Simulated::of(Media::Disks);
        let mut volume = world.volume("vol", form);
        world.machine.name_disk(&volume.file(), "another-name");
        volume.serial = Some("another-name".to_owned());
        all_ok(&world.start(), &volume, &[Verb::Stage]);
        let node = world.start();
        all_ok(
            &node,
            &volume,
            &[Verb::Publish(1), Verb::Unpublish(1), Verb::Unstage],
        );
        nothing_left(&world);
    }
}

/// NodePublishVolume may be called with the publish context of an earlier attachment.
#[test]
fn a_volume_that_is_known_by_its_id_keeps_its_disk_whatever_a_publish_says_of_it() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let world = Simulated::of(Media::Disks);
        let mut volume = world.volume("vol", form);
        all_ok(&world.start(), &volume, &[Verb::Stage]);
        let (node, staging) = (world.start(), volume.staging());
        volume.stats_of(&node, &staging, &staging).unwrap();
        volume.serial = Some("another-name".to_owned());
        let rest = [Verb::Publish(1), Verb::Unpublish(1), Verb::Unstage];
        all_ok(&node, &volume, &rest);
        nothing_left(&world);
    }
}

/// Returns two staged volumes of DigitalOcean, and an agent that was started later. If `are_named`
/// is not set, there are no names in `/dev/belay`, as if a different driver had staged the volumes.
fn two_staged(form: Form, are_named: bool) -> (Simulated, [Volume; 2], Node<Fake>) {
    let world = Simulated::of(Media::Disks);
    let volumes = ["one", "two"].map(|name| Volume {
        serial: Some(format!("pvc-{name}")),
        ..world.volume(name, form)
    });
    let start = || world.start_disks_of(DIGITALOCEAN.name, &DIGITALOCEAN, DiskRules::default());
    for volume in &volumes {
        let name = volume.serial.as_deref().unwrap();
        world.machine.unplug(&volume.file());
        world.machine.plug(scsi(&volume.file(), "DO", name));
    }
    let before = start();
    for volume in &volumes {
        all_ok(&before, volume, &[Verb::Stage]);
        if !are_named {
            world.remove_name(DIGITALOCEAN.name, volume);
        }
    }
    drop(before);
    let node = start();
    (world, volumes, node)
}

#[test]
fn after_a_restart_a_disk_with_a_name_is_its_volumes_and_no_others() {
    for form in FORMS {
        let (world, [volume, other], node) = two_staged(form, true);
        let measured = volume.stats_of(&node, &other.staging_mount(), &other.staging());
        let kind = measured.err().map(|failure| failure.kind);
        assert_eq!(kind, Some(Kind::NotFound), "{form:?}");
        let mixed_up = Volume {
            folder: other.folder.clone(),
            staged_at: Some(other.staging()),
            ..volume.clone()
        };
        for verb in [Verb::Publish(1), Verb::Unstage] {
            let failure = mixed_up.call(&node, verb).unwrap_err();
            assert_eq!(failure.kind, Kind::Precondition, "{form:?}: {failure}");
        }
        // A wrong publish context must not matter, and must not cause a disk to be opened.
        let mixed_up = Volume {
            serial: other.serial.clone(),
            ..volume.clone()
        };
        all_ok(&node, &mixed_up, &[Verb::Publish(1)]);
        match form {
            Form::Block => {
                let failure = mixed_up.call(&node, Verb::Stage).unwrap_err();
                assert_eq!(failure.kind, Kind::Precondition, "{failure}");
            }
            _ => all_ok(&node, &mixed_up, &[Verb::Stage]),
        }
        all_ok(&node, &mixed_up, &[Verb::Unpublish(1)]);
        for volume in [&volume, &other] {
            let rest = [Verb::Publish(1), Verb::Unpublish(1), Verb::Unstage];
            all_ok(&node, volume, &rest);
        }
        nothing_left(&world);
    }
}

/// While the name of the volume's disk is unknown, the statistics accept any disk of the cloud as
/// the volume's disk.
#[test]
fn a_mount_that_was_measured_before_the_disks_name_was_known_is_proven_again() {
    for between in [&[][..], &[Verb::Publish(2)], &[Verb::Stage]] {
        let (world, [volume, other], node) = two_staged(Form::Ext4, false);
        let theirs = other.staging();
        volume.stats_of(&node, &theirs, &theirs).unwrap();
        all_ok(&node, &volume, between);
        for _ in 0..2 {
            let target = volume.target(1);
            world.machine.never_wait_here(true);
            let on_thread = volume.publish_from(&node, &theirs, &target, Thread::Only);
            world.machine.never_wait_here(false);
            assert_eq!(on_thread, Ok(None));
            let mixed_up = volume.publish_from(&node, &theirs, &target, Thread::Pool);
            let why = ["volume one is not mounted at /base/staging/two"];
            refused(mixed_up.map(drop), Kind::Precondition, &why);
            assert!(node.kernel.look(&target).unwrap().is_none());
        }
        assert_eq!(world.machine.violations(), Vec::<String>::new());
        for volume in [&other, &volume] {
            let rest = [Verb::Publish(2), Verb::Unpublish(2), Verb::Unstage];
            all_ok(&node, volume, &rest);
        }
        nothing_left(&world);
    }
}

#[test]
fn a_name_that_no_mount_has_proven_is_not_kept_for_the_next_call() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let (world, [volume, other], node) = two_staged(form, false);
        let mixed_up = Volume {
            serial: other.serial.clone(),
            ..volume.clone()
        };
        for verb in [Verb::Publish(1), Verb::Stage] {
            let failure = mixed_up.call(&node, verb).unwrap_err();
            let message = &failure.message;
            let is_named = message.contains("/base/staging/one");
            assert!(is_named, "{form:?}, {verb:?}: {message}");
            let (path, staging) = (volume.staging_mount(), volume.staging());
            volume.stats_of(&node, &path, &staging).unwrap();
        }
        let rest = [
            Verb::Publish(1),
            Verb::Stage,
            Verb::Unpublish(1),
            Verb::Unstage,
        ];
        for volume in [&volume, &other] {
            all_ok(&node, volume, &rest);
        }
        nothing_left(&world);
    }
}
