//! Tests with a cluster that can be switched, and with changes that prevent or restrict the switch.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::*;

pub(super) const DRIVER: &str = "cinder.csi.openstack.org";
const ID: &str = "0f1b9c1e-9c51-4b5f-8f32-4b6d2f0f7a11";
const NODE_ID: &str = "7d2c1a90-6a7e-4a0b-9f5c-2f1d3c4b5a69";

/// Returns the report for a cluster that can be switched, after `change` is applied to its objects.
pub(super) fn cluster(change: impl FnOnce(&mut Vec<Value>)) -> Report {
    let mut objects = vec![
        json!({"kind": "CSIDriver", "metadata": {"name": DRIVER}}),
        workload("Deployment", "controller", 0),
        lease("external-attacher-leader-cinder-csi-openstack-org", ""),
        json!({"kind": "Node", "metadata": {"name": "n"},
            "spec": {"providerID": format!("openstack:///{NODE_ID}")}}),
        json!({"kind": "CSINode", "metadata": {"name": "n"},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE_ID}]}}),
        volume("data", |_| ()),
        json!({"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": DRIVER,
            "parameters": {"type": "ssd", "csi.storage.k8s.io/fstype": "xfs"}}),
        json!({"kind": "VolumeAttachment", "metadata": {"name": "csi-1"},
            "spec": {"attacher": DRIVER}, "status": {"attached": true}}),
    ];
    change(&mut objects);
    let text = json!({"kind": "List", "items": objects}).to_string();
    let objects = Objects::parse(&text).unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    judge(&objects, Kind::Cinder.peer(), now)
}

pub(super) fn volume(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut volume = json!({"kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "csi": {"driver": DRIVER, "volumeHandle": ID, "fsType": "ext4"}}});
    change(&mut volume);
    volume
}

pub(super) fn workload(kind: &str, name: &str, pods: u32) -> Value {
    let image = "registry.k8s.io/provider-os/cinder-csi-plugin:v1.35.0";
    json!({"kind": kind, "metadata": {"namespace": "kube-system", "name": name},
        "spec": {"replicas": pods, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"replicas": pods, "desiredNumberScheduled": pods}})
}

/// Returns a lease that was renewed just now.
fn lease(name: &str, holder: &str) -> Value {
    json!({"kind": "Lease", "metadata": {"namespace": "kube-system", "name": name},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
            "renewTime": "2027-01-15T08:00:00.000000Z"}})
}

#[track_caller]
pub(super) fn expect(verdict: &str, name: &str, part: &str, change: impl FnOnce(&mut Vec<Value>)) {
    let report = cluster(change).to_json();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().any(|it| {
        let text = ["detail", "cure"].map(|field| it[field].as_str().unwrap());
        let text = text.join(" ");
        it["verdict"] == verdict && it["name"] == name && text.contains(part)
    });
    assert!(found, "{verdict} {name} {part} in {report:#}");
}

#[test]
fn a_cluster_whose_driver_is_stopped_can_be_switched() {
    let report = cluster(|_| ());
    assert!(report.is_good(), "{}", report.table());
    let table = report.table();
    assert!(
        table.contains(" 0 warnings, 0 wrong, 0 not checked"),
        "{table}"
    );
}

#[test]
fn a_running_pod_of_the_driver_is_wrong() {
    let scale = "kubectl --namespace kube-system scale deployment controller --replicas=0";
    expect("NO", "pods of the driver", scale, |all| {
        all[1] = workload("Deployment", "controller", 2)
    });
    expect(
        "NO",
        "pods of the driver",
        "delete daemonset plugin",
        |all| {
            all.push(workload("DaemonSet", "plugin", 3));
        },
    );
}

#[test]
fn a_pod_that_outlives_its_workload_is_wrong_until_it_has_ended() {
    let pod = |phase: &str| {
        json!({"kind": "Pod", "metadata": {"namespace": "kube-system", "name": "plugin-x"},
            "spec": {"containers": [{"image": "sidecar"}, {"image": "r/cinder-csi-plugin:v1"}]},
            "status": {"phase": phase}})
    };
    let part = "kube-system/plugin-x: still there";
    expect("NO", "pods of the driver", part, |all| {
        all.push(pod("Running"))
    });
    assert!(cluster(|all| all.push(pod("Succeeded"))).is_good());
    // While the Deployment counts the pod, only the finding about the Deployment is reported.
    let running = cluster(|all| {
        all[1] = workload("Deployment", "controller", 1);
        all.push(pod("Running"));
    });
    assert!(!running.table().contains("still there"));
}

#[test]
fn a_driver_whose_pod_may_have_a_clouds_yaml_is_a_warning_that_says_where_it_goes() {
    let container = |field: &str, value: Value| {
        let (field, cure) = (field.to_owned(), "clouds-file = /etc/config/clouds.yaml");
        expect("warn", "account", cure, |all| {
            all[1]["spec"]["template"]["spec"]["containers"][0][&field] = value;
        });
    };
    container(
        "env",
        json!([{"name": "A"}, {"name": "OS_CLOUD", "value": "prod"}]),
    );
    container("volumeMounts", json!([{"mountPath": "/etc/openstack/"}]));
    container("volumeMounts", json!([{"mountPath": "/srv/clouds.yaml"}]));
    let other = cluster(|all| {
        let container = &mut all[1]["spec"]["template"]["spec"]["containers"][0];
        container["env"] = json!([{"name": "CLOUD_CONFIG"}]);
        container["volumeMounts"] = json!([{"mountPath": "/etc/config"}]);
    });
    assert!(other.is_good() && !other.table().contains("account"));
}

#[test]
fn a_lease_is_held_until_twice_its_duration_has_passed() {
    let name = "external-attacher-leader-cinder-csi-openstack-org";
    expect("NO", "leases of the sidecars", name, |all| {
        all[2] = lease(name, "pod-1")
    });
    let old = |all: &mut Vec<Value>| {
        all[2] = lease(name, "pod-1");
        all[2]["spec"]["renewTime"] = json!("2027-01-15T07:59:29.000000Z");
    };
    expect("ok", "leases of the sidecars", "none is held", old);
    let nonsense = |all: &mut Vec<Value>| {
        all[2] = lease(name, "pod-1");
        all[2]["spec"]["renewTime"] = json!("yesterday");
    };
    expect("NO", "leases of the sidecars", name, nonsense);
}

#[test]
fn a_lease_of_another_driver_does_not_matter() {
    let other = |all: &mut Vec<Value>| all.push(lease("external-attacher-leader-other", "pod-1"));
    expect("ok", "leases of the sidecars", "none is held", other);
}

#[test]
fn a_node_id_that_is_not_the_servers_is_wrong_while_a_volume_is_attached() {
    let other = |all: &mut Vec<Value>| {
        all[4]["spec"]["drivers"][0]["nodeID"] = json!("other");
    };
    let part = "n (other, providerID openstack:///";
    expect("warn", "node IDs", part, other);
    let attached = |all: &mut Vec<Value>| {
        other(all);
        all[7]["spec"]["nodeName"] = json!("n");
    };
    expect("NO", "node IDs", part, attached);
    expect("NO", "node IDs", "kubectl drain", attached);
    let part = "1 nodes, 0 of them compared";
    expect("ok", "node IDs", part, |all| {
        attached(all);
        all[3]["spec"]["providerID"] = json!("k3s://n");
    });
}

#[test]
fn volumes_that_belay_cannot_serve_are_named() {
    for (part, change) in [
        (
            "bad: the volumeHandle is no UUID",
            ("/spec/csi/volumeHandle", json!("pvc-1")),
        ),
        (
            "bad: the volumeHandle is no UUID",
            (
                "/spec/csi/volumeHandle",
                json!("7F8B1C2D-1111-4222-8333-444455556666"),
            ),
        ),
        (
            "bad: a filesystem that Belay does not mount",
            ("/spec/csi/fsType", json!("ext3")),
        ),
        (
            "bad: a filesystem with access modes for several nodes",
            ("/spec/accessModes/0", json!("ReadWriteMany")),
        ),
    ] {
        let (pointer, value) = change;
        let bad = volume("bad", |it| *it.pointer_mut(pointer).unwrap() = value);
        expect("NO", "volumes", part, |all| all.push(bad));
    }
}

#[test]
fn a_raw_volume_has_no_filesystem() {
    let raw = volume("raw", |it| {
        it["spec"]["volumeMode"] = json!("Block");
        it["spec"]["csi"]["fsType"] = json!("ext3");
    });
    expect("ok", "volumes", "2 can be taken over", |all| all.push(raw));
}

#[test]
fn a_raw_volume_of_several_nodes_can_be_taken_over_if_its_type_lets_it() {
    for mode in ["ReadWriteMany", "ReadOnlyMany"] {
        let many = volume("many", |it| {
            it["spec"]["volumeMode"] = json!("Block");
            it["spec"]["accessModes"][0] = json!(mode);
        });
        let change = |all: &mut Vec<Value>| all.push(many.clone());
        let what = "many: raw, with access modes for several nodes";
        expect("warn", "volumes", what, change);
        expect("warn", "volumes", "multiattach", change);
        expect("ok", "volumes", "2 can be taken over", change);
        assert!(cluster(change).is_good());
    }
}

#[test]
fn a_class_may_have_the_parameters_of_affinity() {
    let change = |all: &mut Vec<Value>| {
        for key in ["affinity", "anti-affinity"] {
            let key = format!("cinder.csi.openstack.org/{key}");
            all[6]["parameters"][key] = json!("data-0");
        }
    };
    expect("ok", "storage classes", "can be used as they are", change);
}

#[test]
fn volumes_of_other_drivers_are_ignored() {
    let other = volume("other", |it| {
        it["spec"]["csi"]["driver"] = json!("nfs.csi.k8s.io");
        it["spec"]["csi"]["volumeHandle"] = json!("server#share");
    });
    expect("ok", "volumes", "1 can be taken over", |all| {
        all.push(other)
    });
}

#[test]
fn secrets_zones_and_deletions_are_warnings() {
    let change = |all: &mut Vec<Value>| {
        all.push(volume("secret", |it| {
            it["spec"]["csi"]["nodeStageSecretRef"] = json!({"name": "s", "namespace": "n"});
        }));
        all.push(volume("zoned", |it| {
            let key = Kind::Cinder.peer().topology_key;
            let zone = json!({"key": key, "operator": "In", "values": ["a"]});
            let terms = json!([{ "matchExpressions": [zone] }]);
            it["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
        }));
        all.push(volume("going", |it| {
            it["metadata"]["deletionTimestamp"] = json!("2027-01-15T07:00:00Z");
        }));
    };
    expect("warn", "volumes", "secret: have secrets", change);
    expect("warn", "volumes", "going: being deleted", change);
    expect("warn", "zones", "zoned: require nodes", change);
}

#[test]
fn a_class_that_belay_would_refuse_is_named_with_the_parameter() {
    expect(
        "warn",
        "storage classes",
        "fast: Belay refuses parameter iops",
        |all| {
            all[6]["parameters"]["iops"] = json!("100");
        },
    );
    for key in ["csi.storage.k8s.io/fstype", "fstype"] {
        expect(
            "warn",
            "storage classes",
            "fast: Belay does not create ext3",
            |all| {
                all[6]["parameters"] = json!({ key: "ext3" });
            },
        );
    }
}

#[test]
fn the_secrets_of_a_class_are_named_and_calls_that_have_none() {
    let all_but = |missing: &'static str| {
        move |all: &mut Vec<Value>| {
            for call in ["provisioner", "controller-publish", "controller-expand"] {
                if call != missing {
                    let key = format!("csi.storage.k8s.io/{call}-secret-name");
                    all[6]["parameters"][key] = json!("region-two");
                    let key = format!("csi.storage.k8s.io/{call}-secret-namespace");
                    all[6]["parameters"][key] = json!("kube-system");
                }
            }
        }
    };
    let (name, secret) = (
        "storage classes",
        "fast: names Secret kube-system/region-two",
    );
    expect("warn", name, secret, all_but(""));
    let table = cluster(all_but("")).table();
    assert!(!table.contains("has no Secret"), "{table}");
    for missing in ["controller-publish", "controller-expand"] {
        expect("warn", name, secret, all_but(missing));
        let part = format!("fast: has no Secret for {missing} if the Secret");
        expect("warn", name, &part, all_but(missing));
    }
}

#[test]
fn a_snapshot_class_that_belay_would_refuse_is_named_with_the_parameter() {
    let part = "hourly: Belay refuses parameter tier";
    expect("warn", "snapshot classes", part, |all| {
        all.push(
            json!({"kind": "VolumeSnapshotClass", "metadata": {"name": "hourly"},
            "driver": DRIVER, "parameters": { "tier": "1", "type": "backup" }}),
        );
    });
}

#[test]
fn the_secrets_of_snapshots_and_of_their_classes_are_named() {
    let class = json!({"kind": "VolumeSnapshotClass", "metadata": {"name": "hourly"},
        "driver": DRIVER,
        "parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "region-two"}});
    let part = "hourly: name Secrets add each such Secret to `clouds`";
    expect("warn", "snapshot classes", part, |all| all.push(class));
    let content = json!({"kind": "VolumeSnapshotContent",
        "metadata": {"name": "cut", "annotations":
            {"snapshot.storage.kubernetes.io/deletion-secret-name": "region-two"}},
        "spec": {"driver": DRIVER}, "status": {"readyToUse": true}});
    let part = "cut: are deleted with a Secret";
    expect("warn", "snapshots", part, |all| all.push(content));
}

#[test]
fn a_snapshot_under_way_is_a_warning() {
    let content = |ready| {
        json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "cut"},
            "spec": {"driver": DRIVER}, "status": {"readyToUse": ready}})
    };
    expect("ok", "snapshots", "1 complete", |all| {
        all.push(content(true))
    });
    expect("warn", "snapshots", "cut: being created", |all| {
        all.push(content(false))
    });
}

#[test]
fn an_attachment_under_way_or_failed_is_a_warning() {
    expect("warn", "attachments", "csi-1: being attached", |all| {
        all[7]["status"]["attached"] = json!(false);
    });
    expect("warn", "attachments", "csi-1: the last attach", |all| {
        all[7]["status"]["detachError"] = json!({"message": "no"});
    });
}

#[test]
fn what_the_input_lacks_is_not_called_good() {
    for kind in ["Lease", "CSINode"] {
        let without = |all: &mut Vec<Value>| all.retain(|it| it["kind"] != kind);
        let report = cluster(without);
        let missing = format!("the input has no {kind}");
        assert!(
            report.table().contains(&missing) && !report.is_good(),
            "{}",
            report.table()
        );
    }
    let none = |all: &mut Vec<Value>| all.retain(|it| it["kind"] != "Deployment");
    expect(
        "NO",
        "pods of the driver",
        "the input has no Deployment",
        none,
    );
}

#[test]
fn a_cluster_without_the_driver_is_wrong() {
    let without = |all: &mut Vec<Value>| {
        all.retain(|it| {
            let text = it.to_string();
            it["kind"] == "CSINode" || !text.contains(DRIVER)
        });
    };
    expect("NO", "driver", "is of cinder.csi.openstack.org", without);
}

#[test]
fn encrypted_volumes_and_their_classes_are_named() {
    let class = |all: &mut Vec<Value>| {
        all[6]["parameters"] = json!({"luksEncrypted": "true"});
    };
    let part = "fast: luksEncrypted asks for encryption, in a way";
    expect("warn", "storage classes", part, class);
    expect(
        "warn",
        "storage classes",
        "fast: encrypted, without a Secret",
        |all| {
            all[6]["parameters"] = json!({"luks-encrypted": "true"});
        },
    );
    expect("ok", "storage classes", "", |all| {
        all[6]["parameters"] = json!({
            "luks-encrypted": "true",
            "luks-key-size": "512",
            "csi.storage.k8s.io/node-stage-secret-name": "volume-key",
            "csi.storage.k8s.io/node-stage-secret-namespace": "n",
        });
    });
    let part = "fast: parameters[example.com/luks-cipher]: must be aes-xts-plain64, not";
    expect("warn", "storage classes", part, |all| {
        all[6]["parameters"] = json!({"example.com/luks-cipher": "aes-cbc-essiv:sha256"});
    });
    // A driver may ignore the parameter, so the volumes of the class need not be encrypted.
    expect("ok", "volumes", "2 can be taken over", |all| {
        class(all);
        all.push(volume("of-class", |it| {
            it["spec"]["storageClassName"] = json!("fast");
        }));
    });
    for (verdict, part, key, value, secret) in [
        ("NO", "static: encrypted in a way", "luksMode", "true", None),
        (
            "NO",
            "static: encrypted, without",
            "luks-encrypted",
            "true",
            None,
        ),
        (
            "ok",
            "2 can be taken over",
            "luks-encrypted",
            "true",
            Some("volume-key"),
        ),
        ("ok", "2 can be taken over", "luks-encrypted", "false", None),
        (
            "NO",
            "static: volumeAttributes[example.com/luks-encrypted]: must be true or false",
            "luks-encrypted",
            "yes",
            None,
        ),
    ] {
        expect(verdict, "volumes", part, |all| {
            all.push(volume("static", |it| {
                let csi = &mut it["spec"]["csi"];
                csi["volumeAttributes"][format!("example.com/{key}")] = json!(value);
                if let Some(name) = secret {
                    csi["nodeStageSecretRef"] = json!({"name": name, "namespace": "n"});
                }
            }));
        });
    }
}

#[test]
fn a_class_may_have_any_parameter_where_belay_ignores_the_unknown() {
    for (kind, driver) in [
        (Kind::Digitalocean, "dobs.csi.digitalocean.com"),
        (Kind::Civo, "csi.civo.com"),
    ] {
        let objects = json!({"kind": "List", "items": [
            {"kind": "CSIDriver", "metadata": {"name": driver}},
            {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": driver,
                "parameters": {"iops": "100"}},
        ]});
        let objects = Objects::parse(&objects.to_string()).unwrap();
        let report = judge(&objects, kind.peer(), UNIX_EPOCH).to_json();
        let findings = report["findings"].as_array().unwrap();
        let mut classes = findings.iter().filter(|it| it["name"] == "storage classes");
        let found = classes.next().unwrap();
        assert_ne!(found["verdict"], "warn", "{found}");
        assert_eq!(classes.next(), None);
    }
}
