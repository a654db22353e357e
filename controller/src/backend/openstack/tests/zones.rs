//! Tests zones of volumes.

use super::*;
use belay_server::request::{Segments, TopologyRequirement};

fn segments(label: &str) -> Segments {
    Segments::from([
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("zone".to_owned(), label.to_owned()),
    ])
}

/// Returns a request for a volume in the first of these zones, or in the zone of a storage class.
fn placed(preferred: &[&str], class: Option<&str>) -> Arc<Order> {
    let class = class.map(|zone| ("availability".to_owned(), zone.to_owned()));
    let segments: Vec<_> = preferred.iter().map(|label| segments(label)).collect();
    Arc::new(Order {
        parameters: Context::new("parameters", class).unwrap(),
        topology: Some(TopologyRequirement {
            requisite: segments.clone(),
            preferred: segments,
        }),
        ..Order::clone(&order("pvc-1"))
    })
}

impl Twin {
    fn zone_of(&self, id: &VolumeId) -> Value {
        self.state().volumes[id.as_str()]["availability_zone"].clone()
    }
}

#[tokio::test]
async fn a_volume_is_created_in_the_first_zone_that_is_asked_for_unless_its_class_has_one() {
    let twin = Twin::start().await;
    for (preferred, class, zone, label) in [
        (&["nova", "zone-a-1"][..], None, "nova", "nova"),
        // The zone's name contains characters that a node label cannot hold.
        (&["zone-a-1", "nova"], None, "zone a/1", "zone-a-1"),
        (
            &["nova", "zone-a-1"],
            Some("zone a/1"),
            "zone a/1",
            "zone-a-1",
        ),
        // Cinder may fall back to another zone if the requested zone does not exist.
        (&["nova"], Some("other"), "other", "other"),
        // Cinder may fall back from the first zone to the second.
        (&["elsewhere", "nova"], None, "elsewhere", "elsewhere"),
    ] {
        let made = twin.backend.create(placed(preferred, class)).await;
        let made = made.unwrap();
        assert_eq!(twin.zone_of(&made.id), zone, "{preferred:?} {class:?}");
        assert_eq!(made.place.unwrap().describe(), format!("zone={label}"));
    }
    let required = TopologyRequirement {
        requisite: vec![segments("zone-a-1"), segments("nova")],
        preferred: vec![],
    };
    for (topology, zone) in [(Some(required), "zone a/1"), (None, "nova")] {
        let order = Order {
            topology,
            ..Order::clone(&order("pvc-2"))
        };
        let made = twin.backend.create(Arc::new(order)).await.unwrap();
        assert_eq!(twin.zone_of(&made.id), zone);
    }
    assert!(!twin.backend.traits().reaches_preferred);
}

#[tokio::test]
async fn a_zone_that_cinder_refuses_lets_the_scheduler_choose_another_node() {
    let twin = Twin::start().await;
    let (_, refusal) = bad_request("Availability zone 'nova' is invalid.");
    let refusal: &str = refusal.to_string().leak();
    for (order, kind) in [
        (placed(&["nova"], None), Kind::Quota),
        (placed(&["nova"], Some("nova")), Kind::Invalid),
    ] {
        twin.state().refusals = vec![("POST /volume/v3/volumes", "400", refusal)];
        let refused = twin.backend.create(order).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{refused}");
        assert!(refused.message.contains("is invalid"), "{refused}");
    }
}

#[tokio::test]
async fn zones_that_cinder_lacks_are_refused_before_a_creation_unless_it_does_not_list_them() {
    let twin = Twin::start().await;
    for zones in [&["elsewhere"][..], &["elsewhere", "down"]] {
        let refused = twin.backend.create(placed(zones, None)).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Quota, "{refused}");
        assert_eq!(refused.certainty, Certainty::NothingHappened);
        for part in ["\"elsewhere\"", "\"zone a/1\"", "ignore-volume-az"] {
            assert!(refused.message.contains(part), "{part}: {refused}");
        }
    }
    assert!(twin.state().volumes.is_empty());
    // Cinder itself accepts or refuses a zone that may exist, or that is only preferred.
    let preferred = Order {
        topology: Some(TopologyRequirement {
            requisite: vec![],
            preferred: vec![segments("elsewhere")],
        }),
        ..Order::clone(&order("pvc-1"))
    };
    let made = twin.backend.create(Arc::new(preferred)).await.unwrap();
    assert_eq!(twin.zone_of(&made.id), "elsewhere");
    let refusal = r#"{"forbidden": {"code": 403, "message": "not for you"}}"#;
    twin.state().refusals = vec![("os-availability-zone", "403", refusal)];
    let made = twin.backend.create(placed(&["elsewhere"], None)).await;
    assert_eq!(twin.zone_of(&made.unwrap().id), "elsewhere");
    let twin = Twin::with("[BlockStorage]\nignore-volume-az = true\n").await;
    let made = twin.backend.create(placed(&["elsewhere"], None)).await;
    assert_eq!(twin.zone_of(&made.unwrap().id), "elsewhere");
}

#[tokio::test]
async fn the_zone_of_a_class_outside_the_requested_topology_is_refused_before_a_creation() {
    let twin = Twin::start().await;
    for class in ["zone a/1", "nova"] {
        let other = if class == "nova" { "zone-a-1" } else { "nova" };
        let refused = twin.backend.create(placed(&[other], Some(class))).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, Kind::Quota, "{refused}");
        for part in [format!("{class:?}"), format!("zone in {{{other:?}}}")] {
            assert!(refused.message.contains(&part), "{part}: {refused}");
        }
    }
    assert!(twin.state().volumes.is_empty());
    let preferred_only = Order {
        topology: Some(TopologyRequirement {
            requisite: vec![],
            preferred: vec![segments("nova")],
        }),
        ..Order::clone(&placed(&[], Some("zone a/1")))
    };
    let made = twin.backend.create(Arc::new(preferred_only)).await.unwrap();
    assert_eq!(twin.zone_of(&made.id), "zone a/1");
    let twin = Twin::with("[BlockStorage]\nignore-volume-az = true\n").await;
    let made = twin
        .backend
        .create(placed(&["nova"], Some("zone a/1")))
        .await;
    assert_eq!(twin.zone_of(&made.unwrap().id), "zone a/1");
}

#[tokio::test]
async fn ignored_zones_are_no_place_and_a_volume_is_reachable_from_what_the_caller_prefers() {
    let twin = Twin::with("[BlockStorage]\nignore-volume-az = true\n").await;
    let made = twin.backend.create(placed(&["zone-a-1"], None)).await;
    let made = made.unwrap();
    assert_eq!(made.place, None);
    assert_eq!(twin.zone_of(&made.id), "zone a/1", "as the other driver");
    assert!(twin.backend.traits().reaches_preferred);
    twin.state().seen.clear();
    twin.backend.inspect().await.unwrap();
    assert!(twin.state().seen.is_empty(), "there is nothing to compare");
}
