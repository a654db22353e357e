//! The definitions of the kinds: fields, bounds, and what cannot change.

use crate::server::Server;
use crate::{OtherRelease, id, volume};
use belay_controller::kubernetes::{
    Change, Condition, DiskSpec, DiskStatus, LocalDisk, LocalSnapshot, LocalVolume, Metadata, Mode,
    Object, Parsed, Phase, Resource, SPEC_VERSION, SnapshotSpec, SnapshotStatus, Source, Unlisted,
    UnlistedFile, Usage, VolumeSpec, VolumeStatus, Written,
};
use belay_server::call::{Certainty, Failure, Kind};
use serde_json::{Value, json};
use std::fmt::Debug;

/// Unwraps a change that was made.
#[track_caller]
pub(crate) fn done<T>(written: Result<Written<T>, Failure>) -> T {
    match written.unwrap() {
        Written::Done(object) => object,
        Written::Conflict => panic!("a conflict"),
        Written::Missing => panic!("the object is missing"),
    }
}

fn full_volume() -> VolumeSpec {
    VolumeSpec {
        usage: Usage {
            mode: Mode::Filesystem,
            filesystem: Some("ext4".to_owned()),
        },
        source: Some(Source::Snapshot(id("snap", 1))),
        adopt: true,
        remove: Some(3),
        ..volume(1, "node1")
    }
}

pub(crate) fn snapshot() -> SnapshotSpec {
    SnapshotSpec {
        version: SPEC_VERSION,
        id: id("snap", 1),
        name: "snapshot-1".to_owned(),
        place: "place".to_owned(),
        disk: "default".to_owned(),
        node: "node1".to_owned(),
        volume: id("vol", 1),
        adopt: true,
        remove: Some(1),
    }
}

pub(crate) fn disk() -> DiskSpec {
    DiskSpec {
        node: "node1.example".to_owned(),
        place: "place".to_owned(),
        disk: "default".to_owned(),
        begin: Some("uid".to_owned()),
    }
}

fn failure() -> Failure {
    Failure::quota("no room").rolled_back()
}

/// Creates an object, reports a status, and reads both. Then clears the optional fields of the
/// status.
async fn round_trip<R: Resource>(
    server: &Server,
    name: &str,
    spec: R::Spec,
    statuses: [R::Status; 2],
) where
    R::Spec: PartialEq + Debug,
    R::Status: PartialEq + Debug,
{
    let client = server.client();
    let mut object: Object<R> = done(client.create::<R>(name, &spec).await);
    assert_eq!(object.spec, Parsed::Known(spec.clone()));
    assert_eq!(
        object.metadata.annotations["velero.io/exclude-from-backup"],
        "true"
    );
    assert!(object.status.is_none());
    for status in statuses {
        object = done(
            client
                .patch(&object.metadata, Change::Status(&status))
                .await,
        );
        let read = client.get::<R>(name).await.unwrap().unwrap();
        assert_eq!(read.metadata, object.metadata);
        assert_eq!(read.spec, Parsed::Known(spec.clone()));
        assert_eq!(read.status, Some(Parsed::Known(status)));
    }
    done(client.delete::<R>(&object.metadata).await);
    assert!(client.get::<R>(name).await.unwrap().is_none());
}

pub(crate) async fn all_fields_of_each_kind_come_back(server: &Server) {
    let status = VolumeStatus {
        phase: Phase::Ready,
        observed_generation: Some(2),
        bytes: Some(u64::from(u32::MAX) << 20),
        refused_removal: Some(2),
        failure: Some(Parsed::Known(failure())),
        conditions: Some(vec![
            Condition {
                reason: "r".repeat(63),
                message: "m".repeat(1024),
            };
            16
        ]),
    };
    let short = VolumeStatus {
        phase: Phase::Lost,
        observed_generation: None,
        bytes: None,
        refused_removal: None,
        failure: None,
        conditions: None,
    };
    round_trip::<LocalVolume>(server, "pvc-1", full_volume(), [status, short]).await;
    let status = SnapshotStatus {
        phase: Phase::Making,
        observed_generation: Some(1),
        bytes: Some(1 << 30),
        time: Some("2026-11-30T07:00:00.123456789Z".to_owned()),
        refused_removal: Some(1),
        failure: Some(Parsed::Known(failure())),
    };
    let short = SnapshotStatus {
        phase: Phase::Refused,
        observed_generation: None,
        bytes: None,
        time: None,
        refused_removal: None,
        failure: None,
    };
    round_trip::<LocalSnapshot>(server, "snapshot-1", snapshot(), [status, short]).await;
    let status = DiskStatus {
        uuid: Some("1c2f".to_owned()),
        bytes: Some(1 << 40),
        promisable: Some(1 << 39),
        foreign: Some(7),
        read_only: Some(true),
        problem: Some("the directory is empty".to_owned()),
        reported: Some("2026-11-30T07:00:00Z".to_owned()),
        unlisted: Some(Unlisted {
            count: 21,
            first: vec![
                UnlistedFile {
                    id: "v".repeat(255),
                    name: Some("n".repeat(255)),
                    bytes: 5,
                },
                UnlistedFile {
                    id: id("snap", 8),
                    name: None,
                    bytes: 0,
                },
            ],
        }),
    };
    let name = "node1.example.default";
    round_trip::<LocalDisk>(server, name, disk(), [status, DiskStatus::default()]).await;
}

pub(crate) async fn an_unknown_field_is_refused_in_each_part(server: &Server) {
    let client = server.client();
    let mut spec = serde_json::to_value(volume(2, "node1")).unwrap();
    spec["encrypted"] = json!(true);
    let refused = client.create::<OtherRelease>("pvc-2", &spec).await;
    refused_as(Kind::Precondition, "encrypted", refused);
    assert!(client.get::<LocalVolume>("pvc-2").await.unwrap().is_none());

    let made = done(
        client
            .create::<LocalVolume>("pvc-2", &volume(2, "node1"))
            .await,
    );
    let fields = Change::<OtherRelease>::Spec(json!({"usage": {"encrypted": true}}));
    let refused = client.patch(&made.metadata, fields).await;
    refused_as(Kind::Precondition, "encrypted", refused);
    let status = json!({"phase": "Ready", "mood": "good"});
    let refused = client
        .patch(&made.metadata, Change::<OtherRelease>::Status(&status))
        .await;
    refused_as(Kind::Precondition, "mood", refused);

    // A field that the definition knows and this release does not: the spec is not known.
    let definition = "localvolumes.belay.dev";
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/encrypted";
    let patch = |op: &str| json!([{"op": op, "path": path, "value": {"type": "boolean"}}]);
    let change = |op: &str| {
        let patch = patch(op).to_string();
        server.kubectl(&["patch", "crd", definition, "--type=json", "--patch", &patch]);
    };
    change("add");
    let fields = json!({"spec": {"encrypted": true}}).to_string();
    let edit = [
        "patch",
        "localvolume",
        "pvc-2",
        "--type=merge",
        "--patch",
        &fields,
    ];
    let edit: Vec<_> = [&edit[..], &["--request-timeout=5s"]].concat();
    belay_bed::patience::until("the field is served", || {
        server.kubectl(&edit);
        let shown = server.kubectl(&["get", "localvolume", "pvc-2", "--output=json"]);
        shown.contains("encrypted\": true")
    });
    let read = client.get::<LocalVolume>("pvc-2").await.unwrap().unwrap();
    let Parsed::Unknown(why) = &read.spec else {
        panic!("{:?}", read.spec);
    };
    assert!(
        why.contains("encrypted") && read.spec.known().is_none(),
        "{why}"
    );
    done(client.delete::<LocalVolume>(&read.metadata).await);
    change("remove");
}

#[track_caller]
pub(crate) fn refused_as<T>(kind: Kind, part: &str, result: Result<T, Failure>) {
    let Err(failure) = result else {
        panic!("{part}: accepted");
    };
    assert_eq!(failure.kind, kind, "{failure}");
    assert_eq!(failure.certainty, Certainty::NothingHappened, "{failure}");
    assert!(failure.message.contains(part), "{part}: {failure}");
}

async fn cannot_change<R: Resource>(server: &Server, of: &Metadata, field: &str, value: Value) {
    let client = server.client();
    let change = Change::<R>::Spec(json!({field: value}));
    let part = format!("{field} is immutable");
    refused_as(Kind::Precondition, &part, client.patch(of, change).await);
}

async fn changes<R: Resource>(server: &Server, object: &mut Object<R>, field: &str, value: Value) {
    let change = Change::<R>::Spec(json!({field: value}));
    *object = done(server.client().patch(&object.metadata, change).await);
}

pub(crate) async fn each_immutable_field_is_refused_and_others_change(server: &Server) {
    let client = server.client();
    let mut of = done(client.create::<LocalVolume>("pvc-1", &full_volume()).await);
    for (field, value) in [
        ("version", json!(2)),
        ("adopt", json!(false)),
        ("adopt", Value::Null),
        ("id", json!(id("vol", 2))),
        ("name", json!("pvc-2")),
        ("place", json!("place2")),
        ("disk", json!("fast")),
        ("usage", json!({"mode": "Block"})),
        ("usage", json!({"filesystem": "xfs"})),
        ("usage", json!({"filesystem": null})),
        ("source", json!({"snapshot": id("snap", 2)})),
        ("source", json!({"snapshot": null, "volume": id("vol", 2)})),
        ("source", Value::Null),
    ] {
        cannot_change::<LocalVolume>(server, &of.metadata, field, value).await;
    }
    changes(server, &mut of, "node", json!("node2")).await;
    changes(server, &mut of, "bytes", json!(2_u64 << 30)).await;
    changes(server, &mut of, "remove", Value::Null).await;
    let spec = VolumeSpec {
        node: "node2".to_owned(),
        bytes: 2 << 30,
        remove: None,
        ..full_volume()
    };
    assert_eq!(of.spec, Parsed::Known(spec));
    done(client.delete::<LocalVolume>(&of.metadata).await);

    let of = done(
        client
            .create::<LocalVolume>("pvc-2", &volume(2, "node1"))
            .await,
    );
    let source = json!({"volume": id("vol", 3)});
    cannot_change::<LocalVolume>(server, &of.metadata, "source", source).await;
    done(client.delete::<LocalVolume>(&of.metadata).await);

    let mut of = done(
        client
            .create::<LocalSnapshot>("snapshot-1", &snapshot())
            .await,
    );
    for (field, value) in [
        ("version", json!(2)),
        ("adopt", json!(false)),
        ("adopt", Value::Null),
        ("id", json!(id("snap", 2))),
        ("name", json!("snapshot-2")),
        ("place", json!("place2")),
        ("disk", json!("fast")),
        ("volume", json!(id("vol", 2))),
    ] {
        cannot_change::<LocalSnapshot>(server, &of.metadata, field, value).await;
    }
    changes(server, &mut of, "node", json!("node2")).await;
    done(client.delete::<LocalSnapshot>(&of.metadata).await);

    let name = "node1.example.default";
    let of = done(client.create::<LocalDisk>(name, &disk()).await);
    for field in ["node", "place", "disk"] {
        cannot_change::<LocalDisk>(server, &of.metadata, field, json!("other")).await;
    }
    done(client.delete::<LocalDisk>(&of.metadata).await);
}

pub(crate) async fn values_out_of_bounds_are_refused(server: &Server) {
    let client = server.client();
    let good = serde_json::to_value(full_volume()).unwrap();
    for (field, value) in [
        ("id", json!("vol-1")),
        ("id", json!(id("snap", 1))),
        ("name", json!("")),
        ("name", json!("n".repeat(129))),
        ("place", json!("p".repeat(64))),
        ("place", json!("a/b")),
        ("disk", json!("Fast")),
        ("disk", json!("a.b")),
        ("node", json!("")),
        ("bytes", json!(0)),
        ("bytes", json!(u64::MAX)),
        ("usage", json!({})),
        ("usage", json!({"mode": "Other"})),
        ("source", json!({})),
        (
            "source",
            json!({"snapshot": id("snap", 1), "volume": id("vol", 1)}),
        ),
        ("source", json!({"snapshot": "../1"})),
        ("remove", json!(0)),
    ] {
        let mut spec = good.clone();
        spec[field] = value.clone();
        let refused = client.create::<OtherRelease>("pvc-1", &spec).await;
        refused_as(Kind::Precondition, &format!("spec.{field}"), refused);
    }
    for field in ["id", "name", "place", "disk", "node", "bytes", "usage"] {
        let mut spec = good.clone();
        spec.as_object_mut().unwrap().remove(field);
        let refused = client.create::<OtherRelease>("pvc-1", &spec).await;
        refused_as(Kind::Precondition, &format!("spec.{field}"), refused);
    }
}

pub(crate) async fn a_disk_has_the_name_of_its_node_and_disk(server: &Server) {
    let client = server.client();
    for name in [
        "node2.example.default",
        "node1.example.default.default",
        "node1",
    ] {
        let refused = client.create::<LocalDisk>(name, &disk()).await;
        refused_as(Kind::Precondition, "name", refused);
    }
}
