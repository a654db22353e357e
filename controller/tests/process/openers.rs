//! Other programs that have the file of a volume open without a lock.

use crate::bed::{MIB, assert_refused, clone, created, one_volume, ready, snapshot};
use belay_bed::devices;
use belay_bed::patience::until;
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

    pub(crate) fn path(&self) -> &Path {
        &self.0
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
