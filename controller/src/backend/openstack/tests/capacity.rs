//! Tests the free capacity in the quota of the project.

use super::*;
use crate::backend::{Backend as _, Planned};
use belay_server::request::Segments;

impl Twin {
    async fn free_gib(&self, zone: Option<&str>) -> Result<u64, Failure> {
        let segments = |zone: &str| Segments::from([("zone".to_owned(), zone.to_owned())]);
        let planned = Planned {
            topology: zone.map(segments),
            ..Planned::default()
        };
        let capacity = self.backend.capacity().unwrap();
        let bytes = capacity.available_bytes(planned).await?;
        Ok(bytes / GIB)
    }
}

#[tokio::test]
async fn the_capacity_is_what_the_quota_leaves() {
    let twin = Twin::start().await;
    assert_eq!(twin.free_gib(None).await, Ok(10));
    twin.created("pvc-1").await;
    let used = twin.state().volumes[&nth(0)]["size"].as_u64().unwrap();
    assert_eq!(twin.free_gib(None).await, Ok(10 - used));
    for name in ["pvc-2", "pvc-3"] {
        twin.created(name).await;
    }
    assert_eq!(
        twin.free_gib(None).await,
        Ok(0),
        "three volumes are allowed"
    );
}

#[tokio::test]
async fn a_zone_that_cinder_does_not_have_has_no_capacity() {
    let twin = Twin::start().await;
    // The zone's name contains characters that a node label cannot hold.
    for (zone, free) in [("nova", 10), ("zone-a-1", 10), ("elsewhere", 0)] {
        assert_eq!(twin.free_gib(Some(zone)).await, Ok(free), "{zone}");
    }
}

#[tokio::test]
async fn a_quota_that_cannot_be_read_is_an_error() {
    let twin = Twin::start().await;
    let refusal = r#"{"forbidden": {"code": 403, "message": "not for you"}}"#;
    twin.state().refusals = vec![("limits", "403", refusal)];
    let failure = twin.free_gib(None).await.unwrap_err();
    assert_eq!(failure.kind, Kind::Denied, "{failure}");
}
