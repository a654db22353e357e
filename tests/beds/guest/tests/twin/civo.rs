//! The driver `civo`. The rest of the volume's life is in the parent module.

use std::process::Command;
use std::time::Duration;

use belay_twins::civo::{CLUSTER, Civo, KEY, MODEL, REGION};
use belay_twins::{Hypervisor, Model};

use super::{Bed, Kind, NAMES, Twin, files, text};

/// A link of udev, without the ID of the volume.
const LINK: &str = "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_";

impl Twin for Civo {
    const MODEL: Model = MODEL;

    fn plugging(disks: Hypervisor) -> Self {
        let twin = Civo::new(Duration::from_millis(100), NAMES.len()).with_disks(disks);
        twin.twin().change().rename(NAMES);
        twin
    }

    fn connect(controller: &mut Command, url: &str) {
        controller
            .args(["--backend=civo", "--civo-region", REGION])
            .args(["--civo-cluster-id", CLUSTER])
            .arg(format!("--civo-api-url={url}"))
            .env("CIVO_API_KEY", KEY);
    }

    /// The name identifies the node, as where the file of Civo's statistics is not mounted.
    fn agent(name: &str) -> String {
        format!(
            "setsid belay-node --driver-kind civo --endpoint /run/node.sock \\
                 --node-name {name} >>/run/node.log 2>&1 3>&- &
             echo $! >/run/node.pid
             ready /run/node.sock >/dev/null 2>&1 || {{ cat /run/node.log; exit 1; }}"
        )
    }

    fn node(name: &str) -> &str {
        name
    }
}

/// No volume and no disk is left.
#[track_caller]
fn is_empty(bed: &Bed<Civo>) {
    assert_eq!(files(&bed.file("disks")), 0);
    let twin = bed.twin.service().twin();
    let volumes = &twin.state().volumes;
    assert!(volumes.is_empty(), "{volumes:?}");
    assert!(twin.broken.is_empty(), "{:?}", twin.broken);
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_is_created_moved_grown_while_detached_and_copied() {
    let bed = Bed::<Civo>::start();
    let [first, second] = NAMES;
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let kind = Kind::Mounted(filesystem);
        let create = ["volume", "create", "pvc-1", "--fs-type", filesystem];
        let created = bed.call("created.json", &[&create[..], &["--size", "1GiB"]].concat());
        let id = text(&created, "volume_id");
        bed.up(first, id, kind, "created.json");
        bed.run(
            first,
            &format!(
                "[ -b {LINK}{id} ] && [ $(blockdev --getsize64 {LINK}{id}) -lt $((1 << 30)) ]
                 cp /bin/bash /pods/{id}/kept && sync --file-system /pods/{id}"
            ),
        );
        let grow = ["volume", "expand", id, "--size", "2GiB"];
        let refused = bed.refused(&grow);
        assert!(refused.contains("only detached volumes"), "{refused}");
        bed.down(first, id);
        let cut = bed.call("cut.json", &["snapshot", "create", "snapshot-1", id]);
        let snapshot = text(&cut, "snapshot_id");
        bed.call("grown.json", &grow);
        bed.up(second, id, kind, "created.json");
        bed.run(
            second,
            &format!(
                "cp /bin/cat /pods/{id}/later
                 [ $(($(stat --file-system --format '%b * %S >> 20' /pods/{id}))) -gt 1700 ]"
            ),
        );

        // The copy is used next to its source, has the same UUID, and is larger than the snapshot.
        let copy = &*bed.restored(snapshot, kind);
        bed.up(second, copy, kind, "copy.json");
        bed.run(
            second,
            &format!(
                "cmp /bin/bash /pods/{id}/kept && cmp /bin/cat /pods/{id}/later
                 cmp /bin/bash /pods/{copy}/kept && [ ! -e /pods/{copy}/later ]
                 [ $(($(stat --file-system --format '%b * %S >> 20' /pods/{copy}))) -gt 1700 ]"
            ),
        );
        for id in [id, copy] {
            bed.down(second, id);
            bed.call("deleted.json", &["volume", "delete", id]);
        }
        bed.call("discarded.json", &["snapshot", "delete", snapshot]);
        is_empty(&bed);
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_raw_disk_has_the_size_of_its_claim_and_moves_with_all_its_bytes() {
    let bed = Bed::<Civo>::start();
    let [first, second] = NAMES;
    let create = ["volume", "create", "pvc-1", "--block", "--size", "1GiB"];
    let created = bed.call("created.json", &create);
    let id = text(&created, "volume_id");
    bed.up(first, id, Kind::Raw, "created.json");
    // Write at the start of the disk, and at the end of the requested size.
    let write = |at: u64| {
        format!("dd if=/bin/bash of=/pods/{id} bs=1M seek={at} oflag=direct conv=fsync status=none")
    };
    bed.run(
        first,
        &format!(
            "[ $(blockdev --getsize64 /pods/{id}) -ge $((1 << 30)) ]\n{}\n{}",
            write(0),
            write(1020)
        ),
    );
    bed.down(first, id);
    let disk = bed.file("disks").join(id);
    let kept = bed.file("kept");
    let copied = Command::new("cp").args([&disk, &kept]).status();
    assert!(copied.expect("cp").success());
    bed.up(second, id, Kind::Raw, "created.json");
    bed.run(
        second,
        &format!(
            "size=$(stat --dereference --format %s /bin/bash)
             cmp --bytes $size /bin/bash /pods/{id}
             cmp --bytes $size --ignore-initial 0:$((1020 << 20)) /bin/bash /pods/{id}"
        ),
    );
    bed.down(second, id);
    let same = Command::new("cmp").args([&disk, &kept]).status();
    assert!(same.expect("cmp").success());
    bed.call("deleted.json", &["volume", "delete", id]);
    is_empty(&bed);
}
