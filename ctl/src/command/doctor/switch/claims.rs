//! Rules about features of the driver that Belay does not support: scheduler hints in the
//! annotations of PersistentVolumeClaims, and inline volumes of pods.

use super::rules::{Case, Rule, Section, Subject, Test, warning, wrong};
use super::workloads::{Flags, containers};
use crate::objects::{Object, escaped};
use crate::report::{Report, Verdict};

const CLAIMS: &str = "claims";
const INLINE: &str = "inline volumes";
/// The annotations with hints for Cinder's scheduler.
const HINTS: [&str; 2] = [
    "cinder.csi.openstack.org/affinity",
    "cinder.csi.openstack.org/anti-affinity",
];
const READ_MORE: &str = "add it to the objects: `belayctl doctor --help` has the command";

/// The rules about claims, and templates of claims, that have scheduler hints in their annotations.
const HINT_RULES: Section = Section {
    name: CLAIMS,
    applies: |case| case.peer.chooses_cloud,
    rules: &[
        hint(
            Subject::All("PersistentVolumeClaim"),
            Test::Is(|it, _| has_hint(it)),
        ),
        hint(
            Subject::Workloads,
            Test::Is(|it, _| it.list("/spec/volumeClaimTemplates").any(has_hint)),
        ),
    ],
    ..Section::ALWAYS
};

const fn hint(about: Subject, test: Test) -> Rule {
    let what = "have hints for Cinder's scheduler in annotations, which Belay ignores";
    let cure = "volumes that exist stay where they are. For new claims, use classes with the \
                parameters cinder.csi.openstack.org/affinity or …/anti-affinity";
    warning(about, test, what, cure)
}

/// The rules about pods with inline volumes of the driver, and workloads that create such pods. The
/// kubelet refuses these pods if the driver has no CSIDriver object, or if the object does not list
/// `Ephemeral`.
const INLINE_RULES: Section = Section {
    name: INLINE,
    applies: allows_inline,
    rules: &[
        inline(
            Subject::All("Pod"),
            Test::Is(|it, case| is_inline(it, "/spec/volumes", case)),
        ),
        inline(
            Subject::Workloads,
            Test::Is(|it, case| is_inline(it, "/spec/template/spec/volumes", case)),
        ),
    ],
    ..Section::ALWAYS
};

const fn inline(about: Subject, test: Test) -> Rule {
    let what = "have inline volumes of the driver, which Belay refuses";
    let cure = "use generic ephemeral volumes (ephemeral.volumeClaimTemplate), and delete the pods \
                while the driver runs: Belay would unmount such a volume, and neither detach nor \
                delete it";
    wrong(about, test, what, cure)
}

/// Reports claims with scheduler hints and pods with inline volumes, or that there are none. If the
/// input has no claims or no pods at all, reports that the result is unknown.
pub(super) fn findings(report: &mut Report, case: &Case<'_>) {
    let has_hints = HINT_RULES.judge(report, case);
    let mut all = containers(case.objects, case.peer);
    let reads_hints = all.any(|(.., it)| Flags::of(it).is_on("pvc-annotations", false));
    if case.peer.chooses_cloud && reads_hints {
        if !case.objects.have("PersistentVolumeClaim") {
            let what = "the driver runs with --pvc-annotations, and the input has no \
                        PersistentVolumeClaim: whether one has hints is not known";
            report.cure(Verdict::Skip, CLAIMS, what, READ_MORE);
        } else if !has_hints {
            let what = "the driver runs with --pvc-annotations, and no claim has such annotations";
            report.add(Verdict::Ok, CLAIMS, what);
        }
    }
    if INLINE_RULES.judge(report, case) || !allows_inline(case) {
        return;
    }
    if case.objects.have("Pod") {
        let what = "none, though the CSIDriver object allows them";
        report.add(Verdict::Ok, INLINE, what);
    } else {
        let what = "the CSIDriver object allows them, and the input has no Pod";
        report.cure(Verdict::Skip, INLINE, what, READ_MORE);
    }
}

fn has_hint(object: Object<'_>) -> bool {
    let text = |key: &&str| object.text(&format!("/metadata/annotations/{}", escaped(key)));
    HINTS.iter().any(|key| !text(key).is_empty())
}

fn allows_inline(case: &Case<'_>) -> bool {
    let mut modes = case
        .ours("CSIDriver", "/metadata/name")
        .flat_map(|it| it.texts("/spec/volumeLifecycleModes"));
    modes.any(|mode| mode == "Ephemeral")
}

fn is_inline(object: Object<'_>, pointer: &str, case: &Case<'_>) -> bool {
    let mut volumes = object.list(pointer);
    volumes.any(|volume| volume.text("/csi/driver") == case.driver)
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
