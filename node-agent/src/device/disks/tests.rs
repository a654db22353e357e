//! Tests of the index on the simulated machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_contract::disk::DiskIdentity;
use belay_contract::drivers::{DIGITALOCEAN, OPENSTACK};
use belay_contract::publish_context::Content;
use belay_server::call::Kind;
use belay_server::request::{Context, VolumeId};

use super::identity::Identity;
use super::identity::samples::scsi;
use super::index::{DiskIndex, Owner};
use super::volume::VolumeDisk;
use super::volumes::{DiskRules, DiskVolumes};
use crate::device::{DiskUser, Intent, Purpose, Search, Storage, Transport, Verdict};
use crate::kernel::fake::{Fake, Fault, Machine, Plug};
use crate::kernel::{Dev, Disk, Disks, Kernel as _, Open};

const LONG: &str = "01234567890123456789-long";

struct Bench {
    machine: Machine,
    kernel: Fake,
    index: DiskIndex,
}

impl Bench {
    fn new() -> Self {
        let machine = Machine::new();
        let kernel = machine.process();
        Bench {
            machine,
            kernel,
            index: DiskIndex::new(),
        }
    }

    /// Plugs in a new disk with a new medium.
    fn plug(&self, serial: &str) -> PathBuf {
        let medium = Path::new("/media").join(serial);
        self.machine.make_file(&medium, 1 << 20);
        self.machine.plug(Plug::virtio(&medium, serial));
        medium
    }

    /// Handles a uevent without querying any disk.
    fn rescan(&self) {
        self.index.rescan(&self.kernel).unwrap();
    }

    fn ask_all(&self) {
        for disk in self.index.take_unasked() {
            self.index.ask(&self.kernel, &disk);
        }
    }

    fn find(&self, volume: &str) -> Result<Option<Disk>, Kind> {
        let driver = "one.example".parse().unwrap();
        let owner = Owner::new(&driver, &VolumeId::new(volume).unwrap());
        match self.index.find(&owner, &serial(volume)) {
            Ok(Search::Found(disk)) => Ok(Some(disk)),
            Ok(Search::Missing(_)) => Ok(None),
            Err(failure) => Err(failure.kind),
        }
    }

    fn missing(&self, volume: &str) -> String {
        let driver = "one.example".parse().unwrap();
        let owner = Owner::new(&driver, &VolumeId::new(volume).unwrap());
        match self.index.find(&owner, &serial(volume)) {
            Ok(Search::Missing(missing)) => missing.to_string(),
            _ => panic!("it is there"),
        }
    }
}

fn serial(text: &str) -> DiskIdentity {
    DiskIdentity::Serial(text.to_owned())
}

#[test]
fn a_disk_is_found_once_it_has_been_asked_and_waiters_hear_of_each_change() {
    let bench = Bench::new();
    let mut arrivals = bench.index.arrivals();
    let mut has_changed = || {
        let changed = arrivals.has_changed().unwrap();
        arrivals.mark_unchanged();
        changed
    };
    bench.plug("vol");
    assert_eq!(bench.find("vol"), Ok(None));
    bench.rescan();
    assert!(has_changed());
    assert!(
        bench
            .missing("vol")
            .contains("vda (its serial is being read)")
    );
    bench.ask_all();
    assert!(has_changed());
    let disk = bench.find("vol").unwrap().unwrap();
    assert_eq!(disk.name, "vda");
    bench.rescan();
    assert!(!has_changed(), "nothing has happened");
    bench.machine.grow_disk(Path::new("/media/vol"), 2 << 20);
    bench.rescan();
    assert!(has_changed());
    bench.machine.unplug(Path::new("/media/vol"));
    bench.rescan();
    assert!(has_changed());
    assert_eq!(bench.find("vol"), Ok(None));
}

#[test]
fn each_disk_is_asked_once_and_again_only_when_it_was_exchanged_or_failed() {
    let bench = Bench::new();
    let medium = bench.plug("vol");
    bench.rescan();
    assert_eq!(bench.index.take_unasked().len(), 1);
    assert_eq!(bench.index.take_unasked(), []);
    bench.rescan();
    assert_eq!(bench.index.take_unasked(), []);
    bench.machine.unplug(&medium);
    bench.machine.plug(Plug::virtio(&medium, "vol"));
    bench.rescan();
    let again = bench.index.take_unasked();
    bench.machine.begin(Some(Fault::Fail(1, "EIO")));
    // The first kernel call of the query reads the facts of the disk's bus.
    bench.index.ask(&bench.kernel, &again[0]);
    bench.machine.end();
    assert!(bench.missing("vol").contains("EIO"));
    bench.rescan();
    assert_eq!(
        bench.index.take_unasked(),
        [],
        "an error must not cause repeated queries"
    );
    bench.index.forgive();
    bench.ask_all();
    assert!(bench.find("vol").unwrap().is_some());
}

/// A virtio disk may respond without a serial, or with an error, and later with its serial.
#[test]
fn a_disk_without_a_serial_is_asked_again_after_each_event_and_nothing_waits_for_it() {
    for is_failing in [false, true] {
        let bench = Bench::new();
        bench.plug(LONG);
        let medium = bench.plug("nameless");
        bench.machine.name_disk(&medium, "");
        bench.rescan();
        let asked = bench.index.take_unasked();
        bench.index.ask(&bench.kernel, &asked[0]);
        bench.index.ask(&bench.kernel, &asked[1]);
        let fail = || {
            if is_failing {
                bench.index.has_failed(&asked[1], "EIO");
            }
        };
        fail();
        let mut arrivals = bench.index.arrivals();
        for _ in 0..2 {
            bench.index.forgive();
            let again = bench.index.take_unasked();
            assert_eq!(again, asked[1..]);
            assert!(!bench.index.is_any_unknown(), "it has answered before");
            assert!(bench.find(LONG).unwrap().is_some());
            // The query of the disk is still running, so the disk is not queried again.
            bench.index.forgive();
            assert_eq!(bench.index.take_unasked(), []);
            match is_failing {
                true => fail(),
                false => bench.index.ask(&bench.kernel, &again[0]),
            }
            assert!(!arrivals.has_changed().unwrap(), "it has said nothing new");
        }
        bench.machine.name_disk(&medium, "nameless");
        assert_eq!(bench.find("nameless"), Ok(None));
        bench.index.forgive();
        bench.ask_all();
        assert!(arrivals.has_changed().unwrap());
        arrivals.mark_unchanged();
        assert_eq!(bench.find("nameless").unwrap().unwrap().name, "vdb");
        bench.index.forgive();
        assert_eq!(bench.index.take_unasked(), [], "it has a name");
    }
}

#[test]
fn what_is_cut_waits_for_disks_that_may_say_the_same_but_not_for_one_that_never_answers() {
    let bench = Bench::new();
    bench.plug(LONG);
    bench.rescan();
    bench.ask_all();
    bench.plug("other");
    bench.rescan();
    let asked = bench.index.take_unasked();
    assert_eq!(bench.find(LONG), Ok(None));
    bench.index.is_late(&asked[0]);
    assert!(bench.find(LONG).unwrap().is_some());
    assert!(bench.missing("other").contains("vdb (does not answer)"));
    // The disk answers late.
    bench.index.ask(&bench.kernel, &asked[0]);
    assert!(bench.find("other").unwrap().is_some());
}

#[test]
fn a_disk_that_was_exchanged_after_it_was_found_does_not_open() {
    let bench = Bench::new();
    let medium = bench.plug("vol");
    bench.rescan();
    bench.ask_all();
    let found = VolumeDisk::new(bench.find("vol").unwrap().unwrap(), Some(serial("vol")));
    assert!(found.open(&bench.kernel).unwrap().is_some());
    bench.machine.unplug(&medium);
    assert!(found.open(&bench.kernel).unwrap().is_none());
    // The new disk has the same number, name and serial.
    bench.machine.plug(Plug::virtio(&medium, "vol"));
    assert!(found.open(&bench.kernel).unwrap().is_none());
}

#[test]
fn without_sequence_numbers_an_exchanged_disk_is_recognised_by_its_serial() {
    let bench = Bench::new();
    bench.machine.count_no_disks();
    let medium = bench.plug("vol");
    bench.rescan();
    bench.ask_all();
    let found = VolumeDisk::new(bench.find("vol").unwrap().unwrap(), Some(serial("vol")));
    assert!(found.open(&bench.kernel).unwrap().is_some());
    bench.machine.unplug(&medium);
    // The new disk has the same number and name.
    bench.plug("other");
    assert!(found.open(&bench.kernel).unwrap().is_none());
}

#[test]
fn an_answer_is_of_the_disk_that_was_asked_and_of_no_other() {
    let bench = Bench::new();
    let medium = bench.plug("old");
    bench.rescan();
    let asked = bench.index.take_unasked();
    bench.machine.unplug(&medium);
    bench.plug("new");
    bench.index.ask(&bench.kernel, &asked[0]);
    for volume in ["old", "new"] {
        assert_eq!(bench.find(volume), Ok(None), "{volume}");
    }
    bench.rescan();
    bench.ask_all();
    assert!(bench.find("new").unwrap().is_some());
    assert_eq!(bench.find("old"), Ok(None));
    assert_eq!(bench.kernel.disks().unwrap().len(), 1);
}

#[test]
fn a_disk_is_of_one_volume_until_that_is_forgotten() {
    let bench = Bench::new();
    bench.plug(LONG);
    bench.rescan();
    bench.ask_all();
    assert!(bench.find(LONG).unwrap().is_some());
    let alike = format!("{}-other", &LONG[..20]);
    assert_eq!(bench.find(&alike), Err(Kind::Precondition));
    assert!(bench.find(LONG).unwrap().is_some(), "it keeps its disk");
    bench.plug(&format!("{}-third", &LONG[..20]));
    bench.rescan();
    bench.ask_all();
    assert!(
        bench.find(LONG).unwrap().is_some(),
        "even with a second disk that matches"
    );
    bench
        .machine
        .unplug(&Path::new("/media").join(format!("{}-third", &LONG[..20])));
    bench.rescan();
    let forget = |volume: &str| {
        let driver = "one.example".parse().unwrap();
        let owner = Owner::new(&driver, &VolumeId::new(volume).unwrap());
        bench.index.forget(&owner, None);
    };
    forget(LONG);
    // Both volumes need the disk, and neither volume has it.
    assert_eq!(bench.find(LONG), Err(Kind::Precondition));
    forget(&alike);
    assert!(bench.find(LONG).unwrap().is_some());
}

#[test]
fn each_disk_is_of_the_driver_that_has_or_wants_it() {
    let bench = Bench::new();
    for serial in ["mine", "theirs", "free"] {
        bench.plug(serial);
    }
    let root = Path::new("/media/root");
    bench.machine.make_file(root, 1 << 20);
    bench.machine.plug(Plug::virtio(root, ""));
    bench.rescan();
    let driver = |name: &str| name.parse().unwrap();
    let other = Owner::new(&driver("other.example"), &VolumeId::new("theirs").unwrap());
    let users = |name: &str| {
        let users = bench.index.users(&driver(name), None).into_iter();
        users.map(|seen| seen.user).collect::<Vec<_>>()
    };
    let unknown = vec![DiskUser::Unknown; 4];
    assert_eq!(users("one.example"), unknown, "none has answered");
    let find = || {
        let mine = bench.find("mine");
        drop(bench.index.find(&other, &serial("theirs")));
        mine
    };
    assert_eq!(find(), Ok(None));
    bench.ask_all();
    let expected = [
        DiskUser::Driver,
        DiskUser::OtherDriver,
        DiskUser::Unknown,
        DiskUser::NoVolume,
    ];
    assert_eq!(users("one.example"), expected, "wanted");
    assert!(find().unwrap().is_some());
    assert_eq!(users("one.example"), expected, "held");
    let of_other = [
        DiskUser::OtherDriver,
        DiskUser::Driver,
        DiskUser::Unknown,
        DiskUser::NoVolume,
    ];
    assert_eq!(users("other.example"), of_other);
}

fn owner(volume: &str) -> Owner {
    let driver = "one.example".parse().unwrap();
    Owner::new(&driver, &VolumeId::new(volume).unwrap())
}

#[test]
fn what_is_known_is_of_that_disk_alone() {
    let bench = Bench::new();
    bench.plug("vol");
    bench.rescan();
    let disk = bench.index.take_unasked().remove(0);
    assert_eq!(bench.index.known(&disk), None);
    bench.index.ask(&bench.kernel, &disk);
    let known = Some(Arc::new(Identity::virtio("vol")));
    assert_eq!(bench.index.known(&disk), known);
    // The late report is ignored: the disk has responded by now, and another disk was late.
    bench.index.is_late(&disk);
    let next = Disk {
        diskseq: disk.diskseq + 1,
        ..disk.clone()
    };
    assert_eq!(bench.index.known(&next), None);
    bench.plug("late");
    bench.rescan();
    let late = bench.index.take_unasked().remove(0);
    bench.index.is_late(&Disk {
        diskseq: late.diskseq + 1,
        ..late
    });
    assert!(bench.missing("late").contains("its serial is being read"));
    assert_eq!(bench.index.known(&disk), known);
}

#[test]
fn without_sequence_numbers_nothing_is_known_of_a_disk() {
    let bench = Bench::new();
    bench.machine.count_no_disks();
    bench.plug("vol");
    bench.rescan();
    let disk = bench.index.take_unasked().remove(0);
    bench.index.ask(&bench.kernel, &disk);
    assert_eq!(bench.index.known(&disk), None);
    let identity = bench.index.identity(&bench.kernel, &disk).unwrap();
    assert_eq!(identity, Some(Arc::new(Identity::virtio("vol"))));
}

#[test]
fn a_claim_is_refused_while_another_disk_may_say_the_same_and_then_holds() {
    let bench = Bench::new();
    bench.plug(LONG);
    bench.rescan();
    let disk = bench.index.take_unasked().remove(0);
    bench.index.ask(&bench.kernel, &disk);
    let identity = bench.index.known(&disk).unwrap();
    let claim = |volume: &str| {
        let claimed = bench
            .index
            .claim(&owner(volume), &serial(volume), &disk, &identity);
        claimed.map_err(|failure| failure.kind)
    };
    bench.plug("other");
    bench.rescan();
    assert_eq!(claim(LONG), Err(Kind::Busy));
    bench.ask_all();
    assert_eq!(claim(LONG), Ok(()));
    bench.plug("third");
    bench.rescan();
    assert_eq!(claim(LONG), Ok(()), "whatever comes later");
    bench.ask_all();
    let alike = format!("{}-other", &LONG[..20]);
    assert_eq!(claim(&alike), Err(Kind::Precondition));
}

#[test]
fn an_open_disk_that_is_removed_is_refused_and_an_error_is_no_removal() {
    let bench = Bench::new();
    let medium = bench.plug("vol");
    bench.rescan();
    bench.ask_all();
    let disk = bench.find("vol").unwrap().unwrap();
    let found = VolumeDisk::new(disk, Some(serial("vol")));
    bench.machine.begin(Some(Fault::Fail(1, "EIO")));
    assert!(found.open(&bench.kernel).is_err());
    bench.machine.end();
    let device = found.open(&bench.kernel).unwrap().unwrap();
    device.guard.refuse_removed(&bench.kernel).unwrap();
    let path = device.path();
    let user = bench.kernel.open(path, Open::DeviceExclusive).unwrap();
    let refused = device.refuse_claimed(&bench.kernel).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);
    drop(user);
    device.refuse_claimed(&bench.kernel).unwrap();
    bench.machine.begin(Some(Fault::Fail(1, "EIO")));
    assert!(device.is_claimed(&bench.kernel).is_err());
    bench.machine.end();
    bench.machine.unplug(&medium);
    let refused = device.guard.refuse_removed(&bench.kernel).unwrap_err();
    assert_eq!(refused.kind, Kind::Unreachable);
    let storage = Storage::<Fake>::Disk(found);
    let held = storage.hold(&bench.kernel, None, Purpose::Filesystem, &|_| Ok(false));
    assert_eq!(
        held.err().map(|failure| failure.kind),
        Some(Kind::Unreachable)
    );
}

#[test]
fn a_device_is_a_volumes_by_what_its_disk_says_and_until_that_is_forgotten() {
    let bench = Bench::new();
    let index = Arc::new(DiskIndex::new());
    let driver = "one.example".parse().unwrap();
    let volumes = DiskVolumes::new(&driver, &OPENSTACK, &index, super::DiskRules::default());
    let volumes = Transport::<Fake>::Disks(volumes);
    let kernel = &bench.kernel;
    let (volume, other) = ["vol", "other"].map(|id| VolumeId::new(id).unwrap()).into();
    let medium = bench.plug("vol");
    let dev = bench.machine.disk_dev(&medium);
    index.rescan(kernel).unwrap();
    let may_be_of = |volume| volumes.may_be_of(kernel, volume, dev).unwrap();
    assert!(!may_be_of(&volume), "it has not been asked");
    let left = volumes.find_if_any(kernel, &volume);
    assert_eq!(left.err().map(|failure| failure.kind), Some(Kind::Busy));
    for disk in index.take_unasked() {
        index.ask(kernel, &disk);
    }
    // In this profile, the ID of a volume is its disk's serial number. A NodeStageVolume call may
    // name another identity.
    assert!(may_be_of(&volume) && !may_be_of(&other));
    let is_here = |volume| volumes.is_here(kernel, volume).unwrap();
    assert!(is_here(&volume) && !is_here(&other));
    assert!(volumes.find_if_any(kernel, &volume).unwrap().is_some());
    let named_so = || {
        volumes
            .named(&bench.kernel, &other)
            .unwrap()
            .display()
            .to_string()
    };
    let before = named_so();
    assert!(before.contains("other"), "{before}");
    assert!(index.find(&owner("other"), &serial("said")).is_ok());
    assert_eq!(named_so(), "the disk with serial \"said\"");
    volumes.forget(&other);
    assert_eq!(named_so(), before);

    let carries = |dev| volumes.carries_volumes(kernel, dev).unwrap();
    let node_of = |dev| volumes.node_of(kernel, dev).unwrap();
    let node = Path::new("/dev/vda");
    assert!(carries(dev));
    assert_eq!(node_of(dev).as_deref(), Some(node));
    let named = |path: &str| volumes.dev_named(kernel, Path::new(path)).unwrap();
    assert_eq!(
        (named("/dev/vda"), named("/vda//deleted")),
        (Some(dev), Some(dev))
    );
    assert_eq!((named("/dev/"), named("vda")), (None, None));
    let (anonymous, no_disk) = (Dev { major: 0, minor: 7 }, Dev { major: 7, minor: 0 });
    for none in [anonymous, no_disk] {
        assert!(!carries(none) && node_of(none).is_none(), "{none}");
    }
    bench.machine.unplug(&medium);
    assert!(carries(dev) && node_of(dev).is_none() && !may_be_of(&volume));
}

/// Plugs in a disk that reports this name, like a disk of DigitalOcean.
fn plug_named(bench: &Bench, name: &str) -> Dev {
    let medium = Path::new("/media").join(name);
    bench.machine.make_file(&medium, 1 << 20);
    bench.machine.plug(Plug {
        medium: medium.clone(),
        facts: scsi("DO", "Volume", name),
        serial: String::new(),
    });
    bench.machine.disk_dev(&medium)
}

/// Returns the volumes of DigitalOcean on a machine that has a disk for each of these names.
fn droplet(bench: &Bench, names: &[&str]) -> (DiskVolumes, Vec<Dev>) {
    let plug = |name: &&str| plug_named(bench, name);
    let devices = names.iter().map(plug).collect();
    let rules = DiskRules {
        proves_unknown: true,
        accepts_uncleared: false,
    };
    let driver = DIGITALOCEAN.name.parse().unwrap();
    let index = Arc::new(DiskIndex::new());
    (
        DiskVolumes::new(&driver, &DIGITALOCEAN, &index, rules),
        devices,
    )
}

fn context(field: &str, entries: &[(&str, &str)]) -> Context {
    let entries = entries.iter();
    let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Context::new(field, entries).unwrap()
}

const NAMED: (&str, &str) = ("dobs.csi.digitalocean.com/volume-name", "pvc-1");

#[test]
fn after_a_start_any_disk_of_the_cloud_is_the_volumes_until_its_attachment_says_which() {
    let bench = Bench::new();
    let (volumes, mut devices) = droplet(&bench, &["pvc-1", "pvc-2"]);
    devices.push(bench.machine.disk_dev(&bench.plug("other")));
    let volume = VolumeId::new("7f8b1c2d-1111-4222-8333-444455556666").unwrap();
    let are_its = || -> Vec<bool> {
        let verdict = |dev: &Dev| {
            let take_down = (Intent::TakeDown, None);
            let verdict = volumes.verdict(&bench.kernel, &volume, (*dev, None), take_down);
            matches!(verdict.unwrap(), Verdict::Ours(_))
        };
        devices.iter().map(verdict).collect()
    };
    assert_eq!(are_its(), [true, true, false]);
    assert!(volumes.known(&volume).is_none(), "none is freed");
    assert!(volumes.named(&volume).contains("scsi-0DO_Volume_*"));
    let publish = context("publish_context", &[NAMED]);
    let plan = volumes
        .read(&volume, &publish, &Context::default())
        .unwrap();
    assert_eq!(plan.content, Content::Used, "all of it is read first");
    let found = volumes.find(&bench.kernel, &volume, &plan).unwrap();
    assert!(matches!(found, Search::Found(_)));
    assert_eq!(are_its(), [true, false, false]);
}

/// Tests a disk that is known only from the mount that NodeUnstageVolume has unmounted.
#[test]
fn the_disk_that_a_mount_has_shown_is_the_volumes_and_the_next_one_with_its_number_is_not() {
    let bench = Bench::new();
    let kernel = &bench.kernel;
    let (volumes, devices) = droplet(&bench, &["pvc-1", "pvc-2"]);
    let volume = VolumeId::new("7f8b1c2d-1111-4222-8333-444455556666").unwrap();
    let (index, owner) = (volumes.index(), Owner::new(volumes.driver(), &volume));
    index.rescan(kernel).unwrap();
    let disks = kernel.disks().unwrap();
    let disk = disks.iter().find(|disk| disk.dev == devices[0]).unwrap();
    let may_be_of = || -> Vec<bool> {
        let devices = devices.iter();
        let may_be = |dev: &Dev| volumes.may_be_of(kernel, &volume, *dev).unwrap();
        devices.map(may_be).collect()
    };
    assert_eq!(may_be_of(), [false, false]);
    index.hold(&owner, None, disk);
    assert!(volumes.known(&volume).is_some());
    assert_eq!(may_be_of(), [true, false]);
    // After a restart, the name in /dev/belay identifies the disk.
    let label = volumes.forget(&volume).unwrap();
    assert!(volumes.known(&volume).is_none());
    volumes.adopt(kernel, &label).unwrap();
    assert!(volumes.known(&volume).is_some() && volumes.can_recognise(&volume));
    assert_eq!(may_be_of(), [true, false]);
    bench.machine.unplug(Path::new("/media/pvc-1"));
    assert_eq!(plug_named(&bench, "pvc-3"), devices[0]);
    index.rescan(kernel).unwrap();
    volumes.adopt(kernel, &label).unwrap();
    assert!(volumes.known(&volume).is_none());
    assert_eq!(may_be_of(), [false, false]);
}

#[test]
fn a_volume_with_an_unknown_attribute_of_encryption_is_refused() {
    let (volumes, _) = droplet(&Bench::new(), &[]);
    let volume = VolumeId::new("7f8b1c2d-1111-4222-8333-444455556666").unwrap();
    let publish = context("publish_context", &[NAMED]);
    for (key, value) in [
        ("luksEncrypted", "true"),
        ("example.com/luks-volume-key", "1"),
    ] {
        let about = context("volume_context", &[(key, value)]);
        let message = volumes.read(&volume, &publish, &about).unwrap_err().message;
        let expected = format!("volume_context: {key:?}: unknown encryption");
        assert!(message.starts_with(&expected), "{message}");
        let off = context("volume_context", &[(key, "false")]);
        volumes.read(&volume, &publish, &off).unwrap();
    }
    let ours = context("volume_context", &[("encrypted", "true")]);
    volumes.read(&volume, &publish, &ours).unwrap();
}

#[test]
fn a_volume_of_digitalocean_with_any_noformat_key_holds_data() {
    let (volumes, _) = droplet(&Bench::new(), &[]);
    let volume = VolumeId::new("7f8b1c2d-1111-4222-8333-444455556666").unwrap();
    let ours = [
        ("transport", "disk"),
        ("names", "scsi-0DO_Volume_pvc-1"),
        ("bytes", "1"),
        ("content", "new"),
    ];
    for publish in [&ours[..], &[NAMED][..]] {
        let publish = context("publish_context", publish);
        for key in DIGITALOCEAN.never_format_keys {
            let about = context("volume_context", &[(*key, "false")]);
            let plan = volumes.read(&volume, &publish, &about).unwrap();
            assert_eq!(plan.content, Content::Populated, "{key}");
        }
    }
}
