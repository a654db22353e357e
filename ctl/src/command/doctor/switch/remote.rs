//! Rules about a driver for network filesystems. Each node mounts the volumes without an
//! attachment, so the CSIDriver object must set `attachRequired` to false.

use belay_contract::mount_flags;
use serde_json::Value;

use super::rules::{Case, Good, Rule, Section, Subject, Test, warning, wrong};
use super::storage::{ATTACHMENTS, VOLUMES};
use crate::objects::Object;
use crate::report::{Report, Verdict};

/// The maximum length of a mount source, in bytes: the limit of fsconfig(2).
const SOURCE_BYTES_MAX: usize = 255;
const OBJECT: &str = "CSIDriver";
const OBJECTS: Subject = Subject::Ours(OBJECT, "/metadata/name");

#[rustfmt::skip]
pub(super) const SECTIONS: [Section; 3] = [
    Section {
        name: OBJECT,
        applies: |case| case.ours(OBJECT, "/metadata/name").next().is_some(),
        rules: &[
            wrong(OBJECTS,
                Test::Is(|it, _| it.at("/spec/attachRequired") != Some(&Value::Bool(false))),
                "attachRequired is not false: pods would wait for an attachment",
                "delete the object, and let Belay's chart create it"),
            warning(OBJECTS, Test::Is(|it, _| {
                let mut modes = it.texts("/spec/volumeLifecycleModes");
                modes.any(|mode| mode == "Ephemeral")
            }),
                "allows inline volumes, which Belay refuses",
                "use PersistentVolumes in these pods"),
        ],
        good: Good::IfAllHold(
            "attachRequired: false; keep the object (csiDriver.create: false), or replace it",
        ),
        ..Section::ALWAYS
    },
    Section {
        name: "attachments",
        rules: &[warning(ATTACHMENTS, Test::Is(|_, _| true),
            "left from a time without the CSIDriver object; no program attaches or detaches",
            "kubectl delete volumeattachment NAME, when the CSIDriver object is there")],
        good: Good::IfAllHold("none, as it must be"),
        ..Section::ALWAYS
    },
    Section {
        name: "volumes",
        rules: VOLUME_RULES,
        good: Good::IfNoneIsWrong("{0} without a known obstacle"),
        ..Section::ALWAYS
    },
];

/// Conditions under which Belay cannot mount a volume.
#[rustfmt::skip]
const VOLUME_RULES: &[Rule] = &[
    wrong(VOLUMES, Test::Is(|it, _| {
        ["server", "share"]
            .iter()
            .any(|key| attribute(it, key).is_empty())
    }),
        "have no attribute server or share",
        "create the PersistentVolume again with both: the data stays on the server"),
    wrong(VOLUMES, Test::Is(|it, _| {
        ["share", "subDir"]
            .iter()
            .any(|key| is_indirect(attribute(it, key)))
    }),
        "have a path with an empty part, `.` or `..`, which Belay refuses",
        "create the PersistentVolume again with the direct path: the data stays there"),
    wrong(VOLUMES, Test::Is(|it, _| source_bytes(it) > SOURCE_BYTES_MAX),
        "server, share and subDir have more than 255 bytes",
        "export the directory by a shorter path"),
    wrong(VOLUMES, Test::Is(|it, _| it.text("/spec/volumeMode") == "Block"),
        "raw block volumes, which no directory is",
        "use volumeMode Filesystem"),
    wrong(VOLUMES, Test::Is(|it, _| has_refused_option(it)),
        "have a mount option that Belay refuses, such as addr, bind or remount",
        "create the PersistentVolume again without the option"),
    warning(VOLUMES, Test::Is(|it, _| options(it).any(|it| it.starts_with("sec=krb5"))),
        "use Kerberos, which is not tested with Belay",
        "try one of them first"),
];

/// Reports a missing CSIDriver object: without it, Kubernetes waits for attachments, which no
/// program creates.
pub(super) fn object(report: &mut Report, case: &Case<'_>) {
    if case.ours(OBJECT, "/metadata/name").next().is_none() {
        let what = "not in the input: while it is missing, pods that start wait for an attachment";
        let cure = "let Belay's chart create it (csiDriver.create), before the next pod starts";
        report.cure(Verdict::Warn, OBJECT, what, cure);
    }
}

/// Returns the volume attribute of this name; the case of letters is ignored.
fn attribute<'a>(volume: Object<'a>, name: &str) -> &'a str {
    let attributes = "/spec/csi/volumeAttributes";
    let mut keys = volume.keys(attributes);
    let key = keys.find(|key| key.eq_ignore_ascii_case(name));
    key.map_or("", |key| volume.text(&format!("{attributes}/{key}")))
}

fn is_indirect(path: &str) -> bool {
    let path = path.trim_matches('/');
    let mut parts = path.split('/');
    !path.is_empty() && parts.any(|part| ["", ".", ".."].contains(&part))
}

/// Returns the length of the mount source `SERVER:/SHARE/DIRECTORY` in bytes. Templates in the
/// directory are not expanded.
fn source_bytes(volume: Object<'_>) -> usize {
    let paths = ["share", "subDir"].map(|key| attribute(volume, key).trim_matches('/'));
    let paths = paths.iter().filter(|path| !path.is_empty());
    let length = paths.map(|path| path.len() + 1).sum::<usize>();
    attribute(volume, "server").len() + 1 + length
}

/// Returns the comma-separated lists of mount options of a PersistentVolume.
fn lists<'a>(volume: Object<'a>) -> impl Iterator<Item = &'a str> {
    let more = std::iter::once(attribute(volume, "mountOptions"));
    volume.texts("/spec/mountOptions").chain(more)
}

fn options<'a>(volume: Object<'a>) -> impl Iterator<Item = &'a str> {
    let all = lists(volume).flat_map(|list| list.split(','));
    all.map(str::trim)
}

fn has_refused_option(volume: Object<'_>) -> bool {
    let lists: Vec<_> = lists(volume).collect();
    mount_flags::parse_remote(&lists).is_err()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::super::{Kind, judge};
    use super::*;
    use crate::objects::Objects;

    const DRIVER: &str = "nfs.csi.k8s.io";

    fn volume() -> Value {
        json!({"kind": "PersistentVolume", "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem",
                "mountOptions": ["nfsvers=4.1"],
                "csi": {"driver": DRIVER, "volumeHandle": "filer#exports#data##",
                    "volumeAttributes":
                        {"Server": "filer", "share": "/exports/", "subDir": "data"}}}})
    }

    fn workload(kind: &str, pods: u32) -> Value {
        let image = "registry.k8s.io/sig-storage/nfsplugin:v4.11.0";
        json!({"kind": kind, "metadata": {"namespace": "kube-system", "name": "csi-nfs"},
            "spec": {"replicas": pods, "template": {"spec": {"containers": [{"image": image}]}}},
            "status": {"replicas": pods, "currentNumberScheduled": pods}})
    }

    /// Returns the report for a cluster whose node plugin is stopped, after the change is applied.
    fn cluster(change: impl FnOnce(&mut Vec<Value>)) -> Report {
        let mut objects = vec![
            json!({"kind": "CSIDriver", "metadata": {"name": DRIVER},
                "spec": {"attachRequired": false, "volumeLifecycleModes": ["Persistent"]}}),
            workload("Deployment", 1),
            workload("DaemonSet", 0),
            volume(),
        ];
        change(&mut objects);
        let text = json!({"kind": "List", "items": objects}).to_string();
        judge(
            &Objects::parse(&text).unwrap(),
            Kind::Nfs.peer(),
            UNIX_EPOCH,
        )
    }

    #[track_caller]
    fn expect(verdict: &str, name: &str, part: &str, change: impl FnOnce(&mut Vec<Value>)) {
        let report = cluster(change).to_json();
        let mut findings = report["findings"].as_array().unwrap().iter();
        let found = findings.any(|it| {
            it["verdict"] == verdict && it["name"] == name && it.to_string().contains(part)
        });
        assert!(found, "{verdict} {name} {part} in {report:#}");
    }

    #[test]
    fn a_cluster_whose_node_plugin_is_stopped_can_be_switched_with_its_controller_running() {
        let report = cluster(|_| ());
        let table = report.table();
        assert!(
            report.is_good() && table.contains(" 0 warnings, 0 wrong"),
            "{table}"
        );
    }

    #[test]
    fn a_node_plugin_that_runs_is_wrong() {
        let delete = "delete daemonset csi-nfs";
        expect("NO", "pods of the driver", delete, |all| {
            all[2] = workload("DaemonSet", 3)
        });
        // Terminating pods on nodes that the selector no longer matches count as misscheduled.
        expect("NO", "pods of the driver", "csi-nfs: 2;", |all| {
            all[2]["status"]["numberMisscheduled"] = json!(2);
        });
        let pod = |owner: &str| {
            json!({"kind": "Pod", "metadata": {"name": "p", "ownerReferences": [{"kind": owner}]},
                "spec": {"containers": [{"image": "registry.k8s.io/sig-storage/nfsplugin:v4"}]}})
        };
        expect("NO", "pods of the driver", "p: still there", |all| {
            all.push(pod("DaemonSet"))
        });
        let controllers = cluster(|all| all.push(pod("ReplicaSet")));
        assert!(controllers.is_good(), "{}", controllers.table());
        let without = "the input has no DaemonSet";
        expect("NO", "pods of the driver", without, |all| {
            drop(all.remove(2))
        });
    }

    #[test]
    fn without_its_object_or_with_attachments_pods_would_wait() {
        expect("warn", "CSIDriver", "csiDriver.create", |all| {
            drop(all.remove(0))
        });
        for value in [json!(true), Value::Null] {
            expect("NO", "CSIDriver", "attachRequired is not false", |all| {
                all[0]["spec"]["attachRequired"] = value;
            });
        }
        expect("warn", "CSIDriver", "inline volumes", |all| {
            all[0]["spec"]["volumeLifecycleModes"] = json!(["Persistent", "Ephemeral"]);
        });
        expect("warn", "attachments", "csi-1", |all| {
            all.push(
                json!({"kind": "VolumeAttachment", "metadata": {"name": "csi-1"},
                "spec": {"attacher": DRIVER}}),
            );
        });
    }

    #[test]
    fn volumes_that_belay_cannot_mount_are_named() {
        let attributes = "/spec/csi/volumeAttributes";
        for (pointer, value, part) in [
            ("/Server", json!(""), "no attribute server"),
            ("/share", json!("/exports/../etc"), "an empty part"),
            ("/subDir", json!("a//b"), "an empty part"),
            ("/subDir", json!("d".repeat(241)), "255 bytes"),
        ] {
            expect("NO", "volumes", part, |all| {
                *all[3]
                    .pointer_mut(&format!("{attributes}{pointer}"))
                    .unwrap() = value;
            });
        }
        expect("NO", "volumes", "raw block", |all| {
            all[3]["spec"]["volumeMode"] = json!("Block")
        });
        for options in [
            json!(["hard,addr=10.0.0.9"]),
            json!(["remount"]),
            json!(["ro", "rw"]),
        ] {
            expect("NO", "volumes", "mount option", |all| {
                all[3]["spec"]["mountOptions"] = options;
            });
        }
        expect("warn", "volumes", "Kerberos", |all| {
            all[3]["spec"]["csi"]["volumeAttributes"]["mountOptions"] = json!("sec=krb5p");
        });
    }

    #[test]
    fn the_root_of_a_share_and_slashes_at_ends_are_no_reason() {
        let plain = |all: &mut Vec<Value>| {
            let attributes = &mut all[3]["spec"]["csi"]["volumeAttributes"];
            attributes["subDir"] = json!("");
            attributes["share"] = json!("/");
        };
        expect("ok", "volumes", "1 without a known obstacle", plain);
    }
}
