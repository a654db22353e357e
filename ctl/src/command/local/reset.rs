//! `belayctl local reset`: permits a store to begin a new state on a disk whose state cannot be
//! recovered.

use belay_contract::drivers::local::{SILENT, SILENT_AFTER, STATE_IS_MISSING, WAITS};
use serde_json::{Value, json};

use super::cluster::{Cluster, Item, disk_path};
use super::console::{self, Wait};
use super::kubectl::{Kubectl, Reply};
use super::{list, rehome};
use crate::failure::Failure;
use crate::objects::Object;
use crate::render::{Answer, Cell};

/// Resets a disk of a node. Without `is_confirmed`, the user must confirm it.
///
/// # Errors
/// Fails if the disk may have its state, if its store does not respond, or if kubectl fails.
pub(super) async fn run(
    kubectl: &Kubectl,
    [node, disk]: [&str; 2],
    is_confirmed: bool,
) -> Result<Answer, Failure> {
    let name = format!("{node}.{disk}");
    let cluster = Cluster::read_all(kubectl)?;
    let object = plan(&cluster, &name)?;
    let items = || cluster.all().filter(|item| item.disk_name() == name);
    // After an interrupted reset, the object may have the name of the node as its place.
    let place = items()
        .next()
        .map_or(object.text("/spec/place"), |item| item.place());
    if !is_confirmed {
        let rows = list::objects("objects", &cluster, items());
        let warning = format!("all volumes and snapshots of disk {name} will be lost");
        console::confirm(&rows, &warning)?;
    }
    let mut wait = Wait::new(kubectl.seconds)?;
    if !is_waiting(object) {
        match kubectl.delete(&disk_path(&name), object)? {
            Reply::Done(_) | Reply::Missing => {}
            Reply::Conflict => {
                return Err(refused(
                    &name,
                    "it has changed meanwhile; repeat the command",
                ));
            }
        }
    }
    let mut progress = "waiting for the store to ask for permission";
    loop {
        let object = rehome::at_place(kubectl, [node, disk], place)?.unwrap_or(Value::Null);
        let object = Object::new(&object);
        if is_waiting(object) && object.text("/spec/begin") != object.text("/metadata/uid") {
            let spec = json!({"begin": object.text("/metadata/uid")});
            // After a conflict with a report of the store, the next round repeats the request.
            kubectl.patch("localdisks", object, &spec)?;
            progress = "waiting for the store to begin a new state";
        }
        let is_served =
            object.at("/status/problem").is_none() && object.at("/status/uuid").is_some();
        if is_served {
            let cluster = Cluster::read(kubectl)?;
            let [lost, waiting] = counts(cluster.all().filter(|item| item.disk_name() == name));
            if waiting == 0 {
                return Ok(Answer::Record(vec![
                    ("disk", Cell::Text(name)),
                    ("lost", Cell::Number(lost)),
                ]));
            }
            progress = "waiting for the store to report its volumes as Lost";
        }
        if let Err(ended) = wait.next(progress).await {
            let problem = match object.text("/status/problem") {
                "" => progress,
                problem => problem,
            };
            let why = format!("{}: {problem}; repeat the command to continue", ended.why());
            return Err(refused(&name, &why));
        }
    }
}

/// Returns the LocalDisk if it may be reset.
pub(super) fn plan<'a>(cluster: &'a Cluster, name: &str) -> Result<Object<'a>, Failure> {
    let Some(disk) = cluster.disk(name) else {
        let why = "does not exist; `belayctl local disks` lists the disks";
        return Err(Failure::Absent(format!("LocalDisk {name}: {why}")));
    };
    let problem = disk.text("/status/problem");
    if problem.is_empty() {
        return Err(refused(
            name,
            "its store reports no problem; reset only a lost disk",
        ));
    }
    if !problem.contains(STATE_IS_MISSING) && !is_waiting(disk) {
        let why = format!("the state of the disk is not missing; its store reports: {problem}");
        return Err(refused(name, &why));
    }
    if cluster.silence(disk) >= SILENT_AFTER {
        let why = format!("{SILENT}; check its pod and its node");
        return Err(refused(name, &why));
    }
    Ok(disk)
}

/// Whether the store waits for the permission to begin a state, as after an interrupted reset.
fn is_waiting(disk: Object<'_>) -> bool {
    disk.text("/status/problem").contains(WAITS) && disk.at("/status/uuid").is_none()
}

/// Returns the numbers of lost objects, and of objects that a store has accepted and not yet
/// reported as lost.
fn counts<'a>(items: impl Iterator<Item = Item<'a>>) -> [i64; 2] {
    let mut counts = [0, 0];
    for item in items {
        match item.phase() {
            "Lost" => counts[0] += 1,
            _ if item.is_accepted() => counts[1] += 1,
            _ => {}
        }
    }
    counts
}

fn refused(disk: &str, why: &str) -> Failure {
    Failure::Refused(format!("LocalDisk {disk}: {why}"))
}
