//! The directory of `--loop-dir`, which contains a file for each volume.

use std::path::{Path, PathBuf};

use belay_contract::drivers::local::Claim;
use belay_server::call::{Failure, Kind};
use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use super::file::{Name, VolumeFile};
use crate::device::Purpose;
use crate::kernel::{Cause, Error, FileKind, Kernel, Open, Patience, while_busy};

/// The directory of the volumes' files. The agent opens the directory once, so renaming it has no
/// effect.
pub(crate) struct LoopDir<K: Kernel> {
    pub(super) driver: DriverName,
    path: PathBuf,
    fd: K::Fd,
}

impl<K: Kernel> LoopDir<K> {
    /// Opens the directory of a driver's volumes.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist or is not a directory.
    pub(crate) fn open(
        kernel: &K,
        driver: &DriverName,
        path: &Path,
    ) -> crate::kernel::Result<Self> {
        Ok(LoopDir {
            driver: driver.clone(),
            path: path.to_owned(),
            fd: kernel.open(path, Open::Directory)?,
        })
    }

    /// Locks the directory until this agent exits. Returns `false` if another agent has locked the
    /// directory.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_ours_alone(&self, kernel: &K) -> crate::kernel::Result<bool> {
        // Between fork and exec, a child has the descriptors of its agent, even if that agent was
        // killed.
        while_busy(
            kernel,
            Patience::Moment,
            |alone| matches!(alone, Ok(false)),
            || kernel.flock(&self.fd),
        )
    }

    /// Returns the name under which the volume's loop devices are bound.
    pub(super) fn name_of(&self, volume: &VolumeId) -> Name {
        Name::new(&self.driver, volume)
    }

    /// Returns the directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor of the directory, which was opened at startup.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Returns the path of the volume's file.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(crate) fn path_of(&self, volume: &VolumeId) -> Result<PathBuf, Failure> {
        Ok(self.path.join(file_name(volume)?))
    }

    /// Returns the error of inspecting the volume's file if its disk fails; otherwise `None`.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(crate) fn unreadable(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<Error>, Failure> {
        let looked = kernel.look(&self.path_of(volume)?);
        Ok(looked.err().filter(|error| error.cause() == Cause::Io))
    }

    /// Opens the volume's file as the purpose requires.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name, or if the file is a symlink;
    /// `NOT_FOUND` if there is no such file.
    pub(crate) fn find(
        &self,
        kernel: &K,
        volume: &VolumeId,
        purpose: Purpose,
    ) -> Result<VolumeFile<K>, Failure> {
        match purpose {
            Purpose::Raw { read_only: true } => self.open_file(kernel, volume, Open::FileRead),
            _ => self.open_file(kernel, volume, Open::FileWrite),
        }
    }

    /// Opens the volume's file for reading. Returns `None` if the file does not exist, or if its
    /// path is another object: a directory, or a symlink to the path that the file was moved to.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name; otherwise the kernel's error.
    pub(crate) fn find_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<VolumeFile<K>>, Failure> {
        self.open_if_any(kernel, volume, Open::FileRead)
    }

    /// Opens the volume's file like [`LoopDir::find_if_any`], but with `O_PATH`, so that it can be
    /// compared and measured without counting as an opener.
    ///
    /// # Errors
    /// Returns the same errors as [`LoopDir::find_if_any`].
    pub(crate) fn name_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<VolumeFile<K>>, Failure> {
        self.open_if_any(kernel, volume, Open::Name)
    }

    /// Whether the controller needs the volume unstaged, because it must delete the volume.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_wanted_back(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        match self.find_if_any(kernel, volume)? {
            Some(file) => {
                let claim = file.claim(kernel)?;
                Ok(matches!(claim, Some(Claim::Delete | Claim::Deleting)))
            }
            None => Ok(false),
        }
    }

    fn open_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
        how: Open,
    ) -> Result<Option<VolumeFile<K>>, Failure> {
        file_name(volume)?;
        match self.open_file(kernel, volume, how) {
            Ok(file) => Ok(Some(file)),
            Err(failure) if matches!(failure.kind, Kind::NotFound | Kind::Invalid) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn open_file(
        &self,
        kernel: &K,
        volume: &VolumeId,
        how: Open,
    ) -> Result<VolumeFile<K>, Failure> {
        let name = file_name(volume)?;
        let path = self.path.join(name);
        // While another call checks for openers, which takes microseconds, the file has a lease and
        // opening it fails with EAGAIN.
        let is_asked = |opened: &crate::kernel::Result<K::Fd>| {
            opened
                .as_ref()
                .is_err_and(|error| error.cause() == Cause::Again)
        };
        let open = || kernel.open_beneath(&self.fd, name, how);
        let fd =
            while_busy(kernel, Patience::Second, is_asked, open).map_err(|error| {
                match error.cause() {
                    Cause::Again => Failure::busy(format!(
                        "another process has a lease on {}: {error}",
                        path.display()
                    )),
                    Cause::Missing => Failure::not_found(format!(
                        "volume {volume}: no file {} on this node; check whether the volume \
                         exists, and whether the disk of --loop-dir is mounted",
                        path.display()
                    )),
                    Cause::Escapes => Failure::invalid(
                        "volume_id",
                        format!(
                            "{} is a symbolic link; move it away and restore the volume's file",
                            path.display()
                        ),
                    ),
                    Cause::Directory => not_a_file(&path),
                    _ => Failure::from(error),
                }
            })?;
        let stat = kernel.stat(&fd)?;
        if stat.kind != FileKind::File {
            return Err(not_a_file(&path));
        }
        Ok(VolumeFile::new(fd, path, self.name_of(volume), &stat))
    }
}

fn not_a_file(path: &Path) -> Failure {
    Failure::invalid(
        "volume_id",
        format!(
            "{} is not a regular file; move it away and restore the volume's file",
            path.display()
        ),
    )
}

/// Returns the ID as the name of the volume's file, like the controller of the driver `local`. An
/// ID that is not a file name must not reach the filesystem.
pub(super) fn file_name(volume: &VolumeId) -> Result<&str, Failure> {
    let id = volume.as_str();
    if id == "." || id == ".." || id.contains('/') {
        return Err(Failure::invalid(
            "volume_id",
            format!("{id:?} is not the name of a file in the loop directory"),
        ));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_a_path_is_refused_by_name() {
        for id in ["..", ".", "../etc/passwd", "a/b", "/etc/passwd"] {
            let volume = VolumeId::new(id).unwrap();
            let failure = file_name(&volume).unwrap_err();
            assert!(failure.message.starts_with("volume_id: "), "{failure}");
        }
        let volume = VolumeId::new("vol-1..2").unwrap();
        assert_eq!(file_name(&volume).unwrap(), "vol-1..2");
    }
}
