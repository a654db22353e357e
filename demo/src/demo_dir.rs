//! The demo's directory and all paths in it, so that the cleanup removes known names only and never
//! walks a tree that may be mounted.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub(crate) const CONTROLLER: &str = "belay-controller";
pub(crate) const NODE: &str = "belay-node";
/// Both, in start order: the controller creates the directory that the node needs.
pub(crate) const BINARIES: [&str; 2] = [CONTROLLER, NODE];

/// The filesystem of the controller's state directory: it shares blocks, so volumes in use can be
/// copied.
pub(crate) const STATE_FS: &str = "xfs";

/// How many names are tried.
const NAMES_MAX: u32 = 100;

/// One directory in the temporary directory.
#[derive(Clone, Debug)]
pub(crate) struct DemoDir {
    path: PathBuf,
}

impl DemoDir {
    /// The directory with that path, whether it exists or not.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// A free name: no other running process takes one with our PID in it.
    ///
    /// # Errors
    /// Too many demos with our PID left their directories.
    pub(crate) fn choose(temporary: &Path) -> io::Result<Self> {
        let pid = std::process::id();
        let mut names = (0..NAMES_MAX).map(|n| temporary.join(format!("belay-demo.{pid}.{n}")));
        let free = names.find(|name| name.symlink_metadata().is_err());
        let text = format!("{}: remove old belay-demo directories", temporary.display());
        free.map(|path| Self { path })
            .ok_or_else(|| io::Error::other(text))
    }

    /// Creates the directory, for root only.
    ///
    /// # Errors
    /// It exists already, or its parent is not writable.
    pub(crate) fn make(&self) -> io::Result<()> {
        let made = DirBuilder::new().mode(0o700).create(&self.path);
        made.map_err(|error| io::Error::other(format!("{}: {error}", self.path.display())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The sparse file that serves as the disk.
    pub(crate) fn image(&self) -> PathBuf {
        self.path.join("disk")
    }

    /// The mount point of the disk.
    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    pub(crate) fn socket(&self, binary: &str) -> PathBuf {
        self.path.join(format!("{binary}.sock"))
    }

    pub(crate) fn log(&self, binary: &str) -> PathBuf {
        self.path.join(format!("{binary}.log"))
    }

    /// `--state-dir` of the controller.
    pub(crate) fn controller_state(&self) -> PathBuf {
        self.state().join("controller")
    }

    /// `--loop-dir` of the node: the controller's directory of volume files.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.controller_state().join("volumes")
    }

    /// A pod's directory, like a kubelet's.
    pub(crate) fn pod(&self, name: &str) -> PathBuf {
        self.state().join("pods").join(name)
    }

    /// The directory for the bare system calls.
    pub(crate) fn bare(&self) -> PathBuf {
        self.state().join("bare")
    }

    /// Removes the directory: first the names that the demo creates, then the directory, which
    /// fails if anything else is in it.
    ///
    /// # Errors
    /// Something could not be removed; the text names it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut names = vec![self.image()];
        for binary in BINARIES {
            names.extend([self.socket(binary), self.log(binary)]);
        }
        for name in names {
            forgive_absence(std::fs::remove_file(&name), &name)?;
        }
        forgive_absence(std::fs::remove_dir(self.state()), &self.state())?;
        forgive_absence(std::fs::remove_dir(&self.path), &self.path)
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

    fn made_in(temporary: &Path) -> DemoDir {
        let demo_dir = DemoDir::choose(temporary).unwrap();
        demo_dir.make().unwrap();
        demo_dir
    }

    #[test]
    fn the_directory_is_removed_with_everything_that_the_demo_creates() {
        let temporary = tempfile::tempdir().unwrap();
        let demo_dir = made_in(temporary.path());
        fs::write(demo_dir.image(), "x").unwrap();
        fs::write(demo_dir.log("belay-node"), "x").unwrap();
        fs::create_dir(demo_dir.state()).unwrap();
        demo_dir.remove().unwrap();
        assert!(!demo_dir.path().exists());
        demo_dir.remove().unwrap();
    }

    #[test]
    fn a_foreign_file_in_the_directory_is_kept_and_named() {
        let temporary = tempfile::tempdir().unwrap();
        let demo_dir = made_in(temporary.path());
        let stranger = demo_dir.state().join("precious");
        fs::create_dir(demo_dir.state()).unwrap();
        fs::write(&stranger, "x").unwrap();
        let error = demo_dir.remove().unwrap_err().to_string();
        assert!(error.contains("state"), "{error}");
        assert!(stranger.exists());
    }

    #[test]
    fn two_demos_never_share_a_directory() {
        let temporary = tempfile::tempdir().unwrap();
        let first = made_in(temporary.path());
        assert_ne!(first.path(), made_in(temporary.path()).path());
        assert!(first.make().is_err());
    }
}
