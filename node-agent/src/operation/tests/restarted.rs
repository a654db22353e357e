//! An agent's knowledge of mounts that an earlier one has made.

use std::path::Path;

use belay_contract::drivers::{CIVO, DIGITALOCEAN, Profile};
use belay_server::call::Kind;
use belay_server::request::AccessMode;

use super::bench::{Form, Verb, Volume, World};
use super::disks::scsi;
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::DiskRules;
use crate::kernel::Kernel;
use crate::kernel::fake::{Fake, Plug};
use crate::operation::{Node, Published, Thread};

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
        // Proves the staged mount, but not the first target.
        volume.call(&node, Verb::Stage).unwrap();
        let target = volume.target(2);
        let publish = |thread| volume.publish_at(&node, &target, thread);
        for _ in 0..2 {
            world.machine.never_wait_here(true);
            let on_thread = publish(Thread::Only);
            world.machine.never_wait_here(false);
            if on_thread.is_ok_and(|published| published == Published::WantsPool) {
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

/// A volume that an agent has staged which has ended.
struct Left {
    world: Simulated,
    volume: Volume,
    profile: &'static Profile,
}

impl Left {
    /// The disk is known by that name or serial.
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

    /// Another process keeps the filesystem, without a mount in the table.
    fn keep(&self) -> impl Sized + use<> {
        let kernel = self.world.kernel();
        let staging = kernel.open_path(&self.volume.staging()).unwrap();
        (kernel.open_tree(&staging).unwrap(), kernel)
    }
}

/// The names of DigitalOcean's disks are not made of the volume's ID: only the mount that the first
/// call has unmounted led to the disk.
#[test]
fn an_unstage_that_was_refused_after_a_restart_is_refused_again() {
    let digitalocean = Left::staged(&DIGITALOCEAN, |it| scsi(it, "DO", "pvc-1"), "pvc-1");
    let id = "7f8b1c2d-1111-4222-8333-444455556666";
    let civo = Left::staged(&CIVO, |it| super::civo::disk(it, id), id);
    for left in [digitalocean, civo] {
        let name = left.profile.name;
        let kept = left.keep();
        let node = left.start();
        for attempt in 0..3 {
            let failure = left.volume.call(&node, Verb::Unstage).err();
            let kind = failure.map(|failure| failure.kind);
            assert!(
                matches!(kind, Some(Kind::Precondition | Kind::Busy)),
                "{name}, {attempt}: {kind:?}"
            );
        }
        drop(kept);
        all_ok(&node, &left.volume, &[Verb::Unstage, Verb::Unstage]);
        nothing_left(&left.world);
    }
}

/// A virtio disk answers only when the writes before have ended.
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
        // It may never answer.
        disks.is_late(&disk);
    }
    all_ok(&node, &volume, &[Verb::Unstage]);
}
