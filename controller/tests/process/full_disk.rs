//! The effects of a full disk, and their duration.

use crate::bed::{Bed, Client, MIB, assert_refused, create, created};
use belay_bed::requests;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use tonic::{Code, Status};

/// A separate filesystem, which is unmounted at the end.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: PathBuf, size: &str) -> Self {
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "belay-test"]);
        assert!(mount.arg(&dir).status().unwrap().success());
        Self(dir)
    }
    /// Uses all free space.
    fn fill(&self) {
        let full = fs::write(self.0.join("ballast"), vec![1; 16 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(ended.unwrap().success());
    }
}

/// The ratio with which the volume's blocks permit all its expansions although the disk is full.
const ROOMY: [&str; 2] = ["--overcommit", "10000"];

/// Creates a volume with a few blocks.
async fn volume(bed: &Bed, client: &mut Client) -> String {
    let id = created(client, create("pvc-1", MIB)).await.volume_id;
    let path = bed.volumes_dir().join(&id);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[1; 1 << 16], 0).unwrap();
    id
}

/// Makes a small change: the volume grows to this size, and none of that is written.
async fn grow(client: &mut Client, id: &str, mebibytes: i64) -> Result<(), Status> {
    let request = requests::grow(id, mebibytes * MIB);
    client.controller_expand_volume(request).await.map(drop)
}

#[tokio::test]
#[ignore = "mounts a tmpfs; needs root: make test"]
async fn a_full_disk_stops_no_small_change() {
    let bed = Bed::new(&ROOMY);
    let disk = Tmpfs::mount(bed.state_dir(), "8m");
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = volume(&bed, &mut client).await;
    disk.fill();
    for mebibytes in 2..100 {
        grow(&mut client, &id, mebibytes).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "mounts a tmpfs; needs root: make test"]
async fn a_disk_that_was_full_is_used_again_without_a_restart() {
    let bed = Bed::new(&ROOMY);
    // The disk is smaller than the reserve.
    let disk = Tmpfs::mount(bed.state_dir(), "1m");
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = volume(&bed, &mut client).await;
    disk.fill();
    let mut refused = Ok(());
    for mebibytes in 2..100 {
        refused = refused.and(grow(&mut client, &id, mebibytes).await);
    }
    assert_refused(&refused.unwrap_err(), Code::Unavailable, &["state.redb"]);
    disk.make_room();
    for mebibytes in 100..200 {
        grow(&mut client, &id, mebibytes).await.unwrap();
    }
}
