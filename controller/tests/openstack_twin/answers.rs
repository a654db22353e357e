//! Creations to which Cinder responds with another object, or with an invalid ID. A volume or
//! snapshot has marks, so the same call finds the object that it created. The other object must not
//! be taken for a surplus object of this call, which would be deleted.

use crate::site::{Site, attached, created, cut, nth_server, restored};
use crate::wire::{CHANGE, Cloud};
use belay_proto::csi::v1 as csi;
use serde_json::json;

const NO_ID: &str = "../../account";

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_is_answered_with_another_object_returns_its_own_and_deletes_none() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let answered = |id: &str| cloud.twin().answered.insert(id.to_owned());
    let other = created(client, "pvc-1").await.unwrap();
    answered(&other);
    cloud.twin().altered = vec![
        ("/volume/id", json!(other)),
        ("/volume/name", json!("pvc-1")),
    ];
    let own = created(client, "pvc-2").await.unwrap();
    assert!(answered(&own));
    cloud.twin().altered = vec![("/volume/id", json!(NO_ID))];
    assert!(answered(&created(client, "pvc-3").await.unwrap()));
    let kept = cut(client, "s-1", &own).await.unwrap();
    answered(&kept);
    cloud.twin().altered = vec![
        ("/snapshot/id", json!(kept)),
        ("/snapshot/name", json!("s-1")),
    ];
    assert!(answered(&cut(client, "s-2", &own).await.unwrap()));
    cloud.twin().altered = vec![
        ("/volume/id", json!(other)),
        ("/volume/name", json!("pvc-1")),
    ];
    assert!(answered(&restored(client, "pvc-4", &kept).await.unwrap()));
    // Only the ID differs; name and size are those of the order.
    cloud.twin().altered = vec![("/volume/id", json!(other))];
    assert!(answered(&created(client, "pvc-5").await.unwrap()));
    cloud.twin().altered = vec![("/snapshot/id", json!(kept))];
    assert!(answered(&cut(client, "s-3", &own).await.unwrap()));
    assert!(cloud.twin().all().contains_key(&other) && cloud.twin().snapshots().contains(&kept));
    attached(client, &own, &nth_server(1)).await.unwrap();
    assert_eq!(cloud.twin().all().len(), 5, "one for each name");
    assert_eq!(cloud.twin().snapshots().len(), 3);
    let listed = client.list_volumes(csi::ListVolumesRequest::default());
    assert_eq!(listed.await.unwrap().into_inner().entries.len(), 5);
    assert_eq!(cloud.twin().broken, [] as [&str; 0]);
}
