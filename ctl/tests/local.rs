//! `belayctl local` with a script as kubectl: the order of its calls. `tests/beds/kubernetes` runs
//! the commands in a cluster.

#![expect(clippy::expect_used, reason = "test code")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Records each call with its input, and prints the file with the number of the call. A call
/// without a file fails, as if the object did not exist.
const SCRIPT: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 1
case "$*" in *" -"*"--filename -"*) input=$(cat) ;; *) input= ;; esac
printf '%s %s\n' "$*" "$input" >>calls
number=$(wc -l <calls)
[ -e "$number" ] || { echo 'Error from server (NotFound): not found' >&2; exit 1; }
! grep -q ^Error "$number" || { cat "$number" >&2; exit 1; }
cat "$number"
"#;

struct Run {
    output: Output,
    /// The calls, without the flags that all have.
    calls: Vec<String>,
}

impl Run {
    /// Runs belayctl with these replies of kubectl.
    fn new(line: &str, replies: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let script = dir.path().join("kubectl");
        fs::write(&script, SCRIPT).expect("write");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        for (at, reply) in replies.iter().enumerate() {
            if !reply.is_empty() {
                fs::write(dir.path().join((at + 1).to_string()), reply).expect("write");
            }
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_belayctl"));
        command.args(line.split(' ')).arg("--kubectl").arg(&script);
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        let calls = fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        let calls = calls.lines().map(|call| {
            let call = call.replace("/apis/belay.dev/v1alpha1/", "");
            let call = call.replace("--request-timeout=120s", "");
            call.split_whitespace().collect::<Vec<_>>().join(" ")
        });
        Self {
            output,
            calls: calls.collect(),
        }
    }

    /// Checks the exit code and a part of the text on standard output and standard error.
    #[track_caller]
    fn says(&self, code: i32, part: &str) -> &Self {
        let Output {
            stdout,
            stderr,
            status,
        } = &self.output;
        let text = [stdout.as_slice(), stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(status.code(), Some(code), "{text}");
        assert!(text.contains(part), "{text}");
        self
    }

    /// Checks the calls after those that list objects.
    #[track_caller]
    fn calls(&self, lists: &[&str], changes: &[&str]) {
        let lists = lists.iter().map(|path| format!("get --raw {path}"));
        let changes = changes.iter().map(|&change| change.to_owned());
        let expected: Vec<_> = lists.chain(changes).collect();
        assert_eq!(self.calls, expected);
    }
}

const NONE: &str = r#"{"items": []}"#;
const OBJECTS: [&str; 3] = ["localdisks", "localvolumes", "localsnapshots"];
const ALL: [&str; 5] = [
    "localdisks",
    "localvolumes",
    "localsnapshots",
    "/api/v1/persistentvolumes",
    "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents",
];

fn list(object: &Value) -> String {
    json!({"items": [object]}).to_string()
}

/// Returns a disk that was reported at this time.
fn disk(reported: &str) -> String {
    let metadata = json!({"name": "node1.default", "uid": "u-1", "resourceVersion": "7"});
    let spec = json!({"node": "node1", "place": "node1", "disk": "default"});
    list(&json!({"metadata": metadata, "spec": spec, "status": {"reported": reported}}))
}

/// Returns a volume of `node1`.
fn volume() -> Value {
    let metadata = json!({"name": "pvc-1", "uid": "u-2", "resourceVersion": "8",
        "finalizers": ["belay.dev/store"]});
    let spec = json!({"version": 1, "id": "vol-1", "name": "pvc-1", "node": "node1",
        "disk": "default", "bytes": 1 << 30});
    let status = json!({"phase": "Ready", "failure": {"message": "the file is in use"}});
    json!({"metadata": metadata, "spec": spec, "status": status})
}

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io/name=belay";

/// Runs a removal with these replies to the calls after the lists.
fn remove(replies: &[&str]) -> Run {
    let now = "2126-01-01T00:00:00Z";
    let volumes = list(&volume());
    // The cluster has no definitions of snapshots.
    let lists = [&disk(now), &volumes, NONE, NONE, ""];
    let replies = [&lists, replies].concat();
    Run::new("local remove vol-1 --yes", &replies)
}

/// The lists before the call: claims are listed last.
fn before() -> Vec<&'static str> {
    [ALL.as_slice(), &["/api/v1/persistentvolumeclaims"]].concat()
}

#[test]
fn a_list_reads_objects_and_an_absent_kind_is_explained() {
    for line in ["local nodes", "local disks", "local unlisted"] {
        let run = Run::new(line, &[NONE; 3]);
        run.says(0, "no ").calls(&OBJECTS, &[]);
    }
    for line in ["local volumes", "local snapshots", "local unclaimed"] {
        Run::new(line, &[NONE; 5]).says(0, "no ").calls(&ALL, &[]);
    }
    let doctor = Run::new("local doctor", &[NONE; 6]);
    let deployments = format!("get --raw {DEPLOYMENTS}");
    doctor
        .says(2, "no Deployment runs")
        .calls(&ALL, &[&deployments]);
    Run::new("local disks", &[]).says(1, "no localdisks.belay.dev; install the chart");
    let failed = Run::new("local disks --context a", &["Error: connection refused"]);
    failed.says(
        1,
        "get --raw /apis/belay.dev/v1alpha1/localdisks`: Error: connection refused",
    );
    assert_eq!(failed.calls, ["--context=a get --raw localdisks"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_belayctl"));
    let output = command
        .args(["local", "disks", "--kubectl", "/nonexistent"])
        .output();
    let text = String::from_utf8(output.expect("it runs").stderr).expect("UTF-8");
    assert!(
        text.contains("/nonexistent: not found; install kubectl"),
        "{text}"
    );
}

#[test]
fn a_node_is_forgotten_by_conditional_deletions_and_its_claims_are_named() {
    let claim = json!({"metadata": {"name": "pv-1"}, "spec": {"csi": {"volumeHandle": "vol-1"},
        "claimRef": {"namespace": "shop", "name": "data"}}});
    let volumes = list(&volume());
    let claims = list(&claim);
    let silent = disk("2026-01-01T00:00:00Z");
    let lists = [&silent, &volumes, NONE, &claims, NONE];
    let delete = "delete --raw localdisks/node1.default --filename - {\"apiVersion\":\"v1\",\
         \"kind\":\"DeleteOptions\",\"preconditions\":{\"resourceVersion\":\"7\",\"uid\":\"u-1\"}}";
    let replies = [lists.as_slice(), &["{}"]].concat();
    let run = Run::new("local forget node1 --yes", &replies);
    run.says(
        0,
        "kubectl delete --wait=false --namespace shop persistentvolumeclaim data",
    );
    run.calls(&ALL, &[delete]);

    let conflict = "Error from server (Conflict): Precondition failed";
    let replies = [lists.as_slice(), &[conflict]].concat();
    let run = Run::new("local forget node1 --yes", &replies);
    run.says(1, "its store still reports")
        .calls(&ALL, &[delete]);
    let run = Run::new("local forget node1", &lists);
    run.says(64, "confirm by --yes").calls(&ALL, &[]);
}

#[test]
fn a_place_is_given_by_a_new_object_of_the_disk() {
    let disk = |place: &str, uuid: Option<&str>| {
        let metadata = json!({"name": "node1.default", "uid": "u-1", "resourceVersion": "7"});
        let spec = json!({"node": "node1", "place": place, "disk": "default"});
        json!({"metadata": metadata, "spec": spec, "status": {"uuid": uuid}})
    };
    let waiting = disk("node1", None);
    let lists = [&list(&waiting), NONE, NONE, NONE, NONE];
    let served = disk("old", Some("u")).to_string();
    let replies = [&waiting.to_string(), "{}", "{}", &served, &served];
    let run = Run::new(
        "local rehome old node1 --yes",
        &[lists.as_slice(), &replies].concat(),
    );
    run.says(
        0,
        "kubectl label node node1 topology.local.csi.belay.dev/node-\n  \
         kubectl label node --selector topology.local.csi.belay.dev/node=old \
         topology.local.csi.belay.dev/node-",
    );
    let delete = "delete --raw localdisks/node1.default --filename - {\"apiVersion\":\"v1\",\
         \"kind\":\"DeleteOptions\",\"preconditions\":{\"resourceVersion\":\"7\",\"uid\":\"u-1\"}}";
    let create = "create --raw localdisks --filename - \
         {\"apiVersion\":\"belay.dev/v1alpha1\",\"kind\":\"LocalDisk\",\
         \"metadata\":{\"annotations\":{\"velero.io/exclude-from-backup\":\"true\"},\
         \"name\":\"node1.default\"},\
         \"spec\":{\"disk\":\"default\",\"node\":\"node1\",\"place\":\"old\"}}";
    let get = "get --raw localdisks/node1.default";
    run.calls(&ALL, &[get, delete, create, get, get]);
}

#[test]
fn a_removal_is_a_call_of_the_controller() {
    let other = json!({"metadata": {"namespace": "a", "name": "belay-controller-cinder"},
        "spec": {"template": {"spec": {"containers": [{"args": ["--backend=openstack"]}]}}}});
    let ours = json!({"metadata": {"namespace": "belay-system", "name": "belay-controller-local"},
        "spec": {"template": {"spec": {"containers": [{}, {"args": ["--nodes"]}]}}}});
    let controllers = json!({"items": [other, ours]}).to_string();
    let exec = "--namespace belay-system exec deployment/belay-controller-local --container \
         belay-controller -- belayctl volume delete vol-1 --timeout=120";
    let deployments = format!("get --raw {DEPLOYMENTS}");
    let claims = "get --raw /api/v1/persistentvolumeclaims";
    let run = remove(&[&controllers, NONE, "OK"]);
    run.says(0, "deleted")
        .calls(&ALL, &[&deployments, claims, exec]);
    let in_use = "Error: the file is in use";
    remove(&[&controllers, NONE, in_use]).says(1, "the file is in use");
    remove(&[NONE]).says(1, "no Deployment runs");
}

#[test]
fn a_file_without_an_object_gets_one_before_it_is_removed() {
    let file = json!({"id": "vol-9", "name": "pvc-9", "bytes": 4096});
    let mut disk: Value = serde_json::from_str(&disk("2126-01-01T00:00:00Z")).expect("JSON");
    disk["items"][0]["status"]["unlisted"] = json!({"count": 1, "first": [file]});
    let disk = disk.to_string();
    let controllers = json!({"items": [{"metadata": {"namespace": "b", "name": "c"},
        "spec": {"template": {"spec": {"containers": [{"args": ["--nodes"]}]}}}}]});
    let controllers = controllers.to_string();
    let object = json!({"metadata": {"name": "vol-9", "finalizers": ["belay.dev/store"]},
        "spec": {"id": "vol-9", "name": "pvc-9", "node": "node1", "disk": "default"},
        "status": {"phase": "Ready"}});
    let (ready, volumes) = (object.to_string(), list(&object));
    let lists = [&disk, NONE, NONE, NONE, "", &controllers, NONE];
    let ordered = [lists.as_slice(), &["{}", "{}", &ready]].concat();
    let again = [&disk, &volumes, NONE, NONE, "", NONE];
    let replies = [ordered.as_slice(), &again, &["OK"]].concat();
    let run = Run::new("local remove vol-9 --yes", &replies);
    let deployments = format!("get --raw {DEPLOYMENTS}");
    let gets: Vec<_> = before()
        .iter()
        .map(|path| format!("get --raw {path}"))
        .collect();
    let gets: Vec<_> = gets.iter().map(String::as_str).collect();
    let claims = gets[ALL.len()];
    let create = "create --raw localvolumes --filename - \
         {\"apiVersion\":\"belay.dev/v1alpha1\",\"kind\":\"LocalVolume\",\
         \"metadata\":{\"annotations\":{\"velero.io/exclude-from-backup\":\"true\"},\
         \"name\":\"vol-9\"},\"spec\":{\"adopt\":true,\"bytes\":4096,\"disk\":\"default\",\
         \"id\":\"vol-9\",\"name\":\"pvc-9\",\"node\":\"node1\",\"place\":\"node1\",\
         \"usage\":{\"mode\":\"Filesystem\"},\"version\":1},\"status\":null}";
    let get = "get --raw localvolumes/vol-9";
    let exec = "--namespace b exec deployment/c --container belay-controller -- belayctl volume \
         delete vol-9 --timeout=120";
    let asked = [&deployments, claims, create, get, get];
    let calls = [asked.as_slice(), &gets, &[exec]].concat();
    run.says(0, "deleted").calls(&ALL, &calls);
    // A PersistentVolume was created while the store was asked.
    let claim = json!({"metadata": {"name": "pv-9"}, "spec": {"csi": {"volumeHandle": "vol-9"}}});
    let again = [&disk, &volumes, NONE, &list(&claim), ""];
    let replies = [ordered.as_slice(), &again].concat();
    let run = Run::new("local remove vol-9 --yes", &replies);
    let calls = [asked.as_slice(), &gets[..ALL.len()]].concat();
    run.says(1, "PersistentVolume pv-9 has it")
        .calls(&ALL, &calls);
    let refusal = r#"{"status": {"phase": "Refused", "failure": {"message": "no file"}}}"#;
    let replies = [lists.as_slice(), &["{}", refusal]].concat();
    let run = Run::new("local remove vol-9 --yes", &replies);
    run.says(1, "volume vol-9: no file")
        .calls(&ALL, &asked[..4]);
    let replies = [lists.as_slice(), &["{}"]].concat();
    let gone = Run::new("local remove vol-9 --yes", &replies);
    gone.says(1, "the store of disk node1.default has not accepted it");
}

#[test]
fn a_volume_with_a_pending_claim_is_kept() {
    let mut named = volume();
    named["spec"]["name"] = json!("pvc-0b5e");
    let claim = json!({"metadata": {"namespace": "shop", "name": "data", "uid": "0b5e"}});
    let now = disk("2126-01-01T00:00:00Z");
    let (volumes, claims) = (list(&named), list(&claim));
    let deployment = json!({"metadata": {"namespace": "b", "name": "c"},
        "spec": {"template": {"spec": {"containers": [{"args": ["--nodes"]}]}}}});
    let controllers = list(&deployment);
    let replies = [&now, &volumes, NONE, NONE, "", &controllers, &claims];
    let run = Run::new("local remove vol-1 --yes", &replies);
    let calls = [DEPLOYMENTS, "/api/v1/persistentvolumeclaims"];
    let calls = calls.map(|path| format!("get --raw {path}"));
    run.says(1, "PersistentVolumeClaim shop/data requests it")
        .calls(&ALL, &calls.each_ref().map(String::as_str));
    let run = Run::new(
        "local reset node1 default --yes",
        &[&now, &volumes, NONE, NONE, ""],
    );
    run.says(1, "reports no problem").calls(&ALL, &[]);
}
