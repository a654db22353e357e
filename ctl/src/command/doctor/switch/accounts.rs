//! Where the controller of cinder-csi-plugin finds its account besides `cloud.conf`: `clouds.yaml`,
//! which the environment of its pod may name. Belay's pod has another environment.

use super::objects::{Object, Objects};
use super::peer::Peer;
use crate::report::{Report, Verdict};

/// The variables of OpenStack's clients that name a file or an entry of it.
const VARIABLES: [&str; 3] = ["OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE", "OS_CLOUD"];

/// Directories in which the clients look for the files.
const DIRECTORY: &str = "/etc/openstack";
const FILE: &str = "clouds.yaml";

/// Reports workloads whose pods have such a variable or file.
pub(super) fn clouds_yaml(report: &mut Report, objects: &Objects, peer: &Peer) {
    if !peer.chooses_cloud {
        return;
    }
    for kind in ["Deployment", "StatefulSet", "DaemonSet"] {
        for workload in objects.of(kind) {
            let containers = workload.list("/spec/template/spec/containers");
            for container in containers.filter(|it| peer.runs(it.text("/image"))) {
                let has = traces(container);
                if has.is_empty() {
                    continue;
                }
                let what = format!("{kind} {}: has {}", workload.full_name(), has.join(", "));
                let cure = "Belay's controller reads clouds.yaml too: put the file, and \
                            secure.yaml if there is one, into the Secret of cloud.conf, name it \
                            with clouds-file = /etc/config/clouds.yaml, and the entry with cloud";
                report.cure(Verdict::Warn, "account", what, cure);
            }
        }
    }
}

/// The variables and mounts of a container that may lead to such a file.
fn traces(container: Object<'_>) -> Vec<String> {
    let variables = container.list("/env").map(|it| it.text("/name"));
    let variables = variables.filter(|name| VARIABLES.contains(name));
    let mounts = container
        .list("/volumeMounts")
        .map(|it| it.text("/mountPath"));
    let mounts = mounts.filter(|path| {
        let path = path.trim_end_matches('/');
        path == DIRECTORY || path.rsplit('/').next() == Some(FILE)
    });
    variables.chain(mounts).map(str::to_owned).collect()
}
