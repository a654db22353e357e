//! An ext4 to which the kernel allows no further writes after an internal error. Needs root, and a
//! private mount namespace.

use crate::bed::{Bed, MIB, ROOMY, create, created};
use crate::mounts::Mount;
use belay_bed::requests;
use belay_bed::tools::{run, text};
use std::fs::{self, File};
use tonic::Code;

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn a_disk_that_the_kernel_has_made_read_only_is_reported_with_each_volume() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    run("mkfs.ext4", &["-q", "-e", "remount-ro", text(&image)]);
    let disk = Mount::new(&image, dir.path().join("disk"));
    let bed = Bed::beneath(disk.path(), &ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    let condition = async |client: &mut crate::bed::Client| {
        let found = client.controller_get_volume(requests::get(&id)).await;
        let status = found.unwrap().into_inner().status.unwrap();
        status.volume_condition.unwrap()
    };
    assert!(!condition(&mut client).await.abnormal);
    let source = run(
        "findmnt",
        &["--noheadings", "--output=SOURCE", text(disk.path())],
    );
    let device = source.trim().trim_start_matches("/dev/");
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "test").unwrap();
    let condition = condition(&mut client).await;
    assert!(condition.abnormal);
    let message = condition.message;
    assert!(message.starts_with("StorageReadOnly: "), "{message}");
    let refused = client.create_volume(create("pvc-2", MIB)).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
}
