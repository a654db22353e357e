//! Tests hints for Cinder's scheduler.

use super::*;

fn hinted(name: &str, hints: &[(&str, &str)]) -> Arc<Order> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Arc::new(Order {
        parameters: Context::new("parameters", hints.iter().map(owned)).unwrap(),
        ..Order::clone(&order(name))
    })
}

#[tokio::test]
async fn a_class_names_volumes_to_be_near_to_and_far_from_by_name_or_id() {
    let twin = Twin::start().await;
    let (near, far) = (twin.created("near").await, twin.created("far").await);
    let again = twin.created("far").await;
    for (affinity, anti_affinity, hints) in [
        (None, None, Value::Null),
        (Some("near"), None, json!({"same_host": [near.as_str()]})),
        (
            None,
            Some("near, far"),
            json!({"different_host": [near.as_str(), far.as_str(), again.as_str()]}),
        ),
        (
            Some(near.as_str()),
            Some(far.as_str()),
            json!({"same_host": [near.as_str()], "different_host": [far.as_str()]}),
        ),
    ] {
        let keys = [
            (hints::AFFINITY, affinity),
            (hints::ANTI_AFFINITY, anti_affinity),
        ];
        let given: Vec<_> = keys
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        for (key, _) in &given {
            assert!(twin.backend.parameters().contains(key));
        }
        let made = twin.backend.create(hinted("pvc-1", &given)).await.unwrap();
        let shown = twin.state().volumes[made.id.as_str()]["hints"].clone();
        assert_eq!(shown, hints, "{given:?}");
    }
}

#[tokio::test]
async fn a_hint_for_no_volume_creates_nothing() {
    let twin = Twin::start().await;
    twin.created("near").await;
    for (value, named) in [
        ("gone", "\"gone\""),
        ("near,gone", "\"gone\""),
        ("", "\"\""),
    ] {
        let refused = twin
            .backend
            .create(hinted("pvc-1", &[(hints::AFFINITY, value)]))
            .await
            .unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid, "{refused}");
        for part in ["parameters[cinder.csi.openstack.org/affinity]", named] {
            assert!(refused.message.contains(part), "{part}: {refused}");
        }
    }
    assert_eq!(twin.state().volumes.len(), 1);
}
