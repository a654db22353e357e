//! `belayctl local rehome`: gives a place, the topology value of volumes, to the disks of another
//! Node, because the disks have moved there or the Node was renamed.

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
    let moved = cluster
        .all()
        .filter(|item| item.object.text("/spec/place") == place);
    let mut rows = list::objects("moved_objects", &cluster, moved);
    if !is_confirmed {
        let warning = format!("node {node} gets the place {place} with these objects");
        console::confirm(&rows, &warning)?;
    }
    let mut wait = Wait::new(kubectl.seconds)?;
    for disk in disks {
        give(kubectl, disk, place, &mut wait).await?;
    }
    rows.notes = vec![
        format!("Node {node} has the place {place}. Register its node agent again:"),
        format!("  kubectl label node {node} {}-", LOCAL.topology_key),
        format!(
            "  kubectl delete pod --all-namespaces --field-selector spec.nodeName={node} \
             --selector app.kubernetes.io/name=belay,app.kubernetes.io/component=node"
        ),
    ];
    Ok(rows)
}

/// Returns the LocalDisks of the node.
pub(super) fn plan<'a>(
    cluster: &'a Cluster,
    place: &str,
    node: &str,
) -> Result<Vec<Object<'a>>, Failure> {
    let place_of = |disk: &Object<'a>| disk.text("/spec/place");
    let (own, others): (Vec<_>, Vec<_>) = cluster
        .disks()
        .partition(|disk| disk.text("/spec/node") == node);
    if own.is_empty() {
        let why = "has no LocalDisk; its store creates one, so check the pod of its store";
        return Err(Failure::Absent(format!("node {node}: {why}")));
    }
    if let Some(holder) = others.iter().find(|disk| place_of(disk) == place) {
        let (name, of) = (holder.name(), holder.text("/spec/node"));
        let why = format!("LocalDisk {name} has it; first run `belayctl local forget {of}`");
        return Err(Failure::Refused(format!("place {place}: {why}")));
    }
    let is_other =
        |disk: &&Object<'a>| disk.at("/status/uuid").is_some() && place_of(disk) != place;
    if let Some(disk) = own.iter().find(is_other) {
        let why = format!(
            "LocalDisk {} is in use at the place {}, and a node has one place",
            disk.name(),
            place_of(disk)
        );
        return Err(Failure::Refused(format!("node {node}: {why}")));
    }
    Ok(own)
}

/// Gives the place to a disk, and waits until its store serves the disk.
async fn give(
    kubectl: &Kubectl,
    disk: Object<'_>,
    place: &str,
    wait: &mut Wait,
) -> Result<(), Failure> {
    let (name, path) = (disk.name(), disk_path(disk.name()));
    loop {
        let object = kubectl.get(&path)?.unwrap_or(Value::Null);
        let object = Object::new(&object);
        let has_place = object.text("/spec/place") == place;
        if has_place && object.at("/status/uuid").is_some() {
            return Ok(());
        }
        if !has_place {
            // The place of a LocalDisk cannot be changed. If the store has created the object again
            // meanwhile, or reported, the next round repeats this.
            let deleted = match object.name() {
                "" => Reply::Missing,
                _ => kubectl.delete(&path, object)?,
            };
            if deleted != Reply::Conflict {
                kubectl.create(DISKS, &local_disk(disk, place))?;
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

/// Returns the LocalDisk of the same disk at this place.
fn local_disk(disk: Object<'_>, place: &str) -> Value {
    let [node, name] = ["/spec/node", "/spec/disk"].map(|at| disk.text(at));
    json!({
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "LocalDisk",
        "metadata": {
            "name": disk.name(),
            "annotations": {"velero.io/exclude-from-backup": "true"},
        },
        "spec": {"node": node, "place": place, "disk": name},
    })
}
