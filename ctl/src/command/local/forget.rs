//! `belayctl local forget`: deletes the LocalDisks of a node that never returns, after which the
//! controller no longer waits for its store.

use belay_contract::drivers::local::SILENT_AFTER;

use super::cluster::{Cluster, Item, Kind, disk_path};
use super::console;
use super::kubectl::{Kubectl, Reply};
use super::list;
use crate::failure::Failure;
use crate::objects::Object;
use crate::render::Rows;

/// Forgets a node. Without `is_confirmed`, the user must confirm it.
///
/// # Errors
/// Fails if a store of the node may still run, or if kubectl fails.
pub(super) fn run(kubectl: &Kubectl, node: &str, is_confirmed: bool) -> Result<Rows, Failure> {
    let cluster = Cluster::read_all(kubectl)?;
    let disks = plan(&cluster, node)?;
    let lost = || cluster.all().filter(|item| item.node() == node);
    let mut rows = list::objects("lost_objects", &cluster, lost());
    if !is_confirmed {
        let warning = format!("node {node} must be off; these objects are then abandoned");
        console::confirm(&rows, &warning)?;
    }
    for disk in &disks {
        let name = disk.name();
        match kubectl.delete(&disk_path(name), *disk)? {
            Reply::Done(_) | Reply::Missing => eprintln!("LocalDisk {name}: deleted"),
            // The condition is what proves that the store has not reported since the check.
            Reply::Conflict => return Err(reporting(name)),
        }
    }
    rows.notes = advice(&cluster, node, lost());
    Ok(rows)
}

/// Returns the LocalDisks to delete.
pub(super) fn plan<'a>(cluster: &'a Cluster, node: &str) -> Result<Vec<Object<'a>>, Failure> {
    let disks = cluster.disks();
    let disks: Vec<_> = disks
        .filter(|disk| disk.text("/spec/node") == node)
        .collect();
    if disks.is_empty() && !cluster.all().any(|item| item.node() == node) {
        let why = format!("node {node}: has no disk; `belayctl local disks` lists the nodes");
        return Err(Failure::Absent(why));
    }
    match disks
        .iter()
        .find(|disk| cluster.silence(**disk) < SILENT_AFTER)
    {
        Some(disk) => Err(reporting(disk.name())),
        None => Ok(disks),
    }
}

fn reporting(disk: &str) -> Failure {
    Failure::Refused(format!(
        "LocalDisk {disk}: its store still reports; switch the node off first, and repeat the \
         command three minutes later"
    ))
}

/// Returns the next steps of the operator.
fn advice<'a>(cluster: &Cluster, node: &str, lost: impl Iterator<Item = Item<'a>>) -> Vec<String> {
    let mut notes = vec![format!(
        "Node {node} has no LocalDisk. In three minutes, its volumes can be deleted without it."
    )];
    let command = |item: Item<'_>| {
        let name = cluster.claim_name(item)?;
        let (namespace, name) = name.split_once('/')?;
        let kind = match item.kind {
            Kind::Volume => "persistentvolumeclaim",
            Kind::Snapshot => "volumesnapshot",
        };
        Some(format!(
            "  kubectl delete --wait=false --namespace {namespace} {kind} {name}"
        ))
    };
    let commands: Vec<_> = lost.filter_map(command).collect();
    if !commands.is_empty() {
        notes.push("Delete the claims, and then their pods (--force):".to_owned());
        notes.extend(commands);
    }
    notes.push(
        "If another node has its disks now, delete nothing: run `belayctl local rehome`."
            .to_owned(),
    );
    notes.push(
        "If the node returns, its files still exist, and `belayctl local unlisted` lists those \
         without an object."
            .to_owned(),
    );
    notes
}
