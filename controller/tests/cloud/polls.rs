//! The number of polls of the cloud for many waiters, and the order in which waiters are served.

use crate::cloud::Cloud;
use crate::fate::Fates;
use crate::line::{Line, PAGE};
use crate::{PROFILE, attached, controller, create, created, deleted, map, on};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_server::request::VolumeId;
use csi::controller_server::Controller as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Request};

#[tokio::test(start_paused = true)]
async fn many_that_wait_share_a_list_and_few_among_many_volumes_are_asked_for_one_by_one() {
    let cloud = Cloud::new(30);
    let service = controller(&cloud);
    let create_all = async |count: usize, from: usize| {
        let mut creating = JoinSet::new();
        for n in from..from + count {
            let service = Arc::clone(&service);
            creating.spawn(async move {
                let request = create(&format!("pvc-{n}"), "fast");
                created(&service, request).await.unwrap().volume_id
            });
        }
        creating.join_all().await
    };
    let asked = || [&cloud.looks, &cloud.pages].map(|count| count.swap(0, Ordering::Relaxed));

    // A single waiter uses no list.
    create_all(1, 0).await;
    let [looks, pages] = asked();
    assert!(looks > 10 && pages == 0, "{looks} {pages}");
    // With many waiters and few pages, there are hardly any single reads.
    let ids = create_all(PAGE * 5, 1).await;
    let [looks, pages] = asked();
    assert!(looks < 20, "{looks} looks at {} volumes", ids.len());
    assert!(pages < 6 * 40, "{pages} pages in 30 s");
    // With few waiters and many pages, the list is tried once.
    create_all(3, 1000).await;
    let [looks, pages] = asked();
    assert!(looks > 30 && pages <= 2, "{looks} {pages}");
    for id in ids {
        deleted(&service, &id).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_that_are_deleted_together_are_looked_at_once_each_after_they_leave_the_list() {
    let cloud = Cloud::new(10);
    let service = controller(&cloud);
    let mut ids = Vec::new();
    for n in 0..PAGE / 2 {
        let volume = created(&service, create(&format!("pvc-{n}"), "fast")).await;
        ids.push(volume.unwrap().volume_id);
    }
    let looks = cloud.looks();
    let mut deleting = JoinSet::new();
    for id in ids {
        let service = Arc::clone(&service);
        deleting.spawn(async move { deleted(&service, &id).await.unwrap() });
    }
    deleting.join_all().await;
    // A list cannot prove that a volume is missing.
    assert_eq!(cloud.looks(), looks + PAGE / 2);
}

#[tokio::test(start_paused = true)]
async fn volumes_of_two_accounts_are_waited_for_by_two_lists() {
    let cloud = Cloud::new(10);
    let service = controller(&cloud);
    let mut living = JoinSet::new();
    for n in 0..PAGE / 2 {
        let service = Arc::clone(&service);
        let secrets = map("token", ["one", "other"][n % 2]);
        living.spawn(async move {
            let request = csi::CreateVolumeRequest {
                secrets: secrets.clone(),
                ..create(&format!("pvc-{n}"), "fast")
            };
            let id = created(&service, request).await.unwrap().volume_id;
            let request = csi::DeleteVolumeRequest {
                secrets,
                ..requests::delete(&id)
            };
            service.delete_volume(Request::new(request)).await.unwrap();
        });
    }
    living.join_all().await;
    assert!(cloud.ids().is_empty());
    // Each list has all the volumes for which it is read, so each is read separately only once it
    // is deleted.
    assert_eq!(cloud.looks(), PAGE / 2);
}

#[tokio::test(start_paused = true)]
async fn attachments_of_a_node_come_one_after_another_in_their_order() {
    let cloud = Cloud::new(10);
    let service = on(Line::new(&cloud), PROFILE);
    let mut ids = Vec::new();
    for n in 0..6 {
        let volume = created(&service, create(&format!("pvc-{n}"), "fast")).await;
        ids.push(volume.unwrap().volume_id);
    }
    let begun = Instant::now();
    let mut attaching = JoinSet::new();
    for (n, id) in ids.into_iter().enumerate() {
        let service = Arc::clone(&service);
        let node = ["node-1", "node-2"][n % 2];
        attaching.spawn(async move {
            attached(&service, &id, node).await.unwrap();
            n
        });
        tokio::task::yield_now().await;
    }
    let order = attaching.join_all().await;
    for node in [[0, 2, 4], [1, 3, 5]] {
        let served = order.iter().filter(|n| node.contains(n));
        assert!(served.eq(&node), "{order:?}");
    }
    // There are three changes per node, of ten seconds each, plus the interval of the poller.
    let seconds = begun.elapsed().as_secs();
    assert!((30..40).contains(&seconds), "{seconds} s");
}

#[tokio::test(start_paused = true)]
async fn an_attach_whose_turn_does_not_come_in_time_is_never_begun() {
    let cloud = Cloud::new(10);
    let service = on(Line::new(&cloud), PROFILE);
    let mut ids = Vec::new();
    for n in 0..12 {
        let volume = created(&service, create(&format!("pvc-{n}"), "fast")).await;
        ids.push(volume.unwrap().volume_id);
    }
    let mut attaching = JoinSet::new();
    for id in ids {
        let service = Arc::clone(&service);
        attaching.spawn(async move {
            let refused = attached(&service, &id, "node-1").await.err();
            (id, refused)
        });
    }
    let mut late = attaching.join_all().await;
    late.retain(|(_, refused)| refused.is_some());
    assert!(!late.is_empty());
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (id, refused) in late {
        let refused = refused.unwrap();
        assert_eq!(refused.code(), Code::Aborted, "{refused}");
        if refused.message().contains("other volumes") {
            let volume = cloud.state().get(&VolumeId::new(&id).unwrap());
            assert_eq!(volume.unwrap().nodes, [], "{id}: {refused}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_answered_within_one_interval_after_the_cloud_is_done() {
    // The time for requests and responses of the call, before and after the change.
    let ways = Duration::from_millis(40);
    for delay in (0..85_000).step_by(70).map(Duration::from_millis) {
        let cloud = Cloud::with(delay, Fates::good());
        let service = controller(&cloud);
        let id = created(&service, create("pvc-1", "fast")).await;
        let id = id.unwrap().volume_id;
        let begun = Instant::now();
        attached(&service, &id, "node-1").await.unwrap();
        let late = begun.elapsed() - delay;
        // The interval grows with the elapsed time of the change.
        let interval = (delay / 4).clamp(Duration::from_millis(250), Duration::from_secs(2));
        assert!(late <= interval + ways, "{delay:?}: {late:?}");
    }
}
