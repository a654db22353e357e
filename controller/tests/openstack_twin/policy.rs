//! Objects that the policy of the cloud hides are not missing.

use crate::backups::backed_up;
use crate::site::{Site, created, cut, discarded, restored};
use crate::wire::{CHANGE, Cloud};
use tonic::{Code, Status};

/// Checks that the refusal names the missing permission.
#[track_caller]
fn is_denied<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let refused = answer.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    for part in ["permit backup:get", "403"] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_backup_is_not_missing_and_snapshots_are_deleted_without_a_right_to_backups() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    let running = site.start();
    let client = &mut site.client().await;
    let volume = created(client, "pvc-1").await.unwrap();
    let backup = backed_up(client, &volume).await.unwrap();
    let snapshot = cut(client, "snap-2", &volume).await.unwrap();
    cloud.twin().hides_backups = true;
    // A repeated call succeeds, too, since the first response may have been lost.
    for _ in 0..2 {
        discarded(client, &snapshot).await.unwrap();
        assert_eq!(cloud.twin().snapshots().len(), 0);
    }
    is_denied(discarded(client, &backup).await);
    is_denied(restored(client, "pvc-2", &backup).await);
    // Another process cannot know that the ID was that of a snapshot.
    drop(running);
    let _again = site.start();
    let client = &mut site.client().await;
    is_denied(discarded(client, &snapshot).await);
    let kept: Vec<_> = cloud.twin().backups().into_iter().collect();
    assert_eq!(kept, [&*backup]);
    assert_eq!(cloud.twin().all().len(), 1);
    cloud.twin().hides_backups = false;
    restored(client, "pvc-2", &backup).await.unwrap();
    for id in [&snapshot, &backup] {
        discarded(client, id).await.unwrap();
    }
    assert!(cloud.twin().backups().is_empty());
}
