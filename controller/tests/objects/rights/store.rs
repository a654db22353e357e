//! A store writes the status and the finalizers of the objects of its node, and nothing else.

use super::account::{Account, refused, succeeded, token};
use super::{MINE, NARROW, OTHER, WIDE, volume_of};
use crate::definitions::snapshot;
use crate::server::Server;
use crate::store::{self, Node};
use belay_bed::patience::until;
use belay_controller::kubernetes::{
    DiskSpec, FINALIZER, LocalDisk, LocalSnapshot, LocalVolume, Resource, SnapshotSpec,
};
use serde_json::{Value, json};

/// The store is a real process.
pub(super) async fn a_store_works_with_the_token_of_its_pod(server: &Server) {
    let mut node = Node::new(server, MINE);
    node.set_token(&token(server, NARROW, Some(MINE)));
    node.start();
    node.begin().await;
    store::a_volume_lives_and_ends(&mut node).await;
    store::copies_have_the_data_of_their_source(&mut node).await;
    store::an_order_without_room_is_refused_before_it_is_accepted(&mut node).await;
}

pub(super) fn a_store_writes_status_and_finalizers_of_its_node(own: &Account<'_>) {
    let get = |path: &str| {
        let output = format!("--output=jsonpath={{{path}}}");
        own.server.kubectl(&["get", "localvolumes/mine", &output])
    };
    // The API server ignores the other parts of an object in a change of the status.
    let ready = json!({
        "status": {"phase": "Ready"}, "spec": {"bytes": 1},
        "metadata": {"annotations": {"a": "b"}, "finalizers": ["a/b"]},
    });
    succeeded(&own.patch_status("localvolumes/mine", &ready));
    assert_eq!(get(".status.phase"), "Ready");
    assert_eq!(get(".spec.bytes"), (1_u64 << 30).to_string());
    assert_eq!(get(".metadata.annotations.a"), "");
    let finalizers = |all: Value| json!({"metadata": {"finalizers": all}});
    let accepted = format!(r#"["{FINALIZER}"]"#);
    assert_eq!(get(".metadata.finalizers"), accepted);
    succeeded(&own.patch("localvolumes/mine", &finalizers(Value::Null)));
    assert_eq!(get(".metadata.finalizers"), "");
    succeeded(&own.patch("localvolumes/mine", &finalizers(json!([FINALIZER]))));
    assert_eq!(get(".metadata.finalizers"), accepted);
    // The finalizer of another program stays.
    let both = json!(["example.com/other", FINALIZER]);
    let both = finalizers(both).to_string();
    let patch = ["patch", "localvolumes/mine", "--type=merge", "--patch"];
    own.server.kubectl(&[&patch[..], &[&both]].concat());
    let other = finalizers(json!(["example.com/other"]));
    succeeded(&own.patch("localvolumes/mine", &other));
    let taken = finalizers(json!([FINALIZER]));
    refused(
        &own.patch("localvolumes/mine", &taken),
        "only the finalizer",
    );
    let taken = taken.to_string();
    own.server.kubectl(&[&patch[..], &[&taken]].concat());
}

pub(super) fn a_store_changes_nothing_else(own: &Account<'_>) {
    let theirs = "writes no object of the node other";
    let status = json!({"status": {"phase": "Ready"}});
    refused(&own.patch_status("localvolumes/theirs", &status), theirs);
    let status = json!({"status": {"bytes": 1}});
    refused(
        &own.patch_status("localdisks/other.default", &status),
        theirs,
    );
    let status = json!({"status": {"phase": "Ready"}});
    let errors = own.patch_status("localsnapshots/theirs", &status);
    refused(&errors, theirs);
    let free = json!({"metadata": {"finalizers": null}});
    refused(&own.patch("localvolumes/theirs", &free), theirs);
    let moved = json!({"spec": {"node": MINE}});
    refused(&own.patch("localvolumes/theirs", &moved), theirs);

    let spec = "does not change a spec";
    for change in [
        json!({"bytes": 2_u64 << 30}),
        json!({"node": OTHER}),
        json!({"remove": 1}),
    ] {
        let change = json!({"spec": change});
        refused(&own.patch("localvolumes/mine", &change), spec);
    }
    let begin = json!({"spec": {"begin": "uid"}});
    refused(&own.patch("localdisks/mine.default", &begin), spec);

    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": MINE, "uid": "1"}]);
    for change in [
        json!({"annotations": {"a": "b"}}),
        json!({"annotations": {"velero.io/exclude-from-backup": "false"}}),
        json!({"annotations": null}),
        json!({"labels": {"a": "b"}}),
        json!({"ownerReferences": owner}),
    ] {
        let change = json!({"metadata": change});
        for object in ["localvolumes/mine", "localdisks/mine.default"] {
            refused(&own.patch(object, &change), "no metadata but its finalizer");
        }
    }
    let finalizers = json!({"metadata": {"finalizers": [FINALIZER, "example.com/other"]}});
    refused(
        &own.patch("localvolumes/mine", &finalizers),
        "only the finalizer",
    );
    let finalizers = json!({"metadata": {"finalizers": [FINALIZER]}});
    refused(
        &own.patch("localdisks/mine.default", &finalizers),
        "none of a LocalDisk",
    );

    // Both policies refuse to delete an accepted object, so the message may be of the other policy.
    for object in [
        "localvolumes/unaccepted",
        "localsnapshots/theirs",
        "localdisks/mine.default",
        "localdisks/other.default",
    ] {
        refused(&own.delete(object), "deletes no object");
    }
    let errors = own.delete("localvolumes/mine");
    assert!(errors.contains("(Forbidden)"), "{errors}");
}

fn object<R: Resource>(name: &str, spec: &R::Spec) -> Value {
    json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": R::KIND, "metadata": {"name": name},
        "spec": spec,
    })
}

pub(super) fn a_store_creates_only_disks_of_its_node(own: &Account<'_>) {
    let order = object::<LocalVolume>("new", &volume_of(9, "new", MINE));
    refused(&own.create(&order), "creates no volume");
    let apply = ["apply", "--server-side", "--filename=-"];
    refused(&own.run(&apply, &order), "creates no volume");
    let order = SnapshotSpec {
        node: MINE.to_owned(),
        ..snapshot()
    };
    let order = object::<LocalSnapshot>("new", &order);
    refused(&own.create(&order), "creates no volume and no snapshot");

    let spec = |node: &str, begin| DiskSpec {
        node: node.to_owned(),
        place: node.to_owned(),
        disk: "new".to_owned(),
        begin,
    };
    let theirs = object::<LocalDisk>("other.new", &spec(OTHER, None));
    refused(&own.create(&theirs), "writes no object of the node other");
    let named = object::<LocalDisk>("other.new", &spec(MINE, None));
    let errors = own.create(&named);
    assert!(errors.contains("not the one of node and disk"), "{errors}");
    let elsewhere = DiskSpec {
        place: OTHER.to_owned(),
        ..spec(MINE, None)
    };
    let elsewhere = object::<LocalDisk>("mine.new", &elsewhere);
    refused(&own.create(&elsewhere), "as the place");
    let begun = object::<LocalDisk>("mine.new", &spec(MINE, Some("uid".to_owned())));
    refused(&own.create(&begun), "spec.begin");
    let new = object::<LocalDisk>("mine.new", &spec(MINE, None));
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": MINE, "uid": "1"}]);
    for (field, value) in [
        ("labels", json!({"a": "b"})),
        ("annotations", json!({"a": "b"})),
        ("finalizers", json!([FINALIZER])),
        ("ownerReferences", owner),
    ] {
        let mut more = new.clone();
        more["metadata"][field] = value;
        refused(&own.create(&more), "no other metadata");
    }
    succeeded(&own.create(&new));
    let status = json!({"status": {"bytes": 1}});
    succeeded(&own.patch_status("localdisks/mine.new", &status));
}

pub(super) fn a_token_without_a_node_changes_nothing(server: &Server) {
    let unbound = Account {
        server,
        token: token(server, WIDE, None),
    };
    let pending = Account::of_pod(server, "pending");
    let status = json!({"status": {"phase": "Ready"}});
    for account in [unbound, pending] {
        let errors = account.patch_status("localvolumes/mine", &status);
        refused(&errors, "names no node");
    }
    // A user who may impersonate the account has its name, but no node.
    let status = status.to_string();
    let patch = [
        "patch",
        "localvolumes/mine",
        "--subresource=status",
        "--type=merge",
    ];
    let user = format!("--as=system:serviceaccount:{WIDE}:belay-store");
    let done = server.try_kubectl(&[&patch[..], &["--patch", &status, &user]].concat(), "");
    assert!(!done.status.success());
    refused(&String::from_utf8(done.stderr).unwrap(), "names no node");
    // The store of the other node.
    let other = Account::of_pod(server, OTHER);
    let status = json!({"status": {"phase": "Ready"}});
    let errors = other.patch_status("localvolumes/mine", &status);
    refused(
        &errors,
        "the store of the node other writes no object of the node mine",
    );
    succeeded(&other.patch_status("localvolumes/theirs", &status));
}

pub(super) fn a_token_of_a_deleted_pod_is_refused(server: &Server) {
    let gone = Account::of_pod(server, "gone");
    let status = json!({"status": {"phase": "Ready"}});
    succeeded(&gone.patch_status("localvolumes/mine", &status));
    let delete = ["delete", "pod/gone", "--namespace", WIDE];
    server.kubectl(&[&delete[..], &["--force", "--grace-period=0"]].concat());
    // The API server remembers for ten seconds that the token was valid.
    until("the token is refused", || {
        let errors = gone.patch_status("localvolumes/mine", &status);
        errors.contains("Unauthorized")
    });
}
