//! Tests of Civo's disks, which are smaller than their volumes, and of known defects of civo-csi on
//! the node. Each test is named after the defect whose absence it checks.

use std::path::Path;

use belay_contract::drivers::CIVO;
use belay_server::call::Kind;

use super::bench::{BYTES, Form, GROWN_BYTES, Verb, Volume, World, hear};
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::DiskRules;
use crate::kernel::fake::{Fake, Fault, Plug};
use crate::kernel::{DiskFacts, ScsiFacts};
use crate::operation::Node;

const ID: &str = "7f8b1c2d-1111-4222-8333-444455556666";

/// Returns the disk as emulated by QEMU, which reports the complete volume ID in both VPD pages.
pub(super) fn disk(medium: &Path, id: &str) -> Plug {
    let length = u8::try_from(id.len()).unwrap();
    let with = |page: u8, head: &[u8]| {
        let mut bytes = vec![0, page, 0, u8::try_from(head.len()).unwrap() + length];
        bytes.extend(head);
        bytes.extend(id.bytes());
        bytes
    };
    Plug {
        medium: medium.to_owned(),
        facts: DiskFacts::Scsi(ScsiFacts {
            vendor: format!("{:<8}", "QEMU"),
            model: format!("{:<16}", "QEMU HARDDISK"),
            serial_page: with(0x80, &[]),
            id_page: with(0x83, &[2, 0, 0, length]),
        }),
        serial: String::new(),
    }
}

fn start(world: &Simulated) -> Node<Fake> {
    let rules = DiskRules {
        proves_unknown: true,
        ..DiskRules::default()
    };
    world.start_disks_of(CIVO.name, &CIVO, rules)
}

/// Returns a volume whose disk is attached and contains a filesystem.
fn volume(world: &Simulated, form: Form) -> Volume {
    let mut volume = world.volume(ID, form);
    world.machine.unplug(&volume.file());
    world.machine.plug(disk(&volume.file(), ID));
    volume.serial = Some(ID.to_owned());
    volume
}

#[test]
fn c1_a_mkfs_or_mount_that_fails_is_ok_without_a_mount() {
    // Omit the reads that check whether a disk is blank, because reading a whole disk is slow in
    // the simulation.
    let tried = ["mkfs write", "fsopen", "fsconfig", "fsmount", "move_mount"];
    let stage = |fault: Option<usize>| {
        let world = Simulated::of(Media::Disks);
        let mut volume = volume(&world, Form::Ext4);
        volume.content = "used";
        world.machine.discard(&volume.file());
        let node = start(&world);
        world.machine.begin(fault.map(|at| Fault::Fail(at, "EIO")));
        let staged = volume.call(&node, Verb::Stage);
        let calls = world.machine.end();
        let shown = |path: &str| !world.machine.picture().beginning_with(&[path]).is_empty();
        assert_eq!(
            staged.is_ok(),
            shown("mount /base/staging"),
            "{fault:?}: {staged:?}"
        );
        assert_eq!(staged.is_ok(), fault.is_none(), "{fault:?}: {staged:?}");
        if fault.is_some() {
            // After this failed stage, NodePublishVolume must either show the volume or fail, but
            // never show an empty directory.
            let published = volume.call(&node, Verb::Publish(1));
            assert_eq!(published.is_ok(), shown("mount /base/pods"), "{fault:?}");
        }
        calls
    };
    let calls = stage(None);
    for name in tried {
        let at = calls.iter().position(|call| call.name == name);
        stage(Some(at.unwrap_or_else(|| panic!("no {name}")) + 1));
    }
}

#[test]
fn c2_a_second_stage_mounts_once_more() {
    let world = Simulated::of(Media::Disks);
    let volume = volume(&world, Form::Ext4);
    let node = start(&world);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Stage, Verb::Stage]);
    let mounts = world.machine.picture().beginning_with(&["mount /base"]);
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(&world);
}

#[test]
fn c11_an_expansion_ignores_the_mount_and_asks_the_cloud() {
    let world = Simulated::of(Media::Disks);
    let volume = volume(&world, Form::Ext4);
    let node = start(&world);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
    let (staging, target) = (volume.staging(), volume.target(1));
    let elsewhere = world.base().join("elsewhere");
    let unmounted = volume.expand_to(&node, &elsewhere, &staging, BYTES);
    assert_eq!(unmounted.unwrap_err().kind, Kind::NotFound);
    // The disk is smaller than this capacity of the volume.
    world.grow(&volume, GROWN_BYTES);
    let capacity = GROWN_BYTES / 945 * 1000;
    let bytes = volume.expand_to(&node, &target, &staging, capacity);
    assert_eq!(bytes.unwrap(), GROWN_BYTES);
    let larger = volume.expand_to(&node, &target, &staging, GROWN_BYTES * 2);
    assert_eq!(larger.unwrap_err().kind, Kind::Unreachable);
}

#[test]
fn the_disk_of_another_volume_or_of_a_much_smaller_one_is_refused() {
    let world = Simulated::of(Media::Disks);
    let volume = volume(&world, Form::Ext4);
    let node = start(&world);
    world.machine.unplug(&volume.file());
    let other = ID.replace('7', "8");
    world.machine.plug(disk(&volume.file(), &other));
    hear(&node).unwrap();
    let stage = volume.call(&node, Verb::Stage);
    assert_eq!(stage.unwrap_err().kind, Kind::Unreachable);
    world.machine.unplug(&volume.file());
    world
        .machine
        .truncate_file(&volume.file(), BYTES / 1000 * 899);
    world.machine.plug(disk(&volume.file(), ID));
    hear(&node).unwrap();
    let stage = volume.call(&node, Verb::Stage);
    assert_eq!(stage.unwrap_err().kind, Kind::Precondition);
}
