//! One volume lifecycle, with each bad fate at each of its requests.

use crate::cloud::Cloud;
use crate::fate::{Fate, Fates};
use crate::lives::{Seat, is_final};
use crate::{attached, create, created, deleted, detached, grown};
use belay_controller::rpc::Service;
use belay_server::request::VolumeId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tonic::Code;

const DELAY: Duration = Duration::from_secs(3);

/// A whole lifecycle on that cloud, each call repeated until it succeeds.
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
    cloud.answered(&VolumeId::new(id.as_str()).unwrap());
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
        // A grown volume agrees with the request for a smaller one.
        seat.insist(what, |_| false, call).await.unwrap();
    }
    cloud.condemn(&VolumeId::new(id.as_str()).unwrap());
    let delete = async |service: &Service| deleted(service, id).await;
    seat.insist("delete", |_| false, delete).await.unwrap();
    assert!(!cloud.ids().contains(id));
}

/// Repeats the creation of a volume that fails, until the code is final.
async fn doom(cloud: &Arc<Cloud>) {
    let seat = Seat::new(cloud);
    let call = async |service: &Service| created(service, create("pvc-1", "doomed")).await;
    let is_enough = |status: &_| is_final(status) && !is_refusal(status);
    let refused = seat.insist("create", is_enough, call).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}

/// The cloud was not reached, and nothing has happened: callers repeat such a call too.
fn is_refusal(status: &tonic::Status) -> bool {
    status.code() == Code::Internal && status.message().contains("503")
}

/// Runs `whole` with each fate at each request. Only a crash, or a creation that was repeated or
/// got no response, may leave volumes.
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
