//! Formats of disks that are interrupted by a power cut at any of their writes: the next stage runs
//! mkfs again, and only for who knows the secret of the volume.

use belay_bed::chance::Chance;
use belay_guest::{Disk, Gone, Guest, Machine, Medium, Survival};

use crate::belay::{call, try_call};
use crate::disks::{ID, Volume, boot, machine};
use crate::power::survival;
use crate::rig::{kernels, medium, newest_kernel};

/// Power cuts in each run, and in `make nightly`.
const CUTS: usize = 3;
const CUTS_NIGHTLY: usize = 60;
/// A blank stage writes to the disk this many times, more or less; later cuts hit the pod.
const CHANGES: u64 = 40;
const MIB: u64 = 320;

/// A volume with a secret.
fn volume(filesystem: &'static str) -> Volume {
    Volume::new(filesystem, &format!("serial={ID}"), MIB).with_mark()
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_format_that_a_power_cut_interrupted_is_made_again_and_what_a_pod_synced_is_there() {
    let mut chance = Chance::new("power cuts of a format");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for number in 0..if is_long { CUTS_NIGHTLY } else { CUTS } {
        let filesystem = ["ext4", "xfs", "btrfs"][number % 3];
        let change = 1 + chance.below(CHANGES);
        let survival = survival(&mut chance);
        let machine = machine(chance.pick(&kernels()).clone());
        let medium = medium(&machine, "data", MIB);
        machine.slot(0).insert(Disk::block(ID, &medium));
        let volume = volume(filesystem);

        let mut guest = boot(&machine);
        let power = guest.power();
        medium.cut_at(medium.changes() + change, move || power.cut());
        let written = write(&mut guest, &volume);
        eprintln!("cut {number}: {filesystem}, change {change}, {survival:?}: {written:?}");
        guest.cut();
        medium.lose_cache(survival);

        let mut guest = boot(&machine);
        call(&mut guest, &volume.stage()).expect("power");
        call(&mut guest, &volume.publish()).expect("power");
        if written.is_ok() {
            guest.run(&format!("cmp /bin/bash /pods/{ID}/target/bash"));
        }
        call(&mut guest, &volume.take_down()).expect("power");
        write(&mut guest, &volume).expect("power");
        call(&mut guest, &volume.take_down()).expect("power");
    }
}

/// Stages and publishes the volume, and writes and syncs a file.
fn write(guest: &mut Guest<'_>, volume: &Volume) -> Result<(), Gone> {
    call(guest, &volume.stage())?;
    call(guest, &volume.publish())?;
    let write = format!("cp /bin/bash /pods/{ID}/target && sync /pods/{ID}/target/bash");
    call(guest, &write).map(drop)
}

/// Killed when mkfs has begun.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_interrupted_format_is_refused_to_who_does_not_know_its_secret() {
    let machine = machine(newest_kernel());
    let medium = medium(&machine, "data", MIB);
    machine.slot(0).insert(Disk::block(ID, &medium));
    interrupt(&machine, &medium);
    let mut guest = boot(&machine);
    let known = volume("xfs");
    for (context, why) in [
        (known.context.replace("5a", "5b"), "another key"),
        (
            known.context.replace("\"mark\"", "\"theirs\""),
            "another key",
        ),
        (
            known.context.replace("content=new", "content=populated"),
            "was restored",
        ),
    ] {
        let mut stranger = volume("xfs");
        stranger.context = context;
        let before = medium.changes();
        let staged = try_call(&mut guest, &stranger.stage()).expect("power");
        assert!(staged.text.contains(why), "{}", staged.text);
        assert!(!staged.text.contains("5a5a"), "{}", staged.text);
        assert_eq!(medium.changes(), before);
    }
    write(&mut guest, &known).expect("power");
    call(&mut guest, &known.take_down()).expect("power");
    guest.run("! grep -e 5a5a -e 5b5b /run/node.log");
}

/// Cuts the power when the mark and something of mkfs is on the disk.
fn interrupt(machine: &Machine, medium: &Medium) {
    let mut guest = boot(machine);
    let power = guest.power();
    medium.cut_at(medium.changes() + 4, move || power.cut());
    assert!(call(&mut guest, &volume("xfs").stage()).is_err(), "not cut");
    guest.cut();
    medium.lose_cache(Survival::Everything);
}
