//! The effects of a full disk, and their duration.

use crate::bed::{Bed, Client, MIB, ROOMY, assert_refused, create, created, publish, unpublish};
use std::fs;
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

/// Makes two small changes.
async fn attach_and_detach(client: &mut Client, id: &str) -> Result<(), Status> {
    client.controller_publish_volume(publish(id)).await?;
    client
        .controller_unpublish_volume(unpublish(id, ""))
        .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "mounts a tmpfs; needs root: make test"]
async fn a_full_disk_stops_no_small_change() {
    let bed = Bed::new(&ROOMY);
    let disk = Tmpfs::mount(bed.state_dir(), "8m");
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    disk.fill();
    for _ in 0..100 {
        attach_and_detach(&mut client, &id).await.unwrap();
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
    let id = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    disk.fill();
    let mut refused = Ok(());
    for _ in 0..100 {
        refused = refused.and(attach_and_detach(&mut client, &id).await);
    }
    assert_refused(&refused.unwrap_err(), Code::Unavailable, &["state.redb"]);
    disk.make_room();
    for _ in 0..100 {
        attach_and_detach(&mut client, &id).await.unwrap();
    }
}
