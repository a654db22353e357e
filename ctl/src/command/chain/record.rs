//! What `mount` has begun, for `umount`: one file per directory. It holds no secret and no context.

use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};

use serde_json::{Value, json};

use super::place::Place;
use crate::failure::Failure;

/// The volume of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Where it is published.
    pub(super) target: PathBuf,
    /// As `mount` was given it.
    pub(super) name: String,
    pub(super) volume_id: String,
    pub(super) node_id: String,
    /// Of the controller and of the node agent.
    pub(super) sockets: [PathBuf; 2],
    /// Whether it was attached, and staged.
    pub(super) needs: (bool, bool),
    /// The directory that was at `target` before.
    pub(super) place: Option<Place>,
}

impl Record {
    /// The staging path of a directory.
    pub(super) fn staging(state: &Path, target: &Path) -> PathBuf {
        state.join("staging").join(file_name(target))
    }

    /// Writes it.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(super) fn save(&self, state: &Path) -> Result<(), Failure> {
        let file = state.join(file_name(&self.target) + ".json");
        let text = format!("{:#}\n", self.to_json());
        let written = fs::create_dir_all(state).and_then(|()| fs::write(&file, text));
        written.map_err(|error| failed(&file, &error))
    }

    /// The record of a directory, if there is one. That of another volume is refused: it would be
    /// lost.
    ///
    /// # Errors
    /// Another volume was mounted there; the record is damaged.
    pub(super) fn of_same(
        state: &Path,
        target: &Path,
        name: &str,
        sockets: &[PathBuf; 2],
    ) -> Result<Option<Self>, Failure> {
        if !state.join(file_name(target) + ".json").exists() {
            return Ok(None);
        }
        let known = Self::load(state, target)?;
        if known.name == name && known.sockets == *sockets {
            return Ok(Some(known));
        }
        Err(Failure::Usage(format!(
            "{path}: volume {name:?} was mounted there by `belayctl mount`; first run `belayctl \
             umount {path}`",
            path = target.display(),
            name = known.name
        )))
    }

    /// Reads that of a directory.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub(super) fn load(state: &Path, target: &Path) -> Result<Self, Failure> {
        let file = state.join(file_name(target) + ".json");
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::Usage(format!(
                    "{}: not mounted by `belayctl mount` (no {})",
                    target.display(),
                    file.display()
                )));
            }
            text => text.map_err(|error| failed(&file, &error))?,
        };
        let value: Option<Value> = serde_json::from_str(&text).ok();
        value.as_ref().and_then(Self::from_json).ok_or_else(|| {
            Failure::Machine(format!(
                "{}: damaged; undo the mount by `node` and `volume`",
                file.display()
            ))
        })
    }

    /// Removes it, and the staging directory, which the driver has left empty.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(super) fn remove(&self, state: &Path) -> Result<(), Failure> {
        let staging = Self::staging(state, &self.target);
        match fs::remove_dir(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&staging, &error));
            }
            _ => {}
        }
        let file = state.join(file_name(&self.target) + ".json");
        fs::remove_file(&file).map_err(|error| failed(&file, &error))
    }

    fn to_json(&self) -> Value {
        let sockets = self
            .sockets
            .each_ref()
            .map(|path| path.display().to_string());
        json!({
            "target": self.target.display().to_string(),
            "name": self.name,
            "volume_id": self.volume_id,
            "node_id": self.node_id,
            "sockets": sockets,
            "needs": self.needs,
            "place": self.place.as_ref().map(Place::to_json),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        let list = |key: &str| value.get(key)?.as_array().cloned();
        let sockets = list("sockets")?;
        let path = |at: usize| Some(PathBuf::from(sockets.get(at)?.as_str()?));
        let needs = list("needs")?;
        Some(Self {
            target: text("target")?.into(),
            name: text("name")?,
            volume_id: text("volume_id")?,
            node_id: text("node_id")?,
            sockets: [path(0)?, path(1)?],
            needs: (needs.first()?.as_bool()?, needs.get(1)?.as_bool()?),
            place: value.get("place").and_then(Place::from_json),
        })
    }
}

/// The absolute path of a directory that need not exist.
///
/// # Errors
/// It is empty or not UTF-8, or the working directory was removed.
pub(super) fn target(directory: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::Usage(format!("{}: {error}", directory.display()));
    let path: PathBuf = absolute(directory).map_err(failed)?.components().collect();
    // Not the directory itself: what is mounted there may hang.
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let path = match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    };
    if path.to_str().is_none() {
        let why = "not UTF-8, which CSI requires of a path";
        return Err(Failure::Usage(format!("{}: {why}", path.display())));
    }
    Ok(path)
}

/// `/mnt/a` becomes `mnt-a`; `-`, `%` and what is not plain are percent-encoded.
fn file_name(target: &Path) -> String {
    let path = target.to_string_lossy();
    let path = path.trim_matches('/').chars();
    path.map(|c| match c {
        '/' => "-".to_owned(),
        c if c.is_ascii_alphanumeric() || "._".contains(c) => c.to_string(),
        c => c
            .to_string()
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect(),
    })
    .collect()
}

fn failed(file: &Path, error: &io::Error) -> Failure {
    Failure::Machine(format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_by_its_directory_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record {
            target: "/mnt/a".into(),
            name: "data".to_owned(),
            volume_id: "v".to_owned(),
            node_id: "n".to_owned(),
            sockets: ["/c".into(), "/n".into()],
            needs: (true, false),
            place: Place::inspect(dir.path(), false).unwrap(),
        };
        assert!(record.place.is_some());
        record.save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path(), &record.target).unwrap(), record);
        let is_free = |name: &str, sockets: &[PathBuf; 2]| {
            Record::of_same(dir.path(), &record.target, name, sockets).is_ok()
        };
        assert!(is_free("data", &record.sockets));
        assert!(!is_free("other", &record.sockets));
        assert!(!is_free("data", &["/d".into(), "/n".into()]));
        record.remove(dir.path()).unwrap();
        assert!(is_free("other", &record.sockets));
        let gone = Record::load(dir.path(), &record.target).unwrap_err();
        assert!(
            gone.to_string().contains("/mnt/a: not mounted by"),
            "{gone}"
        );
    }

    #[test]
    fn two_directories_never_share_a_record() {
        assert_ne!(file_name(Path::new("/a/b")), file_name(Path::new("/a-b")));
        assert_ne!(file_name(Path::new("/a%2db")), file_name(Path::new("/a-b")));
        assert_eq!(file_name(Path::new("/mnt/a.b")), "mnt-a.b");
    }
}
