//! An object for a file that has none, so that the controller can delete the file. The store
//! accepts the object and creates nothing for it.

use belay_contract::drivers::local::{SPEC_VERSION, UNKNOWN_VOLUME};
use serde_json::{Value, json};

use super::cluster::{Cluster, GROUP, Item, Kind, new_object, problem};
use super::console::Wait;
use super::kubectl::Kubectl;
use crate::failure::Failure;
use crate::objects::Object;

/// An object for a file, before its creation.
pub(super) struct Adoption {
    kind: Kind,
    object: Value,
}

/// Returns the object for the file with this ID; `None` if the ID has an object, or if no store
/// lists the file.
///
/// # Errors
/// Returns `Refused` if several disks have the file, or if its disk cannot be changed.
pub(super) fn find(cluster: &Cluster, id: &str) -> Result<Option<Adoption>, Failure> {
    if cluster.all().any(|item| item.id() == id) {
        return Ok(None);
    }
    let files = cluster.disks().filter_map(|disk| {
        let mut files = disk.list("/status/unlisted/first");
        let file = files.find(|file| file.text("/id") == id)?;
        Some((disk, file))
    });
    let files: Vec<_> = files.collect();
    let refused = |why: &str| Err(Failure::Refused(format!("{id}: {why}")));
    let (disk, file) = match files.as_slice() {
        [] => return Ok(None),
        [one] => *one,
        [(first, _), (second, _), ..] => {
            let (first, second) = (first.name(), second.name());
            return refused(&format!(
                "the disks {first} and {second} have it; remove one copy by hand"
            ));
        }
    };
    match problem(cluster, disk).as_str() {
        "" => {}
        problem => return refused(&format!("disk {}: {problem}", disk.name())),
    }
    let kind = match id.starts_with("snap-") {
        true => Kind::Snapshot,
        false => Kind::Volume,
    };
    let name = file.text("/name");
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
    let mut object = new_object(kind.of_object(), id, &spec);
    object["status"] = json!({"phase": "Unlisted", "bytes": bytes});
    Ok(Some(Adoption { kind, object }))
}

impl Adoption {
    /// Refuses a file whose record the store cannot read.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (noun, item) = (self.kind.noun(), self.item());
        match item.object.text("/spec/name") {
            "" => Err(Failure::Refused(format!(
                "{noun} {}: state.redb of disk {} has no readable record of it; restore \
                 state.redb, or delete the file {noun}s/{} in the directory of the disk by hand",
                item.id(),
                item.disk_name(),
                item.id()
            ))),
            _ => Ok(()),
        }
    }

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
        self.check()?;
        let collection = format!("{GROUP}/{}s", self.kind.of_object().to_lowercase());
        let path = format!("{collection}/{}", self.item().id());
        let mut object = self.object.clone();
        object["status"] = Value::Null;
        let mut wait = Wait::new(kubectl.seconds)?;
        // A conflict means that an earlier attempt has created it.
        kubectl.create(&collection, &object)?;
        let refused = |why: &str| {
            let (noun, id) = (self.kind.noun(), self.item().id());
            Failure::Refused(format!("{noun} {id}: {why}"))
        };
        let disk = self.item().disk_name();
        loop {
            // The controller deletes an object that no store accepts.
            let Some(found) = kubectl.get(&path)? else {
                let why = format!("the store of disk {disk} has not accepted it; check its pod");
                return Err(refused(&why));
            };
            let found = Item {
                kind: self.kind,
                object: Object::new(&found),
            };
            match found.phase() {
                "Refused" | "Lost" => return Err(refused(found.failure())),
                // The copy of a snapshot may still run.
                "Ready" | "Making" if found.is_accepted() => return Ok(()),
                _ => {}
            }
            let progress = format!("waiting for the store of disk {disk} to accept the file");
            if let Err(ended) = wait.next(&progress).await {
                return Err(refused(&format!(
                    "{progress}: {}; check its pod",
                    ended.why()
                )));
            }
        }
    }
}
