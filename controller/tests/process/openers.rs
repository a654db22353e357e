//! Other programs that have the file of a volume open without a lock.

use crate::bed::{
    MIB, assert_refused, clone, created, one_volume, publish, ready, snapshot, unpublish,
};
use belay_bed::devices;
use belay_bed::patience::until;
use belay_bed::requests;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tonic::Code;

#[tokio::test]
async fn a_file_that_another_program_can_write_to_is_not_copied() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let path = bed.volumes_dir().join(&id);
    let writer = File::options().write(true).open(&path).unwrap();
    let refusals = [
        client
            .create_snapshot(snapshot("snap", &id))
            .await
            .map(drop),
        client
            .create_volume(clone("pvc-2", MIB, &id))
            .await
            .map(drop),
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap_err();
        assert_refused(
            &refusal,
            Code::FailedPrecondition,
            &[&id, "open for writing"],
        );
    }
    drop(writer);
    assert_eq!(fs::read_dir(bed.snapshots_dir()).unwrap().count(), 0);
    // A backup program reads at the same time.
    let _reader = File::open(&path).unwrap();
    created(&mut client, clone("pvc-2", MIB, &id)).await;
    ready(&mut client, snapshot("snap", &id)).await;
}

/// A loop device that is bound without a lock, and unbound at the end.
pub(crate) struct Loop(PathBuf);

impl Loop {
    pub(crate) fn bind(file: &Path) -> Self {
        Self::bind_with(&[], file)
    }

    pub(crate) fn bind_with(flags: &[&str], file: &Path) -> Self {
        Self(devices::bind(file, flags, Stdio::null()).unwrap())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let is_ours = |it: &devices::Loop| it.device == self.0;
        let ours = devices::list().unwrap().into_iter().find(is_ours);
        devices::detach(&self.0).unwrap();
        // A process that lists devices may have it open; its last close frees the device. Then
        // another process may bind it.
        if let (Some(ours), false) = (ours, std::thread::panicking()) {
            until("the device is free", || {
                !devices::list().unwrap().contains(&ours)
            });
        }
    }
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn a_volume_whose_file_was_replaced_under_its_device_is_neither_detached_nor_deleted() {
    type Replace = fn(&Path);
    let ways: [Replace; 2] = [
        |file| fs::rename(file, file.with_extension("bad")).unwrap(),
        |file| fs::remove_file(file).unwrap(),
    ];
    for replace in ways {
        let (bed, _controller, mut client, id) = one_volume(MIB).await;
        client
            .controller_publish_volume(publish(&id))
            .await
            .unwrap();
        let file = bed.volumes_dir().join(&id);
        let backup = bed.state_dir().join("backup");
        fs::copy(&file, &backup).unwrap();
        let device = Loop::bind(&file);
        replace(&file);
        fs::rename(&backup, &file).unwrap();
        let name = device.0.to_str().unwrap().to_owned();
        let refused = client.controller_unpublish_volume(unpublish(&id, "")).await;
        assert_refused(&refused.unwrap_err(), Code::Aborted, &[&id, &name]);
        drop(device);
        client
            .controller_unpublish_volume(unpublish(&id, ""))
            .await
            .unwrap();
        let device = Loop::bind(&file);
        fs::copy(&file, &backup).unwrap();
        fs::rename(&backup, &file).unwrap();
        let delete = requests::delete(&id);
        let refused = client.delete_volume(delete.clone()).await.unwrap_err();
        let name = device.0.to_str().unwrap();
        assert_refused(&refused, Code::FailedPrecondition, &[&id, name]);
        drop(device);
        client.delete_volume(delete).await.unwrap();
    }
}
