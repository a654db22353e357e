//! Disks with the vendor, model and page 0x83 of DigitalOcean, in guests: staged by an attachment
//! of csi-digitalocean, which names the volume alone, and moved to another guest.

use belay_guest::{Disk, Guest};

use crate::belay::call;
use crate::disks::machine;
use crate::rig::{medium, newest_kernel, seen_programs};

const ID: &str = "7f8b1c2d-1111-4222-8333-444455556666";
/// Longer than what QEMU shows of a serial.
const NAME: &str = "pvc-7f8b1c2d-1111-4222-8333-444455556666";
/// The slot of the SCSI disk.
const SLOT: usize = 2;

/// The metadata service of droplet 101, and the agent.
pub(crate) const START: &str = "\
mkdir -p /pods /run/droplet/metadata
echo '{\"droplet_id\": 101, \"region\": \"nyc1\"}' >/run/droplet/metadata/v1.json
[ -e /run/droplet/pid ] || {
    (cd /run/droplet && setsid python3 -m http.server --bind 127.0.0.1 8775 \\
        >/run/droplet.log 2>&1 3>&- & echo $! >/run/droplet/pid)
    for _ in $(seq 300); do (exec 5<>/dev/tcp/127.0.0.1/8775) 2>/dev/null && break; sleep 0.1; done
}
setsid belay-node --driver-kind digitalocean --endpoint /run/node.sock \\
    --metadata-address 127.0.0.1:8775 >>/run/node.log 2>&1 3>&- &
echo $! >/run/node.pid
ready /run/node.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }";

fn stage() -> String {
    format!(
        "mkdir -p /pods/staging
         node stage {ID} --staging /pods/staging --fs-type ext4 \\
             --context dobs.csi.digitalocean.com/volume-name={NAME}"
    )
}

fn unstage() -> String {
    format!("node unstage {ID} --staging /pods/staging")
}

pub(crate) fn start(guest: &mut Guest<'_>) {
    let programs = seen_programs();
    guest.run(&format!(
        "mkdir -p /belay && mount --bind {programs} /belay"
    ));
    call(guest, START).expect("power");
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_disk_of_digitalocean_is_found_by_its_name_and_moves_with_its_data() {
    let (first, second) = (machine(newest_kernel()), machine(newest_kernel()));
    let medium = medium(&first, NAME, 128);
    let mut guest = first.boot();
    start(&mut guest);
    let droplet = call(&mut guest, "node info").expect("power");
    assert!(
        droplet.contains("\"101\"") && droplet.contains("nyc1"),
        "{droplet}"
    );
    first
        .slot(SLOT)
        .insert(Disk::scsi("DO", "Volume", NAME, &medium));
    guest.attach(SLOT);
    let write = format!("{}\ncp /bin/bash /pods/staging/kept && sync", stage());
    call(&mut guest, &write).expect("power");
    // The next agent knows no name, and the unstage brings none.
    let again = format!("kill -9 $(cat /run/node.pid)\nrm /run/node.sock\n{START}");
    call(&mut guest, &again).expect("power");
    call(&mut guest, &unstage()).expect("power");
    call(&mut guest, "! grep -q /pods/staging /proc/self/mountinfo").expect("power");
    guest.detach(SLOT);
    first.slot(SLOT).remove();

    let mut guest = second.boot();
    start(&mut guest);
    second
        .slot(SLOT)
        .insert(Disk::scsi("DO", "Volume", NAME, &medium));
    guest.attach(SLOT);
    let read = format!(
        "{}\ncmp /bin/bash /pods/staging/kept\n{}",
        stage(),
        unstage()
    );
    call(&mut guest, &read).expect("power");
    guest.detach(SLOT);
}
