//! Rules about the OpenStack account of cinder-csi-plugin's controller: its `cloud.conf`, the files
//! named there, and a `clouds.yaml` that the environment of its pod names. Belay's controller pod
//! has only the Secret with `cloud.conf`, and different environment variables.

use super::rules::{Item, Section, Subject, Test, right, warning};
use super::workloads::Flags;
use crate::objects::Object;

const NAME: &str = "account";
/// The variables by which OpenStack's clients find a `clouds.yaml` or select an entry of it.
const VARIABLES: [&str; 3] = ["OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE", "OS_CLOUD"];
/// The directory in which OpenStack's clients search for `clouds.yaml`.
const DIRECTORY: &str = "/etc/openstack";
const FILE: &str = "clouds.yaml";
/// The default name of the Secret with the account in Belay's chart, and its default key.
const SECRET: [&str; 2] = ["cloud-config", "cloud.conf"];
/// Mount paths of a container that also runs the node plugin. The files at these paths do not
/// describe the OpenStack account.
const OF_NODES: [&str; 3] = ["/csi", "/dev", "/var/lib/kubelet"];

#[rustfmt::skip]
pub(super) const SECTION: Section = Section {
    name: NAME,
    applies: |case| case.peer.chooses_cloud,
    rules: &[
        warning(Subject::Containers, Test::Finds(|it, _| {
            let traces = traces(it.object);
            (!traces.is_empty()).then(|| vec![traces.join(", ")])
        }),
            "has {0}",
            "Belay's controller reads clouds.yaml too: put the file, and secure.yaml if there is \
             one, into the Secret of cloud.conf, name it with clouds-file = \
             /etc/config/clouds.yaml, and the entry with cloud"),
        right(Subject::Controllers, Test::Finds(|it, _| secret(it).filter(|it| it[1..] == SECRET)),
            "cloud.conf is the key {2} of Secret {0}/{1}",
            "copy it into Belay's namespace"),
        right(Subject::Controllers, Test::Finds(|it, _| secret(it).filter(|it| it[1..] != SECRET)),
            "cloud.conf is the key {2} of Secret {0}/{1}",
            "copy it into Belay's namespace, and set cloudConfig: {secretName: {1}, key: {2}} in \
             the chart's entry"),
        warning(Subject::Controllers, Test::Finds(|it, _| host_file(it).map(|file| vec![file])),
            "cloud.conf is {0} of the host",
            "Belay reads it from a Secret alone. On a node that has the file: kubectl --namespace \
             belay-system create secret generic cloud-config --from-file=cloud.conf={0}"),
        warning(Subject::Controllers, Test::Finds(|it, _| {
            cloud_conf(it)?;
            (secret(it).is_none() && host_file(it).is_none()).then(Vec::new)
        }),
            "cloud.conf is in no Secret",
            "Belay reads it from a Secret alone. On a node that has the file: kubectl --namespace \
             belay-system create secret generic cloud-config --from-file=cloud.conf=FILE"),
        warning(Subject::Controllers, Test::Finds(|it, _| {
            let others = others(it);
            (!others.is_empty()).then(|| vec![others.join(", ")])
        }),
            "has {0}",
            "Belay's pod has none of it. If cloud.conf names such a file, as with ca-file, put it \
             into the Secret of cloud.conf, and name it /etc/config/KEY; or set caBundle"),
    ],
    ..Section::ALWAYS
};

/// Returns the variables and mounts of a container that may provide a `clouds.yaml`.
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

/// Returns the innermost mount of a container that contains the file.
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

/// Returns the file name of cloud.conf, and the pod's volume that contains the file. Returns `None`
/// if the container has no `--cloud-config`, or if no volume contains the file.
fn cloud_conf<'a>(container: &Item<'a>) -> Option<(String, Object<'a>)> {
    let flags = Flags::of(container.object);
    let file = flags.values("cloud-config").last().copied()?;
    let mount = mount_of(container.object, file)?;
    let volume = volume_of(container.workload, mount.text("/name"))?;
    let key = file.rsplit('/').next().unwrap_or(file);
    Some((key.to_owned(), volume))
}

/// Returns the namespace, name and key of the Secret with cloud.conf; `None` if cloud.conf is in no
/// Secret.
fn secret(container: &Item<'_>) -> Option<Vec<String>> {
    let (key, volume) = cloud_conf(container)?;
    let secret = volume.text("/secret/secretName");
    let namespace = container.workload.text("/metadata/namespace");
    (!secret.is_empty()).then(|| vec![namespace.to_owned(), secret.to_owned(), key])
}

/// Returns the path of cloud.conf on the host; `None` if no hostPath volume contains it.
fn host_file(container: &Item<'_>) -> Option<String> {
    let (key, volume) = cloud_conf(container)?;
    let path = volume.text("/hostPath/path").trim_end_matches('/');
    match path {
        "" => None,
        file if file.ends_with(&format!("/{key}")) => Some(file.to_owned()),
        directory => Some(format!("{directory}/{key}")),
    }
}

/// Describes the mounts of the container other than cloud.conf, such as certificates.
fn others(container: &Item<'_>) -> Vec<String> {
    let conf = cloud_conf(container);
    let conf = conf.as_ref().map_or("", |(_, volume)| volume.text("/name"));
    let mounts = container.object.list("/volumeMounts").filter(|mount| {
        let path = mount.text("/mountPath").trim_end_matches('/');
        mount.text("/name") != conf && !is_of_clouds_yaml(path) && !OF_NODES.contains(&path)
    });
    let described = mounts.filter_map(|mount| {
        let volume = volume_of(container.workload, mount.text("/name"))?;
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

    /// Returns a change after which the controller reads `FILE` from a mount of `source`, and has
    /// additional mounts.
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
