//! Volumes on a real btrfs, which writes overwritten blocks to new locations. Needs root, and a
//! private mount namespace.

use crate::bed::{Bed, MIB, ROOMY, clone, create, created, cut, restore, snapshot};
use crate::mounts::Mount;
use belay_bed::tools::{run, text};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

const DISK_BYTES: u64 = 640 << 20;
/// The size of the volume in bytes; the rest of the disk is for metadata.
const VOLUME_BYTES: i64 = 384 << 20;
const BLOCK_BYTES: u64 = 4096;
/// The number of overwrites; the disk could not hold them if each allocated space.
const OVERWRITES: u64 = 100_000;

fn btrfs(dir: &Path) -> Mount {
    let image = dir.join("image");
    File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
    run("mkfs.btrfs", &["-q", text(&image)]);
    Mount::new(&image, dir.join("btrfs"))
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn a_full_volume_can_be_overwritten_at_random_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let disk = btrfs(dir.path());
    let bed = Bed::beneath(disk.path(), &[]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", VOLUME_BYTES))
        .await
        .volume_id;
    let path = bed.volumes_dir().join(&id);
    let mut file = File::options().write(true).open(&path).unwrap();
    for _ in 0..VOLUME_BYTES / MIB {
        file.write_all(&[1; 1 << 20]).unwrap();
    }
    file.sync_all().unwrap();
    let blocks = VOLUME_BYTES.unsigned_abs() / BLOCK_BYTES;
    // Each block is overwritten once, far from the last one.
    for write in 0..OVERWRITES {
        let at = write * 7919 % blocks * BLOCK_BYTES;
        let written = file.write_all_at(&[2; 4096], at);
        assert!(written.is_ok(), "overwrite {write}: {written:?}");
        if write % 1000 == 0 {
            let synced = file.sync_all();
            assert!(synced.is_ok(), "overwrite {write}: {synced:?}");
        }
    }
    file.sync_all().unwrap();
}

/// Whether a file shares any block with another, according to filefrag(8).
fn is_shared(file: &Path) -> bool {
    let out = Command::new("filefrag").arg("-v").arg(file).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().contains("shared")
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn snapshots_and_clones_share_blocks_with_volumes_of_either_kind() {
    let dir = tempfile::tempdir().unwrap();
    let disk = btrfs(dir.path());
    let bed = Bed::beneath(disk.path(), &ROOMY);
    let mut controller = bed.start();
    let mut client = bed.client().await;
    let new = created(&mut client, create("new", MIB)).await.volume_id;
    // Create one more volume than is counted below.
    created(&mut client, create("newer", MIB)).await;
    let old = created(&mut client, create("old", MIB)).await.volume_id;
    // The file is restored from a backup.
    let path = bed.volumes_dir().join(&old);
    fs::remove_file(&path).unwrap();
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    controller.kill();
    controller = bed.start();
    let log = controller.starting.join("\n");
    assert!(log.contains("copy_on_write=1"), "{log}");
    client = bed.client().await;
    for (name, id) in [("new", new), ("old", old)] {
        let file = File::options()
            .write(true)
            .open(bed.volumes_dir().join(&id));
        let file = file.unwrap();
        file.write_all_at(&[3; 1 << 18], 1 << 16).unwrap();
        file.sync_all().unwrap();
        let cut = cut(&mut client, snapshot(&format!("{name}-snap"), &id)).await;
        assert!(cut.ready_to_use, "{name}: it was copied");
        let restored = restore(&format!("{name}-restored"), MIB, &cut.snapshot_id);
        for request in [restored, clone(&format!("{name}-clone"), MIB, &id)] {
            let made = created(&mut client, request).await.volume_id;
            assert!(is_shared(&bed.volumes_dir().join(made)), "{name}");
        }
    }
}
