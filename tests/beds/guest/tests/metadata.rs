//! The config drive of a cloud, on real disks: the agent learns its node's ID and zone from it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use belay_bed::tools;
use belay_guest::{Disk, Guest, Hardware, Machine, Medium};

use crate::belay::call;
use crate::rig::{MIB, kernels, medium, seen_programs, until};

const ID: &str = "7f8b1c2d-1111-4222-8333-444455556666";
/// The ID of no instance.
const FORGED_ID: &str = "ffffffff-1111-4222-8333-444455556666";
const OTHER_ID: &str = "00000000-1111-4222-8333-444455556666";

const START: &str = "\
setsid belay-node --driver-kind openstack --endpoint /run/node.sock --with-topology \\
    --metadata-search-order configDrive >>/run/node.log 2>&1 3>&- &
echo $! >/run/node.pid
for _ in $(seq 300); do [ -S /run/node.sock ] && break; sleep 0.1; done";

const STOP: &str = "\
kill $(cat /run/node.pid)
for _ in $(seq 300); do [ -e /proc/$(cat /run/node.pid) ] || break; sleep 0.1; done";

/// A disk of that size with the config drive of that instance.
fn config_drive(machine: &Machine, filesystem: &str, id: &str, mib: u64) -> Arc<Medium> {
    let directory = machine.directory().join(format!("content-{id}"));
    let document = directory.join("openstack/latest/meta_data.json");
    fs::create_dir_all(document.parent().expect("a directory")).expect("mkdir");
    let text =
        format!(r#"{{"admin_pass": "pAssw0rd", "availability_zone": "zone 1", "uuid": "{id}"}}"#);
    fs::write(&document, text).expect("write");
    let name = format!("drive-{id}");
    let disk = medium(machine, &name, mib);
    let (image, file) = (
        machine.directory().join("image"),
        machine.directory().join(name),
    );
    match filesystem {
        // Nova writes both formats like this.
        "iso9660" => {
            let (to, from) = (tools::text(&image), tools::text(&directory));
            let names = [
                "-ldots",
                "-allow-lowercase",
                "-allow-multidot",
                "-l",
                "-J",
                "-r",
            ];
            let flags = [&["-quiet", "-o", to, "-V", "config-2"], &names[..], &[from]];
            tools::run("genisoimage", &flags.concat());
        }
        _ => {
            File::create(&image)
                .expect("a file")
                .set_len(64 * MIB)
                .expect("ftruncate");
            tools::run("mkfs.vfat", &["-n", "config-2", tools::text(&image)]);
            let content = directory.join("openstack");
            tools::run(
                "mcopy",
                &["-s", "-i", tools::text(&image), tools::text(&content), "::"],
            );
        }
    }
    fill(&file, &image);
    disk
}

/// The disk has its file open already.
fn fill(file: &Path, image: &Path) {
    let image = fs::read(image).expect("the image");
    let mut file = File::options()
        .write(true)
        .open(file)
        .expect("the disk's file");
    file.write_all(&image).expect("write");
}

/// Waits until NodeGetInfo fails for this reason.
fn expect_waiting(guest: &mut Guest<'_>, why: &str) {
    let condition = format!("node info 2>&1 | grep -q '{why}'");
    call(guest, &until(&condition)).expect("power");
}

fn expect_known(guest: &mut Guest<'_>, id: &str) {
    call(guest, &until("node info >/run/info 2>&1")).expect("power");
    let info = call(guest, "cat /run/info").expect("power");
    assert!(info.contains(id), "{info}");
    assert!(
        info.contains("topology.cinder.csi.openstack.org/zone"),
        "{info}"
    );
    assert!(info.contains("zone-1"), "{info}");
    // Nothing of it stays mounted, open or logged.
    guest.run("! grep -E 'iso9660|vfat' /proc/*/mountinfo");
    guest.run("! ls -l /proc/$(cat /run/node.pid)/fd | grep /dev/vd");
    guest.run("! grep pAssw0rd /run/node.log");
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_node_learns_its_id_from_a_config_drive_of_either_filesystem() {
    for kernel in kernels() {
        let hardware = Hardware {
            blocks: 2,
            scsis: 1,
            memory: 768,
            ..Hardware::default()
        };
        let machine = Machine::new(kernel, hardware);
        let drives = [("iso9660", ID), ("vfat", OTHER_ID)];
        let drives = drives.map(|(filesystem, id)| config_drive(&machine, filesystem, id, 64));
        // A pod may write any label to its volume.
        let forged = config_drive(&machine, "iso9660", FORGED_ID, 1024);
        machine.slot(1).insert(Disk::block("forged", &forged));
        let mut guest = machine.boot();
        let programs = seen_programs();
        guest.run(&format!(
            "mkdir -p /belay && mount --bind {programs} /belay"
        ));
        guest.run(&until("[ -b /dev/disk/by-label/config-2 ]"));
        call(&mut guest, START).expect("power");
        expect_waiting(&mut guest, "configDrive: no disk of less than 1 GiB");
        machine.slot(0).insert(Disk::block("drive", &drives[0]));
        guest.attach(0);
        expect_known(&mut guest, ID);
        call(&mut guest, STOP).expect("power");

        // The agent cannot know which of two is the node's.
        machine
            .slot(2)
            .insert(Disk::scsi("QEMU", "QEMU HARDDISK", "other", &drives[1]));
        guest.attach(2);
        guest.run(&until("[ -b /dev/sda ]"));
        call(&mut guest, START).expect("power");
        expect_waiting(&mut guest, "both have the label config-2");
        guest.detach(0);
        machine.slot(0).remove();
        expect_known(&mut guest, OTHER_ID);
        call(&mut guest, STOP).expect("power");
    }
}
