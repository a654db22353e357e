//! Records that `mount` writes for `umount` before the first call that must be undone: one file per
//! mounted directory, without secrets and contexts.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf, absolute};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::failed;
use super::place::Place;
use crate::failure::Failure;

/// The suffix of a record's file name.
const SUFFIX: &str = ".json";

/// Maximum length of a file name, in bytes (NAME_MAX of limits.h).
const NAME_BYTES_MAX: usize = 255;

/// A record of a mount: the volume that `belayctl mount` has mounted on a directory, or has begun
/// to mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The path at which the driver publishes the volume.
    pub(super) target: PathBuf,
    /// The name passed to `mount`.
    pub(super) name: String,
    pub(super) volume_id: String,
    pub(super) node_id: String,
    /// The sockets of the controller and of the node agent.
    pub(super) sockets: [PathBuf; 2],
    /// Whether the driver requires the volume to be attached, and whether it requires staging.
    pub(super) needs: (bool, bool),
    /// The directory that existed at `target` before the mount.
    pub(super) place: Option<Place>,
}

impl Record {
    fn path(state: &Path, target: &Path) -> PathBuf {
        state.join(file_name(target) + SUFFIX)
    }

    /// Returns the staging path for a directory.
    pub(super) fn staging(state: &Path, target: &Path) -> PathBuf {
        state.join("staging").join(file_name(target))
    }

    /// Creates the record of a mount. If a concurrent `mount` of the same volume has already
    /// created the record, returns that record.
    ///
    /// # Errors
    /// Fails if the directory has a record of a different volume, or if the state directory cannot
    /// be written.
    pub(super) fn begin(self, state: &Path) -> Result<Self, Failure> {
        let file = Self::path(state, &self.target);
        match self.write(state, |aside| fs::hard_link(aside, &file)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            written => {
                return written
                    .map(|()| self)
                    .map_err(|error| failed(&file, &error));
            }
        }
        let known = Self::of_same(state, &self.target, &self.name, &self.sockets);
        let known = known.map_err(|refused| {
            let (name, id) = (&self.name, &self.volume_id);
            Failure::Usage(format!(
                "{refused}; volume {name:?} exists, with the ID {id}, and is not mounted"
            ))
        })?;
        known.ok_or_else(|| {
            Failure::Machine(format!(
                "{}: `belayctl umount` ran at the same time; repeat `belayctl mount`",
                self.target.display()
            ))
        })
    }

    /// Replaces the record of an earlier `mount` of the same volume, but keeps the properties of
    /// the directory from before that mount.
    ///
    /// # Errors
    /// Fails if the state directory cannot be written.
    pub(super) fn renew(mut self, known: Self, state: &Path) -> Result<Self, Failure> {
        self.place = known.place.clone().or(self.place);
        if self == known {
            return Ok(known);
        }
        let file = Self::path(state, &self.target);
        let written = self.write(state, |aside| fs::rename(aside, &file));
        written
            .map(|()| self)
            .map_err(|error| failed(&file, &error))
    }

    /// Writes the record to a temporary file, whose name no other process uses, not even in another
    /// container. The function `publish` then gives the file its final name.
    fn write(&self, state: &Path, publish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let aside = state.join(format!("{}-{now}.new", std::process::id()));
        let text = serde_json::to_string_pretty(self)? + "\n";
        let written = fs::File::create_new(&aside)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| publish(&aside));
        // After a rename, the temporary file no longer exists. If it cannot be removed, it is
        // harmless.
        drop(fs::remove_file(&aside));
        written
    }

    /// Returns the record of a directory, if there is one.
    ///
    /// # Errors
    /// Fails if the record is damaged, or describes a different volume.
    pub(super) fn of_same(
        state: &Path,
        target: &Path,
        name: &str,
        sockets: &[PathBuf; 2],
    ) -> Result<Option<Self>, Failure> {
        match Self::find(state, target)? {
            Some(known) if known.name != name || known.sockets != *sockets => {
                Err(Failure::Usage(format!(
                    "{path}: volume {name:?} was mounted there by `belayctl mount`; first run \
                     `belayctl umount {path}`",
                    path = target.display(),
                    name = known.name
                )))
            }
            known => Ok(known),
        }
    }

    /// Reads the record of a directory.
    ///
    /// # Errors
    /// Fails if there is no record, or if it is damaged.
    pub(super) fn load(state: &Path, target: &Path) -> Result<Self, Failure> {
        Self::find(state, target)?.ok_or_else(|| {
            Failure::Usage(format!(
                "{}: not mounted by `belayctl mount` (no {}); if it is a mount, use `umount`",
                target.display(),
                Self::path(state, target).display()
            ))
        })
    }

    fn find(state: &Path, target: &Path) -> Result<Option<Self>, Failure> {
        let file = Self::path(state, target);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| failed(&file, &error))?,
        };
        serde_json::from_str(&text).map(Some).map_err(|_error| {
            Failure::Machine(format!(
                "{}: damaged; undo the mount by `node` and `volume`",
                file.display()
            ))
        })
    }

    /// Removes the record, and the staging directory, which the driver has emptied.
    ///
    /// # Errors
    /// Fails if the state directory cannot be written.
    pub(super) fn remove(&self, state: &Path) -> Result<(), Failure> {
        let staging = Self::staging(state, &self.target);
        match fs::remove_dir(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&staging, &error));
            }
            _ => {}
        }
        let file = Self::path(state, &self.target);
        fs::remove_file(&file).map_err(|error| failed(&file, &error))
    }
}

/// Returns the absolute path of a directory. The result is the same before and after the directory
/// is created.
///
/// # Errors
/// Fails if the path is empty, is not UTF-8, contains an unresolvable `..`, or is too long for the
/// name of a record. Also fails if the working directory was removed.
pub(super) fn target(directory: &Path) -> Result<PathBuf, Failure> {
    let path = resolved(directory)?;
    let bytes = file_name(&path).len() + SUFFIX.len();
    if bytes > NAME_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{}: too long: the name of its record would have {bytes} bytes, and a file name has at \
             most {NAME_BYTES_MAX} (`-` and what is not ASCII count three a byte); name a shorter \
             path",
            path.display()
        )));
    }
    Ok(path)
}

/// Returns the absolute path of a state directory. Does not resolve symbolic links, since drivers
/// identify a staging path by its text.
///
/// # Errors
/// Fails if the path is empty, is not UTF-8, or contains an unresolvable `..`. Also fails if the
/// working directory was removed.
pub(super) fn state(directory: &Path) -> Result<PathBuf, Failure> {
    match has_dots(directory) {
        true => resolved(directory),
        false => whole(directory),
    }
}

fn resolved(directory: &Path) -> Result<PathBuf, Failure> {
    let path = whole(directory)?;
    // Do not access the directory itself, since a mount on it may hang. Resolve the nearest
    // directory above it that exists; `mount` creates the missing directories.
    let mut above = path.ancestors().skip(1);
    let found = above.find_map(|above| {
        let real = above.canonicalize().ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    });
    let found = whole(&found.unwrap_or(path))?;
    if has_dots(&found) {
        return Err(Failure::Usage(format!(
            "{}: its `..` cannot be resolved; name the path without it",
            directory.display()
        )));
    }
    Ok(found)
}

/// Returns an absolute path without empty components and without `.` components.
fn whole(directory: &Path) -> Result<PathBuf, Failure> {
    let refused =
        |why: &dyn std::fmt::Display| Failure::Usage(format!("{}: {why}", directory.display()));
    let path: PathBuf = absolute(directory)
        .map_err(|error| refused(&error))?
        .components()
        .collect();
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(refused(&"not UTF-8, which CSI requires of a path")),
    }
}

fn has_dots(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// Returns the file name of the record for a directory: `mnt-a` for `/mnt/a`. Percent-encodes `-`,
/// `%` and special characters.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, place: Option<Place>) -> Record {
        Record {
            target: "/mnt/a".into(),
            name: name.to_owned(),
            volume_id: format!("id of {name}"),
            node_id: "n".to_owned(),
            sockets: ["/c".into(), "/n".into()],
            needs: (true, false),
            place,
        }
    }

    #[test]
    fn of_two_volumes_for_one_directory_the_first_keeps_its_record() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::inspect(dir.path(), false).unwrap();
        let first = record("first", place.clone()).begin(dir.path()).unwrap();
        let refused = record("second", None).begin(dir.path()).unwrap_err();
        let refused = refused.to_string();
        for part in [
            "\"first\" was mounted there",
            "umount /mnt/a",
            "id of second",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        assert_eq!(Record::load(dir.path(), &first.target).unwrap(), first);
        // A concurrent second `mount` gets the record of the first `mount`, which has inspected the
        // directory before mounting on it.
        let again = record("first", None).begin(dir.path()).unwrap();
        assert_eq!(again.place, place);
        let mut moved = record("first", None);
        moved.node_id = "m".to_owned();
        let moved = moved.renew(first.clone(), dir.path()).unwrap();
        assert_eq!(moved.place, place);
        assert_eq!(Record::load(dir.path(), &first.target).unwrap(), moved);
        let files = fs::read_dir(dir.path()).unwrap();
        assert_eq!(files.count(), 1, "only the record");
    }

    #[test]
    fn a_path_is_the_same_before_and_after_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        fs::create_dir(top.join("real")).unwrap();
        std::os::unix::fs::symlink(top.join("real"), top.join("link")).unwrap();
        let new = top.join("link/new/a");
        let before = target(&new).unwrap();
        assert_eq!(before, top.join("real/new/a"));
        fs::create_dir_all(&new).unwrap();
        assert_eq!(target(&new).unwrap(), before);
        assert_eq!(target(&top.join("link/../a")).unwrap(), top.join("a"));
        for dots in ["nope/../a", "nope/x/../../a", "real/.."] {
            for refused in [target(&top.join(dots)), state(&top.join(dots))] {
                let refused = refused.unwrap_err().to_string();
                assert!(
                    refused.contains(dots) && refused.contains("`..`"),
                    "{refused}"
                );
            }
        }
    }

    #[test]
    fn a_state_directory_is_absolute_and_keeps_its_links() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(state(Path::new("rel/s/")).unwrap(), here.join("rel/s"));
        let above = here.canonicalize().unwrap();
        assert_eq!(state(Path::new("../s")).unwrap(), above.with_file_name("s"));
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let link = dir.path().join("link/s");
        assert_eq!(state(&link).unwrap(), link);
    }

    #[test]
    fn a_path_whose_record_would_have_no_name_is_refused() {
        let longest = format!("/{}", "x".repeat(250));
        assert!(target(Path::new(&longest)).is_ok());
        for long in [format!("{longest}x"), format!("/{}", "-".repeat(84))] {
            let refused = target(Path::new(&long)).unwrap_err().to_string();
            assert!(
                refused.contains("name of its record would have 25"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_record_is_found_by_its_directory_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let record = record("data", Place::inspect(dir.path(), false).unwrap());
        assert!(record.place.is_some());
        let record = record.begin(dir.path()).unwrap();
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
