//! Disks are smaller than their volumes: tests of the promised size.

use crate::site::{Client, Cloud, GIB, Site, block, cloud, create, files, grown, instance, made};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::time::Duration;
use tonic::Code;

fn sized(name: &str, gib: i64, kind: &str, capacity: Option<&str>) -> csi::CreateVolumeRequest {
    let capability = match kind {
        "block" => block(),
        _ => files(),
    };
    let capacity = capacity.map(|word| ("capacity".to_owned(), word.to_owned()));
    csi::CreateVolumeRequest {
        capacity_range: requests::range(gib * GIB, 0),
        parameters: capacity.into_iter().collect(),
        volume_capabilities: vec![capability],
        ..create(name)
    }
}

/// Returns the size of the volume at Civo in GiB, and of its disk in bytes.
fn at_civo(cloud: &Cloud, id: &str) -> (u64, i64) {
    let twin = cloud.service().twin();
    let volume = &twin.state().volumes[id];
    (volume.gib, i64::try_from(volume.disk_bytes()).unwrap())
}

/// Returns the minimum size of the disk that the node requires.
async fn demanded(client: &mut Client, id: &str) -> i64 {
    let request = requests::attach(id, &instance(1), block());
    let answer = client.controller_publish_volume(request).await.unwrap();
    let bytes = answer.into_inner().publish_context["bytes"].parse();
    let detach = requests::detach(id, &instance(1));
    client.controller_unpublish_volume(detach).await.unwrap();
    bytes.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_device_has_what_was_asked_for_and_a_filesystem_what_its_class_says() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    for (n, (kind, capacity, gib)) in [
        ("ext4", None, 10),
        ("block", None, 11),
        ("ext4", Some("disk"), 11),
        ("block", Some("volume"), 10),
    ]
    .into_iter()
    .enumerate()
    {
        let request = sized(&format!("pvc-{n}"), 10, kind, capacity);
        let volume = made(&mut client, request.clone()).await.unwrap();
        let again = made(&mut client, request).await.unwrap();
        assert_eq!(volume, again, "{kind} {capacity:?}");
        let id = &volume.volume_id;
        let (made, disk) = at_civo(&cloud, id);
        assert_eq!(made, gib, "{kind} {capacity:?}");
        assert!(volume.capacity_bytes >= 10 * GIB);
        let demanded = demanded(&mut client, id).await;
        assert!(demanded <= disk, "{demanded} of {disk}");
        if gib == 11 {
            assert!(
                disk >= volume.capacity_bytes,
                "the disk is as large as promised"
            );
            assert_eq!(demanded, volume.capacity_bytes);
        }
        // The volume is expanded with the same promise, which the request does not repeat.
        let bytes = grown(&mut client, id, 20 * GIB).await.unwrap();
        let (made, disk) = at_civo(&cloud, id);
        assert_eq!(made, if gib == 11 { 22 } else { 20 });
        assert!(bytes >= 20 * GIB && (gib == 10 || disk >= bytes), "{bytes}");
        let found = client
            .controller_get_volume(requests::get(id))
            .await
            .unwrap();
        assert_eq!(found.into_inner().volume.unwrap().capacity_bytes, bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_and_a_size_without_one_is_that_of_the_smallest_volume() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let bounded = |required, limit| csi::CreateVolumeRequest {
        capacity_range: requests::range(required, limit),
        ..sized("pvc-1", 1, "block", None)
    };
    // No disk has exactly 10 GiB.
    let refused = made(&mut client, bounded(10 * GIB, 10 * GIB)).await;
    assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(cloud.service().twin().state().volumes.len(), 0);
    let volume = made(&mut client, bounded(10 * GIB, 11 * GIB))
        .await
        .unwrap();
    assert_eq!(at_civo(&cloud, &volume.volume_id).0, 11);
    let wrong = made(&mut client, sized("pvc-2", 1, "ext4", Some("all"))).await;
    let wrong = wrong.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert!(wrong.message().contains("capacity \"all\""), "{wrong}");
}
