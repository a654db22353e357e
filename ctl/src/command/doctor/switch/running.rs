//! What runs and must end before the switch: the peer's pods, the leases of its sidecars,
//! attachments that are under way; and the nodes, which must keep their IDs.

use std::time::{Duration, SystemTime};

use super::objects::{Object, Objects};
use super::peer::Peer;
use super::{Names, about, missing};
use crate::report::{Report, Verdict};

/// The kinds of objects that run the pods of a driver, and where they say how many run.
const WORKLOADS: [(&str, &str, &str); 3] = [
    ("Deployment", "/spec/replicas", "/status/replicas"),
    ("StatefulSet", "/spec/replicas", "/status/replicas"),
    (
        "DaemonSet",
        "/status/desiredNumberScheduled",
        "/status/currentNumberScheduled",
    ),
];

/// Pods of a DaemonSet on nodes that it no longer wants; the others have no such field.
const MISSCHEDULED: &str = "/status/numberMisscheduled";

const PODS: &str = "pods of the driver";

/// The peer's programs: two drivers of one name must not run at the same time.
pub(super) fn workloads(report: &mut Report, objects: &Objects, peer: &Peer) {
    let name = PODS;
    let (mut is_any, mut is_running) = (false, false);
    // Its controller may go on.
    let replaced = |kind: &str| !peer.is_remote || kind == "DaemonSet";
    for (kind, wanted, running) in WORKLOADS.into_iter().filter(|it| replaced(it.0)) {
        for object in objects.of(kind).filter(|it| runs(*it, peer.images)) {
            is_any = true;
            let pods =
                object.number(running).max(object.number(wanted)) + object.number(MISSCHEDULED);
            let title = format!("{kind} {}", object.full_name());
            if pods == 0 {
                report.add(Verdict::Ok, name, format!("{title}: none"));
                continue;
            }
            is_running = true;
            let (namespace, short) = (object.text("/metadata/namespace"), object.name());
            let resource = kind.to_lowercase();
            let cure = match kind {
                "DaemonSet" => format!(
                    "kubectl --namespace {namespace} delete daemonset {short}; mounted volumes \
                     stay mounted, and pods keep running"
                ),
                _ => {
                    format!("kubectl --namespace {namespace} scale {resource} {short} --replicas=0")
                }
            };
            let what = format!("{title}: {pods}; two drivers of one name must not run at once");
            report.cure(Verdict::No, name, what, cure);
        }
    }
    let mut kinds = WORKLOADS.iter().map(|(kind, ..)| *kind);
    if !is_any && peer.is_remote && !objects.have("DaemonSet") {
        missing(report, name, "DaemonSet");
    } else if !is_any && kinds.all(|kind| !objects.have(kind)) {
        missing(report, name, "Deployment, StatefulSet or DaemonSet");
    } else if !is_any {
        report.add(Verdict::Ok, name, "no workload with its image");
    }
    if !is_running {
        ending(report, objects, peer);
    }
}

/// Pods whose workload was deleted, or no longer counts them: they run until their grace period is
/// over, and the node plugin's last act is to unregister the driver of its name.
fn ending(report: &mut Report, objects: &Objects, peer: &Peer) {
    let has_ended = |pod: Object<'_>| ["Succeeded", "Failed"].contains(&pod.text("/status/phase"));
    let runs = |pod: Object<'_>| {
        let mut containers = pod.list("/spec/containers");
        containers.any(|it| peer.runs(it.text("/image")))
    };
    let is_replaced = |pod: Object<'_>| {
        let mut owners = pod.list("/metadata/ownerReferences");
        !peer.is_remote || owners.any(|it| it.text("/kind") == "DaemonSet")
    };
    let pods = objects.of("Pod");
    let pods = pods.filter(|it| !has_ended(*it) && runs(*it) && is_replaced(*it));
    let what = "still there: two drivers of one name must not run at once";
    let cure = "wait until they have ended, and read the objects again";
    about(report, Verdict::No, PODS, &Names::of(pods), what, cure);
}

/// Its workloads that have pods and are no node plugin.
pub(super) fn controllers<'a>(
    objects: &'a Objects,
    peer: &'a Peer,
) -> impl Iterator<Item = Object<'a>> {
    let kinds = WORKLOADS.iter().filter(|it| it.0 != "DaemonSet");
    kinds.flat_map(move |&(kind, wanted, running)| {
        let all = objects.of(kind).filter(|it| runs(*it, peer.images));
        all.filter(move |it| it.number(wanted) + it.number(running) > 0)
    })
}

/// The containers with its programs: the title of their workload, that, and the container.
pub(super) fn containers<'a>(
    objects: &'a Objects,
    peer: &'a Peer,
) -> impl Iterator<Item = (String, Object<'a>, Object<'a>)> {
    let kinds = WORKLOADS.iter().map(|(kind, ..)| *kind);
    let workloads = kinds.flat_map(|kind| objects.of(kind).map(move |it| (kind, it)));
    workloads.flat_map(|(kind, workload)| {
        let containers = workload.list("/spec/template/spec/containers");
        let ours = containers.filter(|it| peer.runs(it.text("/image")));
        ours.map(move |it| (format!("{kind} {}", workload.full_name()), workload, it))
    })
}

/// Whether a container has one of these images.
fn runs(workload: Object<'_>, images: &[&str]) -> bool {
    let containers = workload.list("/spec/template/spec/containers");
    let mut used = containers.map(|it| it.text("/image"));
    used.any(|image| images.contains(&last_part(image)))
}

impl Peer {
    /// Whether that image is the driver's.
    pub(super) fn runs(&self, image: &str) -> bool {
        self.images.contains(&last_part(image))
    }
}

/// `registry:5000/path/name:tag@digest`: the name.
fn last_part(image: &str) -> &str {
    let path = image.split('@').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// A sidecar whose lease is not expired may still call the driver. Those of Belay's own sidecars,
/// after the switch, are in its namespace.
pub(super) fn leases(report: &mut Report, objects: &Objects, driver: &str, now: SystemTime) {
    let name = "leases of the sidecars";
    if !objects.have("Lease") {
        return missing(report, name, "Lease");
    }
    let names = lease_names(driver);
    let namespace = |it: Object<'_>| it.text("/metadata/namespace").to_owned();
    let belays: Vec<_> = objects
        .of("Deployment")
        .filter(|it| it.text("/metadata/labels/app.kubernetes.io~1name") == "belay")
        .map(namespace)
        .collect();
    let ours = objects
        .of("Lease")
        .filter(|it| names.contains(&it.name().to_owned()) && !belays.contains(&namespace(*it)));
    let held = Names::of(ours.filter(|lease| is_held(*lease, now)));
    if held.is_empty() {
        return report.add(Verdict::Ok, name, "none is held");
    }
    let cure = "scale the driver's controller to 0, wait until the leases expire, and read the \
                objects again";
    let what = "held: a sidecar of the driver may still create, attach or delete volumes";
    about(report, Verdict::No, name, &held, what, cure);
}

/// As the sidecars name them, by csi-lib-utils/leaderelection; external-provisioner has no prefix.
fn lease_names(driver: &str) -> [String; 4] {
    let plain: String = driver
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    [
        plain.clone(),
        format!("external-attacher-leader-{plain}"),
        format!("external-resizer-{plain}"),
        format!("external-snapshotter-leader-{plain}"),
    ]
}

/// A clock that differs by less than the lease's duration makes it look held, not expired.
fn is_held(lease: Object<'_>, now: SystemTime) -> bool {
    if lease.text("/spec/holderIdentity").is_empty() {
        return false;
    }
    let Some(renewed) = lease.time("/spec/renewTime") else {
        return true;
    };
    let duration = Duration::from_secs(lease.number("/spec/leaseDurationSeconds"));
    now < renewed + duration * 2
}

/// Belay registers a node with the ID of its server. Attachments keep the ID that the peer has
/// registered.
pub(super) fn nodes(report: &mut Report, objects: &Objects, peer: &Peer, driver: &str) {
    let name = "node IDs";
    if !objects.have("CSINode") {
        return missing(report, name, "CSINode");
    }
    // A providerID of another program, such as k3s, says nothing about the server.
    let scheme = format!("{}://", peer.backend);
    let (mut attached, mut free) = (Names::default(), Names::default());
    let (mut count, mut compared) = (0_u32, 0_u32);
    for node in objects.of("CSINode") {
        let mut drivers = node.list("/spec/drivers");
        let Some(entry) = drivers.find(|it| it.text("/name") == driver) else {
            continue;
        };
        count += 1;
        let provider = objects.of("Node").find(|it| it.name() == node.name());
        let provider = provider.map_or("", |it| it.text("/spec/providerID"));
        let server = provider.strip_prefix(&scheme);
        let Some(server) = server.and_then(|rest| rest.rsplit('/').next()) else {
            continue;
        };
        compared += 1;
        let reported = entry.text("/nodeID");
        if server != reported {
            let all = objects.of("VolumeAttachment");
            let mut ours = all.filter(|it| it.text("/spec/attacher") == driver);
            let differ = match ours.any(|it| it.text("/spec/nodeName") == node.name()) {
                true => &mut attached,
                false => &mut free,
            };
            let named = format!("{} ({reported}, providerID {provider})", node.name());
            differ.0.push(named);
        }
    }
    let what = "the driver's node ID is not the server of the providerID, and volumes are attached \
                under it";
    let cure = "kubectl drain NODE, and wait while the driver runs until no VolumeAttachment of \
                the node is left: Belay registers it with the ID of its server, and does not find \
                the old one";
    about(report, Verdict::No, name, &attached, what, cure);
    let what = "the driver's node ID is not the server of the providerID";
    let cure = "no volume is attached to them: keep it so until the switch. Belay registers them \
                with the IDs of their servers";
    about(report, Verdict::Warn, name, &free, what, cure);
    if count == 0 {
        let what = "no node has registered the driver";
        report.add(Verdict::Skip, name, what);
    } else if attached.is_empty() && free.is_empty() {
        let what = format!("{count} nodes, {compared} of them compared with their providerID");
        report.add(Verdict::Ok, name, what);
    }
}

/// An attachment that the peer has not finished.
pub(super) fn attachments(report: &mut Report, objects: &Objects, driver: &str) {
    let name = "attachments";
    let all = objects.of("VolumeAttachment");
    let ours = || all.clone().filter(|it| it.text("/spec/attacher") == driver);
    let failed = Names::of(ours().filter(|it| {
        it.at("/status/attachError").is_some() || it.at("/status/detachError").is_some()
    }));
    let cure = "kubectl describe volumeattachment NAME; let the driver finish or repair it first";
    let what = "the last attach or detach failed";
    about(report, Verdict::Warn, name, &failed, what, cure);
    let is_attached = |it: &Object<'_>| {
        it.at("/status/attached")
            .and_then(serde_json::Value::as_bool)
            == Some(true)
    };
    let moving = Names::of(ours().filter(|it| it.is_being_deleted() || !is_attached(it)));
    let cure = "wait, and read the objects again; Belay completes what is left, by the volume ID";
    let what = "being attached or detached";
    about(report, Verdict::Warn, name, &moving, what, cure);
    if failed.is_empty() && moving.is_empty() {
        let what = format!("{} complete, none under way", ours().count());
        report.add(Verdict::Ok, name, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_last_part() {
        for image in [
            "cinder-csi-plugin",
            "registry.k8s.io/provider-os/cinder-csi-plugin:v1.35.0",
            "localhost:5000/cinder-csi-plugin@sha256:00",
        ] {
            assert_eq!(last_part(image), "cinder-csi-plugin", "{image}");
        }
        assert_eq!(
            last_part("localhost:5000/a/other-cinder-csi-plugin"),
            "other-cinder-csi-plugin"
        );
    }
}
