//! `belayctl local rehome`: gives a place, the topology value of volumes, to the disks of another
//! Node, because the disks have moved there or the Node was renamed.

use std::collections::BTreeSet;

use belay_contract::drivers::LOCAL;
use serde_json::{Value, json};

use super::cluster::{Cluster, DISKS, disk_path};
use super::console::{self, Wait};
use super::kubectl::{Kubectl, Reply};
use super::list;
use crate::failure::Failure;
use crate::objects::Object;
use crate::render::Rows;

/// Gives the place to a node. Without `is_confirmed`, the user must confirm it.
///
/// # Errors
/// Fails if another node has the place, if the node has another place, if the store does not serve
/// the disks in time, or if kubectl fails.
pub(super) async fn run(
    kubectl: &Kubectl,
    [place, node]: [&str; 2],
    is_confirmed: bool,
) -> Result<Rows, Failure> {
    let cluster = Cluster::read_all(kubectl)?;
    let disks = plan(&cluster, place, node)?;
    let moved = cluster.all().filter(|item| item.place() == place);
    let mut rows = list::objects("moved_objects", &cluster, moved);
    if !is_confirmed {
        let warning = format!("node {node} gets the place {place} with these objects");
        console::confirm(&rows, &warning)?;
    }
    let mut wait = Wait::new(kubectl.seconds)?;
    for disk in disks {
        give(kubectl, [node, disk], place, &mut wait).await?;
    }
    let key = LOCAL.topology_key;
    rows.notes = vec![
        format!(
            "Node {node} has the place {place}. Correct the labels, and restart its node agent:"
        ),
        format!("  kubectl label node {node} {key}-"),
        format!("  kubectl label node {place} {key}-    # if this Node exists"),
        format!(
            "  kubectl delete pod --all-namespaces --field-selector spec.nodeName={node} \
             --selector app.kubernetes.io/name=belay,app.kubernetes.io/component=node"
        ),
    ];
    Ok(rows)
}

/// Returns the names of the disks: those of the node, and those that have objects at the place.
pub(super) fn plan<'a>(
    cluster: &'a Cluster,
    place: &str,
    node: &str,
) -> Result<BTreeSet<&'a str>, Failure> {
    let mut disks = BTreeSet::new();
    for disk in cluster.disks() {
        let (of, has) = (disk.text("/spec/node"), disk.text("/spec/place"));
        if of == node {
            refuse_used(disk, place)?;
            disks.insert(disk.text("/spec/disk"));
        } else if has == place && disk.at("/status/uuid").is_some() {
            let why = format!("LocalDisk {} has it", disk.name());
            let cure = format!("first run `belayctl local forget {of}`");
            return Err(Failure::Refused(format!("place {place}: {why}; {cure}")));
        }
    }
    let moved = cluster.all().filter(|item| item.place() == place);
    disks.extend(moved.map(|item| item.disk()));
    match disks.is_empty() {
        false => Ok(disks),
        true => Err(Failure::Absent(format!(
            "place {place}: has no volume, and node {node} has no disk"
        ))),
    }
}

/// Refuses a disk that has a state at another place.
fn refuse_used(disk: Object<'_>, place: &str) -> Result<(), Failure> {
    let has = disk.text("/spec/place");
    if has == place || disk.at("/status/uuid").is_none() {
        return Ok(());
    }
    let name = disk.name();
    Err(Failure::Refused(format!(
        "LocalDisk {name}: the node has begun the disk at the place {has}, and a node has one \
         place; if it has no volumes there, remove its directory, then: kubectl delete localdisk \
         {name}"
    )))
}

/// Gives the place to a disk, and waits until its store serves the disk.
async fn give(
    kubectl: &Kubectl,
    [node, disk]: [&str; 2],
    place: &str,
    wait: &mut Wait,
) -> Result<(), Failure> {
    let name = format!("{node}.{disk}");
    let path = disk_path(&name);
    loop {
        let object = kubectl.get(&path)?.unwrap_or(Value::Null);
        let object = Object::new(&object);
        let has_place = object.text("/spec/place") == place;
        if has_place && object.at("/status/uuid").is_some() {
            return Ok(());
        }
        if !has_place {
            refuse_used(object, place)?;
            // The place of a LocalDisk cannot be changed. If the store has created the object again
            // meanwhile, or reported, the next round repeats this.
            let deleted = match object.name() {
                "" => Reply::Missing,
                _ => kubectl.delete(&path, object)?,
            };
            if deleted != Reply::Conflict {
                create(kubectl, [node, disk], place)?;
                continue;
            }
        }
        if let Err(ended) = wait.next(&format!("waiting for the store of {name}")).await {
            let problem = object.text("/status/problem");
            let why = format!("{}: {problem}; repeat the command to continue", ended.why());
            return Err(Failure::Refused(format!("LocalDisk {name}: {why}")));
        }
    }
}

/// Creates the LocalDisk of a disk at this place, unless it exists.
///
/// # Errors
/// Fails if kubectl fails.
pub(super) fn create(
    kubectl: &Kubectl,
    [node, disk]: [&str; 2],
    place: &str,
) -> Result<(), Failure> {
    let object = json!({
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "LocalDisk",
        "metadata": {
            "name": format!("{node}.{disk}"),
            "annotations": {"velero.io/exclude-from-backup": "true"},
        },
        "spec": {"node": node, "place": place, "disk": disk},
    });
    kubectl.create(DISKS, &object).map(drop)
}
