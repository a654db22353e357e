//! What users of the cluster have written for the peer: hints in the annotations of claims, and
//! inline volumes of pods. Belay has neither.

use super::objects::{Object, Objects};
use super::peer::Peer;
use super::settings::Flags;
use super::storage::escaped;
use super::{Names, about, running};
use crate::report::{Report, Verdict};

const CLAIMS: &str = "claims";
const INLINE: &str = "inline volumes";
/// The annotations with hints for Cinder's scheduler.
const HINTS: [&str; 2] = [
    "cinder.csi.openstack.org/affinity",
    "cinder.csi.openstack.org/anti-affinity",
];

/// Claims, and templates of claims, with hints in their annotations.
pub(super) fn hints(report: &mut Report, objects: &Objects, peer: &Peer) {
    if !peer.chooses_cloud {
        return;
    }
    let mut found = Names::of(objects.of("PersistentVolumeClaim").filter(has_hint));
    let sets = objects.of("StatefulSet").filter(|set| {
        let mut templates = set.list("/spec/volumeClaimTemplates");
        templates.any(|template| has_hint(&template))
    });
    let templates = sets.map(|set| format!("StatefulSet {}", set.full_name()));
    found.0.extend(templates);
    let what = "have hints for Cinder's scheduler in annotations, which Belay ignores";
    let cure = "volumes that exist stay where they are. For new claims, use classes with the \
                parameters cinder.csi.openstack.org/affinity or …/anti-affinity";
    about(report, Verdict::Warn, CLAIMS, &found, what, cure);
    let mut containers = running::containers(objects, peer);
    let is_asked = containers.any(|(.., it)| Flags::of(it).is_on("pvc-annotations", false));
    if is_asked && !objects.have("PersistentVolumeClaim") {
        let what = "the driver runs with --pvc-annotations, and the input has no \
                    PersistentVolumeClaim: whether one has hints is not known";
        let cure = "add it to the objects: `belayctl doctor --help` has the command";
        report.cure(Verdict::Skip, CLAIMS, what, cure);
    } else if is_asked && found.is_empty() {
        let what = "the driver runs with --pvc-annotations, and no claim has such annotations";
        report.add(Verdict::Ok, CLAIMS, what);
    }
}

fn has_hint(object: &Object<'_>) -> bool {
    let text = |key: &&str| object.text(&format!("/metadata/annotations/{}", escaped(key)));
    HINTS.iter().any(|key| !text(key).is_empty())
}

/// Pods with inline volumes of the driver, and workloads that create such pods.
pub(super) fn inline(report: &mut Report, objects: &Objects, driver: &str) {
    let object = objects.of("CSIDriver").find(|it| it.name() == driver);
    // Without the object, or without the mode, the kubelet refuses them.
    let is_possible = object.is_some_and(|it| {
        let mut modes = it.texts("/spec/volumeLifecycleModes");
        modes.any(|mode| mode == "Ephemeral")
    });
    if !is_possible {
        return;
    }
    let has = |object: &Object<'_>, pointer: &str| {
        let mut volumes = object.list(pointer);
        volumes.any(|volume| volume.text("/csi/driver") == driver)
    };
    let mut found = Names::of(objects.of("Pod").filter(|it| has(it, "/spec/volumes")));
    for kind in ["Deployment", "StatefulSet", "DaemonSet"] {
        let all = objects.of(kind);
        let all = all.filter(|it| has(it, "/spec/template/spec/volumes"));
        found
            .0
            .extend(all.map(|it| format!("{kind} {}", it.full_name())));
    }
    let what = "have inline volumes of the driver, which Belay refuses";
    let cure = "use generic ephemeral volumes (ephemeral.volumeClaimTemplate), and delete the pods \
                while the driver runs: Belay would unmount such a volume, and neither detach nor \
                delete it";
    about(report, Verdict::No, INLINE, &found, what, cure);
    if found.is_empty() && !objects.have("Pod") {
        let what = "the CSIDriver object allows them, and the input has no Pod";
        let cure = "add it to the objects: `belayctl doctor --help` has the command";
        report.cure(Verdict::Skip, INLINE, what, cure);
    } else if found.is_empty() {
        report.add(
            Verdict::Ok,
            INLINE,
            "none, though the CSIDriver object allows them",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{DRIVER, cluster, expect, workload};
    use super::*;

    fn claim(annotations: &Value) -> Value {
        json!({"kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "shop", "name": "data", "annotations": annotations}})
    }

    fn asked(all: &mut [Value]) {
        all[1]["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["--pvc-annotations"]);
    }

    #[test]
    fn claims_and_templates_with_hints_are_named() {
        for key in HINTS {
            let hint = json!({ key: "other" });
            let part = "shop/data: have hints";
            expect("warn", CLAIMS, part, |all| all.push(claim(&hint)));
            let mut set = workload("StatefulSet", "db", 1);
            set["spec"]["template"] = json!({});
            set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"annotations": hint}}]);
            let part = "StatefulSet kube-system/db: have hints";
            expect("warn", CLAIMS, part, |all| all.push(set));
        }
    }

    #[test]
    fn whether_claims_have_hints_is_said_only_of_a_driver_that_reads_them() {
        let plain = |all: &mut Vec<Value>| all.push(claim(&json!({"a": "b"})));
        assert!(!cluster(plain).table().contains(CLAIMS));
        expect("ok", CLAIMS, "no claim has such annotations", |all| {
            asked(all);
            plain(all);
        });
        expect("skip", CLAIMS, "no PersistentVolumeClaim", |all| asked(all));
    }

    #[test]
    fn pods_with_inline_volumes_are_wrong_and_unread_pods_are_not_called_good() {
        let allowed = |all: &mut Vec<Value>| {
            all[0]["spec"] = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]});
        };
        let inline = json!([{"name": "data", "csi": {"driver": DRIVER}}]);
        let pod = |volumes: &Value| {
            json!({"kind": "Pod", "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"volumes": volumes}})
        };
        let part = "shop/web: have inline volumes";
        expect("NO", INLINE, part, |all| {
            allowed(all);
            all.push(pod(&inline));
        });
        expect("NO", INLINE, "Deployment kube-system/web", |all| {
            allowed(all);
            let mut web = workload("Deployment", "web", 0);
            web["spec"]["template"]["spec"] = json!({"volumes": inline});
            all.push(web);
        });
        let other = json!([{"name": "data", "csi": {"driver": "secrets.csi"}}]);
        expect("ok", INLINE, "none, though", |all| {
            allowed(all);
            all.push(pod(&other));
        });
        expect("skip", INLINE, "the input has no Pod", allowed);
        assert!(
            !cluster(|all| all.push(pod(&inline)))
                .table()
                .contains(INLINE)
        );
    }
}
