//! The directories of a driver's volumes: one for each disk of the node that `--loop-dir` names.
//!
//! A directory may be missing, or its disk may hang. The driver then serves the other disks. Most
//! requests do not name the volume's disk, so the directory that has the volume's file is searched.
//! The search needs no system call if the driver has one directory. Otherwise, it first uses only
//! names in memory, where the kernel keeps the name of each file that a loop device has open, so
//! that a disk that hangs blocks only its own volumes.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use belay_contract::drivers::local::{DEFAULT_DISK, DISK};
use belay_server::call::{Failure, Kind};
use belay_server::identity::DriverName;
use belay_server::lock::Lock;
use belay_server::request::{Context, VolumeId};

use super::folder::{LoopDir, file_name};
use crate::kernel::{Cause, Kernel, Open};

/// The disks of a driver, in the order of the flags.
pub(crate) struct LoopDirs<K: Kernel> {
    driver: DriverName,
    disks: Vec<Disk<K>>,
}

/// A disk of the node.
struct Disk<K: Kernel> {
    name: String,
    path: PathBuf,
    /// The open directory. It is unset until the directory exists and can be used.
    dir: OnceLock<LoopDir<K>>,
    /// The reason why the directory is not open.
    why: Lock<String>,
    /// Whether the directory did not exist when the agent last tried to open it, as on a node that
    /// does not have the disk.
    is_absent: AtomicBool,
}

impl<K: Kernel> LoopDirs<K> {
    /// Returns the disks with these names and directories, whose directories are not open yet.
    pub(crate) fn new(
        driver: &DriverName,
        disks: impl IntoIterator<Item = (String, PathBuf)>,
    ) -> Self {
        let disks = disks.into_iter().map(|(name, path)| Disk {
            why: Lock::new(format!(
                "{driver}: --loop-dir {} is being opened; while this persists, its disk does not \
                 answer",
                path.display()
            )),
            name,
            path,
            dir: OnceLock::new(),
            is_absent: AtomicBool::new(false),
        });
        LoopDirs {
            driver: driver.clone(),
            disks: disks.collect(),
        }
    }

    /// Returns the driver of the volumes.
    pub(crate) fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// Returns the name of each disk.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.disks.iter().map(|disk| &*disk.name)
    }

    /// Returns the path of each disk's directory in the flags.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.disks.iter().map(|disk| &*disk.path)
    }

    /// Whether the directory of a disk did not exist at the last attempt to open it.
    pub(crate) fn is_absent(&self, disk: usize) -> bool {
        self.disks[disk].is_absent.load(Ordering::Relaxed)
    }

    /// Records whether the directory of a disk does not exist.
    pub(crate) fn note_absent(&self, disk: usize, is_absent: bool) {
        self.disks[disk]
            .is_absent
            .store(is_absent, Ordering::Relaxed);
    }

    /// Returns the directory of a disk.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` with the reason if the directory is not open.
    pub(crate) fn dir(&self, disk: usize) -> Result<&LoopDir<K>, Failure> {
        let closed = || Failure::new(Kind::Unreachable, self.why(disk));
        self.disks[disk].dir.get().ok_or_else(closed)
    }

    /// Returns the path of a disk's directory in the flags.
    pub(crate) fn path(&self, disk: usize) -> &Path {
        &self.disks[disk].path
    }

    /// Returns the last reason why the directory of a disk is not open.
    pub(crate) fn why(&self, disk: usize) -> String {
        self.disks[disk].why.lock().clone()
    }

    /// Returns the directories that are open.
    pub(crate) fn open(&self) -> impl Iterator<Item = &LoopDir<K>> {
        self.disks.iter().filter_map(|disk| disk.dir.get())
    }

    /// Sets the open directory of a disk. Has no effect if the directory is already set.
    pub(crate) fn set(&self, disk: usize, dir: LoopDir<K>) {
        drop(self.disks[disk].dir.set(dir));
    }

    /// Stores the reason why the directory of a disk is not open.
    pub(crate) fn fails(&self, disk: usize, why: &str) {
        why.clone_into(&mut self.disks[disk].why.lock());
    }

    /// Returns the directory of the disk that the volume context names.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if there is no such disk; `UNAVAILABLE` if its directory is
    /// not open.
    pub(crate) fn named_in(&self, context: &Context) -> Result<&LoopDir<K>, Failure> {
        let name = context.get(DISK).unwrap_or(DEFAULT_DISK);
        if let Some(disk) = self.names().position(|known| known == name) {
            return self.dir(disk);
        }
        let names: Vec<_> = self.names().collect();
        Err(Failure::precondition(format!(
            "the volume is on disk {name}, but this node agent has only {}: add --loop-dir \
             {name}=DIR",
            names.join(", ")
        )))
    }

    /// Returns the directory that has the volume's file. If there is no such file on any disk of
    /// the node, returns the first open directory. May block on a disk.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name; `UNAVAILABLE` with the reason
    /// if the file may be in a directory that is not open.
    pub(crate) fn of(&self, kernel: &K, volume: &VolumeId) -> Result<&LoopDir<K>, Failure> {
        let found = match self.of_quick(kernel, volume)? {
            None => self.search(kernel, volume, Open::Name)?,
            found => found,
        };
        if let Some(dir) = found {
            return Ok(dir);
        }
        for disk in (0..self.disks.len()).filter(|disk| !self.is_absent(*disk)) {
            self.dir(disk)?;
        }
        self.open().next().map_or_else(|| self.dir(0), Ok)
    }

    /// Returns the directory that has the volume's file, like [`LoopDirs::of`], but does not block:
    /// returns `None` if the file's name is not in memory.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(crate) fn of_quick(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<&LoopDir<K>>, Failure> {
        match &self.disks[..] {
            [only] => Ok(only.dir.get()),
            _ => self.search(kernel, volume, Open::NameCached),
        }
    }

    /// Returns the directory that has the volume's file, by [`LoopDirs::of`], or without `may_wait`
    /// by [`LoopDirs::of_quick`].
    ///
    /// # Errors
    /// Returns the errors of that method.
    pub(crate) fn of_if(
        &self,
        kernel: &K,
        volume: &VolumeId,
        may_wait: bool,
    ) -> Result<Option<&LoopDir<K>>, Failure> {
        match may_wait {
            true => self.of(kernel, volume).map(Some),
            false => self.of_quick(kernel, volume),
        }
    }

    fn search(
        &self,
        kernel: &K,
        volume: &VolumeId,
        how: Open,
    ) -> Result<Option<&LoopDir<K>>, Failure> {
        let name = file_name(volume)?;
        let mut failed = None;
        for dir in self.open() {
            match kernel.open_beneath(dir.fd(), name, how) {
                Ok(_) => return Ok(Some(dir)),
                Err(error) if how == Open::NameCached || error.cause() == Cause::Missing => {}
                // The name is a symlink, or its disk fails.
                Err(_) => failed = failed.or(Some(dir)),
            }
        }
        Ok(failed)
    }

    /// Returns the path of the volume's file, for messages. Does not block. If the file's directory
    /// is not known, returns the path that the file has in each directory.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(crate) fn path_of(&self, kernel: &K, volume: &VolumeId) -> Result<PathBuf, Failure> {
        if let Some(dir) = self.of_quick(kernel, volume)? {
            return dir.path_of(volume);
        }
        let name = file_name(volume)?;
        let paths = self.open().map(|dir| dir.path().join(name));
        let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
        Ok(paths.join(" or ").into())
    }
}

#[cfg(test)]
impl<K: Kernel> From<LoopDir<K>> for std::sync::Arc<LoopDirs<K>> {
    fn from(dir: LoopDir<K>) -> Self {
        let disk = (DEFAULT_DISK.to_owned(), dir.path().to_owned());
        let dirs = LoopDirs::new(&dir.driver, [disk]);
        dirs.set(0, dir);
        dirs.into()
    }
}
