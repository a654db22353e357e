//! A volume that no PersistentVolume has, from its creation to its removal by `belayctl`, with a
//! real controller and a real store. No pods run, so a script runs the commands for pods.

use super::adoption::{all, strip};
use super::program::{ready_capabilities, serving};
use super::{Front, LONG, PATIENCE, request};
use crate::server::Server;
use crate::store::{Node, is_served};
use belay_bed::patience::until;
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{LocalSnapshot, LocalVolume};
use belay_proto::dial::dial;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const CLAIM: &str = "interrupted";
const UNCLAIMED: &str = r#"{kind="volume",trouble="unclaimed"} 1"#;

/// Writes a program that behaves like kubectl of the administrator in a cluster in which all
/// objects are old. A command for the controller's pod is run here, with the controller's socket.
fn kubectl(server: &Server, dir: &Path, socket: &Path) -> PathBuf {
    let program = dir.join("kubectl");
    let script = format!(
        r#"#!/bin/sh
set -e
# Not the configuration of the user who runs the test.
export KUBECONFIG=/nonexistent
case $1 in
    --namespace)
        while [ "$1" != belayctl ]; do shift; done
        shift
        exec '{belayctl}' --endpoint '{socket}' "$@" ;;
esac
out=$({kubectl} "$@")
printf '%s' "$out" | sed 's/"\(creationTimestamp\)":"[^"]*"/"\1":"2020-01-01T00:00:00Z"/g'
"#,
        belayctl = belayctl().display(),
        socket = socket.display(),
        kubectl = server.administrator().join(" "),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Returns the path of `belayctl`.
fn belayctl() -> PathBuf {
    let program = std::env::var_os("BELAYCTL");
    PathBuf::from(program.expect("BELAYCTL: not set; run `make objects`"))
}

/// Creates an object of the API.
fn create(server: &Server, object: &Value) -> Value {
    let words = ["create", "--filename", "-", "--output", "json"];
    serde_json::from_str(&server.kubectl_with(&words, &object.to_string())).unwrap()
}

/// Creates the Deployment of the chart, as far as belayctl reads it.
fn deploy(server: &Server) {
    let container = json!({"name": "belay-controller", "image": "none", "args": ["--nodes"]});
    let labels = json!({"app.kubernetes.io/name": "belay"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "belay-controller", "namespace": "default", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    create(server, &deployment);
}

/// Creates a claim, and returns its UID.
fn claim(server: &Server) -> String {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "belay",
            "resources": {"requests": {"storage": "10Mi"}},
        },
    });
    let claim = create(server, &claim);
    claim["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Deletes the claim. No controller runs that would remove its finalizer.
fn delete_claim(server: &Server) {
    let none = json!({"metadata": {"finalizers": Value::Null}}).to_string();
    server.kubectl(&["patch", "pvc", CLAIM, "--type=merge", "--patch", &none]);
    server.kubectl(&["delete", "pvc", CLAIM]);
}

/// csi-provisioner is killed after CreateVolume and before it creates a PersistentVolume. The claim
/// is then deleted, so no call is repeated.
pub(crate) async fn a_volume_without_a_claim_is_named_and_removed_by_the_command(server: &Server) {
    server.clear();
    strip::<LocalVolume>(server).await;
    strip::<LocalSnapshot>(server).await;
    let page = PrometheusBuilder::new().install_recorder().unwrap();
    let mut node = Node::new(server, "unclaimed");
    node.start();
    let quick = Limits {
        check: Duration::from_millis(300),
        unclaimed: Duration::from_secs(1),
        ..LONG
    };
    let front = Front::start(server, quick).await;
    node.disk_shows("default", is_served).await;
    let name = format!("pvc-{}", claim(server));
    let volume = super::adoption::made(&front, request(&name, &["unclaimed"])).await;
    let id = volume.volume_id;
    until("the metric counts the volume", || {
        page.render().contains(UNCLAIMED)
    });

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    let (_running, _) = serving(server, dir.path(), &socket);
    let ready = ready_capabilities(dial(&socket).await.unwrap());
    tokio::time::timeout(PATIENCE, ready).await.unwrap();
    deploy(server);
    let kubectl = kubectl(server, dir.path(), &socket);
    let local = |words: &[&str]| {
        let mut command = Command::new(belayctl());
        command
            .arg("local")
            .args(words)
            .arg("--kubectl")
            .arg(&kubectl);
        command.output().unwrap()
    };
    let printed = |output: &Output| {
        let both = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        both.concat()
    };
    let unclaimed = printed(&local(&["unclaimed"]));
    assert!(unclaimed.contains(&id), "{unclaimed}");
    // csi-provisioner repeats its call, which returns this volume.
    let refused = local(&["remove", &id, "--yes"]);
    assert!(!refused.status.success(), "{refused:?}");
    let why = printed(&refused);
    assert!(why.contains("requests it"), "{why}");
    assert!(node.has_file(&id));
    delete_claim(server);
    let removed = local(&["remove", &id, "--yes"]);
    assert!(removed.status.success(), "{}", printed(&removed));
    assert!(!node.has_file(&id));
    assert!(all::<LocalVolume>(server).await.is_empty());
    let unclaimed = printed(&local(&["unclaimed"]));
    assert_eq!(unclaimed.trim(), "no unclaimed objects");
    until("the metric no longer counts the volume", || {
        !page.render().contains(UNCLAIMED)
    });
    server.kubectl(&["delete", "deployment", "belay-controller"]);
}
