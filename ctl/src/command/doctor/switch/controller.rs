//! Rules about the controller of a driver for network filesystems. If Belay's controller cannot
//! replace the driver's controller, that controller keeps running, and Belay replaces only the node
//! plugin. Therefore these rules give warnings, except for a lease that a sidecar of a stopped
//! controller still holds.

use belay_contract::nfs_id;

use super::rules::{Case, Good, Names, Section, Test, warning};
use super::running;
use super::storage::{CLASSES, SNAPSHOT_CLASSES, SNAPSHOTS, VOLUMES};
use crate::objects::Object;
use crate::report::{Report, Verdict};

const NAME: &str = "controller";
/// The prefix of parameters that the external-provisioner consumes.
const PROVISIONER: &str = "csi.storage.k8s.io/";
/// JSON pointer to the class parameter that names the Secret for creating and deleting volumes.
const CREATION_SECRET: &str = "/parameters/csi.storage.k8s.io~1provisioner-secret-name";
/// JSON pointer to the class parameter that names the Secret for deleting snapshots.
const SNAPSHOT_SECRET: &str = "/parameters/csi.storage.k8s.io~1snapshotter-secret-name";
/// JSON pointer to the CSI ID of a snapshot in its VolumeSnapshotContent.
const SNAPSHOT_ID: &str = "/status/snapshotHandle";
/// JSON pointer to the annotation of a PersistentVolume that names the Secret for its deletion.
const DELETION_SECRET: &str =
    "/metadata/annotations/volume.kubernetes.io~1provisioner-deletion-secret-name";

/// Rules about objects that hinder Belay's controller from replacing the driver's controller.
#[rustfmt::skip]
const OBSTACLES: Section = Section {
    name: NAME,
    rules: &[
        warning(SNAPSHOTS, Test::Is(|it, _| nfs_id::read_snapshot(it.text(SNAPSHOT_ID)).is_err()),
            "have an ID that Belay's controller refuses: it neither restores nor deletes them",
            "keep the driver's controller while they are needed, or remove the archives by hand \
             and then the finalizers of the VolumeSnapshotContents"),
        warning(SNAPSHOT_CLASSES, Test::Is(|it, _| !it.text(SNAPSHOT_SECRET).is_empty()),
            "name a secret (csi.storage.k8s.io/snapshotter-secret-name), which the sidecars of \
             Belay's chart may not read",
            "remove it from a new class, or give their ServiceAccount the right to get it"),
        warning(VOLUMES, Test::Is(|it, _| {
            is_deleted_with_claim(it) && is_unread(it.text("/spec/csi/volumeHandle"))
        }),
            "have an ID that Belay's controller refuses: their deletion fails with \
             FAILED_PRECONDITION",
            "keep the driver's controller, or, once their claims are deleted, remove the \
             directories by hand and then the finalizers of the PersistentVolumes"),
        warning(VOLUMES, Test::Is(|it, _| {
            is_deleted_with_claim(it) && !it.text(DELETION_SECRET).is_empty()
        }),
            "need a secret for their deletion, which the sidecars of Belay's chart have no right \
             to read",
            "give their ServiceAccount the right to get it"),
        warning(CLASSES, Test::Is(|it, _| !it.text(CREATION_SECRET).is_empty()),
            "name a secret (csi.storage.k8s.io/provisioner-secret-name), of which Belay's \
             controller uses mountOptions alone and no credentials; the sidecars of Belay's chart \
             may not read it",
            "remove it from a new class, or give their ServiceAccount the right to get it"),
        warning(CLASSES, Test::Is(has_refused_parameter),
            "have a parameter that Belay's controller refuses",
            "create a class without it, and use that for new claims"),
        warning(CLASSES, Test::Is(|it, _| gives_one_directory(it)),
            "give all claims one directory, of which Belay's controller creates only the first",
            "add ${pv.metadata.name} to subDir in a new class, or write PersistentVolumes"),
    ],
    good: Good::IfAllHold(
        "no known obstacle to Belay's controller, but it clones, snapshots and restores volumes on \
         one server only",
    ),
    ..Section::ALWAYS
};

/// Reports obstacles to Belay's controller, and whether the driver's own controller is running.
pub(super) fn findings(report: &mut Report, case: &Case<'_>) {
    let runs = running::controllers(case.objects, case.peer);
    let runs = Names(runs.map(Object::full_name).collect());
    if runs.0.is_empty() {
        running::LEASES.judge(report, case);
    } else {
        let what = format!(
            "{runs}: runs. It may go on: set drivers[].controller.create to false in Belay's \
             values. To replace it as well, scale it to 0"
        );
        report.add(Verdict::Ok, NAME, what);
    }
    let strict = case.objects.of("Deployment").filter(|it| is_strict(*it));
    let strict = Names(strict.map(Object::full_name).collect());
    if !strict.0.is_empty() {
        let what = format!(
            "{strict}: has no --nfs-adopt, so it does not delete, expand, clone or archive volumes \
             that csi-driver-nfs has created; if there are any, set adopt to true in Belay's values"
        );
        report.add(Verdict::Warn, NAME, what);
    }
    OBSTACLES.judge(report, case);
}

/// Whether the Deployment runs Belay's controller for NFS, with flags that let the controller
/// manage only volumes that it has created itself.
fn is_strict(deployment: Object<'_>) -> bool {
    let mut containers = deployment.list("/spec/template/spec/containers");
    containers.any(|it| {
        let args: Vec<_> = it.texts("/args").collect();
        args.contains(&"--backend=nfs") && !args.contains(&"--nfs-adopt")
    })
}

/// Whether a controller, and not an administrator, deletes the volume after its claim was deleted.
fn is_deleted_with_claim(volume: Object<'_>) -> bool {
    volume.text("/spec/persistentVolumeReclaimPolicy") == "Delete"
}

/// Whether Belay's controller refuses calls for this volume ID. For an ID that no driver creates,
/// Belay's controller responds that the volume does not exist, like the driver's controller.
fn is_unread(id: &str) -> bool {
    nfs_id::read(id).is_err()
}

fn has_refused_parameter(class: Object<'_>, case: &Case<'_>) -> bool {
    let is_known = |key: &str| {
        let mut known = case.peer.parameters.iter();
        key.starts_with(PROVISIONER) || known.any(|it| it.eq_ignore_ascii_case(key))
    };
    class.keys("/parameters").any(|key| !is_known(key))
}

/// Whether the class has a subDir without the name of a claim or volume.
fn gives_one_directory(class: Object<'_>) -> bool {
    let mut keys = class.keys("/parameters");
    let key = keys.find(|key| key.eq_ignore_ascii_case("subDir"));
    let directory = key.map_or("", |key| class.text(&format!("/parameters/{key}")));
    !directory.is_empty()
        && !["${pv.metadata.name}", "${pvc.metadata.name}"]
            .iter()
            .any(|template| directory.contains(template))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::{Value, json};

    use super::super::{Kind, judge};
    use super::*;
    use crate::objects::Objects;

    const DRIVER: &str = "nfs.csi.k8s.io";

    fn controller(pods: u32) -> Value {
        let image = "registry.k8s.io/sig-storage/nfsplugin:v4.11.0";
        json!({"kind": "Deployment", "metadata": {"namespace": "kube-system", "name": "csi-nfs"},
            "spec": {"replicas": pods, "template": {"spec": {"containers": [{"image": image}]}}},
            "status": {"replicas": pods}})
    }

    fn lease(holder: &str) -> Value {
        json!({"kind": "Lease", "metadata": {"namespace": "kube-system", "name": "nfs-csi-k8s-io"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
                "renewTime": "1970-01-01T00:00:00Z"}})
    }

    fn volume(id: &str) -> Value {
        json!({"kind": "PersistentVolume", "metadata": {"name": "data"},
            "spec": {"persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": DRIVER, "volumeHandle": id,
                    "volumeAttributes": {"server": "filer", "share": "/exports"}}}})
    }

    fn snapshot(id: &str) -> Value {
        json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "cut"},
            "spec": {"driver": DRIVER}, "status": {"snapshotHandle": id}})
    }

    fn class(parameters: &Value) -> Value {
        json!({"kind": "StorageClass", "metadata": {"name": "files"}, "provisioner": DRIVER,
            "parameters": parameters})
    }

    /// Returns the findings about the controller and the leases as text, for a cluster with these
    /// objects.
    fn found(objects: &[Value]) -> String {
        let driver = json!({"kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false}});
        let all = [&[driver, lease("")], objects].concat();
        let text = json!({"kind": "List", "items": all}).to_string();
        let objects = Objects::parse(&text).unwrap();
        let report = judge(&objects, Kind::Nfs.peer(), UNIX_EPOCH).to_json();
        let all = report["findings"].as_array().unwrap().iter();
        let ours = all.filter(|it| it["name"] == NAME || it["name"] == "leases of the sidecars");
        ours.map(|it| it.to_string() + "\n").collect()
    }

    #[test]
    fn a_controller_that_runs_may_go_on_and_one_that_was_stopped_must_hold_no_lease() {
        let running = found(&[controller(2), lease("pod")]);
        assert!(running.contains("kube-system/csi-nfs: runs. It may go on"));
        assert!(!running.contains("leases"), "{running}");
        let stopped = found(&[controller(0), lease("pod")]);
        assert!(stopped.contains("held: a sidecar"), "{stopped}");
        let gone = found(&[lease("")]);
        assert!(gone.contains("none is held") && gone.contains("no known obstacle"));
    }

    /// After the switch, Belay's sidecars hold leases with the same names.
    #[test]
    fn leases_next_to_belays_own_controller_are_not_the_drivers() {
        let mut own = controller(1);
        own["metadata"] = json!({"namespace": "belay-system", "name": "belay-controller-nfs",
            "labels": {"app.kubernetes.io/name": "belay"}});
        own["spec"]["template"] = json!({});
        let mut held = lease("pod");
        held["metadata"]["namespace"] = json!("belay-system");
        let with_own = found(&[own, held.clone()]);
        assert!(with_own.contains("none is held"), "{with_own}");
        assert!(found(&[held]).contains("held: a sidecar"));
    }

    #[test]
    fn a_controller_of_belay_that_does_not_adopt_is_a_warning() {
        for (args, is_strict) in [
            (json!(["--backend=nfs"]), true),
            (json!(["--backend=nfs", "--nfs-adopt"]), false),
            (json!(["--backend=local"]), false),
        ] {
            let own = json!({"kind": "Deployment",
                "metadata": {"namespace": "belay-system", "name": "belay-controller-nfs"},
                "spec": {"template": {"spec": {"containers": [{"args": args}]}}}});
            let found = found(&[own]);
            assert_eq!(found.contains("has no --nfs-adopt"), is_strict, "{found}");
        }
    }

    #[test]
    fn what_the_controller_cannot_take_over_is_a_warning() {
        let cuts = [
            "filer#exports#../x#../x#data",
            "fi:ler#exports#cut#cut#data",
        ];
        let [outside, strange] = cuts.map(snapshot);
        let with_secret = json!({"kind": "VolumeSnapshotClass", "metadata": {"name": "archives"},
            "driver": DRIVER,
            "parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "options"}});
        let mut secret = volume("filer#exports#data##");
        secret["metadata"]["annotations"] =
            json!({"volume.kubernetes.io/provisioner-deletion-secret-name": "options"});
        let foreign = json!({"server": "filer", "share": "/", "colour": "red"});
        let credentials = json!({"server": "filer", "share": "/",
            "csi.storage.k8s.io/provisioner-secret-name": "options"});
        let constant =
            json!({"server": "filer", "Share": "/", "SUBDIR": "x/${pvc.metadata.namespace}"});
        for (object, part) in [
            (outside, "neither restores nor deletes"),
            (strange, "neither restores nor deletes"),
            (with_secret, "snapshotter-secret-name"),
            (
                volume("filer#exports#data#n#delete#more"),
                "FAILED_PRECONDITION",
            ),
            (volume("filer#exports##n#"), "FAILED_PRECONDITION"),
            (volume("filer#exports#a/../b#n#"), "FAILED_PRECONDITION"),
            // Belay's controller parses volume IDs with the same function, so the controller
            // refuses these IDs.
            (volume("fi:ler#exports#data##"), "FAILED_PRECONDITION"),
            (volume("filer#a//b#data##"), "FAILED_PRECONDITION"),
            (volume("filer#exports#.belay/x##"), "FAILED_PRECONDITION"),
            (volume("filer#exports#a\\..\\b##"), "FAILED_PRECONDITION"),
            (volume("filer#exports#data#../n#"), "FAILED_PRECONDITION"),
            (volume("filer#exports#data##keep"), "FAILED_PRECONDITION"),
            (secret, "right to get it"),
            (class(&credentials), "uses mountOptions alone"),
            (class(&foreign), "refuses"),
            (class(&constant), "one directory"),
        ] {
            let found = found(&[object]);
            assert!(
                found.contains(part) && found.contains("warn"),
                "{part}: {found}"
            );
            assert!(!found.contains("no known obstacle"), "{found}");
        }
    }

    #[test]
    fn volumes_and_classes_of_csi_driver_nfs_are_no_obstacle() {
        let mut static_one = volume("any text");
        static_one["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        let parameters = json!({"Server": "filer", "share": "/exports", "mountPermissions": "0",
            "subdir": "${pvc.metadata.namespace}/${pvc.metadata.name}", "onDelete": "archive",
            "csi.storage.k8s.io/provisioner-secret-namespace": "kube-system"});
        let found = found(&[
            volume("filer#exports#data##"),
            snapshot("filer#exports#cut#cut#data"),
            snapshot("no archive"),
            volume("filer##ns/data#pvc-1#archive"),
            volume("filer/exports/data"),
            // No driver creates these IDs, so no directory exists for them.
            volume("filer"),
            volume("filer/exports"),
            static_one,
            class(&parameters),
        ]);
        assert!(found.contains("no known obstacle"), "{found}");
    }
}
