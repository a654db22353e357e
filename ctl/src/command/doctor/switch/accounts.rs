//! Where the controller of cinder-csi-plugin finds its account: `cloud.conf` and the files that it
//! names, and `clouds.yaml`, which the environment of its pod may name. Belay's pod has a Secret
//! alone, and another environment.

use super::objects::{Object, Objects};
use super::peer::Peer;
use super::running;
use super::settings::Flags;
use crate::report::{Report, Verdict};

const NAME: &str = "account";
/// The variables of OpenStack's clients that name a file or an entry of it.
const VARIABLES: [&str; 3] = ["OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE", "OS_CLOUD"];

/// Directories in which the clients look for the files.
const DIRECTORY: &str = "/etc/openstack";
const FILE: &str = "clouds.yaml";
/// The Secret and key of Belay's chart.
const SECRET: (&str, &str) = ("cloud-config", "cloud.conf");
/// Mounts of a program that also serves a node.
const OF_NODES: [&str; 3] = ["/csi", "/dev", "/var/lib/kubelet"];

/// Reports what the pods of the controller have.
pub(super) fn findings(report: &mut Report, objects: &Objects, peer: &Peer) {
    if !peer.chooses_cloud {
        return;
    }
    for (title, workload, container) in running::containers(objects, peer) {
        clouds_yaml(report, &title, container);
        let flags = Flags::of(container);
        if title.starts_with("DaemonSet") || !flags.is_controller() {
            continue;
        }
        let files = flags.values("cloud-config");
        let conf = files.last().and_then(|file| {
            let mount = mount_of(container, file)?;
            Some((*file, mount.text("/name")))
        });
        if let Some((file, volume)) = conf {
            cloud_conf(report, &title, workload, (file, volume));
        }
        let others = others(workload, container, conf.map_or("", |(_, volume)| volume));
        if !others.is_empty() {
            let what = format!("{title}: has {}", others.join(", "));
            let cure = "Belay's pod has none of it. If cloud.conf names such a file, as with \
                        ca-file, put it into the Secret of cloud.conf, and name it \
                        /etc/config/KEY; or set caBundle";
            report.cure(Verdict::Warn, NAME, what, cure);
        }
    }
}

/// Variables or files of `clouds.yaml`.
fn clouds_yaml(report: &mut Report, title: &str, container: Object<'_>) {
    let has = traces(container);
    if has.is_empty() {
        return;
    }
    let what = format!("{title}: has {}", has.join(", "));
    let cure = "Belay's controller reads clouds.yaml too: put the file, and secure.yaml if there \
                is one, into the Secret of cloud.conf, name it with clouds-file = \
                /etc/config/clouds.yaml, and the entry with cloud";
    report.cure(Verdict::Warn, NAME, what, cure);
}

/// The variables and mounts of a container that may lead to such a file.
fn traces(container: Object<'_>) -> Vec<String> {
    let variables = container.list("/env").map(|it| it.text("/name"));
    let variables = variables.filter(|name| VARIABLES.contains(name));
    let mounts = container
        .list("/volumeMounts")
        .map(|it| it.text("/mountPath"));
    let mounts = mounts.filter(|path| is_of_clouds_yaml(path));
    variables.chain(mounts).map(str::to_owned).collect()
}

fn is_of_clouds_yaml(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path == DIRECTORY || path.rsplit('/').next() == Some(FILE)
}

/// The innermost mount that has that file.
fn mount_of<'a>(container: Object<'a>, file: &str) -> Option<Object<'a>> {
    let length = |mount: &Object<'_>| mount.text("/mountPath").trim_end_matches('/').len();
    let mounts = container.list("/volumeMounts").filter(|mount| {
        let path = mount.text("/mountPath").trim_end_matches('/');
        let rest = file.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    mounts.max_by_key(length)
}

fn volume_of<'a>(workload: Object<'a>, name: &str) -> Option<Object<'a>> {
    let mut volumes = workload.list("/spec/template/spec/volumes");
    volumes.find(|volume| volume.text("/name") == name)
}

/// Where that file is, and how it comes into Belay's namespace.
fn cloud_conf(
    report: &mut Report,
    title: &str,
    workload: Object<'_>,
    (file, volume): (&str, &str),
) {
    let Some(volume) = volume_of(workload, volume) else {
        return;
    };
    let key = file.rsplit('/').next().unwrap_or(file);
    let (secret, directory) = (
        volume.text("/secret/secretName"),
        volume.text("/hostPath/path").trim_end_matches('/'),
    );
    if !secret.is_empty() {
        let namespace = workload.text("/metadata/namespace");
        let what = format!("{title}: cloud.conf is the key {key} of Secret {namespace}/{secret}");
        let cure = match (secret, key) == SECRET {
            true => "copy it into Belay's namespace".to_owned(),
            false => format!(
                "copy it into Belay's namespace, and set cloudConfig: {{secretName: {secret}, \
                 key: {key}}} in the chart's entry"
            ),
        };
        return report.cure(Verdict::Ok, NAME, what, cure);
    }
    let (what, source) = match directory {
        "" => ("in no Secret".to_owned(), "FILE".to_owned()),
        directory => {
            let file = match directory.ends_with(&format!("/{key}")) {
                true => directory.to_owned(),
                false => format!("{directory}/{key}"),
            };
            (format!("{file} of the host"), file)
        }
    };
    let cure = format!(
        "Belay reads it from a Secret alone. On a node that has the file: kubectl --namespace \
         belay-system create secret generic {} --from-file={}={source}",
        SECRET.0, SECRET.1
    );
    report.cure(
        Verdict::Warn,
        NAME,
        format!("{title}: cloud.conf is {what}"),
        cure,
    );
}

/// Other files of its pod, such as certificates.
fn others(workload: Object<'_>, container: Object<'_>, conf: &str) -> Vec<String> {
    let mounts = container.list("/volumeMounts").filter(|mount| {
        let path = mount.text("/mountPath").trim_end_matches('/');
        mount.text("/name") != conf && !is_of_clouds_yaml(path) && !OF_NODES.contains(&path)
    });
    let described = mounts.filter_map(|mount| {
        let volume = volume_of(workload, mount.text("/name"))?;
        let sources = [
            ("hostPath", "/hostPath/path"),
            ("Secret", "/secret/secretName"),
            ("ConfigMap", "/configMap/name"),
        ];
        let source = sources.into_iter().find_map(|(kind, pointer)| {
            let source = volume.text(pointer);
            (!source.is_empty()).then(|| format!("{kind} {source}"))
        })?;
        Some(format!("{} ({source})", mount.text("/mountPath")))
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{cluster, expect};
    use super::*;

    /// The controller reads `FILE` in a mount of that source, and has these mounts besides.
    fn reads(file: &str, source: Value, more: &[(&str, Value)]) -> impl Fn(&mut Vec<Value>) {
        let mut volumes = vec![source];
        volumes[0]["name"] = json!("conf");
        let mut mounts = vec![json!({"name": "conf", "mountPath": "/etc/config"})];
        for (path, source) in more {
            let mut volume = source.clone();
            volume["name"] = json!(path);
            volumes.push(volume);
            mounts.push(json!({"name": path, "mountPath": path}));
        }
        let file = format!("--cloud-config={file}");
        move |all: &mut Vec<Value>| {
            let spec = &mut all[1]["spec"]["template"]["spec"];
            spec["volumes"] = json!(volumes);
            spec["containers"][0]["volumeMounts"] = json!(mounts);
            spec["containers"][0]["args"] = json!([file]);
        }
    }

    fn secret(name: &str) -> Value {
        json!({"secret": {"secretName": name}})
    }

    #[test]
    fn the_secret_to_copy_is_named_and_what_the_values_must_say_of_it() {
        let own = reads("/etc/config/cloud.conf", secret("cloud-config"), &[]);
        let part = "Secret kube-system/cloud-config copy it into Belay's namespace";
        expect("ok", NAME, part, &own);
        assert!(!cluster(&own).table().contains("cloudConfig"));
        let other = reads("/etc/config/my.conf", secret("mine"), &[]);
        let part = "cloudConfig: {secretName: mine, key: my.conf}";
        expect("ok", NAME, part, other);
    }

    #[test]
    fn a_cloud_conf_of_the_host_is_a_warning_with_the_command_that_makes_the_secret() {
        let host = |path: &str| json!({"hostPath": {"path": path}});
        let part = "cloud.conf is /etc/kubernetes/cloud.conf of the host";
        let file = "/etc/config/cloud.conf";
        expect(
            "warn",
            NAME,
            part,
            reads(file, host("/etc/kubernetes/"), &[]),
        );
        let part = "--from-file=cloud.conf=/etc/kubernetes/my.conf";
        let file = "/etc/config/my.conf";
        expect(
            "warn",
            NAME,
            part,
            reads(file, host("/etc/kubernetes"), &[]),
        );
        let part = "cloud.conf is in no Secret";
        expect("warn", NAME, part, reads(file, json!({"csi": {}}), &[]));
    }

    #[test]
    fn other_files_of_the_pod_are_a_warning() {
        let more = [
            ("/etc/cacert", json!({"hostPath": {"path": "/srv/ca"}})),
            ("/certs", json!({"configMap": {"name": "ca"}})),
            ("/csi", json!({"hostPath": {"path": "/run/csi"}})),
            ("/tmp", json!({"emptyDir": {}})),
        ];
        let change = reads("/etc/config/cloud.conf", secret("cloud-config"), &more);
        let part = "has /etc/cacert (hostPath /srv/ca), /certs (ConfigMap ca) Belay's pod";
        expect("warn", NAME, part, change);
        let none = cluster(reads("/etc/config/cloud.conf", secret("cloud-config"), &[]));
        assert!(none.is_good() && none.table().contains(" 0 warnings"));
    }
}
