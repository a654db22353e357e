//! The driver `digitalocean`. The rest of the volume's life is in the parent module.

use std::process::Command;
use std::time::Duration;

use belay_twins::digitalocean::{DigitalOcean, MODEL, TOKEN};
use belay_twins::{Hypervisor, Model};

use super::{Bed, Kind, NAMES, Twin, files, text};
use crate::digitalocean::START;

const NAME: &str = "pvc-7f8b1c2d-1111-4222-8333-444455556666";
/// The droplets of the guests.
const DROPLETS: [u64; 2] = [101, 102];

impl Twin for DigitalOcean {
    const MODEL: Model = MODEL;

    fn plugging(disks: Hypervisor) -> Self {
        let twin = DigitalOcean::new(&["nyc1"], &DROPLETS).with_disks(disks);
        for (droplet, name) in DROPLETS.into_iter().zip(NAMES) {
            twin.rename(droplet, name);
        }
        twin.settings().delay = Duration::from_millis(100);
        twin
    }

    fn connect(controller: &mut Command, url: &str) {
        controller
            .args(["--backend=digitalocean", "--region=nyc1"])
            .arg(format!("--api-url={url}"))
            .env("DIGITALOCEAN_ACCESS_TOKEN", TOKEN);
    }

    fn agent(name: &str) -> String {
        START.replace("101", Self::node(name))
    }

    fn node(name: &str) -> &str {
        match name == NAMES[0] {
            true => "101",
            false => "102",
        }
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_is_created_grown_copied_and_moved_by_controller_twin_and_agents() {
    let bed = Bed::<DigitalOcean>::start();
    let [first, second] = NAMES;
    for filesystem in ["ext4", "xfs"] {
        let kind = Kind::Mounted(filesystem);
        let create = ["volume", "create", NAME, "--fs-type", filesystem];
        let created = bed.call("created.json", &[&create[..], &["--size", "1GiB"]].concat());
        let id = text(&created, "volume_id");
        bed.up(first, id, kind, "created.json");
        bed.run(
            first,
            &format!(
                "[ -b /dev/disk/by-id/scsi-0DO_Volume_{NAME} ]
                 cp /bin/bash /pods/{id}/kept && sync --file-system /pods/{id}"
            ),
        );
        // The volume is in use on the first guest.
        bed.call("grown.json", &["volume", "expand", id, "--size", "2GiB"]);
        bed.run(
            first,
            &format!(
                "node expand {id} --path /pods/{id} --staging /pods/{id}.staging --size 2GiB
                 [ $(($(stat --file-system --format '%b * %S >> 20' /pods/{id}))) -gt 1800 ]"
            ),
        );
        let cut = bed.call("cut.json", &["snapshot", "create", "snapshot-1", id]);
        let snapshot = text(&cut, "snapshot_id");
        bed.run(first, &format!("cp /bin/cat /pods/{id}/later"));
        bed.down(first, id);
        bed.up(second, id, kind, "created.json");

        // The copy is used next to its source, and has the same UUID.
        let copy = &*bed.restored(snapshot, kind);
        bed.up(second, copy, kind, "copy.json");
        bed.run(
            second,
            &format!(
                "cmp /bin/bash /pods/{id}/kept && cmp /bin/cat /pods/{id}/later
                 cmp /bin/bash /pods/{copy}/kept && [ ! -e /pods/{copy}/later ]"
            ),
        );
        let attached = bed.twin.service().attached();
        assert!(
            attached.values().all(|on| *on == Some(DROPLETS[1])),
            "{attached:?}"
        );
        for id in [id, copy] {
            bed.down(second, id);
            bed.call("deleted.json", &["volume", "delete", id]);
        }
        bed.call("discarded.json", &["snapshot", "delete", snapshot]);
        assert_eq!(files(&bed.file("disks")), 0);
        let sizes = bed.twin.service().volumes();
        assert!(sizes.is_empty(), "{sizes:?}");
    }
}
