//! Changes that the cloud accepts, but does not make or complete.

use crate::cloud::{Cause, Cloud};
use crate::{attached, controller, create, created, deleted, detached, grown};
use belay_server::call::Failure;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// Returns the number of changes accepted since the last call.
fn begun(cloud: &Cloud) -> usize {
    std::mem::take(&mut cloud.state().begun)
}

fn drops(cloud: &Cloud, count: usize) {
    cloud.state().drops = count;
}

/// Checks that the error describes the state of the volume, and that nothing is in progress.
#[track_caller]
fn assert_dropped(answer: Result<(), Status>, is: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains(is), "{is}: {status}");
    assert!(!status.message().contains("in progress"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_the_cloud_accepts_and_drops_is_begun_twice_and_not_said_to_be_in_progress() {
    let cloud = Cloud::new(5);
    let service = controller(&cloud);
    let id = created(&service, create("pvc-1", "fast")).await.unwrap();
    let id = &id.volume_id;
    begun(&cloud);

    // The same call begins a change again that was dropped once.
    drops(&cloud, 1);
    attached(&service, id, "node-1").await.unwrap();
    assert_eq!(begun(&cloud), 2);
    drops(&cloud, 1);
    assert_eq!(grown(&service, id, 5 << 30).await.unwrap(), 5 << 30);
    assert_eq!(begun(&cloud), 2);
    drops(&cloud, 1);
    detached(&service, id).await.unwrap();
    assert_eq!(begun(&cloud), 2);

    let waited = Instant::now();
    drops(&cloud, 2);
    let dropped = attached(&service, id, "node-1").await.map(drop);
    assert_dropped(dropped, "not attached to node node-1");
    assert_eq!(begun(&cloud), 2);
    attached(&service, id, "node-1").await.unwrap();
    assert_eq!(begun(&cloud), 1);
    drops(&cloud, 2);
    let dropped = grown(&service, id, 6 << 30).await.map(drop);
    assert_dropped(dropped, "not expanded to 6 GiB");
    assert_eq!(begun(&cloud), 2);
    assert_eq!(grown(&service, id, 6 << 30).await.unwrap(), 6 << 30);
    begun(&cloud);
    drops(&cloud, 2);
    let dropped = detached(&service, id).await;
    assert_dropped(dropped, "still attached to node node-1");
    assert_eq!(begun(&cloud), 2);
    detached(&service, id).await.unwrap();
    begun(&cloud);
    drops(&cloud, 1);
    assert_dropped(deleted(&service, id).await, "not deleted");
    assert_eq!(begun(&cloud), 1);
    deleted(&service, id).await.unwrap();
    // This is the duration of the changes: no call waits for changes that the cloud is not making.
    assert!(waited.elapsed() < Duration::from_secs(90), "{waited:?}");
}

/// Returns the failure of an attach that the cloud drops.
async fn dropped(cloud: &Arc<Cloud>, id: &str, cause: Cause) -> Status {
    let service = controller(cloud);
    cloud.state().cause = cause;
    drops(cloud, 2);
    attached(&service, id, "node-1").await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn the_cause_is_in_the_clouds_words_and_one_that_it_does_not_say_delays_no_call() {
    let cloud = Cloud::new(1);
    let service = controller(&cloud);
    let id = created(&service, create("pvc-1", "fast")).await.unwrap();
    let id = &id.volume_id;
    for (cause, code) in [
        (
            Failure::busy("the host has no port left").may_be_running(),
            Code::Aborted,
        ),
        (
            Failure::quota("the host has no port left"),
            Code::ResourceExhausted,
        ),
    ] {
        let status = dropped(&cloud, id, Cause::Known(cause)).await;
        assert_eq!(status.code(), code, "{status}");
        assert_eq!(status.message(), "the host has no port left");
    }
    for cause in [Cause::Unknown, Cause::Refused, Cause::Silence] {
        let waited = Instant::now();
        let status = dropped(&cloud, id, cause).await;
        assert_dropped(Err(status), "not attached to node node-1");
        assert!(waited.elapsed() < Duration::from_secs(10), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_does_not_end_has_the_clouds_word_for_it_and_says_where_to_look() {
    let cloud = Cloud::new(80);
    let service = controller(&cloud);
    let id = created(&service, create("pvc-1", "fast")).await.unwrap();
    let id = &id.volume_id;
    drops(&cloud, 1);
    let status = attached(&service, id, "node-1").await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    for part in [
        "still in progress in the storage (attaching)",
        "if this persists, its log says why",
    ] {
        assert!(status.message().contains(part), "{part}: {status}");
    }
    // The second attempt is made.
    sleep(cloud.delay).await;
    attached(&service, id, "node-1").await.unwrap();
}
