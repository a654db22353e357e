//! The index on the simulated machine.

use std::path::{Path, PathBuf};

use belay_contract::disk::DiskIdentity;
use belay_server::call::Kind;
use belay_server::request::VolumeId;

use super::index::DiskIndex;
use super::owner::Owner;
use super::volume::VolumeDisk;
use crate::device::Sought;
use crate::kernel::fake::{Fake, Fault, Machine, Plug};
use crate::kernel::{Disk, Disks};

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
            Ok(Sought::Found(disk)) => Ok(Some(disk)),
            Ok(Sought::Missing(_)) => Ok(None),
            Err(failure) => Err(failure.kind),
        }
    }

    fn missing(&self, volume: &str) -> String {
        let driver = "one.example".parse().unwrap();
        let owner = Owner::new(&driver, &VolumeId::new(volume).unwrap());
        match self.index.find(&owner, &serial(volume)) {
            Ok(Sought::Missing(missing)) => missing.to_string(),
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
    // The first call reads the facts of its bus.
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
    // It answers late.
    bench.index.ask(&bench.kernel, &asked[0]);
    assert!(bench.find("other").unwrap().is_some());
}

#[test]
fn a_disk_that_was_exchanged_after_it_was_found_does_not_open() {
    let bench = Bench::new();
    let medium = bench.plug("vol");
    bench.rescan();
    bench.ask_all();
    let found = VolumeDisk::new(bench.find("vol").unwrap().unwrap(), serial("vol"));
    assert!(found.open(&bench.kernel).unwrap().is_some());
    bench.machine.unplug(&medium);
    assert!(found.open(&bench.kernel).unwrap().is_none());
    // With the same number, name and serial.
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
    let found = VolumeDisk::new(bench.find("vol").unwrap().unwrap(), serial("vol"));
    assert!(found.open(&bench.kernel).unwrap().is_some());
    bench.machine.unplug(&medium);
    // With the same number and name.
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
        bench.index.forget(&owner);
    };
    forget(LONG);
    // Both need it, and neither has it.
    assert_eq!(bench.find(LONG), Err(Kind::Precondition));
    forget(&alike);
    assert!(bench.find(LONG).unwrap().is_some());
}
