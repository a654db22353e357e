//! An object for a file that has none, so that the controller can delete the file. The store
//! accepts the object and creates nothing for it.

use belay_contract::drivers::local::{SPEC_VERSION, UNKNOWN_VOLUME};
use serde_json::{Value, json};

use super::cluster::{Cluster, GROUP, Item, Kind};
use super::console::Wait;
use super::kubectl::Kubectl;
use crate::failure::Failure;
use crate::objects::Object;

/// An object that is to be created for a file.
pub(super) struct Adoption {
    kind: Kind,
    object: Value,
}

/// Returns the object for the file with this ID; `None` if the ID has an object, or if no store
/// lists the file.
///
/// # Errors
/// Returns `Refused` for a file that the store does not know.
pub(super) fn find(cluster: &Cluster, id: &str) -> Result<Option<Adoption>, Failure> {
    if cluster.all().any(|item| item.id() == id) {
        return Ok(None);
    }
    let mut disks = cluster.disks();
    let file = disks.find_map(|disk| {
        let mut files = disk.list("/status/unlisted/first");
        let file = files.find(|file| file.text("/id") == id)?;
        Some((disk, file))
    });
    let Some((disk, file)) = file else {
        return Ok(None);
    };
    let kind = match id.starts_with("snap-") {
        true => Kind::Snapshot,
        false => Kind::Volume,
    };
    let name = file.text("/name");
    if name.is_empty() {
        return Err(Failure::Refused(format!(
            "{} {id}: the disk {} has no record of it; if nobody needs the data, delete the file \
             {}s/{id} in the directory of the disk",
            kind.noun(),
            disk.name(),
            kind.noun()
        )));
    }
    let bytes = file.number("/bytes");
    let [place, node, disk] = ["/spec/place", "/spec/node", "/spec/disk"].map(|at| disk.text(at));
    let mut spec = json!({
        "version": SPEC_VERSION, "id": id, "name": name, "place": place, "disk": disk,
        "node": node, "adopt": true,
    });
    match kind {
        Kind::Volume => {
            spec["bytes"] = json!(bytes);
            spec["usage"] = json!({"mode": "Filesystem"});
        }
        Kind::Snapshot => spec["volume"] = json!(UNKNOWN_VOLUME),
    }
    // The ID is a name that no other object has.
    let metadata = json!({
        "name": id, "annotations": {"velero.io/exclude-from-backup": "true"},
    });
    let object = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": kind.of_object(), "metadata": metadata,
        "spec": spec, "status": {"phase": "Unlisted", "bytes": bytes},
    });
    Ok(Some(Adoption { kind, object }))
}

impl Adoption {
    /// Returns the object, with the phase `Unlisted`.
    pub(super) fn item(&self) -> Item<'_> {
        let object = Object::new(&self.object);
        Item {
            kind: self.kind,
            object,
        }
    }

    /// Creates the object, and waits until the store has accepted it.
    ///
    /// # Errors
    /// Fails if the store refuses the object, or does not accept it in time, or if kubectl fails.
    pub(super) async fn create(&self, kubectl: &Kubectl) -> Result<(), Failure> {
        let collection = format!("{GROUP}/{}s", self.kind.of_object().to_lowercase());
        let path = format!("{collection}/{}", self.item().id());
        let mut object = self.object.clone();
        object["status"] = Value::Null;
        let mut wait = Wait::new(kubectl.seconds)?;
        // A conflict means that an earlier attempt has created it.
        kubectl.create(&collection, &object)?;
        loop {
            let found = kubectl.get(&path)?.unwrap_or(Value::Null);
            let found = Item {
                kind: self.kind,
                object: Object::new(&found),
            };
            let refused = |why: &str| {
                let (noun, id) = (self.kind.noun(), self.item().id());
                Failure::Refused(format!("{noun} {id}: {why}"))
            };
            match found.phase() {
                "Ready" => return Ok(()),
                "Refused" | "Lost" => return Err(refused(found.failure())),
                _ => {}
            }
            if let Err(ended) = wait.next("waiting for the store to adopt the file").await {
                let why =
                    "its store has not adopted the file; check its pod, and repeat the command";
                return Err(refused(&format!("{}: {why}", ended.why())));
            }
        }
    }
}
