//! The columns that `kubectl get` shows, and their values.

use crate::definitions::{disk, done, snapshot};
use crate::server::Server;
use crate::{id, volume};
use belay_controller::kubernetes::{
    Change, DiskStatus, LocalDisk, LocalSnapshot, LocalVolume, Phase, Resource, SnapshotStatus,
    Unlisted, VolumeStatus,
};
use serde_json::Value;

pub(crate) async fn people_see_the_state(server: &Server) {
    let time = "2026-01-01T00:00:00Z";
    let status = VolumeStatus {
        phase: Phase::Ready,
        observed_generation: None,
        bytes: Some(1 << 30),
        refused_removal: None,
        failure: None,
        conditions: None,
    };
    let cells = [
        ("NODE", "node1"),
        ("DISK", "default"),
        ("BYTES", "1073741824"),
        ("PHASE", "Ready"),
        ("AGE", AGE),
        ("ID", &id("vol", 1)),
        ("PLACE", "place"),
    ];
    shows::<LocalVolume>(server, "pvc-1", &volume(1, "node1"), &status, &cells).await;
    let status = SnapshotStatus {
        phase: Phase::Making,
        observed_generation: None,
        bytes: Some(5),
        time: Some(time.to_owned()),
        refused_removal: None,
        failure: None,
    };
    let cells = [
        ("NODE", "node1"),
        ("DISK", "default"),
        ("BYTES", "5"),
        ("PHASE", "Making"),
        ("TAKEN", AGE),
        ("AGE", AGE),
        ("ID", &id("snap", 1)),
        ("VOLUME", &id("vol", 1)),
        ("PLACE", "place"),
    ];
    shows::<LocalSnapshot>(server, "snapshot-1", &snapshot(), &status, &cells).await;
    let status = DiskStatus {
        bytes: Some(8),
        promisable: Some(7),
        read_only: Some(true),
        problem: Some("empty".to_owned()),
        reported: Some(time.to_owned()),
        unlisted: Some(Unlisted {
            count: 6,
            first: Vec::new(),
        }),
        ..DiskStatus::default()
    };
    let cells = [
        ("NODE", "node1.example"),
        ("DISK", "default"),
        ("BYTES", "8"),
        ("PROMISABLE", "7"),
        ("UNLISTED", "6"),
        ("REPORTED", AGE),
        ("AGE", AGE),
        ("PLACE", "place"),
        ("READONLY", "true"),
        ("PROBLEM", "empty"),
    ];
    shows::<LocalDisk>(server, "node1.example.default", &disk(), &status, &cells).await;
}

/// The value of a column that shows the time since an event.
const AGE: &str = "age";

/// Checks the columns of an object with this state, and that an upgrade of the chart keeps the
/// definition.
async fn shows<R: Resource>(
    server: &Server,
    name: &str,
    spec: &R::Spec,
    status: &R::Status,
    cells: &[(&str, &str)],
) {
    let client = server.client();
    let made = done(client.create::<R>(name, spec).await);
    let made = done(
        client
            .patch::<R>(&made.metadata, Change::Status(status))
            .await,
    );
    let shown = server.kubectl(&["get", R::PLURAL, name, "--output=wide"]);
    let mut lines = shown.lines().map(|line| line.split_whitespace().collect());
    let [names, values]: [Vec<&str>; 2] = [lines.next().unwrap(), lines.next().unwrap()];
    let columns: Vec<_> = cells.iter().map(|(column, _)| *column).collect();
    assert_eq!(names, [&["NAME"][..], &columns].concat());
    assert_eq!((values[0], values.len()), (name, names.len()), "{shown}");
    for (value, (column, expected)) in values[1..].iter().zip(cells) {
        match *expected {
            AGE => assert!(
                value.ends_with(['s', 'm', 'h', 'd', 'y']),
                "{column}: {value}"
            ),
            expected => assert_eq!(*value, expected, "{column}"),
        }
    }
    done(client.delete::<R>(&made.metadata).await);

    let definition = format!("{}.belay.dev", R::PLURAL);
    let definition = server.kubectl(&["get", "crd", &definition, "--output=json"]);
    let definition: Value = serde_json::from_str(&definition).unwrap();
    let keep = &definition["metadata"]["annotations"]["helm.sh/resource-policy"];
    assert_eq!(keep, "keep");
}
