//! The selection of a place: late binding, and cordoned Nodes.

use super::{Front, LONG, MIB, ROOM, refusal, request};
use crate::server::Server;
use belay_proto::csi::v1 as csi;
use std::collections::HashMap;
use tonic::Code;

/// A claim, as the scheduler leaves it for late binding.
const CLAIM: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: late
  namespace: kube-system
  annotations: {volume.kubernetes.io/selected-node: late-a.example}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
"#;

/// Returns the request with the name of a claim.
fn of_claim(claim: &str, request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
    let parameter = |name: &str, value: &str| {
        let name = format!("csi.storage.k8s.io/pvc/{name}");
        (name, value.to_owned())
    };
    csi::CreateVolumeRequest {
        parameters: HashMap::from([
            parameter("name", claim),
            parameter("namespace", "kube-system"),
        ]),
        ..request
    }
}

/// Creates a volume, and returns its place.
async fn place(front: &Front, request: csi::CreateVolumeRequest) -> String {
    let volume = front.ready(request).await;
    let topology = volume.accessible_topology.into_iter().next().unwrap();
    topology.segments.into_values().next().unwrap()
}

pub(crate) async fn with_late_binding_only_the_selected_place_is_tried(server: &Server) {
    server.kubectl_with(&["create", "--filename", "-"], CLAIM);
    let front = Front::start(server, LONG).await;
    front.disk("late-a", MIB).await;
    front.disk("late-b", ROOM).await;
    let places = ["late-a", "late-b"];
    let late = of_claim("late", request("late-1", &places));
    let (code, why) = refusal(front.create(late).await);
    assert_eq!(code, Code::ResourceExhausted, "{why}");
    assert!(
        why.contains("late-a: 1 MiB free") && !why.contains("late-b"),
        "{why}"
    );
    // With immediate binding, or without the claim, any place is tried.
    let other = of_claim("other", request("late-2", &places));
    assert_eq!(place(&front, other).await, "late-b");
    assert_eq!(place(&front, request("late-3", &places)).await, "late-b");
}

/// The scheduler has selected the Node of a late claim before the Node was cordoned.
pub(crate) async fn a_cordoned_node_gets_a_volume_only_if_no_other_place_is_possible(
    server: &Server,
) {
    let front = Front::start(server, LONG).await;
    let cordon = |name: &str| {
        let node = format!(
            r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}.example"}},
            "spec": {{"unschedulable": true}}}}"#
        );
        server.kubectl_with(&["create", "--filename", "-"], &node);
    };
    let places = ["cordon-a", "cordon-b"];
    for place in places {
        front.disk(place, ROOM).await;
    }
    cordon("cordon-a");
    let asked = |name: &str| request(name, &places);
    assert_eq!(place(&front, asked("cordon-1")).await, "cordon-b");
    let late = of_claim("late", asked("cordon-2"));
    assert_eq!(place(&front, late).await, "cordon-a");
    let only = request("cordon-3", &places[..1]);
    assert_eq!(place(&front, only).await, "cordon-a");
    cordon("cordon-b");
    let (code, why) = refusal(front.create(asked("cordon-4")).await);
    assert_eq!(code, Code::ResourceExhausted, "{why}");
    for place in places {
        let reason = format!("{place}: its Node is cordoned");
        assert!(why.contains(&reason), "{why}");
        server.kubectl(&["delete", "node", &format!("{place}.example")]);
    }
}
