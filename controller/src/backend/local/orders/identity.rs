//! The file `disk.json` in a state directory: the identity of the state, and its topology value.
//! The file goes with the disk, so a disk that is moved to another node, and a copy of a disk, are
//! recognized.

use super::super::fault::at;
use super::super::state_file::sync_names;
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

#[cfg(test)]
mod tests {
    use super::*;

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
