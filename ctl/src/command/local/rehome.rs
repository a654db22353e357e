//! `belayctl local rehome`: gives a place, the topology value of volumes, to the disks of another
//! Node, because the disks have moved there or the Node was renamed.

use std::collections::BTreeSet;

use belay_contract::drivers::LOCAL;
use serde_json::{Value, json};

use super::cluster::{Cluster, DISKS, disk_path, new_object};
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
    for disk in &disks {
        while at_place(kubectl, [node, disk], place)?.is_none() {
            let progress = format!("creating the LocalDisk of {node}.{disk}");
            let waited = wait.next(&progress).await;
            waited.map_err(|ended| Failure::Refused(format!("{progress}: {}", ended.why())))?;
        }
    }
    for disk in disks {
        serves(kubectl, &format!("{node}.{disk}"), &mut wait).await?;
    }
    let key = LOCAL.topology_key;
    rows.notes = vec![
        format!(
            "Node {node} has the place {place}. Correct the labels, and restart its node agent:"
        ),
        format!("  kubectl label node {node} {key}-"),
        // The old Node may not exist.
        format!("  kubectl label node --selector {key}={place} {key}-"),
        format!(
            "  kubectl delete pod --all-namespaces --field-selector spec.nodeName={node} \
             --selector app.kubernetes.io/name=belay,app.kubernetes.io/component=node"
        ),
    ];
    Ok(rows)
}

/// Returns the names of the node's disks, and of all disks that have objects at the place.
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
         place; if it has no volumes there, mount the moved disk, delete the pod of this \
         node's store, then: kubectl delete localdisk {name}; and repeat the command"
    )))
}

/// Waits until the store serves the disk.
async fn serves(kubectl: &Kubectl, name: &str, wait: &mut Wait) -> Result<(), Failure> {
    loop {
        let object = kubectl.get(&disk_path(name))?.unwrap_or(Value::Null);
        let object = Object::new(&object);
        if object.at("/status/uuid").is_some() {
            return Ok(());
        }
        if let Err(ended) = wait.next(&format!("waiting for the store of {name}")).await {
            let problem = object.text("/status/problem");
            let why = format!("{}: {problem}; repeat the command to continue", ended.why());
            return Err(Failure::Refused(format!("LocalDisk {name}: {why}")));
        }
    }
}

/// Returns the LocalDisk of a disk if it is at this place. Otherwise, creates it there and returns
/// `None`; the store may create it at the same time with another place, so repeat this call.
///
/// # Errors
/// Fails if the disk is in use at another place, or if kubectl fails.
pub(super) fn at_place(
    kubectl: &Kubectl,
    [node, disk]: [&str; 2],
    place: &str,
) -> Result<Option<Value>, Failure> {
    let name = format!("{node}.{disk}");
    let path = disk_path(&name);
    if let Some(value) = kubectl.get(&path)? {
        let object = Object::new(&value);
        if object.text("/spec/place") == place {
            return Ok(Some(value));
        }
        refuse_used(object, place)?;
        // The place of a LocalDisk cannot be changed.
        if kubectl.delete(&path, object)? == Reply::Conflict {
            return Ok(None);
        }
    }
    let spec = json!({"node": node, "place": place, "disk": disk});
    let object = new_object("LocalDisk", &name, &spec);
    kubectl.create(DISKS, &object).map(|_created| None)
}
