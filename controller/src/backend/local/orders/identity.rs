//! The file `disk.json` in a state directory: the identity of the state, and its topology value.
//! The file goes with the disk, so a disk that is moved to another node, and a copy of a disk, are
//! recognized. This module also decides which directories are served.

use super::super::fault::at;
use super::super::ledger::Ledger;
use super::super::state_file::sync_names;
use super::Orders;
use crate::kubernetes::{LocalDisk, Selector, WAITS};
use belay_contract::drivers::local::STATE_IS_MISSING;
use belay_server::call::Failure;
use belay_server::file;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::Path;

const NAME: &str = "disk.json";
const VERSION: u32 = 1;
const BYTES_MAX: u64 = 4096;

/// The identity of the state on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    version: u32,
    /// The random name of the state.
    pub(super) uuid: String,
    /// The value of the topology label for the volumes on the disk.
    pub(super) place: String,
    /// The name of the disk.
    pub(super) disk: String,
}

impl Identity {
    /// Creates a new identity.
    ///
    /// # Errors
    /// Returns `Bug` if the kernel provides no random bytes.
    pub(super) fn new(place: &str, disk: &str) -> Result<Self, Failure> {
        Ok(Self {
            version: VERSION,
            uuid: super::super::id::fresh("")?,
            place: place.to_owned(),
            disk: disk.to_owned(),
        })
    }

    /// Reads the identity; `None` if the directory has none.
    ///
    /// # Errors
    /// Returns `Precondition` if the file cannot be used, and `Unreachable` if it cannot be read.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join(NAME);
        if !path
            .try_exists()
            .map_err(|error| at("stat", &path, &error))?
        {
            return Ok(None);
        }
        let text = file::read(&path, BYTES_MAX).map_err(|error| at("read", &path, &error))?;
        let read = serde_json::from_slice::<Self>(&text).map_err(|error| error.to_string());
        let known = read.and_then(|read| match read.version {
            VERSION => Ok(read),
            version => Err(format!("version {version} is not {VERSION}")),
        });
        known.map(Some).map_err(|why| {
            Failure::precondition(format!(
                "{}: {why}; restore the file from a backup, or run the release that wrote it",
                path.display()
            ))
        })
    }

    /// Writes the identity. The file is on disk when this method returns.
    ///
    /// # Errors
    /// Returns the errors of writing a file.
    pub(super) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let draft = dir.join(format!("{NAME}.new"));
        let text = serde_json::to_vec(self).map_err(|error| Failure::bug(error.to_string()))?;
        let write = || {
            let mut file = std::fs::File::create(&draft)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&draft, dir.join(NAME))
        };
        write().map_err(|error| at("write", &draft, &error))?;
        sync_names(dir)
    }
}

/// The state that a directory must have to be served.
pub(super) struct Expected {
    pub(super) node: String,
    pub(super) disk: String,
    /// The place of the disk, as its LocalDisk has it.
    pub(super) place: String,
    /// The identity of the state that the disk had before.
    pub(super) remembered: Option<String>,
    /// Whether a new state may be begun. Without permission, an empty directory is the mount point
    /// of a disk that is not mounted.
    pub(super) may_begin: bool,
}

impl Expected {
    /// Writes a new identity.
    fn begin(&self, dir: &Path) -> Result<Identity, Failure> {
        let new = Identity::new(&self.place, &self.disk)?;
        new.write(dir)?;
        Ok(new)
    }

    /// Returns the identity of the state in the directory.
    ///
    /// # Errors
    /// Returns `Precondition` if the directory must not be served.
    pub(super) fn find(&self, dir: &Path) -> Result<Identity, Failure> {
        let (node, disk) = (&self.node, &self.disk);
        let refused = |why: String| Err(Failure::precondition(format!("{}: {why}", dir.display())));
        if !dir.is_dir() {
            return Err(missing(dir));
        }
        let (found, has_state) = (Identity::read(dir)?, Ledger::is_in(dir)?);
        match (&self.remembered, &found) {
            (Some(uuid), _) if !has_state => refused(format!(
                "{STATE_IS_MISSING} {uuid}; mount the disk, and then delete the pod of this \
                 store; if its data cannot be recovered, `belayctl local reset {node} {disk}` \
                 makes the disk usable: all its volumes are then lost"
            )),
            (Some(uuid), Some(found)) if *uuid != found.uuid => refused(format!(
                "has the state {}, but this disk had the state {uuid}; mount the right disk",
                found.uuid
            )),
            (Some(uuid), None) => refused(format!(
                "has no disk.json, but this disk had the state {uuid}; restore the file"
            )),
            (None, _) if !has_state && !self.may_begin => {
                refused(format!("empty; {WAITS} to use it"))
            }
            // No state was begun with this identity, and nothing names the disk.
            (None, Some(found)) if !has_state && found.place != self.place => self.begin(dir),
            (_, Some(found)) if found.disk != *disk => refused(format!(
                "its volumes are on disk {:?}, but this is disk {disk:?}; use this name for it",
                found.disk
            )),
            (_, Some(found)) if found.place != self.place => refused(format!(
                "its volumes are at place {}, but this disk is at {}; if the disk has moved to \
                 node {node}, or the Node was renamed: `belayctl local rehome {} {node}`",
                found.place, self.place, found.place
            )),
            (_, Some(found)) => Ok(found.clone()),
            (None, None) => self.begin(dir),
        }
    }
}

/// Returns the refusal of a directory that does not exist.
pub(super) fn missing(dir: &Path) -> Failure {
    Failure::precondition(format!(
        "{}: does not exist; mount the disk, or create the directory",
        dir.display()
    ))
}

/// Refuses a place that the disks of another node have, and a second place of this node: the
/// label of a Node has one value.
pub(super) async fn refuse_other_holder(orders: &Orders, place: &str) -> Result<(), Failure> {
    let (client, node) = (&orders.client, &orders.config.node);
    let here = client.list::<LocalDisk>(&Selector::node(node)).await?;
    let there = client.list::<LocalDisk>(&Selector::place(place)).await?;
    for disk in here.items.iter().chain(&there.items) {
        let (name, Some(spec)) = (&disk.metadata.name, disk.spec.known()) else {
            continue;
        };
        if !disk.was_served() || (spec.node == *node && spec.place == place) {
            continue;
        }
        let of = &spec.place;
        return Err(Failure::precondition(match spec.node == *node {
            true => format!(
                "node {node} has the place {of} (LocalDisk {name}), and cannot have the place \
                 {place} too; `belayctl local rehome {of} {node}` gives {of} to this disk"
            ),
            false => format!(
                "node {} has the place {place} (LocalDisk {name}); if it never returns: \
                 `belayctl local forget {}`",
                spec.node, spec.node
            ),
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    fn expected(node: &str, remembered: Option<&str>, may_begin: bool) -> Expected {
        Expected {
            node: node.to_owned(),
            disk: "default".to_owned(),
            place: node.to_owned(),
            remembered: remembered.map(str::to_owned),
            may_begin,
        }
    }

    fn why(dir: &Path, remembered: Option<&str>, may_begin: bool) -> String {
        let refused = expected("node1", remembered, may_begin).find(dir);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition, "{refused}");
        refused.message
    }

    #[test]
    fn an_empty_directory_is_used_only_with_permission_and_never_if_it_had_a_state() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(why(dir, None, false).contains("permission"));
        assert!(why(dir, Some("a"), true).contains("had the state a"));
        assert!(why(&dir.join("missing"), None, true).contains("does not exist"));
        assert_eq!(Identity::read(dir).unwrap(), None);
        let begun = expected("node1", None, true).find(dir).unwrap();
        assert_eq!(expected("node1", None, true).find(dir).unwrap(), begun);
    }

    #[test]
    fn a_state_is_served_only_by_its_node_and_only_the_expected_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let begun = expected("node1", None, true).find(dir).unwrap();
        drop(Ledger::open(dir).unwrap());
        let again = expected("node1", Some(&begun.uuid), false).find(dir);
        assert_eq!(again.unwrap(), begun);
        assert!(why(dir, Some("other"), false).contains("the right disk"));
        let elsewhere = expected("node2", None, true).find(dir).unwrap_err();
        assert!(elsewhere.message.contains("at place node1"), "{elsewhere}");
        assert!(
            elsewhere
                .message
                .contains("`belayctl local rehome node1 node2`")
        );
        let rehomed = Expected {
            place: "node1".to_owned(),
            ..expected("node2", None, false)
        };
        assert_eq!(rehomed.find(dir).unwrap(), begun);
        let other_disk = Expected {
            disk: "fast".to_owned(),
            ..expected("node1", None, true)
        };
        let refused = other_disk.find(dir).unwrap_err();
        assert!(refused.message.contains("on disk \"default\""), "{refused}");
        std::fs::remove_file(dir.join("disk.json")).unwrap();
        assert!(why(dir, Some(&begun.uuid), false).contains("no disk.json"));
        assert_eq!(Identity::read(dir).unwrap(), None);
    }

    #[test]
    fn an_identity_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), None);
        let written = Identity::new("node1", "default").unwrap();
        written.write(dir.path()).unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), Some(written));
        for bad in [
            "",
            "{",
            r#"{"version":2,"uuid":"a","place":"b","disk":"c"}"#,
        ] {
            std::fs::write(dir.path().join(NAME), bad).unwrap();
            let failure = Identity::read(dir.path()).unwrap_err();
            assert!(failure.message.contains("disk.json"), "{failure}");
        }
    }
}
