//! A user does not delete the object of a file by mistake.

use super::{MINE, OTHER, volume_of};
use crate::definitions::{done, snapshot};
use crate::server::{Server, chart};
use belay_bed::patience::until;
use belay_controller::kubernetes::{
    Change, FINALIZER, LocalSnapshot, LocalVolume, Metadata, Phase, Resource, SnapshotSpec,
    VolumeStatus, Written,
};
use serde_json::json;

/// The states of volumes with an accepted order.
const STATES: [(&str, Option<Phase>); 7] = [
    ("without-status", None),
    ("making", Some(Phase::Making)),
    ("ready", Some(Phase::Ready)),
    ("removing", Some(Phase::Removing)),
    ("removed", Some(Phase::Ready)),
    ("lost", Some(Phase::Lost)),
    ("refused", Some(Phase::Refused)),
];

async fn accepted<R: Resource>(server: &Server, name: &str, spec: &R::Spec) -> Metadata {
    let client = server.client();
    let order = done(client.create::<R>(name, spec).await).metadata;
    let accept = Change::<R>::Finalizers(&[FINALIZER]);
    done(client.patch(&order, accept).await);
    order
}

/// Deletes an object as kubectl does. Returns the error, which is empty after a success.
fn delete(server: &Server, object: &str) -> String {
    let done = server.try_kubectl(&["delete", object, "--wait=false"], "");
    String::from_utf8(done.stderr).unwrap()
}

#[track_caller]
fn refused(errors: &str, claim: &str) {
    assert!(errors.contains("(Forbidden)"), "{errors}");
    let policy = "ValidatingAdmissionPolicy 'belay-objects' with binding 'belay-objects' denied";
    assert!(errors.contains(policy), "{errors}");
    let file = format!("the node {MINE} has a file for this object; delete the {claim} instead;");
    assert!(errors.contains(&file), "{errors}");
    let way_out = "first delete the ValidatingAdmissionPolicyBinding belay-objects";
    assert!(errors.contains(way_out), "{errors}");
}

/// Waits until the server uses the binding, which may have been created just before.
fn wait_for_policy(server: &Server, refused: &str) {
    until("the policy has an effect", || {
        let words = ["delete", refused, "--dry-run=server"];
        !server.try_kubectl(&words, "").status.success()
    });
}

/// Whether the object is marked as being deleted.
fn is_marked(server: &Server, object: &str) -> bool {
    let output = "--output=jsonpath={.metadata.deletionTimestamp}";
    !server.kubectl(&["get", object, output]).is_empty()
}

fn release(server: &Server, object: &str) {
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    server.kubectl(&["patch", object, "--type=merge", "--patch", &free]);
}

pub(super) async fn an_object_with_a_file_is_not_deleted_by_mistake(server: &Server) {
    let client = server.client();
    for (number, (name, phase)) in (20..).zip(STATES) {
        let mut spec = volume_of(number, name, MINE);
        spec.remove = (name == "removed").then_some(1);
        accepted::<LocalVolume>(server, name, &spec).await;
        if let Some(phase) = phase {
            let status = VolumeStatus {
                phase,
                observed_generation: None,
                bytes: None,
                refused_removal: None,
                failure: None,
                conditions: None,
            };
            let object = client.get::<LocalVolume>(name).await.unwrap().unwrap();
            let change = Change::Status(&status);
            done(client.patch::<LocalVolume>(&object.metadata, change).await);
        }
    }
    wait_for_policy(server, "localvolumes/ready");
    for name in ["without-status", "making", "ready", "removing"] {
        let object = format!("localvolumes/{name}");
        refused(&delete(server, &object), "PersistentVolumeClaim");
        assert!(!is_marked(server, &object));
    }
    let all = "/apis/belay.dev/v1alpha1/localvolumes?fieldSelector=metadata.name=ready";
    let deleted = server.try_kubectl(&["delete", "--raw", all], "");
    refused(
        &String::from_utf8(deleted.stderr).unwrap(),
        "PersistentVolumeClaim",
    );
    assert!(!is_marked(server, "localvolumes/ready"));
    for name in ["removed", "lost", "refused"] {
        let object = format!("localvolumes/{name}");
        assert_eq!(delete(server, &object), "");
        assert!(is_marked(server, &object));
        release(server, &object);
    }
    // The withdrawal of an order that was accepted meanwhile is a conflict, as without the policy.
    let order = accepted::<LocalVolume>(server, "raced", &volume_of(30, "raced", OTHER)).await;
    let withdrawn = client.delete::<LocalVolume>(&order).await;
    assert_eq!(withdrawn.unwrap(), Written::Conflict);
    let new = volume_of(31, "new", OTHER);
    done(client.create::<LocalVolume>("new", &new).await);
    assert_eq!(delete(server, "localvolumes/new"), "");
    // The message names the way out.
    server.delete_object_only("localvolumes/ready");
    assert!(is_marked(server, "localvolumes/ready"));
    wait_for_policy(server, "localvolumes/making");
    assert_eq!(delete(server, "localvolumes/ready"), "");
    for name in ["without-status", "making", "ready", "removing", "raced"] {
        release(server, &format!("localvolumes/{name}"));
    }
    server.clear();
}

/// The controller of definitions is not a caller of the API, so no policy applies to it.
pub(super) async fn a_deleted_definition_deletes_its_objects(server: &Server) {
    let spec = SnapshotSpec {
        node: MINE.to_owned(),
        remove: None,
        ..snapshot()
    };
    accepted::<LocalSnapshot>(server, "snapshot-1", &spec).await;
    let object = "localsnapshots/snapshot-1";
    wait_for_policy(server, object);
    refused(&delete(server, object), "VolumeSnapshot");
    let definition = "customresourcedefinitions/localsnapshots.belay.dev";
    server.kubectl(&["delete", definition, "--wait=false"]);
    until("the object is marked", || is_marked(server, object));
    release(server, object);
    until("the definition is deleted", || {
        !server
            .try_kubectl(&["get", definition], "")
            .status
            .success()
    });
    server.kubectl(&["create", "--filename", &chart("localsnapshots.yaml")]);
    server.kubectl(&["wait", "--for=condition=Established", definition]);
}
