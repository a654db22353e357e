//! `belayctl local remove`: deletes an unclaimed volume or snapshot with its data, by a call of the
//! driver's controller. The store deletes nothing after the controller has returned a failure.

use super::adopt::{self, Adoption};
use super::cluster::{Cluster, Item, Kind, controller};
use super::console;
use super::kubectl::Kubectl;
use super::list;
use crate::failure::Failure;
use crate::render::{Answer, Cell};

/// Removes a volume or snapshot. Without `is_confirmed`, the user must confirm it.
///
/// # Errors
/// Fails if the object must be kept, if the controller fails, or if kubectl fails.
pub(super) async fn run(
    kubectl: &Kubectl,
    id: &str,
    is_confirmed: bool,
) -> Result<Answer, Failure> {
    let (mut cluster, mut adoption) = read(kubectl, id)?;
    if !is_confirmed {
        let item = plan(&cluster, adoption.as_ref(), id)?;
        let rows = list::objects("objects", &cluster, std::iter::once(item));
        console::confirm(&rows, "this object is deleted with its data")?;
        // A claim may have been created while the user was asked.
        (cluster, adoption) = read(kubectl, id)?;
    }
    let controller = controller(kubectl)?;
    if let Some(file) = &adoption {
        unrequested(kubectl, plan(&cluster, Some(file), id)?)?;
        file.create(kubectl).await?;
        // A claim may have been created while the store was asked.
        (cluster, adoption) = read(kubectl, id)?;
    }
    let item = unrequested(kubectl, plan(&cluster, adoption.as_ref(), id)?)?;
    // The controller may work for 90 s, and does not end with the connection.
    let timeout = format!("--timeout={}", kubectl.seconds.max(120));
    let command = ["belayctl", item.kind.noun(), "delete", id, &timeout];
    kubectl.exec(&controller, "belay-controller", &command)?;
    Ok(Answer::Record(vec![
        ("deleted", Cell::Text(id.to_owned())),
        ("kind", Cell::Text(item.kind.noun().to_owned())),
        ("disk", Cell::Text(item.disk_name())),
    ]))
}

/// Returns the objects, and the object to create for the file with this ID if it has none.
fn read(kubectl: &Kubectl, id: &str) -> Result<(Cluster, Option<Adoption>), Failure> {
    let cluster = Cluster::read_all(kubectl)?;
    let adoption = adopt::find(&cluster, id)?;
    Ok((cluster, adoption))
}

/// Refuses an object whose creation is still requested.
fn unrequested<'a>(kubectl: &Kubectl, item: Item<'a>) -> Result<Item<'a>, Failure> {
    match Cluster::request(kubectl, item)? {
        Some(request) => {
            let why = format!("{request} requests it; delete that first");
            Err(kept(item.kind, item.id(), &why))
        }
        None => Ok(item),
    }
}

/// Returns the object with this ID, or else the one to create for its file, if nothing has the ID.
pub(super) fn plan<'a>(
    cluster: &'a Cluster,
    adoption: Option<&'a Adoption>,
    id: &str,
) -> Result<Item<'a>, Failure> {
    let mut same = cluster.all().filter(|item| item.id() == id);
    let Some(item) = same.next().or(adoption.map(Adoption::item)) else {
        let why = "not found; `belayctl local unclaimed` and `unlisted` list IDs";
        return Err(Failure::Absent(format!("{id}: {why}")));
    };
    let refuse = |why: &str| Err(kept(item.kind, id, why));
    if same.next().is_some() {
        return refuse("several objects have this ID; delete the one that has no file");
    }
    let Some(claim) = cluster.claim(item) else {
        return Ok(item);
    };
    let (kind, delete) = match item.kind {
        Kind::Volume => ("PersistentVolume", "PersistentVolumeClaim"),
        Kind::Snapshot => ("VolumeSnapshotContent", "VolumeSnapshot"),
    };
    let (name, of) = (claim.name(), cluster.claim_name(item).unwrap_or_default());
    refuse(&format!(
        "{kind} {name} has it; delete the {delete} instead ({of})"
    ))
}

fn kept(kind: Kind, id: &str, why: &str) -> Failure {
    Failure::Refused(format!("{} {id}: {why}", kind.noun()))
}
