//! Blank disks in guests: how much of them is read, and how many requests at once.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use belay_guest::{Disk, Guest};

use crate::belay::{call, metrics, try_call};
use crate::disks::{ID, START, Volume, boot, boot_after, machine};
use crate::rig::{MIB, medium, newest_kernel};

/// The latency of a cloud's disk.
const LATENCY: Duration = Duration::from_millis(1);

/// The controller's time is not older than the guest's clock, which is the machine's.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn of_a_new_disk_of_terabytes_samples_are_read_and_of_a_used_one_everything() {
    const LARGE_MIB: u64 = 4 << 20;
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    for (name, mib, age, is_sampled) in [
        ("large", LARGE_MIB, 0, true),
        ("small", 512, 0, true),
        ("decayed", 512, 601, false),
    ] {
        let mut volume = Volume::new("btrfs", &format!("serial={ID}"), mib);
        let context = format!(" --context attached_at=$(($(date +%s) - {age}))");
        volume.context.push_str(&context);
        let medium = medium(&machine, name, mib);
        machine.slot(0).insert(Disk::block(ID, &medium));
        guest.attach(0);
        call(&mut guest, &volume.stage()).expect("power");
        let read = medium.bytes_read();
        assert_eq!(read < 128 * MIB, is_sampled, "{name}: {read}");
        call(&mut guest, &volume.publish()).expect("power");
        let write = format!("cp /bin/bash /pods/{ID}/target && sync /pods/{ID}/target/bash");
        call(&mut guest, &write).expect("power");
        call(&mut guest, &volume.take_down()).expect("power");
        guest.detach(0);
        machine.slot(0).remove();
    }
}

/// Thick LVM provides disks with the content of deleted volumes.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_new_disk_that_was_not_cleared_is_formatted_only_where_that_is_accepted() {
    // The magic number of the first copy of a btrfs's superblock.
    const COPY: (u64, &[u8]) = (64 * MIB + 0x40, b"_BHRfS_M");
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    let accept = START.replace("--driver-kind", "--uncleared=accept --driver-kind");
    for (is_accepted, filesystem, mib, check) in [
        (false, "ext4", 256, "true"),
        (true, "ext4", 256, "e2fsck -fn /dev/vda"),
        (true, "xfs", 320, "xfs_repair -n /dev/vda"),
        (true, "btrfs", 320, "btrfs check /dev/vda"),
        (true, "signature", 256, "true"),
    ] {
        let has_signature = filesystem == "signature";
        let filesystem = if has_signature { "ext4" } else { filesystem };
        let name = format!("{is_accepted}-{filesystem}-{has_signature}");
        let medium = medium(&machine, &name, mib);
        let file = File::options()
            .write(true)
            .open(machine.directory().join(&name));
        let file = file.expect("the file of a disk");
        let garbage: Vec<u8> = (0_u8..=255).cycle().take(1 << 20).collect();
        let write = |at, bytes: &[u8]| file.write_all_at(bytes, at).expect("the file of a disk");
        (0..mib).for_each(|at| write(at * MIB, &garbage));
        if has_signature {
            write(COPY.0, COPY.1);
        }
        machine.slot(0).insert(Disk::block(ID, &medium));
        guest.attach(0);
        if is_accepted {
            guest.run("pkill -KILL -x belay-node; rm -f /run/node.sock");
            call(&mut guest, &accept).expect("power");
        }
        let mut volume = Volume::new(filesystem, &format!("serial={ID}"), mib);
        volume
            .context
            .push_str(" --context attached_at=$(date +%s)");
        let staged = try_call(&mut guest, &volume.stage()).expect("power");
        if !is_accepted || has_signature {
            let why = if has_signature {
                "btrfs"
            } else {
                "unknown data"
            };
            assert!(
                staged.code != 0 && staged.text.contains(why),
                "{name}: {}",
                staged.text
            );
            let unchanged = "[ $(cmp -n 4096 <(dd if=/dev/vda bs=4096 count=1) \
                <(dd if=/dev/vda bs=4096 skip=256 count=1) | wc -l) = 0 ]";
            call(&mut guest, unchanged).expect("power");
        } else {
            assert_eq!(staged.code, 0, "{name}: {}", staged.text);
            let write = format!("cp /bin/bash /pods/{ID}/target && sync /pods/{ID}/target/bash");
            let down = volume.take_down();
            for calls in [&*volume.publish(), &write, &down, check] {
                call(&mut guest, calls).expect("power");
            }
        }
        guest.detach(0);
        machine.slot(0).remove();
    }
}

/// How long the stages of this agent have probed, in milliseconds.
fn probed_ms(guest: &mut Guest<'_>) -> f64 {
    let page = metrics(guest).expect("power");
    let series = "belay_operation_phase_duration_seconds_sum{operation=\"stage\",phase=\"probe\"} ";
    let sum = page.lines().find_map(|line| line.strip_prefix(series));
    sum.map_or(0.0, |sum| sum.trim().parse::<f64>().expect("a number")) * 1000.0
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_disk_is_read_with_many_requests_at_once_and_with_one_where_io_uring_is_refused() {
    const DATA_AT: u64 = 300 * MIB + 5;
    // The guest's kernel makes so many requests of one read.
    const SPLIT: usize = 8;
    // udevd may still read the new disk.
    const OTHERS: usize = 4;
    let machine = machine(newest_kernel());
    for (name, refusal) in [
        ("allowed", "true"),
        ("refused", "sysctl -w kernel.io_uring_disabled=2"),
    ] {
        let mut guest = boot_after(&machine, refusal);
        let mut stage = |mib, content: &str, byte: Option<u64>| {
            let name = format!("{name}-{content}");
            let medium = medium(&machine, &name, mib);
            if let Some(at) = byte {
                let file = File::options()
                    .write(true)
                    .open(machine.directory().join(&name));
                let write = file.and_then(|file| file.write_all_at(&[1], at));
                write.expect("the file of a disk");
            }
            machine.slot(0).insert(Disk::block(ID, &medium));
            guest.attach(0);
            medium.delay(LATENCY);
            let mut volume = Volume::new("ext4", &format!("serial={ID}"), mib);
            let attached = format!("content={content} --context attached_at=$(date +%s)");
            volume.context = volume.context.replace("content=new", &attached);
            let before = probed_ms(&mut guest);
            let staged = try_call(&mut guest, &volume.stage()).expect("power");
            let ms = probed_ms(&mut guest) - before;
            eprintln!(
                "{name}: {mib} MiB, {} at once, {ms:.0} ms",
                medium.at_once()
            );
            if staged.code == 0 {
                call(&mut guest, &volume.unstage()).expect("power");
            }
            guest.detach(0);
            machine.slot(0).remove();
            (staged, medium.at_once())
        };
        let (refused, at_once) = stage(512, "used", Some(DATA_AT));
        let why = format!("unknown data at byte {DATA_AT}");
        assert!(refused.text.contains(&why), "{}", refused.text);
        assert_eq!(at_once > SPLIT + OTHERS, name == "allowed", "{at_once}");
        let (staged, at_once) = stage(4 << 20, "new", None);
        assert_eq!(staged.code, 0, "{}", staged.text);
        assert!(name == "refused" || at_once > 4 * SPLIT, "{at_once}");
    }
}
