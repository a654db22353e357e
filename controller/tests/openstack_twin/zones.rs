//! The zones that a controller with topology reports at its start.

use crate::site::Site;
use crate::wire::{CHANGE, Cloud};
use belay_bed::patience::until;
use belay_proto::csi::v1 as csi;
use std::collections::HashMap;
use tonic::Code;

const KEY: &str = "topology.cinder.csi.openstack.org/zone";

fn at(zone: &str) -> csi::Topology {
    let segments = HashMap::from([(KEY.to_owned(), zone.to_owned())]);
    csi::Topology { segments }
}

/// Returns a request with a class for this zone, or for none, and nodes in these zones.
fn placed(name: &str, class: Option<&str>, nodes: &[&str]) -> csi::CreateVolumeRequest {
    let nodes: Vec<_> = nodes.iter().map(|zone| at(zone)).collect();
    let class = class.map(|zone| ("availability".to_owned(), zone.to_owned()));
    csi::CreateVolumeRequest {
        parameters: class.into_iter().collect(),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: nodes.clone(),
            preferred: nodes,
        }),
        ..crate::site::create(name)
    }
}

/// The twin creates all volumes in the zone `nova`, although it also has `az-b`. Cinder does so
/// with `allow_availability_zone_fallback`, if `az-b` is not among the zones of the volume type.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_another_zone_than_that_of_its_class_is_the_one_of_its_claim() {
    let cloud = Cloud::start(CHANGE, None);
    let mut site = Site::new(&cloud.url(), "");
    site.has_topology = true;
    let _running = site.start();
    let mut client = site.client().await;
    let both = ["az-b", "nova"];
    let mut ids = Vec::new();
    for class in [Some("az-b"), Some("az-b"), Some("nova"), None] {
        let answer = client.create_volume(placed("pvc-1", class, &both)).await;
        let volume = answer.unwrap().into_inner().volume.unwrap();
        assert_eq!(volume.accessible_topology, [at("nova")], "{class:?}");
        ids.push(volume.volume_id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let warning = "the volume is in another zone than the requested one";
    assert_eq!(site.log().matches(warning).count(), 1, "{}", site.log());
    // This volume was not created for that zone.
    let answer = client
        .create_volume(placed("pvc-2", Some("nova"), &both))
        .await;
    answer.unwrap();
    let answer = client
        .create_volume(placed("pvc-2", Some("az-b"), &both))
        .await;
    let refused = answer.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert!(refused.message().contains("it has \"nova\""), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zone_that_no_node_accepts_is_refused_with_its_cloud_and_what_to_do() {
    let cloud = Cloud::start(CHANGE, None);
    let second = format!(
        "[Global \"b\"]\nauth-url={}/identity\nusername=a\npassword=b\ntenant-id=c\n",
        cloud.url()
    );
    for (flags, named) in [(&[][..], false), (&["--cloud-name=,b"], true)] {
        let mut site = Site::new(&cloud.url(), &second);
        site.has_topology = true;
        site.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let _running = site.start();
        let mut client = site.client().await;
        let request = placed(&format!("pvc-{named}"), None, &["az-b"]);
        let refused = client.create_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        for part in [
            "nova, outside the requested topology",
            "allow_availability_zone_fallback",
            "ignore-volume-az = true",
        ] {
            assert!(refused.message().contains(part), "{part}: {refused}");
        }
        let message = refused.message();
        assert_eq!(message.starts_with("[Global]: "), named, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zones_of_servers_that_have_no_volumes_are_logged_unless_they_are_ignored() {
    let cloud = Cloud::start(CHANGE, None);
    let mut site = Site::new(&cloud.url(), "");
    site.has_topology = true;
    let running = site.start();
    let warning = r#"pods on servers in the zones ["edge-1"] cannot use volumes"#;
    until("the zones are compared", || site.log().contains(warning));
    drop(running);
    let asked = || {
        let calls = cloud.twin().calls.clone();
        calls.get("GET zones").copied().unwrap_or_default()
    };
    assert_eq!(asked(), 2);
    let mut site = Site::new(&cloud.url(), "[BlockStorage]\nignore-volume-az = true");
    site.has_topology = true;
    let _running = site.start();
    crate::site::created(&mut site.client().await, "pvc-1")
        .await
        .unwrap();
    assert!(!site.log().contains("cannot use volumes"));
    assert_eq!(asked(), 2, "there is nothing to compare");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_volumes_in_cloud_conf_is_reported_once_unless_it_is_that_of_the_driver() {
    let cloud = Cloud::start(CHANGE, None);
    let second = format!(
        "[Global \"b\"]\nauth-url={}/identity\nusername=a\npassword=b\ntenant-id=c\n",
        cloud.url()
    );
    for (limit, flags, count) in [
        ("node-volume-attach-limit = 25", &[][..], 1),
        ("Node-Volume-Attach-Limit=25", &["--max-volumes=25"], 0),
        ("node-volume-attach-limit = 256", &[], 0),
        ("node-volume-attach-limit = 1000", &[], 0),
        ("node-volume-attach-limit = -1", &[], 0),
        ("node-volume-attach-limit = 0", &[], 1),
        ("node-volume-attach-limit = 25", &["--cloud-name=,b"], 1),
        ("", &[], 0),
    ] {
        let more = format!("{second}[BlockStorage]\n{limit}");
        let mut site = Site::new(&cloud.url(), &more);
        site.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let _running = site.start();
        let log = site.log();
        let found = log.matches("node-volume-attach-limit: ").count();
        assert_eq!(found, count, "{limit} {flags:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_s_further_topology_does_not_matter_for_a_zone_and_is_kept_where_zones_are_ignored()
{
    let cloud = Cloud::start(CHANGE, None);
    let zone = ("topology.cinder.csi.openstack.org/zone", "nova");
    let region = ("topology.kubernetes.io/region", "one");
    let topology = |segments: &[(&str, &str)]| {
        let segments = segments.iter();
        let segments = segments.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let segments: HashMap<_, _> = segments.collect();
        csi::Topology { segments }
    };
    let both = topology(&[zone, region]);
    for (more, expected) in [
        ("", topology(&[zone])),
        ("[BlockStorage]\nignore-volume-az = true", both.clone()),
    ] {
        let mut site = Site::new(&cloud.url(), more);
        site.has_topology = true;
        let _running = site.start();
        let request = csi::CreateVolumeRequest {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![both.clone()],
                preferred: vec![both.clone()],
            }),
            ..crate::site::create(&format!("pvc{}", more.len()))
        };
        let mut client = site.client().await;
        let answer = client.create_volume(request).await.unwrap();
        let volume = answer.into_inner().volume.unwrap();
        assert_eq!(volume.accessible_topology, [expected]);
    }
}
