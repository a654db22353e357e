//! Creations to which the cloud responds with another object: the created object is found by its
//! name, and the other one is neither returned nor changed.

use crate::cloud::Cloud;
use crate::{controller, create, created, cut, requests, restore};

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_answered_with_another_object_returns_its_own_and_deletes_nothing() {
    let cloud = Cloud::new(1);
    let service = controller(&cloud);
    let mut all = Vec::new();
    // The first response has an ID that no volume can have.
    cloud.state().is_strange = true;
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        let made = created(&service, create(name, "fast")).await.unwrap();
        cloud.answered(&made.volume_id);
        all.push(made.volume_id);
    }
    for name in ["snap-1", "snap-2"] {
        let kept = cut(&service, requests::cut(name, &all[0])).await.unwrap();
        cloud.answered(&kept.snapshot_id);
        let source = requests::of_snapshot(&kept.snapshot_id);
        let copy = created(&service, restore(&format!("of-{name}"), source)).await;
        let copy = copy.unwrap().volume_id;
        cloud.answered(&copy);
        all.extend([kept.snapshot_id, copy]);
    }
    assert_eq!(cloud.broken(), Vec::<String>::new());
    let mut there = cloud.ids();
    all.sort();
    there.sort();
    assert_eq!(there, all, "one object for each name");
}
