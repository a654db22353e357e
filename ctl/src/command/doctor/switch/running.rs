//! Checks that the driver's pods have stopped, that the leases of its sidecars have expired, and
//! that nodes keep their IDs.

use std::time::{Duration, SystemTime};

use super::peer::Peer;
use super::rules::{Case, Good, Names, Section, Subject, Test, missing, wrong};
use super::workloads::WORKLOADS;
use crate::objects::{Object, Objects};
use crate::report::{Report, Verdict};

/// JSON pointer to the number of a DaemonSet's pods on nodes where they must not run. Other
/// workloads do not have the field.
const MISSCHEDULED: &str = "/status/numberMisscheduled";

const PODS: &str = "pods of the driver";

/// Reports the driver's programs that are still running, since two drivers with the same name must
/// not run at the same time.
pub(super) fn programs(report: &mut Report, objects: &Objects, peer: &Peer) {
    let name = PODS;
    let (mut is_any, mut is_running) = (false, false);
    // The controller of a driver for network filesystems may keep running.
    let replaced = |kind: &str| !peer.is_remote || kind == "DaemonSet";
    for (kind, wanted, running) in WORKLOADS.into_iter().filter(|it| replaced(it.0)) {
        for object in objects.of(kind).filter(|it| peer.is_run_by(*it)) {
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

/// Reports pods of the driver whose workload was deleted or no longer counts them. These pods run
/// until the end of their grace period, and a node plugin that exits unregisters the driver's name.
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
    let names = Names(pods.map(Object::full_name).collect());
    if !names.0.is_empty() {
        let what = format!("{names}: still there: two drivers of one name must not run at once");
        let cure = "wait until they have ended, and read the objects again";
        report.cure(Verdict::No, PODS, what, cure);
    }
}

/// Returns the driver's workloads that have pods and are not node plugins.
pub(super) fn controllers<'a>(
    objects: &'a Objects,
    peer: &'a Peer,
) -> impl Iterator<Item = Object<'a>> {
    let kinds = WORKLOADS.iter().filter(|it| it.0 != "DaemonSet");
    kinds.flat_map(move |&(kind, wanted, running)| {
        let all = objects.of(kind).filter(|it| peer.is_run_by(*it));
        all.filter(move |it| it.number(wanted) + it.number(running) > 0)
    })
}

/// The rule about leases: a sidecar whose lease has not expired may still call the driver.
#[rustfmt::skip]
pub(super) const LEASES: Section = Section {
    name: "leases of the sidecars",
    needs: Some("Lease"),
    rules: &[wrong(Subject::All("Lease"), Test::Is(|lease, case| {
        lease_names(case.driver)
            .iter()
            .any(|name| name == lease.name())
            && !is_belays(lease, case)
            && is_held(lease, case.now)
    }),
        "held: a sidecar of the driver may still create, attach or delete volumes",
        "scale the driver's controller to 0, wait until the leases expire, and read the objects \
         again")],
    good: Good::IfAllHold("none is held"),
    ..Section::ALWAYS
};

/// Whether the lease belongs to Belay's own sidecars: after the switch, a Deployment of Belay is in
/// the namespace of the lease.
fn is_belays(lease: Object<'_>, case: &Case<'_>) -> bool {
    let namespace = |it: Object<'_>| it.text("/metadata/namespace").to_owned();
    let mut belays = case
        .objects
        .of("Deployment")
        .filter(|it| it.text("/metadata/labels/app.kubernetes.io~1name") == "belay");
    belays.any(|it| namespace(it) == namespace(lease))
}

/// Returns the names of the sidecars' leases (csi-lib-utils/leaderelection). The lease of the
/// external-provisioner has no prefix.
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

/// Whether a sidecar holds the lease. A lease counts as expired only after twice its duration, in
/// case a clock is wrong by less than the duration.
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

/// Reports nodes whose ID would change. Belay registers a node with the ID of its server, but
/// existing attachments keep the ID that the driver has registered.
pub(super) fn nodes(report: &mut Report, case: &Case<'_>) {
    let name = "node IDs";
    if !case.objects.have("CSINode") {
        return missing(report, name, "CSINode");
    }
    // Skip a providerID that a program such as k3s has set: this ID does not identify the cloud's
    // server.
    let scheme = format!("{}://", case.peer.backend);
    let (mut attached, mut free) = (Names::default(), Names::default());
    let (mut count, mut compared) = (0_u32, 0_u32);
    for node in case.objects.of("CSINode") {
        let mut drivers = node.list("/spec/drivers");
        let Some(entry) = drivers.find(|it| it.text("/name") == case.driver) else {
            continue;
        };
        count += 1;
        let provider = case.objects.of("Node").find(|it| it.name() == node.name());
        let provider = provider.map_or("", |it| it.text("/spec/providerID"));
        let server = provider.strip_prefix(&scheme);
        let Some(server) = server.and_then(|rest| rest.rsplit('/').next()) else {
            continue;
        };
        compared += 1;
        let reported = entry.text("/nodeID");
        if server != reported {
            let mut ours = case.ours("VolumeAttachment", "/spec/attacher");
            let differ = match ours.any(|it| it.text("/spec/nodeName") == node.name()) {
                true => &mut attached,
                false => &mut free,
            };
            let named = format!("{} ({reported}, providerID {provider})", node.name());
            differ.0.push(named);
        }
    }
    let what = "the driver's node ID is not the server of the providerID";
    if !attached.0.is_empty() {
        let what = format!("{attached}: {what}, and volumes are attached under it");
        let cure = "kubectl drain NODE, and wait while the driver runs until no VolumeAttachment \
                    of the node is left: Belay registers it with the ID of its server, and does \
                    not find the old one";
        report.cure(Verdict::No, name, what, cure);
    }
    if !free.0.is_empty() {
        let cure = "no volume is attached to them: keep it so until the switch. Belay registers \
                    them with the IDs of their servers";
        report.cure(Verdict::Warn, name, format!("{free}: {what}"), cure);
    }
    if count == 0 {
        report.add(Verdict::Skip, name, "no node has registered the driver");
    } else if attached.0.is_empty() && free.0.is_empty() {
        let what = format!("{count} nodes, {compared} of them compared with their providerID");
        report.add(Verdict::Ok, name, what);
    }
}
