//! The demo's folder: every path in it by name, so that clearing up removes known names only and
//! never walks a tree that may be mounted.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub(crate) const CONTROLLER: &str = "belay-controller";
pub(crate) const NODE: &str = "belay-node";
/// Both, in the order in which they start: the controller makes the folder that the node needs.
pub(crate) const BINARIES: [&str; 2] = [CONTROLLER, NODE];

/// How many names are tried before giving up.
const NAMES_MAX: u32 = 100;

/// One folder beneath the temporary directory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    /// The folder of that name, whether it is there or not.
    pub(crate) fn at(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// A name that is free: no other living process takes one with our number in it.
    ///
    /// # Errors
    /// Too many demos with our number left their folders.
    pub(crate) fn choose(temporary: &Path) -> io::Result<Self> {
        let pid = std::process::id();
        let mut names = (0..NAMES_MAX).map(|n| temporary.join(format!("belay-demo.{pid}.{n}")));
        let free = names.find(|name| name.symlink_metadata().is_err());
        let text = format!("{}: clear old belay-demo folders", temporary.display());
        free.map(|dir| Self { dir })
            .ok_or_else(|| io::Error::other(text))
    }

    /// Makes the folder, for root alone.
    ///
    /// # Errors
    /// It is there already, or its parent cannot be written.
    pub(crate) fn make(&self) -> io::Result<()> {
        let made = DirBuilder::new().mode(0o700).create(&self.dir);
        made.map_err(|error| io::Error::other(format!("{}: {error}", self.dir.display())))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The sparse file that plays the disk beneath everything.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Where the inner process mounts it.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub(crate) fn socket(&self, binary: &str) -> PathBuf {
        self.dir.join(format!("{binary}.sock"))
    }

    pub(crate) fn log(&self, binary: &str) -> PathBuf {
        self.dir.join(format!("{binary}.log"))
    }

    /// `--state-dir` of the controller.
    pub(crate) fn controller_state(&self) -> PathBuf {
        self.state().join("controller")
    }

    /// `--loop-dir` of the node: where the controller keeps the volumes' files.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.controller_state().join("volumes")
    }

    /// What a kubelet would have beneath its own folder, for one pod.
    pub(crate) fn pod(&self, name: &str) -> PathBuf {
        self.state().join("pods").join(name)
    }

    /// Where the bare system calls are measured.
    pub(crate) fn bare(&self) -> PathBuf {
        self.state().join("bare")
    }

    /// Removes the folder: first the names that the demo makes, then the folder, which fails if
    /// anything else is in it.
    ///
    /// # Errors
    /// Something could not be removed; the text says what.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut names = vec![self.image()];
        for binary in BINARIES {
            names.extend([self.socket(binary), self.log(binary)]);
        }
        for name in names {
            forgive_absence(std::fs::remove_file(&name), &name)?;
        }
        forgive_absence(std::fs::remove_dir(self.state()), &self.state())?;
        forgive_absence(std::fs::remove_dir(&self.dir), &self.dir)
    }
}

fn forgive_absence(result: io::Result<()>, path: &Path) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::other(format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn made_in(temporary: &Path) -> Place {
        let place = Place::choose(temporary).unwrap();
        place.make().unwrap();
        place
    }

    #[test]
    fn the_folder_goes_with_everything_that_the_demo_makes() {
        let temporary = tempfile::tempdir().unwrap();
        let place = made_in(temporary.path());
        fs::write(place.image(), "x").unwrap();
        fs::write(place.log("belay-node"), "x").unwrap();
        fs::create_dir(place.state()).unwrap();
        place.remove().unwrap();
        assert!(!place.dir().exists());
        place.remove().unwrap();
    }

    #[test]
    fn a_stranger_in_the_folder_is_kept_and_named() {
        let temporary = tempfile::tempdir().unwrap();
        let place = made_in(temporary.path());
        let stranger = place.state().join("precious");
        fs::create_dir(place.state()).unwrap();
        fs::write(&stranger, "x").unwrap();
        let error = place.remove().unwrap_err().to_string();
        assert!(error.contains("state"), "{error}");
        assert!(stranger.exists());
    }

    #[test]
    fn two_demos_never_share_a_folder() {
        let temporary = tempfile::tempdir().unwrap();
        let first = made_in(temporary.path());
        assert_ne!(first.dir(), made_in(temporary.path()).dir());
        assert!(first.make().is_err());
    }
}
