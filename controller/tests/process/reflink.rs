//! Snapshots and clones of volumes in use, on a real xfs, which shares blocks. Needs root, and a
//! private mount namespace.

use crate::bed::{Bed, ROOMY, clone, create, created, cut, restore, snapshot};
use crate::mounts::Xfs;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The size of a volume that is larger than the filesystem, so that a copy cannot succeed.
const TIB: i64 = 1 << 40;

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn a_terabyte_in_use_is_cut_and_cloned_at_once() {
    let xfs = Xfs::new();
    let bed = Bed::beneath(xfs.path(), &["--overcommit", "100000"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", TIB)).await.volume_id;
    bed.begin_use(&id);
    let path = bed.volumes_dir().join(&id);
    let file = File::options().write(true).open(path).unwrap();
    // The loop device holds this lock.
    file.try_lock().unwrap();
    let places = [0, 1 << 39, (1 << 40) - 4];
    for at in places {
        file.write_all_at(b"kept", at).unwrap();
    }
    let snapshot = cut(&mut client, snapshot("snap", &id)).await;
    assert!(snapshot.ready_to_use);
    assert_eq!(snapshot.size_bytes, TIB);
    file.write_all_at(b"late", 0).unwrap();
    let cloned = created(&mut client, clone("pvc-2", TIB, &id)).await;
    let request = restore("pvc-3", TIB + (1 << 20), &snapshot.snapshot_id);
    let restored = created(&mut client, request).await;
    for (volume, first) in [(&cloned, b"late"), (&restored, b"kept")] {
        let file = File::open(bed.volumes_dir().join(&volume.volume_id)).unwrap();
        let bytes = i64::try_from(file.metadata().unwrap().len()).unwrap();
        assert_eq!(bytes, volume.capacity_bytes);
        for (at, expected) in places.into_iter().zip([first, b"kept", b"kept"]) {
            let mut read = [0; 4];
            file.read_exact_at(&mut read, at).unwrap();
            assert_eq!(&read, expected, "{at}");
        }
        assert!(!bed.is_new(&volume.volume_id));
    }
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn what_is_cut_from_a_new_volume_in_use_stays_new() {
    let xfs = Xfs::new();
    let bed = Bed::beneath(xfs.path(), &ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", 1 << 20))
        .await
        .volume_id;
    let file = File::open(bed.volumes_dir().join(&id)).unwrap();
    file.try_lock().unwrap();
    let cut = cut(&mut client, snapshot("snap", &id)).await;
    let request = restore("pvc-2", 1 << 20, &cut.snapshot_id);
    let restored = created(&mut client, request).await.volume_id;
    assert!(bed.is_new(&restored));
}
