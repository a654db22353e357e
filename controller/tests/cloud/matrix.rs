//! The lifecycles of a volume and of a snapshot, with each bad fate at each of their requests.

use crate::cloud::Cloud;
use crate::fate::{Fate, Fates};
use crate::lives::{Seat, is_final, never};
use crate::{
    attached, create, created, cut, deleted, detached, discarded, grown, requests, restore,
};
use belay_controller::rpc::Service;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tonic::Code;

const DELAY: Duration = Duration::from_secs(3);

/// Runs a complete lifecycle, repeating each call until it succeeds.
async fn life(cloud: &Arc<Cloud>) {
    let seat = Seat::new(cloud);
    let volume = seat
        .insist(
            "create",
            |_| false,
            async |service: &Service| created(service, create("pvc-1", "fast")).await,
        )
        .await
        .unwrap();
    let id = &volume.volume_id;
    cloud.answered(id);
    for (what, call) in [("attach", 0), ("expand", 1), ("create", 2), ("detach", 3)] {
        let call = async |service: &Service| match call {
            0 => attached(service, id, "node-1").await.map(drop),
            1 => grown(service, id, 5 << 30).await.map(drop),
            2 => {
                let again = created(service, create("pvc-1", "fast")).await;
                again.map(|again| assert_eq!(again.volume_id, *id))
            }
            _ => detached(service, id).await,
        };
        // An expanded volume matches the request for a smaller one.
        seat.insist(what, |_| false, call).await.unwrap();
    }
    cloud.condemn(id);
    let delete = async |service: &Service| deleted(service, id).await;
    seat.insist("delete", |_| false, delete).await.unwrap();
    assert!(!cloud.ids().contains(id));
}

/// Repeats a failing creation of a volume until the code is final.
async fn doom(cloud: &Arc<Cloud>) {
    let seat = Seat::new(cloud);
    let call = async |service: &Service| created(service, create("pvc-1", "doomed")).await;
    let is_enough = |status: &_| is_final(status) && !is_refusal(status);
    let refused = seat.insist("create", is_enough, call).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}

/// Runs a complete lifecycle of a snapshot and of volumes from it.
async fn copies(cloud: &Arc<Cloud>) {
    let seat = Seat::new(cloud);
    let make = async |service: &Service| created(service, create("pvc-1", "fast")).await;
    let source = seat.insist("create", never, make).await.unwrap().volume_id;
    cloud.answered(&source);
    let cut = async |service: &Service| cut(service, requests::cut("snap-1", &source)).await;
    let snapshot = seat.insist("cut", never, cut).await.unwrap();
    let id = &snapshot.snapshot_id;
    cloud.answered(id);
    let again = seat.insist("cut again", never, cut).await.unwrap();
    assert!(again.snapshot_id == *id && again.ready_to_use, "{again:?}");
    let mut condemned = vec![source.clone()];
    for (name, of) in [
        ("pvc-2", requests::of_snapshot(id)),
        ("pvc-3", requests::of_volume(&source)),
    ] {
        let make = async |service: &Service| created(service, restore(name, of.clone())).await;
        let copy = seat.insist(name, never, make).await.unwrap();
        cloud.answered(&copy.volume_id);
        assert_eq!(copy.content_source.unwrap().r#type, Some(of));
        condemned.push(copy.volume_id);
    }
    cloud.condemn(id);
    let discard = async |service: &Service| discarded(service, id).await;
    seat.insist("discard", never, discard).await.unwrap();
    for volume in &condemned {
        cloud.condemn(volume);
        let delete = async |service: &Service| deleted(service, volume).await;
        seat.insist("delete", never, delete).await.unwrap();
    }
    condemned.push(id.clone());
    assert!(!cloud.ids().iter().any(|id| condemned.contains(id)));
}

/// Repeats a failing creation of a snapshot until the code is final.
async fn doomed_snapshot(cloud: &Arc<Cloud>) {
    let seat = Seat::new(cloud);
    let make = async |service: &Service| created(service, create("pvc-1", "fast")).await;
    let source = seat.insist("create", never, make).await.unwrap().volume_id;
    let mut request = requests::cut("snap-1", &source);
    request
        .parameters
        .insert("class".to_owned(), "doomed".to_owned());
    let cut = async |service: &Service| cut(service, request.clone()).await;
    let is_enough = |status: &_| is_final(status) && !is_refusal(status);
    let refused = seat.insist("cut", is_enough, cut).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let delete = async |service: &Service| deleted(service, &source).await;
    seat.insist("delete", never, delete).await.unwrap();
}

/// Whether the cloud was not reached and nothing has happened; callers repeat such a call, too.
fn is_refusal(status: &tonic::Status) -> bool {
    status.code() == Code::Internal && status.message().contains("503")
}

/// Runs `whole` with each fate at each request. Only a crash, or a creation that was repeated or
/// got no response, may leave volumes behind.
async fn with_each_fate(whole: impl AsyncFn(&Arc<Cloud>)) {
    let undisturbed = Cloud::with(DELAY, Fates::good());
    whole(&undisturbed).await;
    assert!(undisturbed.ids().is_empty());
    let requests = undisturbed.fates().requests();
    assert!(requests > 6, "{requests}");
    for request in 0..requests {
        for fate in Fate::BAD {
            let cloud = Cloud::with(DELAY, Fates::chosen(request, fate));
            whole(&cloud).await;
            sleep(Duration::from_secs(600)).await;
            let broken = cloud.broken();
            assert!(broken.is_empty(), "{fate:?} at {request}: {broken:?}");
            let (left, most) = (cloud.ids(), cloud.fates().surplus_max(1));
            assert!(left.len() <= most, "{fate:?} at {request} left {left:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_life_ends_well_with_each_fate_at_each_request() {
    with_each_fate(life).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_fails_is_cleared_with_each_fate_at_each_request() {
    with_each_fate(doom).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_and_its_copies_end_well_with_each_fate_at_each_request() {
    with_each_fate(copies).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_fails_is_cleared_with_each_fate_at_each_request() {
    with_each_fate(doomed_snapshot).await;
}
