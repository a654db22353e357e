//! Tests the reported type and zone of an existing volume, and whether they satisfy a request with
//! the volume's name. The rules are in `operation/create`.

use super::*;
use crate::backend::{Modification, Parameter};

async fn with_types() -> Twin {
    let twin = Twin::start().await;
    twin.state().types = BTreeMap::from([("fast", json!({})), ("slow", json!({}))]);
    twin
}

impl Twin {
    /// Returns the value that Cinder reports for a parameter of the volume with this name.
    async fn shown(&self, name: &str, key: &str) -> Option<String> {
        let name = Name::new(name).unwrap();
        let found = self.backend.find(name, Secrets::default()).await.unwrap();
        let mut shown = found[0].parameters.iter();
        let (_, is) = shown.find(|(known, _)| *known == key)?;
        Some(is.clone())
    }

    async fn meets(&self, key: &'static str, is: &str, asked: &str) -> bool {
        let (is, asked) = (is.to_owned(), asked.to_owned());
        let parameter = Parameter { key, is, asked };
        let meets = self.backend.meets(parameter, Secrets::default());
        meets.await.unwrap()
    }
}

#[tokio::test]
async fn a_volume_shows_its_type_by_its_name_and_is_met_by_its_id_and_as_the_database_compares() {
    let twin = with_types().await;
    twin.created("pvc-1").await;
    assert_eq!(twin.shown("pvc-1", "type").await.unwrap(), "fast");
    assert_eq!(twin.shown("pvc-1", "availability").await.unwrap(), "nova");
    for (asked, meets) in [
        ("id-of-fast", true),
        ("FAST", true),
        ("fast ", true),
        ("slow", false),
        ("id-of-slow", false),
        ("gone", false),
        (" fast", false),
    ] {
        assert_eq!(twin.meets("type", "fast", asked).await, meets, "{asked:?}");
    }
    // The database of this cloud distinguishes case.
    twin.state().types.insert("FAST", json!({}));
    assert!(!twin.meets("type", "fast", "FAST").await);
}

/// The zones of the twin are `nova` and `zone a/1`; `down` is not available.
#[tokio::test]
async fn another_zone_is_met_only_where_cinder_has_fallen_back_from_one_that_it_lacks() {
    let twin = with_types().await;
    for (asked, meets) in [("zone a/1", false), ("down", true), ("gone", true)] {
        let meets_it = twin.meets("availability", "nova", asked).await;
        assert_eq!(meets_it, meets, "{asked}");
    }
    let refusal = r#"{"forbidden": {"code": 403, "message": "not for you"}}"#;
    twin.state().refusals = vec![("os-availability-zone", "403", refusal)];
    let (key, is, asked) = ("availability", "nova".to_owned(), "gone".to_owned());
    let parameter = Parameter { key, is, asked };
    let unknown = twin.backend.meets(parameter, Secrets::default()).await;
    assert_eq!(unknown.unwrap_err().kind, Kind::Denied);
}

/// The zone of the storage class is also reported, unless the metadata was copied from another
/// volume.
#[tokio::test]
async fn the_zone_of_the_class_at_the_creation_is_shown_where_cinder_has_chosen_another() {
    let twin = with_types().await;
    let zone = [("availability".to_owned(), "zone a/1".to_owned())];
    let order = Order {
        parameters: Context::new("parameters", zone).unwrap(),
        ..Order::clone(&order("pvc-1"))
    };
    let id = twin.backend.create(Arc::new(order)).await.unwrap().id;
    let shown = async |id: &VolumeId| {
        let volume = twin.get(id).await.unwrap().unwrap();
        let zones = volume.parameters.into_iter();
        let zones = zones.filter(|(key, _)| *key == "availability");
        zones.map(|(_, zone)| zone).collect::<Vec<_>>()
    };
    assert_eq!(shown(&id).await, ["zone a/1"]);
    let set = |key: &str, value: &str| {
        let mut state = twin.state();
        let volume = state.volumes.get_mut(id.as_str()).unwrap();
        match key {
            "availability_zone" => volume[key] = value.into(),
            key => volume["metadata"][key] = value.into(),
        }
    };
    set("availability_zone", "nova");
    assert_eq!(shown(&id).await, ["nova", "zone a/1"]);
    set(wire::CLAIM, id.as_str());
    assert_eq!(shown(&id).await, ["nova", "zone a/1"]);
    for (key, value) in [(wire::CLAIM, &*nth(7)), ("src_backup_id", "b")] {
        set(key, value);
        assert_eq!(shown(&id).await, ["nova"], "{key}");
        set(wire::CLAIM, id.as_str());
    }
}

#[tokio::test]
async fn a_type_that_an_attributes_class_has_changed_is_not_shown_and_a_copy_shows_its_own() {
    let twin = with_types().await;
    let id = twin.created("pvc-1").await;
    let change = |kind: &str| {
        let asked = [("type".to_owned(), kind.to_owned())];
        let asked = Context::new("mutable_parameters", asked).unwrap();
        twin.backend.modify(id.clone(), asked, Secrets::default())
    };
    let marks = || {
        let state = twin.state();
        let marks = state.seen.iter().filter(|call| call.ends_with("/metadata"));
        marks.count()
    };
    // The volume already has this type, so nothing is changed.
    assert_eq!(change("fast").await, Ok(Progress::Done(())));
    assert_eq!(
        (twin.shown("pvc-1", "type").await.as_deref(), marks()),
        (Some("fast"), 0)
    );
    // The mark is written before the change.
    twin.state().refusals = vec![("/metadata", "503", "{}")];
    assert!(change("slow").await.is_err());
    assert_eq!(twin.state().volumes[id.as_str()]["volume_type"], "fast");
    for kind in ["slow", "fast"] {
        assert_eq!(change(kind).await, Ok(Progress::Begun));
        assert_eq!(twin.shown("pvc-1", "type").await, None, "{kind}");
    }
    assert_eq!(marks(), 2, "the refused one, and one for both changes");
    {
        let mut state = twin.state();
        let volume = state.volumes.get_mut(id.as_str()).unwrap();
        volume["metadata"][wire::RETYPED] = nth(7).into();
    }
    assert_eq!(twin.shown("pvc-1", "type").await.unwrap(), "fast");
}
