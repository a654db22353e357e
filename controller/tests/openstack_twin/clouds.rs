//! The key `cloud` in the secrets of calls.

use crate::site::{Client, Site, attached, block, create, created, cut};
use crate::wire::Cloud;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};

const GIB: i64 = 1 << 30;
const NODE: &str = "server-1";

/// The answers to every call that can have secrets, with these.
async fn asked(
    client: &mut Client,
    [volume, snapshot]: [&str; 2],
    cloud: &str,
) -> Vec<(&'static str, Result<(), Status>)> {
    let secrets = || HashMap::from([("cloud".to_owned(), cloud.to_owned())]);
    let (mut answers, id) = (Vec::new(), volume.to_owned());
    macro_rules! ask {
        ($call:ident, $request:expr) => {
            let mut request = $request;
            request.secrets = secrets();
            let answer = client.$call(request).await.map(drop);
            answers.push((stringify!($call), answer));
        };
    }
    ask!(create_volume, create("pvc-2"));
    ask!(
        validate_volume_capabilities,
        csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: vec![block()],
            ..Default::default()
        }
    );
    ask!(controller_expand_volume, requests::grow(volume, 2 * GIB));
    ask!(
        controller_modify_volume,
        csi::ControllerModifyVolumeRequest {
            volume_id: id.clone(),
            ..Default::default()
        }
    );
    ask!(create_snapshot, requests::cut("snap-2", volume));
    ask!(
        get_snapshot,
        csi::GetSnapshotRequest {
            snapshot_id: snapshot.to_owned(),
            ..Default::default()
        }
    );
    ask!(
        list_snapshots,
        csi::ListSnapshotsRequest {
            max_entries: 10,
            ..Default::default()
        }
    );
    ask!(delete_snapshot, requests::discard(snapshot));
    ask!(
        controller_publish_volume,
        requests::attach(volume, NODE, block())
    );
    ask!(controller_unpublish_volume, requests::detach(volume, NODE));
    ask!(delete_volume, requests::delete(volume));
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_another_cloud_is_refused_before_the_cloud_is_asked() {
    let cloud = Cloud::start(Duration::ZERO, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let snapshot = cut(client, "snap-1", &id).await.unwrap();
    attached(client, &id, NODE).await.unwrap();
    let seen = || {
        let mut twin = cloud.twin();
        (twin.count(), twin.all())
    };
    let before = seen();
    for (call, answer) in asked(client, [&id, &snapshot], "canary-cloud").await {
        let refused = answer.expect_err(call);
        assert_eq!(refused.code(), Code::InvalidArgument, "{call}: {refused}");
        let message = refused.message();
        assert!(message.contains("secrets[cloud]: "), "{call}: {message}");
        assert!(!message.contains("canary"), "{call}: {message}");
    }
    assert_eq!(seen(), before);
    assert!(!site.log().contains("canary"));
}
