//! Tracks the file that a volume had when it was attached, even if another file has its name now.
//! Until the volume is detached, the file has a second name, `<state-dir>/attached/<id>`. The lock
//! that the node's loop device holds shows whether the file is in use. (The inode behind a device
//! is visible only to processes that can open the device; a container cannot, and the query would
//! wait for the disk.)
//!
//! Without a second name (a filesystem may not support hard links), the file names of the loop
//! devices decide, and a file that may belong to the volume is treated as the volume's.

use super::files::Backing;
use super::loops::{self, Device};
use super::record::Record;
use super::recover::Recovered;
use super::store::Store;
use belay_contract::reason::volume;
use belay_server::call::Failure;
use std::collections::HashSet;
use std::path::Path;

impl Store {
    /// Creates the second name for the file with which a volume is attached. If the filesystem has
    /// no hard links, the volume is attached nevertheless.
    ///
    /// # Errors
    /// Returns the errors of the disk.
    pub(super) fn remember_file(&self, id: &str) -> Result<(), Failure> {
        if let Some(earlier) = self.attached.find(id)? {
            if earlier.is_locked()? {
                return Ok(());
            }
            self.free_name(id)?;
        }
        if !self.attached.link(&self.files, id)? {
            tracing::warn!(
                volume = id,
                "the filesystem of the state directory has no hard links: a file that replaces \
                 this volume's while it is attached is recognised by its name only"
            );
        }
        Ok(())
    }

    /// Removes the second name of the volume's file; keeps the file.
    fn free_name(&self, id: &str) -> Result<(), Failure> {
        self.keep_last(id)?;
        self.attached.unlink(id)
    }

    /// Must be called before the second name of the volume's file is removed. If that is the file's
    /// last name, creates another name, since the data exists nowhere else.
    ///
    /// # Errors
    /// Returns the errors of the disk, and `Precondition` if too many such files are kept.
    pub(super) fn keep_last(&self, id: &str) -> Result<(), Failure> {
        if !self.attached.is_last_name(id)? {
            return Ok(());
        }
        let aside = self.attached.set_aside(id)?;
        tracing::warn!(
            volume = id,
            "{}: an earlier file of the volume, which has no other name; move it to where it \
             belongs, or delete it (docs/operations.md)",
            aside.display()
        );
        Ok(())
    }

    /// Retries a link that an earlier attachment could not create. The volume may be in use.
    pub(super) fn remember_late(&self, id: &str, present: &Backing) {
        if let Err(failure) = self.remember_used_file(id, present) {
            tracing::warn!(volume = id, "cannot link its file in attached/: {failure}");
        }
    }

    /// Whether `present` is the file with which the volume was attached, if known. The result is
    /// valid while `present` is open.
    fn is_remembered(&self, id: &str, present: &Backing) -> Result<Option<bool>, Failure> {
        match self.attached.inode(id)? {
            Some(attached) => Ok(Some(attached == present.inode()?)),
            None => Ok(None),
        }
    }

    /// Creates the second name of an attached volume's file if it is missing, because the file
    /// could not be linked. Replaces the second name if it refers to another file, because the
    /// volume's file was restored since. Does so only if the file is in use, which shows that it is
    /// the volume's.
    pub(super) fn remember_used_file(&self, id: &str, present: &Backing) -> Result<(), Failure> {
        if self.is_remembered(id, present)? != Some(true) && present.is_locked()? {
            self.remember_file(id)?;
        }
        Ok(())
    }

    /// Removes the second name of a detached volume's file; keeps the file.
    pub(super) fn forget_file(&self, id: &str) {
        if let Err(failure) = self.free_name(id) {
            tracing::warn!(volume = id, "{failure}; the next start tries it again");
        }
    }

    /// Returns the file with which the volume was attached, if `present` has replaced it.
    pub(super) fn replaced_file(
        &self,
        id: &str,
        present: &Backing,
    ) -> Result<Option<Backing>, Failure> {
        match self.is_remembered(id, present)? {
            Some(false) => self.attached.find(id),
            Some(true) | None => Ok(None),
        }
    }

    /// Whether the second name refers to the same inode as the volume's name. Opens no file.
    /// Returns `None` if one of the names is missing or cannot be inspected.
    pub(super) fn second_name(&self, id: &str) -> Option<bool> {
        let attached = self.attached.inode(id).ok()??;
        let present = self.files.inode(id).ok()??;
        Some(attached == present)
    }

    /// Refuses `present` as the file of an attached volume if the node uses another file, which
    /// `present` has replaced.
    ///
    /// # Errors
    /// Returns `Precondition`.
    pub(super) fn refuse_replaced(
        &self,
        id: &str,
        record: &Record,
        present: &Backing,
    ) -> Result<(), Failure> {
        let Some(node) = record.node() else {
            return Ok(());
        };
        if self.is_remembered(id, present)? == Some(true) {
            return Ok(());
        }
        let is_used = self.uses_remembered(id)?
            // The file was restored before it was staged, or the volume was attached without a
            // second name.
            || !loops::named(id)?.is_empty() && !present.is_locked()?;
        if !is_used {
            return Ok(());
        }
        Err(Failure::precondition(format!(
            "volume {id}: {}; delete the pods that use the volume, so that it is unstaged, and \
             repeat the call (docs/health.md, {})",
            replaced(present.path(), node),
            volume::BACKING_FILE_GONE.name()
        )))
    }

    /// Refuses the volume's file if it may also belong to another volume or a snapshot: it has
    /// names other than the volume's name and the second name.
    ///
    /// # Errors
    /// Returns `Precondition`, with the remedy.
    pub(super) fn refuse_linked(&self, id: &str, present: &Backing) -> Result<(), Failure> {
        if present.refuse_linked(1).is_ok() {
            return Ok(());
        }
        // Check in this order: a detach that removes the second name meanwhile then causes no
        // refusal.
        let has_second = self.is_remembered(id, present)? == Some(true);
        present.refuse_linked(1 + u64::from(has_second))
    }

    /// Whether a node uses the file with which the volume was attached.
    fn uses_remembered(&self, id: &str) -> Result<bool, Failure> {
        match self.attached.find_for_reading(id)? {
            Some(attached) => attached.is_locked(),
            None => Ok(false),
        }
    }

    /// Returns a message if the node uses a file other than the one that now has the name of the
    /// attached volume. Does not rely on the names of devices, which remain for a moment after
    /// their locks.
    pub(super) fn replaced_in_use(
        &self,
        id: &str,
        record: &Record,
    ) -> Result<Option<String>, Failure> {
        match record.node() {
            Some(node) if self.second_name(id) == Some(false) && self.uses_remembered(id)? => {
                Ok(Some(replaced(&self.files.path_of(id), node)))
            }
            _ => Ok(None),
        }
    }

    /// Returns a loop device whose backing file, according to sysfs, has or had the name of the
    /// volume's file. Must be called before the file is opened for writing or locked.
    pub(super) fn device_of(&self, id: &str, record: &Record) -> Result<Option<Device>, Failure> {
        let mut devices = loops::named(id)?.into_iter();
        if devices.len() == 0 {
            return Ok(None);
        }
        let present = self.files.get_for_reading(id)?;
        let remembered = self.is_remembered(id, &present)?;
        let is_known = remembered.unwrap_or_else(|| record.node().is_none());
        if !is_known || present.may_be_written() {
            return Ok(devices.next());
        }
        // No process writes to the volume's file: the devices use other files with similar names.
        let path = self.files.path_of(id);
        Ok(devices.find(|device| {
            path.as_os_str() == device.file.as_str()
                || remembered.is_none() && device.file.ends_with(loops::DELETED)
        }))
    }

    /// Restores the second name of a volume that is attached at a start. A power loss removes a
    /// name that was not on the disk yet, and all devices.
    ///
    /// # Errors
    /// Returns the errors of the disk.
    pub(super) fn recover_file(&self, id: &str, present: &Backing) -> Result<(), Failure> {
        if self.attached.inode(id)?.is_none() && loops::named(id)?.is_empty() {
            return self.remember_file(id);
        }
        self.remember_used_file(id, present)
    }

    /// Removes the second names of files whose volumes are not attached, except last names and
    /// names of files in use.
    pub(super) fn recover_held(
        &self,
        known: &HashSet<String>,
        volumes: &[(String, Record)],
        done: &mut Recovered,
    ) -> Result<(), Failure> {
        let detached = volumes.iter().filter(|(_, record)| record.node().is_none());
        let detached: HashSet<_> = detached.map(|(id, _)| id.as_str()).collect();
        let mut stale = Vec::new();
        self.attached.each(|name, _| {
            if detached.contains(name) || !known.contains(name) {
                stale.push(name.to_owned());
            }
        })?;
        for name in stale {
            if let Err(failure) = self.forget_stale(&name) {
                tracing::warn!("recovery: {failure}");
                done.troubles += 1;
            }
        }
        Ok(())
    }

    fn forget_stale(&self, id: &str) -> Result<(), Failure> {
        let Some(file) = self.attached.find(id)? else {
            return Ok(());
        };
        let why = match (self.attached.is_last_name(id)?, file.is_locked()?) {
            (true, _) => "has no other name",
            (false, true) => "is in use",
            (false, false) => return self.attached.unlink(id),
        };
        Err(Failure::precondition(format!(
            "{}: belongs to no attached volume, but it {why}, so it is kept; move it to where it \
             belongs, or delete it (docs/operations.md)",
            file.path().display()
        )))
    }
}

fn replaced(path: &Path, node: &str) -> String {
    format!(
        "{} was replaced while node {node} uses the old file, so the pods write to the old one",
        path.display()
    )
}
