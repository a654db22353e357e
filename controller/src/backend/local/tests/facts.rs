//! The facts on the pages: the number of volumes, and the unhealthy volumes by reason.

use super::{Bed, MIB, order};
use crate::backend::local::Local;
use belay_server::facts::{Facts as _, SHOWN_MAX};
use belay_server::readiness::{Readiness, State};
use std::fs;
use std::sync::Arc;

#[test]
fn every_unhealthy_volume_counts_once_for_each_of_its_reasons() {
    let bed = Bed::new();
    let store = bed.open();
    let volumes: Vec<_> = (0..4)
        .map(|n| {
            store
                .create(&order(&format!("pvc-{n}"), MIB), None)
                .unwrap()
        })
        .collect();
    for volume in &volumes[1..] {
        fs::remove_file(bed.file(volume.id.as_str())).unwrap();
    }
    for page_entries in [1, 2, 3, 100] {
        let (facts, shown) = store.facts(page_entries).unwrap();
        assert_eq!(facts.unhealthy.get("BackingFileMissing"), Some(&3));
        assert_eq!(facts.volumes, Some(4));
        // The unhealthy volumes are listed first, each with its name and size.
        let reasons: Vec<_> = shown.iter().map(|it| it.reasons.len()).collect();
        assert_eq!(reasons, [1, 1, 1, 0]);
        assert_eq!(shown[3].id, volumes[0].id.as_str());
        assert_eq!(shown[3].details, ["pvc-0", "1 MiB"]);
        let space = facts.storage.values().next().unwrap();
        assert!(0 < space.free_bytes && space.free_bytes <= space.size_bytes);
    }
}

#[test]
fn an_unhealthy_volume_is_named_wherever_it_is_in_the_list() {
    let bed = Bed::new();
    let store = bed.open();
    let create = |n| {
        store
            .create(&order(&format!("pvc-{n}"), MIB), None)
            .unwrap()
    };
    let volumes: Vec<_> = (0..SHOWN_MAX + 1).map(create).collect();
    let last = volumes.iter().max_by_key(|it| it.id.as_str().to_owned());
    let last = last.unwrap();
    fs::remove_file(bed.file(last.id.as_str())).unwrap();
    let (_, shown) = store.facts(100).unwrap();
    assert_eq!(shown.len(), SHOWN_MAX);
    assert_eq!(shown[0].id, last.id.as_str());
    assert_eq!(shown[0].details, [last.name.as_deref().unwrap(), "1 MiB"]);
}

#[tokio::test]
async fn what_is_known_is_the_last_measurement() {
    let bed = Bed::new();
    let local = Local::open(bed.config(), Readiness::new(State::Ready)).unwrap();
    let local = Arc::new(local);
    assert_eq!(local.known().volumes, None);
    let volume = local.store.create(&order("pvc-1", MIB), None).unwrap();
    Arc::clone(&local).measure().await;
    let known = local.known();
    assert_eq!(known.volumes, Some(1));
    assert_eq!(known.unhealthy.get("BackingFileMissing"), None);
    fs::remove_file(bed.file(volume.id.as_str())).unwrap();
    assert_eq!(local.known(), known);
    Arc::clone(&local).measure().await;
    let missing = local.known().unhealthy["BackingFileMissing"];
    assert_eq!(missing, 1);
    assert!(local.reasons().contains(&"BackingFileMissing"));
    assert!(!local.reasons().contains(&"DeviceLost"));
}
