//! `belayctl local doctor`: checks the objects of `local`, and prints remedies. Changes nothing.

use belay_contract::drivers::local::SILENT;

use super::cluster::{Cluster, Item, READ_ONLY, controller, problem};
use super::kubectl::Kubectl;
use super::list;
use crate::failure::Failure;
use crate::objects::Object;
use crate::render::Answer;
use crate::report::{Report, Verdict};
use crate::size;

/// The maximum number of IDs in a finding.
const NAMED_MAX: usize = 5;
/// The share of a disk that may be promised without a warning, in percent. Above it, the alert
/// BelayCapacityNearlyProvisioned fires.
const PROMISED_MAX: u64 = 90;

/// Checks the controller and the objects of a cluster.
///
/// # Errors
/// Fails if the objects cannot be listed.
pub(super) fn run(kubectl: &Kubectl) -> Result<Answer, Failure> {
    let cluster = Cluster::read_all(kubectl)?;
    let mut report = Report::default();
    match controller(kubectl) {
        Ok(found) if found.ready == 0 => report.cure(
            Verdict::No,
            "controller",
            format!(
                "Deployment {}/{} has no ready pod",
                found.namespace, found.name
            ),
            format!(
                "kubectl --namespace {} describe pods, and their logs",
                found.namespace
            ),
        ),
        Ok(found) => {
            let (namespace, name, ready) = (found.namespace, found.name, found.ready);
            let detail = format!("Deployment {namespace}/{name}, {ready} ready");
            report.add(Verdict::Ok, "controller", detail);
        }
        Err(Failure::Absent(why)) => report.add(Verdict::No, "controller", why),
        Err(failure) => return Err(failure),
    }
    check(&mut report, &cluster);
    Ok(Answer::Report(report))
}

/// Checks the disks, then the volumes and snapshots.
pub(super) fn check(report: &mut Report, cluster: &Cluster) {
    if cluster.disks().next().is_none() {
        report.cure(
            Verdict::Warn,
            "disks",
            "no node has one",
            "create the directory of the disk on a node (docs/helm.md, Disks of `local`), and \
             check the pods of belay-store",
        );
    }
    let promised = cluster.promised();
    for disk in cluster.disks() {
        let promised = promised.get(disk.name()).copied().unwrap_or(0);
        of_disk(report, cluster, disk, promised);
    }
    for (node, disk) in cluster.gone() {
        report.cure(
            Verdict::No,
            &format!("disk {node}.{disk}"),
            "gone: it has volumes or snapshots, and no LocalDisk",
            format!(
                "if {node} returns, nothing; if another node has its disks: `belayctl local \
                 rehome`; otherwise delete the claims (`belayctl local volumes --node {node}`)"
            ),
        );
    }
    of_objects(report, cluster);
}

fn of_disk(report: &mut Report, cluster: &Cluster, disk: Object<'_>, promised: u64) {
    let name = format!("disk {}", disk.name());
    let limit = disk.number("/status/promisable");
    match problem(cluster, disk).as_str() {
        "" if promised > limit / 100 * PROMISED_MAX => report.cure(
            Verdict::Warn,
            &name,
            format!(
                "{} of {} are promised",
                size::show(promised),
                size::show(limit)
            ),
            "enlarge its filesystem, or delete volumes",
        ),
        "" => report.add(
            Verdict::Ok,
            &name,
            format!(
                "{} are free for volumes",
                size::show(limit.saturating_sub(promised))
            ),
        ),
        READ_ONLY => report.cure(
            Verdict::No,
            &name,
            READ_ONLY,
            "see the kernel's log on the node, repair the filesystem, and mount it again",
        ),
        silent if silent.contains(SILENT) => report.cure(
            Verdict::No,
            &name,
            silent,
            format!(
                "if its node never returns: `belayctl local forget {}`",
                disk.text("/spec/node")
            ),
        ),
        // The problem names the remedy.
        problem => report.add(Verdict::No, &name, problem),
    }
    let unlisted = disk.number("/status/unlisted/count");
    if unlisted > 0 {
        report.cure(
            Verdict::Warn,
            &format!("files of {}", disk.name()),
            format!("{unlisted} have no object"),
            "`belayctl local unlisted` lists them",
        );
    }
}

fn of_objects(report: &mut Report, cluster: &Cluster) {
    let lost = cluster.all().filter(|item| item.phase() == "Lost");
    let lost: Vec<_> = lost.map(Item::id).collect();
    let unclaimed: Vec<_> = list::unclaimed(cluster).map(Item::id).collect();
    let missing: Vec<_> = cluster.without_object().collect();
    if !missing.is_empty() {
        report.cure(
            Verdict::No,
            "without an object",
            named(&missing),
            "the controller adopts their files from disks that report; if their disk is dead, \
             delete the PersistentVolumes and VolumeSnapshotContents that have these IDs",
        );
    }
    let count = cluster.all().count();
    if lost.is_empty() && unclaimed.is_empty() && missing.is_empty() {
        let detail = format!("none of {count} is lost, unclaimed or missing");
        report.add(Verdict::Ok, "volumes and snapshots", detail);
    }
    if !lost.is_empty() {
        report.cure(
            Verdict::No,
            "lost",
            named(&lost),
            "restore the directory of the disk, or delete the claims (docs/runbook.md, \
             BelayFilesLost)",
        );
    }
    if !unclaimed.is_empty() {
        report.cure(
            Verdict::Warn,
            "unclaimed",
            named(&unclaimed),
            "`belayctl local unclaimed` lists them; `belayctl local remove ID` deletes one",
        );
    }
}

/// Returns the number of the IDs, and the first ones.
fn named(ids: &[&str]) -> String {
    let first = ids.iter().take(NAMED_MAX).copied();
    let first = first.collect::<Vec<_>>().join(", ");
    let more = if ids.len() > NAMED_MAX { ", ..." } else { "" };
    format!("{}: {first}{more}", ids.len())
}
