//! Hot-plugged disks: attach, udev's link, growth, detach, faults. Proves the bed.

use belay_guest::{Disk, Failing, Guest, Hardware, Kernel, Machine};

use crate::rig::{MIB, kernels, medium, until};

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_disk_is_attached_grown_detached_and_attached_again() {
    for kernel in kernels() {
        let hardware = Hardware {
            scsis: 1,
            ..Hardware::default()
        };
        let machine = Machine::new(kernel, hardware);
        let mut guest = machine.boot();
        eprintln!("Linux {}", guest.release());

        let block = Disk::block("vol-0123456789abcdef", &medium(&machine, "a", 64));
        machine.slot(0).insert(block);
        let link = "/dev/disk/by-id/virtio-vol-0123456789abcdef";
        plug(&mut guest, &machine, 0, link);

        for vendor in ["DO", "HC"] {
            let medium = medium(&machine, vendor, 64);
            let disk = Disk::scsi(vendor, "Volume", "pvc-1", &medium);
            machine.slot(1).insert(disk);
            let link = format!("/dev/disk/by-id/scsi-0{vendor}_Volume_pvc-1");
            plug(&mut guest, &machine, 1, &link);
        }
    }
}

fn plug(guest: &mut Guest<'_>, machine: &Machine, slot: usize, link: &str) {
    guest.attach(slot);
    guest.run(&until(&format!("[ -b {link} ]")));
    guest.run(&format!(
        "mkfs.ext4 -q {link} && mount {link} /mnt && cp /bin/bash /mnt && umount /mnt"
    ));
    machine.slot(slot).grow(96 * MIB);
    // A SCSI disk is only rescanned on request.
    guest.run(&format!(
        "cd /sys/block/$(basename $(readlink -f {link}))
         [ ! -e device/rescan ] || echo 1 >device/rescan
         {}",
        until("[ $(cat size) = 196608 ]")
    ));
    guest.detach(slot);
    guest.run(&until(&format!("[ ! -e {link} ]")));
    guest.attach(slot);
    guest.run(&until(&format!("[ -b {link} ]")));
    guest.run(&format!(
        "mount {link} /mnt && cmp /bin/bash /mnt/bash && umount /mnt"
    ));
    guest.detach(slot);
    machine.slot(slot).remove();
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_disk_fails_answers_late_and_vanishes() {
    let machine = Machine::new(Kernel::of_distribution(), Hardware::default());
    let medium = medium(&machine, "a", 64);
    machine.slot(0).insert(Disk::block("sick", &medium));
    let mut guest = machine.boot();
    let read = "dd if=/dev/disk/by-id/virtio-sick of=/dev/null bs=4k count=1 iflag=direct";
    guest.run(read);
    medium.fail(Failing {
        reads: true,
        ..Failing::default()
    });
    let output = guest.try_run(read).expect("a guest");
    assert!(output.text.contains("Input/output error"), "{output:?}");
    medium.fail(Failing::default());

    machine.slot(0).hold();
    guest.run(&format!(
        "({read} && echo read >/run/late) >/dev/null 2>&1 &
         {}",
        until("grep -q '(dd) D' /proc/[0-9]*/stat 2>/dev/null")
    ));
    guest.run("[ ! -e /run/late ]");
    machine.slot(0).release();
    guest.run(&until("[ -s /run/late ]"));

    // A disk that is there, but does not answer with its serial yet.
    let link = "/dev/disk/by-id/virtio-sick";
    guest.detach(0);
    guest.run(&until(&format!("[ ! -e {link} ]")));
    machine.slot(0).hold();
    let bind = "echo virtio-uml.0 >/sys/bus/platform/drivers/virtio-uml/bind";
    guest.run(&format!(
        "({bind}) >/dev/null 2>&1 &
         {}",
        until("[ -e /sys/block/vda ]")
    ));
    guest.run(&format!("[ ! -e {link} ]"));
    machine.slot(0).release();
    guest.run(&until(&format!("[ -b {link} ]")));

    machine.slot(0).remove();
    guest.run(&until(&format!("[ ! -e {link} ]")));
}
