//! Tests of volumes that are disks: how the agent finds the disk of a volume, and what happens if
//! the disk is removed, replaced or enlarged.

use std::path::Path;

use belay_contract::reason::volume;
use belay_server::call::{Failure, Kind};
use belay_server::request::AccessMode;

use super::bench::{BYTES, Form, GROWN_BYTES, MIB, Verb, Volume, World, hear};
use super::power::ends_in_stage;
use super::simulated::{DISK_DRIVER, Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::device::DiskRules;
use crate::kernel::fake::meanwhile::Meanwhile;
use crate::kernel::fake::{Call, Confusion, Fake, Fault, Holds, Plug};
use crate::kernel::{DiskFacts, Kernel as _, Open, ScsiFacts};
use crate::operation::{Node, VolumeUsage};

/// Two volume IDs for which a virtio disk reports the same serial number.
const ALIKE: [&str; 2] = ["0123456789-0123456789-a", "0123456789-0123456789-b"];
/// Offset in bytes of the format mark, which an interrupted mkfs leaves on the disk.
const MARK_AT: u64 = 100 * MIB;
/// Offset in bytes of a part of an xfs log to which a mount writes.
const LOG_AT: u64 = 48 * MIB + 1024;
const PLACES: [Form; 2] = [Form::Ext4, Form::Block];

fn world() -> Simulated {
    Simulated::of(Media::Disks)
}

#[track_caller]
pub(super) fn refused(result: Result<(), Failure>, kind: Kind, why: &[&str]) {
    let failure = result.unwrap_err();
    assert_eq!(failure.kind, kind, "{failure}");
    for why in why {
        assert!(failure.message.contains(why), "{failure}");
    }
}

/// Returns a SCSI disk with this medium, and with the vendor and ID that a cloud sets.
pub(super) fn scsi(medium: &Path, vendor: &str, id: &str) -> Plug {
    let mut id_page = vec![0, 0x83, 0, 0, 2, 0, 0, u8::try_from(id.len()).unwrap()];
    id_page.extend(id.bytes());
    id_page[3] = u8::try_from(id_page.len() - 4).unwrap();
    Plug {
        medium: medium.to_owned(),
        facts: DiskFacts::Scsi(ScsiFacts {
            vendor: format!("{vendor:<8}"),
            model: format!("{:<16}", "Volume"),
            serial_page: Vec::new(),
            id_page,
        }),
        serial: String::new(),
    }
}

#[test]
fn a_stage_without_its_disk_says_what_it_wants_and_what_there_is() {
    let world = world();
    let node = world.start();
    let volume = world.volume("vol-1", Form::Ext4);
    world.volume("vol-2", Form::Ext4);
    world.machine.unplug(&volume.file());
    let stage = volume.call(&node, Verb::Stage);
    let why = ["serial \"vol-1\"", "vdb (virtio-vol-2)"];
    refused(stage, Kind::Unreachable, &why);
    world.machine.plug(Plug::virtio(&volume.file(), "vol-1"));
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    nothing_left(&world);
}

#[test]
fn two_disks_that_say_the_same_are_used_for_no_volume() {
    let world = world();
    let node = world.start();
    let [one, other] = ALIKE.map(|id| world.volume(id, Form::Ext4));
    refused(
        one.call(&node, Verb::Stage),
        Kind::Precondition,
        &["vda and vdb both match"],
    );
    world.machine.unplug(&other.file());
    hear(&node).unwrap();
    all_ok(&node, &one, &[Verb::Stage, Verb::Unstage]);
}

/// While the volume is staged, its disk must not be detached.
#[test]
fn a_volume_is_taken_down_though_another_disk_says_the_same_by_now() {
    for restart in [false, true] {
        let world = world();
        let mut node = world.start();
        let volume = world.volume(ALIKE[0], Form::Ext4);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        world.volume(ALIKE[1], Form::Ext4);
        hear(&node).unwrap();
        if restart {
            node = world.start();
        }
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(&world);
    }
}

/// Without a name in `/dev/belay`, the only evidence that the mount is the volume's is the
/// beginning of a serial number.
#[test]
fn a_mount_without_a_name_is_not_used_while_another_disk_or_volume_shares_its_serial() {
    let world = world();
    let volume = world.volume(ALIKE[0], Form::Ext4);
    let raw = world.volume("0123456789-9876543210-a", Form::Block);
    for volume in [&volume, &raw] {
        all_ok(&world.start(), volume, &[Verb::Stage, Verb::Publish(1)]);
    }
    world.remove_name(DISK_DRIVER, &volume);
    let other = Volume {
        folder: "other".to_owned(),
        ..world.volume("elsewhere", Form::Ext4)
    };
    world.machine.unplug(&other.file());
    let other = Volume {
        id: ALIKE[1].to_owned(),
        serial: Some(ALIKE[1].to_owned()),
        ..other
    };
    world.make_dir(&other.staging());
    let node = world.start();
    let why = ["staged or published at"];
    refused(other.call(&node, Verb::Stage), Kind::Precondition, &why);
    let why = ["both volume", ALIKE[0], ALIKE[1]];
    for verb in [Verb::Publish(2), Verb::Stats] {
        refused(volume.call(&node, verb), Kind::Precondition, &why);
    }
    // If the agent has already identified the volume's disk, a second similar disk does not matter.
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Publish(1), Verb::Stats]);
    refused(other.call(&node, Verb::Stage), Kind::Precondition, &why);
    all_ok(&node, &volume, &[Verb::Publish(1), Verb::Stats]);
    world.volume(ALIKE[1], Form::Ext4);
    world.volume("0123456789-9876543210-b", Form::Block);
    let node = world.start();
    for verb in [Verb::Publish(2), Verb::Stats] {
        let why = ["both match"];
        refused(volume.call(&node, verb), Kind::Precondition, &why);
        // The bind mount of a raw device shows the volume's name.
        all_ok(&node, &raw, &[verb]);
    }
    for volume in [&volume, &raw] {
        let down = [Verb::Unpublish(2), Verb::Unpublish(1), Verb::Unstage];
        all_ok(&node, volume, &down);
    }
    nothing_left(&world);
}

#[test]
fn a_disk_that_two_volumes_are_recognised_by_is_used_for_the_first_alone() {
    for form in PLACES {
        let world = world();
        let node = world.start();
        let [one, other] = ALIKE.map(|id| world.volume(id, form));
        world.machine.unplug(&other.file());
        all_ok(&node, &one, &[Verb::Stage, Verb::Publish(1)]);
        let why = ["vda", ALIKE[0], ALIKE[1]];
        refused(other.call(&node, Verb::Stage), Kind::Precondition, &why);
        all_ok(
            &node,
            &one,
            &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
        );
        nothing_left(&world);
    }
}

#[test]
fn a_volume_of_another_driver_on_the_same_disk_is_refused_by_name() {
    let world = world();
    let volume = world.volume("vol", Form::Ext4);
    let one = world.start();
    all_ok(&one, &volume, &[Verb::Stage]);
    // A second agent identifies the volume only by its ID, and the disk is in use.
    let other = world.start_disks("other.csi.example");
    let mut again = volume.clone();
    again.folder = "elsewhere".to_owned();
    world.make_dir(&again.staging());
    let staged = again.call(&other, Verb::Stage);
    refused(staged, Kind::Precondition, &["staged or published at"]);
    all_ok(&one, &volume, &[Verb::Unstage]);
}

/// After the agent has found the disk, a different disk replaces it, with the same device number
/// and name.
#[test]
fn another_disk_that_came_in_the_place_of_the_volumes_is_not_used() {
    for form in PLACES {
        let world = world();
        let volume = world.volume("vol", form);
        let foreign = world.base().join("foreign");
        world.machine.make_file(&foreign, BYTES);
        let node = world.start();
        let before = world.machine.disk_dev(&volume.file());
        world.machine.unplug(&volume.file());
        world.machine.plug(Plug::virtio(&foreign, "foreign"));
        assert_eq!(world.machine.disk_dev(&foreign), before);
        let stage = volume.call(&node, Verb::Stage);
        refused(stage, Kind::Unreachable, &["vda (virtio-foreign)"]);
        assert_eq!(world.machine.holds(&foreign), Holds::Nothing);
        nothing_left(&world);
    }
}

#[test]
fn a_disk_that_is_removed_under_a_volume_is_reported_and_the_volume_is_taken_down() {
    for form in [Form::Ext4, Form::Xfs, Form::Block] {
        for restart in [false, true] {
            let world = world();
            let volume = world.volume("vol", form);
            let mut node = world.start();
            all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
            world.machine.unplug(&volume.file());
            if restart {
                node = world.start();
            }
            let what = format!("{form:?}, restart {restart}");
            let health = volume.health(&node).unwrap();
            assert!(
                health.iter().any(|it| it.reason == volume::DEVICE_LOST),
                "{what}: {health:?}"
            );
            let publish = volume.call(&node, Verb::Publish(2));
            refused(publish, Kind::Precondition, &["vol"]);
            all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
            nothing_left(&world);
            // The cloud attaches the disk again.
            world.machine.plug(Plug::virtio(&volume.file(), "vol"));
            let again = [Verb::Stage, Verb::Publish(1), Verb::Stats];
            all_ok(&node, &volume, &again);
            all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
            nothing_left(&world);
        }
    }
}

#[test]
fn the_bind_of_a_removed_disk_does_not_make_the_next_one_the_volumes() {
    let world = world();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
    world.machine.unplug(&volume.file());
    let next = world.volume("next", Form::Block);
    for verb in [Verb::Publish(2), Verb::Stats] {
        assert!(volume.call(&node, verb).is_err(), "{verb:?}");
    }
    all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
    let whole = [
        Verb::Stage,
        Verb::Publish(1),
        Verb::Stats,
        Verb::Unpublish(1),
        Verb::Unstage,
    ];
    all_ok(&node, &next, &whole);
    nothing_left(&world);
}

#[test]
fn a_scsi_disk_that_has_grown_is_measured_again_before_a_filesystem_grows() {
    let world = world();
    let mut volume = world.volume("pvc-1", Form::Ext4);
    world.machine.unplug(&volume.file());
    world.machine.plug(scsi(&volume.file(), "DO", "pvc-1"));
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
    world.grow(&volume, GROWN_BYTES);
    let (staging, target) = (volume.staging(), volume.target(1));
    let late = volume.expand_to(&node, &target, &staging, GROWN_BYTES + 1);
    assert_eq!(late.unwrap_err().kind, Kind::Unreachable);
    let bytes = volume.expand_to(&node, &target, &staging, GROWN_BYTES);
    assert_eq!(bytes.unwrap(), GROWN_BYTES);
    let Ok(VolumeUsage::Filesystem(usage)) = volume.stats(&node) else {
        panic!("no filesystem");
    };
    assert!(usage.total_bytes > BYTES, "{usage:?}");
    all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
    volume.serial = Some("pvc-2".to_owned());
    let stage = volume.call(&node, Verb::Stage);
    refused(stage, Kind::Unreachable, &["scsi-0DO_Volume_pvc-1"]);
}

#[test]
fn a_disk_that_is_smaller_than_its_volume_is_refused() {
    let world = world();
    let volume = world.volume("vol", Form::Ext4);
    world.machine.unplug(&volume.file());
    world.machine.truncate_file(&volume.file(), 100 * MIB);
    world.machine.plug(Plug::virtio(&volume.file(), "vol"));
    let stage = volume.call(&world.start(), Verb::Stage);
    refused(stage, Kind::Precondition, &["vda", "less than"]);
    nothing_left(&world);
}

#[test]
fn a_blank_disk_of_which_nothing_is_known_is_not_formatted_and_a_filesystem_on_it_is_mounted() {
    let world = world();
    let mut volume = world.volume("vol", Form::Ext4);
    volume.content = "unknown";
    world.machine.discard(&volume.file());
    let node = world.start();
    let stage = volume.call(&node, Verb::Stage);
    refused(
        stage,
        Kind::Precondition,
        &["does not state whether it held data"],
    );
    assert_eq!(world.machine.holds(&volume.file()), Holds::Nothing);
    volume.content = "used";
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    volume.content = "unknown";
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    let holds = world.machine.holds(&volume.file());
    assert_eq!(holds, Holds::Filesystem("ext4", BYTES, 1));
}

#[test]
fn a_disk_of_which_nothing_is_known_can_be_proven_blank_if_the_driver_is_told_to() {
    let world = world();
    let mut volume = world.volume("vol", Form::Ext4);
    volume.content = "unknown";
    world.machine.discard(&volume.file());
    let mut other = world.volume("other", Form::Ext4);
    other.content = "unknown";
    world.machine.discard(&other.file());
    world.write_file(&other.file(), BYTES / 3, &[1]);
    let rules = DiskRules {
        proves_unknown: true,
        ..DiskRules::default()
    };
    let node = world.start_disks_which(DISK_DRIVER, rules);
    let stage = other.call(&node, Verb::Stage);
    refused(stage, Kind::Precondition, &["contains unknown data"]);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    let holds = world.machine.holds(&volume.file());
    assert_eq!(holds, Holds::Filesystem("ext4", BYTES, 1));
}

/// Returns a volume for which the agent was killed during mkfs, so that the format is incomplete.
fn half_formatted(form: Form, mark: Option<u8>) -> (Simulated, Volume) {
    let world = world();
    let mut volume = world.volume("vol", form);
    volume.mark = mark;
    world.machine.discard(&volume.file());
    let node = world.start();
    let fault = Fault::DieAfter("mkfs write");
    assert!(ends_in_stage(&world, &node, &volume, fault));
    (world, volume)
}

/// A user of the disk can write anything to it, but cannot forge a format mark, because the mark
/// contains a secret.
#[test]
fn an_interrupted_format_of_a_disk_is_begun_again_only_with_its_secret() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        for (written, now, why) in [
            (None, None, "nothing proves that it was not used since"),
            (None, Some(1), "nothing proves that it was not used since"),
            (Some(1), Some(2), "was made with another key"),
            (Some(1), None, "was made with another key"),
        ] {
            let (world, mut volume) = half_formatted(form, written);
            volume.mark = now;
            let node = world.start();
            let before = world.machine.holds(&volume.file());
            let staged = volume.call(&node, Verb::Stage);
            refused(staged, Kind::Precondition, &["not formatted: ", why]);
            assert_eq!(world.machine.holds(&volume.file()), before);
            all_ok(&node, &volume, &[Verb::Unstage]);
            nothing_left(&world);
        }
        let (world, volume) = half_formatted(form, Some(1));
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        let holds = world.machine.holds(&volume.file());
        let fs_type = form.fs_type().unwrap();
        assert_eq!(holds, Holds::Filesystem(fs_type, BYTES, 1));
    }
}

/// Returns a volume for which the agent was killed after the last write of mkfs: the xfs is
/// complete, but the format mark is still on the disk.
fn formatted_but_marked() -> (Simulated, Volume) {
    let blank = || {
        let world = world();
        let volume = world.volume("vol", Form::Xfs);
        world.machine.discard(&volume.file());
        (world, volume)
    };
    let (world, volume) = blank();
    let node = world.start();
    let stage = || volume.call(&node, Verb::Stage).unwrap();
    let last = world.last_call(stage, |call| call.name == "mkfs write");
    let (world, volume) = blank();
    assert!(ends_in_stage(
        &world,
        &world.start(),
        &volume,
        Fault::Die(last)
    ));
    (world, volume)
}

/// Checks that the format mark stays on the disk if a different filesystem type is requested.
#[track_caller]
fn keeps_its_mark_for_another_type(world: &Simulated, node: &Node<Fake>, volume: &Volume) {
    let before = world.machine.picture();
    let mark = || world.machine.read_file(&volume.file(), MARK_AT, 4096);
    let marked = mark();
    let as_ext4 = Volume {
        form: Form::Ext4,
        ..volume.clone()
    };
    let why = ["contains xfs but ext4 is requested"];
    refused(as_ext4.call(node, Verb::Stage), Kind::Precondition, &why);
    assert_eq!(world.machine.picture().difference(&before), "");
    assert!(mark() == marked, "the mark");
}

/// A mount of an xfs writes to the log, but for half a minute the superblock keeps the log sequence
/// number that mkfs has written.
#[test]
fn an_xfs_with_a_mark_is_not_mounted_without_its_secret_nor_formatted_once_it_was_mounted() {
    for mark in [None, Some(2)] {
        let (world, mut volume) = formatted_but_marked();
        volume.mark = mark;
        let staged = volume.call(&world.start(), Verb::Stage);
        refused(
            staged,
            Kind::Precondition,
            &["not formatted: ", "another key"],
        );
    }
    let (world, volume) = formatted_but_marked();
    // A different driver has mounted the filesystem.
    world.write_file(&volume.file(), LOG_AT, &[1]);
    world.write_file(&volume.file(), 200 * MIB, b"data");
    let node = world.start();
    keeps_its_mark_for_another_type(&world, &node, &volume);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    let data = world.machine.read_file(&volume.file(), 200 * MIB, 4);
    assert_eq!(data, b"data");
    nothing_left(&world);
}

#[test]
fn a_raw_user_sees_no_mark_and_ends_the_leave_to_format() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let (world, mut volume) = half_formatted(form, Some(1));
        let node = world.start();
        let mut raw = volume.clone();
        raw.form = Form::Block;
        raw.mode = AccessMode::MultiNodeReaderOnly;
        let staged = raw.call(&node, Verb::Stage);
        refused(staged, Kind::Precondition, &["stage it for writing first"]);
        raw.mode = AccessMode::SingleNodeWriter;
        // The key with which the format mark was made may be configured again later.
        raw.mark = None;
        all_ok(&node, &raw, &[Verb::Stage]);
        let mark = world.machine.read_file(&volume.file(), MARK_AT, 4096);
        assert!(mark.iter().all(|byte| *byte == 0), "{form:?}");
        all_ok(&node, &raw, &[Verb::Unstage]);
        world.write_file(&volume.file(), 200 * MIB, b"data");
        volume.content = "used";
        let staged = volume.call(&node, Verb::Stage);
        refused(staged, Kind::Precondition, &["not formatted: "]);
        assert_eq!(world.machine.violations(), Vec::<String>::new());
        nothing_left(&world);
    }
}

#[test]
fn an_interrupted_format_of_a_volume_that_was_restored_is_not_begun_again() {
    let (world, mut volume) = half_formatted(Form::Ext4, Some(1));
    volume.content = "populated";
    let staged = volume.call(&world.start(), Verb::Stage);
    refused(
        staged,
        Kind::Precondition,
        &["not formatted: it was restored"],
    );
}

#[test]
fn a_volume_that_was_staged_before_a_restart_is_known_by_its_id() {
    for form in [Form::Ext4, Form::Btrfs, Form::Block] {
        let world = world();
        let volume = world.volume("7f8b1c2d-1111-4222-8333-444455556666", form);
        let whole = [Verb::Stage, Verb::Publish(1)];
        all_ok(&world.start(), &volume, &whole);
        let node = world.start_disks(DISK_DRIVER);
        let rest = [
            Verb::Stats,
            Verb::Health,
            Verb::Publish(2),
            Verb::Unpublish(2),
        ];
        all_ok(&node, &volume, &rest);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(&world);
    }
}

#[test]
fn a_disk_that_is_claimed_by_another_process_is_no_raw_volume() {
    let world = world();
    let volume = world.volume("vol", Form::Block);
    let node = world.start();
    let other = world.kernel();
    let claim = other.open(Path::new("/dev/vda"), Open::DeviceExclusive);
    let stage = volume.call(&node, Verb::Stage);
    refused(stage, Kind::Busy, &["/dev/vda is still in use"]);
    drop(claim);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    nothing_left(&world);
}

/// The volume's bind mounts refer to a device number, so they now show the other disk.
#[test]
fn a_raw_volume_whose_number_went_to_another_disk_is_taken_down_and_the_other_kept() {
    for form in PLACES {
        for restart in [false, true] {
            let world = world();
            let (lost, got) = (world.volume("lost", Form::Block), world.volume("got", form));
            world.machine.unplug(&got.file());
            let mut node = world.start();
            all_ok(&node, &lost, &[Verb::Stage, Verb::Publish(1)]);
            let number = world.machine.disk_dev(&lost.file());
            world.machine.unplug(&lost.file());
            world.machine.plug(Plug::virtio(&got.file(), "got"));
            assert_eq!(world.machine.disk_dev(&got.file()), number);
            hear(&node).unwrap();
            if restart {
                node = world.start();
            }
            all_ok(&node, &got, &[Verb::Stage, Verb::Publish(1)]);
            if restart {
                node = world.start();
            }
            refused(lost.call(&node, Verb::Publish(2)), Kind::Precondition, &[]);
            refused(lost.call(&node, Verb::Stats), Kind::NotFound, &[]);
            all_ok(
                &node,
                &got,
                &[Verb::Stats, Verb::Publish(2), Verb::Unpublish(2)],
            );
            let why = ["still published"];
            refused(got.call(&node, Verb::Unstage), Kind::Precondition, &why);
            all_ok(&node, &lost, &[Verb::Unpublish(1), Verb::Unstage]);
            all_ok(
                &node,
                &got,
                &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
            );
            nothing_left(&world);
        }
    }
}

/// Checks that NodeStageVolume is refused and writes nothing while another process has the disk
/// open exclusively. Returns the result of the next NodeStageVolume call.
#[track_caller]
fn stage_after_claim(world: &Simulated, volume: &Volume) -> Result<(), Failure> {
    let node = world.start();
    let (other, device) = (world.kernel(), Path::new("/dev/vda"));
    let claim = other.open(device, Open::DeviceExclusive).unwrap();
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    refused(staged, Kind::Busy, &["/dev/vda is still in use"]);
    assert!(!calls.iter().any(|call| call.name == "pwrite"));
    drop(claim);
    volume.call(&node, Verb::Stage)
}

/// A mkfs that a killed agent has started may still be writing to the disk, so the content of the
/// disk must be ignored.
#[test]
fn a_disk_that_another_process_has_claimed_is_busy_whatever_is_found_on_it() {
    let (world, volume) = formatted_but_marked();
    stage_after_claim(&world, &volume).unwrap();
    let (world, volume) = new(Form::Ext4);
    world.machine.discard(&volume.file());
    world.write_file(&volume.file(), 0, b"LUKS\xba\xbe\x00\x02");
    let staged = stage_after_claim(&world, &volume);
    refused(staged, Kind::Precondition, &["contains"]);
}

/// A different driver has mounted the disk, and may be writing to it.
#[test]
fn the_mark_of_a_disk_that_another_process_has_claimed_is_not_erased() {
    let (world, volume) = formatted_but_marked();
    world.write_file(&volume.file(), LOG_AT, &[1]);
    stage_after_claim(&world, &volume).unwrap();
}

fn new(form: Form) -> (Simulated, Volume) {
    let world = world();
    let volume = world.volume("vol", form);
    (world, volume)
}

/// Before Linux 6.7, the kernel confuses a clone of a btrfs with its original if the original is
/// mounted.
#[test]
fn a_btrfs_that_the_kernel_takes_for_a_mounted_one_is_not_staged() {
    for confusion in [Confusion::Refuses, Confusion::MountsOther] {
        let world = world();
        let node = world.start();
        let [original, clone] = ["original", "clone"].map(|id| world.volume(id, Form::Btrfs));
        hear(&node).unwrap();
        all_ok(&node, &original, &[Verb::Stage, Verb::Publish(1)]);
        world.machine.confuse_btrfs(confusion);
        let before = world.machine.picture();
        let why = ["volume clone: a btrfs with the same id"];
        refused(clone.call(&node, Verb::Stage), Kind::Precondition, &why);
        let left = world.machine.picture().beyond(&before);
        assert_eq!(left, Vec::<String>::new(), "{confusion:?}");
        let down = [Verb::Stats, Verb::Unpublish(1), Verb::Unstage];
        all_ok(&node, &original, &down);
        all_ok(&node, &clone, &[Verb::Stage, Verb::Unstage]);
        nothing_left(&world);
    }
}

/// For a btrfs, the kernel does not report the number of a removed disk, so the disk could be
/// mistaken for a different disk.
#[test]
fn a_btrfs_whose_disk_is_removed_while_it_is_staged_is_staged_once_the_disk_is_back() {
    let staged = || {
        let world = world();
        let (node, volume) = (world.start(), world.volume("vol", Form::Btrfs));
        hear(&node).unwrap();
        (world, node, volume)
    };
    let (world, node, volume) = staged();
    let stage = || all_ok(&node, &volume, &[Verb::Stage]);
    let at = world.first_call(stage, |call: &Call| call.name == "BTRFS_IOC_FS_INFO");
    let (world, node, volume) = staged();
    world.machine.begin(None);
    world
        .machine
        .meanwhile(at, Meanwhile::Unplug(volume.file()));
    let failure = volume.call(&node, Verb::Stage).unwrap_err();
    world.machine.end();
    assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
    nothing_left(&world);
    world.machine.plug(Plug::virtio(&volume.file(), "vol"));
    hear(&node).unwrap();
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    nothing_left(&world);
}
