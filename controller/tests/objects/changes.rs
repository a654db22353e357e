//! Conditional changes and lists.

use crate::definitions::{done, refused_as};
use crate::server::Server;
use crate::{id, volume};
use belay_controller::kubernetes::{
    Access, Change, Client, FINALIZER, LocalVolume, Object, Parsed, Resource, Selector, Written,
};
use belay_server::call::{Certainty, Kind};
use serde_json::json;

pub(crate) async fn a_second_creation_of_a_name_is_a_conflict(server: &Server) {
    let client = server.client();
    let made = done(
        client
            .create::<LocalVolume>("pvc-1", &volume(1, "node1"))
            .await,
    );
    let again = client
        .create::<LocalVolume>("pvc-1", &volume(2, "node2"))
        .await;
    assert!(matches!(again, Ok(Written::Conflict)));
    let read = client.get::<LocalVolume>("pvc-1").await.unwrap().unwrap();
    assert_eq!(read.spec, made.spec);
    done(client.delete::<LocalVolume>(&read.metadata).await);
}

/// The acceptance of an order and its withdrawal exclude each other.
pub(crate) async fn an_old_version_changes_and_deletes_nothing(server: &Server) {
    let client = server.client();
    let order = done(
        client
            .create::<LocalVolume>("pvc-1", &volume(1, "node1"))
            .await,
    );
    let accept = Change::<LocalVolume>::Finalizers(&[FINALIZER]);
    let accepted = done(client.patch(&order.metadata, accept).await);
    assert_eq!(accepted.metadata.finalizers, [FINALIZER]);
    let withdrawn = client.delete::<LocalVolume>(&order.metadata).await;
    assert_eq!(withdrawn.unwrap(), Written::Conflict);
    let accept = Change::<LocalVolume>::Finalizers(&[FINALIZER]);
    let again = client.patch(&order.metadata, accept).await;
    assert!(matches!(again, Ok(Written::Conflict)));

    // With finalizers, a deletion only marks the object, which keeps its spec.
    server.delete_object_only("localvolumes/pvc-1");
    let marked = client.get::<LocalVolume>("pvc-1").await.unwrap().unwrap();
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert_eq!(marked.spec, order.spec);
    let release = Change::<LocalVolume>::Finalizers(&[]);
    done(client.patch(&marked.metadata, release).await);
    assert!(client.get::<LocalVolume>("pvc-1").await.unwrap().is_none());

    // Another object with the name has another UID, and the version alone is not enough.
    let other = done(
        client
            .create::<LocalVolume>("pvc-1", &volume(2, "node1"))
            .await,
    );
    let mut mixed = other.metadata.clone();
    mixed.uid.clone_from(&order.metadata.uid);
    let withdrawn = client.delete::<LocalVolume>(&mixed).await;
    assert_eq!(withdrawn.unwrap(), Written::Conflict);
    let withdrawn = client.delete::<LocalVolume>(&order.metadata).await;
    assert_eq!(withdrawn.unwrap(), Written::Conflict);
    let change = Change::<LocalVolume>::Spec(json!({"bytes": 2_u64 << 30}));
    let changed = client.patch(&order.metadata, change).await;
    assert!(matches!(changed, Ok(Written::Conflict)));
    done(client.delete::<LocalVolume>(&other.metadata).await);
}

/// A kind without a definition.
enum Undefined {}

impl Resource for Undefined {
    const KIND: &'static str = "LocalThing";
    const PLURAL: &'static str = "localthings";
    type Spec = serde_json::Value;
    type Status = serde_json::Value;
}

pub(crate) async fn a_missing_object_is_missing_and_a_missing_kind_is_a_failure(server: &Server) {
    let client = server.client();
    assert!(client.get::<LocalVolume>("pvc-9").await.unwrap().is_none());
    let gone = done(
        client
            .create::<LocalVolume>("pvc-9", &volume(9, "node1"))
            .await,
    );
    done(client.delete::<LocalVolume>(&gone.metadata).await);
    let again = client.delete::<LocalVolume>(&gone.metadata).await;
    assert_eq!(again.unwrap(), Written::Missing);
    let change = Change::<LocalVolume>::Spec(json!({"bytes": 2_u64 << 30}));
    let changed = client.patch(&gone.metadata, change).await;
    assert!(matches!(changed, Ok(Written::Missing)));

    let part = "install the chart's definitions";
    refused_as(
        Kind::Unreachable,
        part,
        client.get::<Undefined>("pvc-9").await,
    );
    let all = Selector::all();
    refused_as(
        Kind::Unreachable,
        part,
        client.list::<Undefined>(&all).await,
    );
    let made = client.create::<Undefined>("pvc-9", &json!({})).await;
    refused_as(Kind::Unreachable, part, made);
    let deleted = client.delete::<Undefined>(&gone.metadata).await;
    refused_as(Kind::Unreachable, part, deleted);
}

/// A policy of the cluster changes specs, as a definition of another release does.
const MUTATION: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: smaller}
spec:
  matchConstraints:
    resourceRules:
      - apiGroups: [belay.dev]
        apiVersions: ["*"]
        operations: [CREATE]
        resources: [localvolumes]
  matchConditions: [{name: one, expression: "object.metadata.name == 'pvc-mutated'"}]
  reinvocationPolicy: Never
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: "Object{spec: Object.spec{bytes: 1}}"
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: smaller}
spec: {policyName: smaller}
"#;

pub(crate) async fn a_spec_that_the_server_changes_is_withdrawn(server: &Server) {
    let client = server.client();
    server.kubectl_with(&["create", "--filename=-"], MUTATION);
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    let failure = loop {
        match client
            .create::<LocalVolume>("pvc-mutated", &volume(1, "node1"))
            .await
        {
            Err(failure) => break failure,
            Ok(written) => {
                // The policy is not in force yet.
                let made = done(Ok(written));
                done(client.delete::<LocalVolume>(&made.metadata).await);
                assert!(
                    tokio::time::Instant::now() < until,
                    "the policy changes nothing"
                );
            }
        }
    };
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert_eq!(failure.certainty, Certainty::RolledBack, "{failure}");
    assert!(failure.message.contains("another spec"), "{failure}");
    assert!(
        client
            .get::<LocalVolume>("pvc-mutated")
            .await
            .unwrap()
            .is_none()
    );
    server.kubectl_with(&["delete", "--filename=-"], MUTATION);
}

/// Returns the IDs of volumes.
fn ids(objects: &[Object<LocalVolume>]) -> Vec<String> {
    let id = |object: &Object<LocalVolume>| match &object.spec {
        Parsed::Known(spec) => spec.id.clone(),
        Parsed::Unknown(why) => panic!("{why}"),
    };
    objects.iter().map(id).collect()
}

pub(crate) async fn a_list_has_all_pages_and_selects_by_node_and_id(server: &Server) {
    const COUNT: u32 = 270;
    let client = server.client();
    for number in 0..COUNT {
        let node = if number < 260 { "node1" } else { "node2" };
        let name = format!("pvc-{number}");
        done(
            client
                .create::<LocalVolume>(&name, &volume(number, node))
                .await,
        );
    }
    for (selector, count) in [
        (Selector::all(), 270),
        (Selector::node("node1"), 260),
        (Selector::node("node2"), 10),
        (Selector::node("node3"), 0),
        (Selector::id(&id("vol", 7)), 1),
        (Selector::id(&format!("={}", id("vol", 7))), 0),
        (
            Selector::id(&format!("{},spec.node=node1", id("vol", 7))),
            0,
        ),
        (Selector::id(r"\"), 0),
    ] {
        let list = client.list::<LocalVolume>(&selector).await.unwrap();
        let mut ids = ids(&list.items);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "{selector:?}");
        for object in list
            .items
            .iter()
            .filter(|_| selector == Selector::node("node2"))
        {
            assert_eq!(object.spec.known().unwrap().node, "node2");
        }
    }
    server.clear();
    let list = client.list::<LocalVolume>(&Selector::all()).await.unwrap();
    assert_eq!(ids(&list.items), Vec::<String>::new());
}

pub(crate) async fn a_new_token_is_used_at_once(server: &Server) {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let good = std::fs::read(server.access().token).unwrap();
    let access = Access {
        token: token.clone(),
        ..server.access()
    };
    let client = Client::new(access).unwrap();
    let get = async || client.get::<LocalVolume>("pvc-1").await;
    refused_as(Kind::Unauthenticated, "token", get().await);
    std::fs::write(&token, "expired-token-text").unwrap();
    let failure = get().await.err().unwrap();
    assert_eq!(failure.kind, Kind::Unauthenticated, "{failure}");
    assert!(!failure.message.contains("expired-token-text"), "{failure}");
    std::fs::write(&token, [&good[..], b"\n"].concat()).unwrap();
    assert!(get().await.unwrap().is_none());
}
