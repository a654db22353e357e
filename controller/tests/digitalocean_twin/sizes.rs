//! Sizes, names, quotas and repeated calls of CreateVolume and ControllerExpandVolume.

use crate::site::{CREATE, GIB, NODE, Site, attached, create, created, refused, sized};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_one_and_a_half_gib_gets_two_and_its_retry_the_same() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let asked = sized("pvc-1", 3 * GIB / 2);
    let first = client.create_volume(asked.clone()).await.unwrap();
    let first = first.into_inner().volume.unwrap();
    assert_eq!(first.capacity_bytes, 2 * GIB);
    let again = client.create_volume(asked).await.unwrap();
    assert_eq!(again.into_inner().volume.unwrap(), first);
    let mut limited = sized("pvc-2", 3 * GIB / 2);
    limited.capacity_range = requests::range(3 * GIB / 2, 7 * GIB / 4);
    let answer = client.create_volume(limited).await;
    refused(answer, Code::OutOfRange, "limit_bytes");
    let answer = client.create_volume(sized("pvc-1", 3 * GIB)).await;
    refused(answer, Code::AlreadyExists, "less than the requested");
    let grow = requests::grow(&first.volume_id, 5 * GIB / 2);
    let grown = client.controller_expand_volume(grow).await.unwrap();
    assert_eq!(grown.into_inner().capacity_bytes, 3 * GIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_grows_while_it_is_attached() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, NODE).await.unwrap();
    let grow = requests::grow(&id, 4 * GIB);
    let grown = client.controller_expand_volume(grow.clone()).await.unwrap();
    let grown = grown.into_inner();
    assert_eq!(
        (grown.capacity_bytes, grown.node_expansion_required),
        (4 * GIB, true)
    );
    client.controller_expand_volume(grow).await.unwrap();
    assert_eq!(site.cloud.count(crate::site::RESIZE), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_answers_the_same_with_topology_and_source() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let first = create(&mut client, "pvc-1").await.unwrap();
    let region = first.accessible_topology[0].segments["region"].as_str();
    assert_eq!(region, "nyc1");
    assert_eq!(create(&mut client, "pvc-1").await.unwrap(), first);
    // The result is the same if the response was lost, or if csi-digitalocean created the volume.
    for (name, fault) in [("pvc-2", Fault::Lost), ("pvc-3", Fault::Cut)] {
        site.cloud.disturb(CREATE, 1, fault);
        let made = create(&mut client, name).await;
        let again = create(&mut client, name).await.unwrap();
        assert!(made.is_err() || made.unwrap() == again);
    }
    site.twin().make_foreign(&first.volume_id);
    assert_eq!(create(&mut client, "pvc-1").await.unwrap(), first);
    assert_eq!(site.twin().volumes().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_quota_is_resource_exhausted_and_too_large_a_size_or_growth_is_out_of_range() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.twin().settings().capacity = 2;
    let words = "capacity limit exceeded";
    for status in [403, 422, 429] {
        site.twin().settings().capacity_status = status;
        let answer = client.create_volume(sized("pvc-2", 2 * GIB)).await;
        refused(answer, Code::ResourceExhausted, words);
        let grow = requests::grow(&id, 4 * GIB);
        let answer = client.controller_expand_volume(grow).await;
        refused(answer, Code::OutOfRange, words);
    }
    site.twin().settings().capacity = 1;
    let answer = client.create_snapshot(requests::cut("s-1", &id)).await;
    refused(answer, Code::ResourceExhausted, words);
    site.twin().settings().capacity = u64::MAX;
    site.twin().settings().size_max = 100;
    let answer = client.create_volume(sized("pvc-3", 101 * GIB)).await;
    refused(answer, Code::OutOfRange, "invalid size");
    let answer = client
        .controller_expand_volume(requests::grow(&id, 101 * GIB))
        .await;
    refused(answer, Code::OutOfRange, "invalid size");
    let answer = client.create_volume(sized("pvc-3", 16385 * GIB)).await;
    refused(answer, Code::OutOfRange, "16 TiB");
    site.twin().settings().volume_limit = 1;
    let answer = client.create_volume(sized("pvc-4", GIB)).await;
    refused(answer, Code::ResourceExhausted, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_volume_is_in_its_description_and_the_volume_is_found_again() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let mut request = sized("pvc-1", GIB);
    let claim = [("name", "data-0"), ("namespace", "shop")];
    request.parameters = claim
        .map(|(key, value)| (format!("csi.storage.k8s.io/pvc/{key}"), value.to_owned()))
        .into();
    let first = client.create_volume(request.clone()).await.unwrap();
    let (_, _, description, _) = site.twin().volumes().pop().unwrap();
    assert_eq!(description, "Created by Belay; claim=shop/data-0");
    let again = client.create_volume(request).await.unwrap();
    assert_eq!(again.into_inner(), first.into_inner());
    assert_eq!(site.twin().volumes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_name_is_accepted_and_found_again_and_another_region_is_refused() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let long = "Long name ä".repeat(8);
    let first = create(&mut client, &long).await.unwrap();
    assert_eq!(create(&mut client, &long).await.unwrap(), first);
    let (name, _, description, _) = site.twin().volumes().pop().unwrap();
    assert!(name.starts_with("csi-") && name.len() == 44, "{name}");
    assert!(
        description.starts_with("Created by Belay; name=Long%20name"),
        "{description}"
    );
    // A volume of another program with this name in the cloud never belongs to a longer name.
    site.twin().make_foreign(&first.volume_id);
    let answer = create(&mut client, &long).await;
    refused(answer, Code::AlreadyExists, "has that name");
    let elsewhere = csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![csi::Topology {
                segments: [("region".to_owned(), "fra1".to_owned())].into(),
            }],
            preferred: Vec::new(),
        }),
        ..sized("pvc-9", GIB)
    };
    let answer = client.create_volume(elsewhere).await;
    refused(answer, Code::ResourceExhausted, "region=nyc1 only");
    assert_eq!(site.twin().volumes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_volumes_are_listed_once_with_their_nodes_whatever_the_page() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    site.twin().fill(230);
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, NODE).await.unwrap();
    for page in [0, 7, 200] {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let request = csi::ListVolumesRequest {
                max_entries: page,
                starting_token: token,
            };
            let answer = client.list_volumes(request).await.unwrap().into_inner();
            assert!(page == 0 || answer.entries.len() <= usize::try_from(page).unwrap());
            seen.extend(answer.entries);
            token = answer.next_token;
            if token.is_empty() {
                break;
            }
        }
        let ids: std::collections::BTreeSet<_> = seen
            .iter()
            .map(|entry| entry.volume.as_ref().unwrap().volume_id.clone())
            .collect();
        assert_eq!((ids.len(), seen.len()), (231, 231));
        let nodes = |entry: &csi::list_volumes_response::Entry| {
            entry.status.as_ref().unwrap().published_node_ids.clone()
        };
        let nodes: Vec<_> = seen.iter().flat_map(nodes).collect();
        assert_eq!(nodes, [NODE]);
    }
}
