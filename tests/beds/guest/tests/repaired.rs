//! An ext4 whose superblock records errors, in guests: the real e2fsck on a real disk.

use std::sync::Arc;
use std::time::Duration;

use belay_guest::{Disk, Guest, Machine, Medium};

use crate::belay::{call, metrics, try_call};
use crate::disks::{ID, START, Volume, boot, machine};
use crate::rig::{kernels_or, medium, newest_kernel, until};

/// Damage that preening corrects, and the error bit (s_state).
const DAMAGE: &str = "\
debugfs -w -R 'set_inode_field written links_count 7' /dev/vda
debugfs -w -R 'set_super_value state 3' /dev/vda";
const IS_SOUND: &str = "e2fsck -f -n /dev/vda";
const HAS_ERRORS: &str = "dumpe2fs -h /dev/vda | grep 'Filesystem state: .*with errors'";

fn write() -> String {
    format!("cp /bin/bash /pods/{ID}/target/written")
}

fn check() -> String {
    format!("cmp /bin/bash /pods/{ID}/target/written")
}

/// The results of the checks so far, as the metrics have them.
fn checks(guest: &mut Guest<'_>) -> Vec<String> {
    let page = metrics(guest).expect("power");
    let counted = page.lines().filter_map(|line| {
        let line = line.strip_prefix("belay_filesystem_checks_total{")?;
        (!line.ends_with(" 0")).then(|| line.to_owned())
    });
    counted.collect()
}

#[track_caller]
fn expect_checks(guest: &mut Guest<'_>, expected: &[&str]) {
    let found = checks(guest);
    let is_found = |result: &&str| found.iter().any(|line| line.contains(result));
    assert!(
        found.len() == expected.len() && expected.iter().all(is_found),
        "{found:?}"
    );
}

/// A volume of 128 MiB, with its disk.
fn attached(machine: &Machine, guest: &mut Guest<'_>) -> (Volume, Arc<Medium>) {
    let medium = medium(machine, "ext4", 128);
    machine.slot(0).insert(Disk::block(ID, &medium));
    guest.attach(0);
    (Volume::new("ext4", &format!("serial={ID}"), 128), medium)
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_ext4_is_checked_if_its_superblock_records_errors_and_not_otherwise() {
    for kernel in kernels_or(newest_kernel()) {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        let (volume, _) = attached(&machine, &mut guest);
        let (up, down) = (
            format!("{}\n{}", volume.stage(), volume.publish()),
            volume.take_down(),
        );
        let mut run = |calls: &[&str]| {
            for calls in calls {
                call(&mut guest, calls).expect("power");
            }
        };
        // After a clean unmount, and with a journal that must be replayed.
        run(&[&up, &write(), &down, &up, "sync"]);
        guest.detach(0);
        call(&mut guest, &down).expect("power");
        guest.attach(0);
        let mut run = |calls: &[&str]| {
            for calls in calls {
                call(&mut guest, calls).expect("power");
            }
        };
        run(&[&up, &check(), &down, IS_SOUND]);
        expect_checks(&mut guest, &[]);

        call(&mut guest, &format!("{DAMAGE}\n! {IS_SOUND}")).expect("power");
        for calls in [&*up, &check(), &down, IS_SOUND] {
            call(&mut guest, calls).expect("power");
        }
        expect_checks(&mut guest, &["result=\"corrected\"} 1"]);

        // An error that the kernel itself records.
        let error = "echo pretended >/sys/fs/ext4/vda/trigger_fs_error";
        for calls in [&*up, error, &down, HAS_ERRORS, &up, &check(), &down] {
            call(&mut guest, calls).expect("power");
        }
        call(&mut guest, &format!("! {HAS_ERRORS}")).expect("power");
        expect_checks(
            &mut guest,
            &["result=\"corrected\"} 1", "result=\"clean\"} 1"],
        );
    }
}

/// Neither while its journal must be replayed nor afterwards.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_ext4_that_is_only_read_is_not_checked_before_it_is_written() {
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    let (volume, _) = attached(&machine, &mut guest);
    let up = format!("{}\n{}", volume.stage(), volume.publish());
    let error = "echo pretended >/sys/fs/ext4/vda/trigger_fs_error; sync";
    for calls in [&*up, &write(), error] {
        call(&mut guest, calls).expect("power");
    }
    // It was not unmounted.
    guest.detach(0);
    call(&mut guest, &volume.take_down()).expect("power");
    guest.attach(0);
    let journal = "dumpe2fs -h /dev/vda | grep 'features: .*needs_recovery'";
    call(&mut guest, &format!("{HAS_ERRORS}\n{journal}")).expect("power");
    let reading = up.replace("--fs-type", "--mount-flag ro --fs-type");
    let down = volume.take_down();
    for _ in 0..2 {
        for calls in [&*reading, &check(), &down, HAS_ERRORS] {
            call(&mut guest, calls).expect("power");
        }
    }
    expect_checks(&mut guest, &[]);
    for calls in [&*up, &check(), &down, IS_SOUND] {
        call(&mut guest, calls).expect("power");
    }
    expect_checks(&mut guest, &["result=\"clean\"} 1"]);
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn after_a_kill_of_the_agent_in_a_check_the_next_stage_checks_again() {
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    let (volume, medium) = attached(&machine, &mut guest);
    let up = format!("{}\n{}", volume.stage(), volume.publish());
    for calls in [&*up, &write(), &volume.take_down(), DAMAGE] {
        call(&mut guest, calls).expect("power");
    }
    guest.run("echo 3 >/proc/sys/vm/drop_caches");
    medium.delay(Duration::from_millis(50));
    let stage = volume.stage().replace('\n', ";");
    call(&mut guest, &format!("({stage}) >/dev/null 2>&1 3>&- &")).expect("power");
    call(&mut guest, &until("pgrep -x e2fsck")).expect("power");
    machine.slot(0).hold();
    guest.run("pgrep -x e2fsck && pkill -KILL -x belay-node; rm -f /run/node.sock");
    machine.slot(0).release();
    medium.delay(Duration::ZERO);
    // The kernel ends it with the agent.
    call(&mut guest, &until("! pgrep -x e2fsck")).expect("power");
    let is_sound = try_call(&mut guest, IS_SOUND).expect("power");
    assert_ne!(is_sound.code, 0, "it was not ended in time: {is_sound:?}");
    call(&mut guest, START).expect("power");
    for calls in [&*up, &check(), &volume.take_down(), IS_SOUND] {
        call(&mut guest, calls).expect("power");
    }
    expect_checks(&mut guest, &["result=\"corrected\"} 1"]);
}
