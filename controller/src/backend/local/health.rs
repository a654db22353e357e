//! The health of volumes: checks whether the backing file exists, is large enough and is a regular
//! file, and whether the filesystem has space for the data that can still be written. Changes
//! nothing. The check reads no data. The check only determines whether a file with few allocated
//! blocks contains data at all. If a file cannot be inspected, its volume is reported as unhealthy,
//! and the call does not fail.

use super::fault::{emptied, os, truncated};
use super::files::{Files, foreign, names_of};
use super::record::State;
use super::store::{Store, refuse_foreign_token};
use crate::backend::{Unhealthy, UnhealthyPage};
use belay_contract::drivers::local::{names_refusal, reserve_bytes};
use belay_contract::reason::volume;
use belay_server::call::{Failure, Kind};
use belay_server::health::Conditions;
use belay_server::request::VolumeId;
use belay_server::size::Rounded;
use rustix::fs::{AtFlags, FileType, StatVfsMountFlags};
use rustix::io::Errno;
use std::path::Path;

/// Maximum number of bytes on disk with which a file may still be empty, since extended attributes
/// also use space. A file with more allocated bytes is not opened to check whether it contains
/// data, since the open would break a lease that the node agent may hold.
pub(super) const HARDLY_ANY: u64 = 64 << 10;

/// The state of the filesystem with the backing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// Free bytes, including bytes that are reserved for root. Loop devices write as root.
    free: u64,
    /// The number of bytes that should be free on the filesystem.
    reserve: u64,
    pub(super) read_only: bool,
}

/// The object in the directory that has the name of a volume's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Nothing,
    /// A directory, link or device.
    Other,
    File {
        bytes: u64,
        /// The number of bytes allocated on disk.
        allocated: u64,
        names: u64,
    },
}

impl Named {
    /// The warning that the file may also belong to another volume or snapshot; `None` if the file
    /// has only one name.
    pub(super) fn linked(&self, path: &Path) -> Option<String> {
        match self {
            Self::File { names, .. } => names_refusal(path, *names),
            Self::Nothing | Self::Other => None,
        }
    }
}

impl Store {
    /// Returns the health of the volume; `None` if it does not exist or is not ready.
    ///
    /// # Errors
    /// Returns `Unreachable` if the ledger cannot be read. A file or filesystem that cannot be read
    /// does not make the call fail: it is reported as a health reason.
    pub(super) fn health(&self, id: &VolumeId) -> Result<Option<Conditions>, Failure> {
        match self.get(id) {
            Ok(None) => Ok(None),
            Ok(Some(volume)) => self.condition_of(id, volume.bytes, &self.files.storage()),
            Err(failure) => record_unreadable(failure).map(Some),
        }
    }

    /// Lists the unhealthy volumes, with the same tokens as [`Store::list`].
    pub(super) fn list_unhealthy(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<UnhealthyPage, Failure> {
        refuse_foreign_token(after)?;
        let storage = self.files.storage();
        let mut page = UnhealthyPage::default();
        self.ledger.scan(after, |id, record| {
            let id = VolumeId::new(id)?;
            let conditions = match record {
                Ok(record) if record.state != State::Ready => return Ok(true),
                Ok(record) => self.condition_of(&id, record.bytes, &storage)?,
                Err(failure) => Some(record_unreadable(failure)?),
            };
            let Some(conditions) = conditions.filter(|conditions| !conditions.is_empty()) else {
                return Ok(true);
            };
            if page.volumes.len() == limit {
                page.next = page.volumes.last().map(|last| last.id.as_str().to_owned());
                return Ok(false);
            }
            page.volumes.push(Unhealthy { id, conditions });
            Ok(true)
        })?;
        Ok(page)
    }

    /// Returns the health of each of these volumes, which existed a moment ago. Each volume is
    /// given by its ID and size in bytes. A volume that no longer exists has no health reasons.
    ///
    /// # Errors
    /// Returns the errors of [`Store::health`].
    pub(super) fn conditions(
        &self,
        volumes: &[(VolumeId, u64)],
    ) -> Result<Vec<Conditions>, Failure> {
        let storage = self.files.storage();
        let each = volumes.iter();
        each.map(|(id, bytes)| Ok(self.condition_of(id, *bytes, &storage)?.unwrap_or_default()))
            .collect()
    }

    /// Returns the health of a volume that was ready, with this size, a moment ago; `None` if it
    /// was deleted since.
    fn condition_of(
        &self,
        id: &VolumeId,
        bytes: u64,
        storage: &Result<Storage, Failure>,
    ) -> Result<Option<Conditions>, Failure> {
        // No volume has the size 0. The size is 0 if the record could not be read.
        if bytes == 0
            && let Err(failure) = self.get(id)
        {
            return record_unreadable(failure).map(Some);
        }
        let path = self.files.path_of(id.as_str()).display().to_string();
        let judged = |least_bytes| {
            let named = self.files.named(id.as_str());
            let is_suspect = matches!(named, Ok(Named::File { bytes, allocated, .. })
                if bytes >= least_bytes && allocated <= HARDLY_ANY);
            (judge(&path, least_bytes, &named, storage), is_suspect)
        };
        let (conditions, is_suspect) = judged(bytes);
        if conditions.is_empty() && !is_suspect {
            return Ok(Some(conditions));
        }
        // Read the record again, and inspect the file after that. The record shows whether an
        // expansion must still enlarge the file: a file that is smaller for this reason is not
        // truncated. A file that was enlarged after the record was read is not truncated either.
        let Some(record) = self.ledger.get(id.as_str())? else {
            return Ok(None);
        };
        let least_bytes = match record.growing_from {
            None => record.bytes,
            // If the attribute cannot be read, the file cannot be inspected either, and that
            // failure is reported.
            Some(from) => {
                record.least_bytes(self.files.recorded_bytes(id.as_str()).unwrap_or(from))
            }
        };
        let (mut conditions, is_suspect) = judged(least_bytes);
        if is_suspect && record.is_filesystem() {
            let file = self.files.get_for_reading(id.as_str());
            judge_data(
                &path,
                file.and_then(|file| file.is_emptied()),
                &mut conditions,
            );
        }
        // If a volume is being deleted, its missing file is not lost. A deletion marks the record
        // before it removes the file, so read the record after inspecting the file.
        if !conditions.is_empty() && self.get(id)?.is_none() {
            return Ok(None);
        }
        Ok(Some(conditions))
    }
}

impl Files {
    /// Returns the state of the filesystem with the backing files.
    pub(super) fn storage(&self) -> Result<Storage, Failure> {
        let stat = self.statvfs()?;
        let total = stat.f_blocks.saturating_mul(stat.f_frsize);
        Ok(Storage {
            free: stat.f_bfree.saturating_mul(stat.f_frsize),
            reserve: reserve_bytes(total),
            read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY) || self.is_stopped(),
        })
    }

    /// Returns the object that currently has the name of the file, without opening the object.
    pub(super) fn named(&self, id: &str) -> Result<Named, Failure> {
        match rustix::fs::statat(self.dir(), id, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Named::File {
                    bytes: stat.st_size.unsigned_abs(),
                    // Per stat(2), st_blocks counts units of 512 bytes, regardless of the block
                    // size.
                    allocated: stat.st_blocks.unsigned_abs().saturating_mul(512),
                    names: names_of(&stat),
                })
            }
            Ok(_) => Ok(Named::Other),
            Err(Errno::NOENT) => Ok(Named::Nothing),
            Err(errno) => Err(os("stat", &self.path_of(id), errno)),
        }
    }
}

/// Returns the health of a volume whose record cannot be read.
///
/// # Errors
/// Returns the failure if it affects all records, and not only the record of this volume.
fn record_unreadable(failure: Failure) -> Result<Conditions, Failure> {
    if failure.kind != Kind::Bug {
        return Err(failure);
    }
    let mut conditions = Conditions::default();
    conditions.add(volume::RECORD_UNREADABLE, failure.message);
    Ok(conditions)
}

/// Determines the health of a volume from its file, which must have at least `least_bytes`. `path`
/// is only used in messages.
fn judge(
    path: &str,
    least_bytes: u64,
    named: &Result<Named, Failure>,
    storage: &Result<Storage, Failure>,
) -> Conditions {
    let mut conditions = Conditions::default();
    match named {
        Err(failure) => conditions.add(volume::BACKING_FILE_UNREADABLE, failure.to_string()),
        Ok(named) => judge_file(path, least_bytes, *named, &mut conditions),
    }
    match storage {
        Err(failure) => conditions.add(volume::STORAGE_UNREADABLE, failure.to_string()),
        Ok(storage) => judge_storage(path, named, *storage, &mut conditions),
    }
    conditions
}

fn judge_file(path: &str, least_bytes: u64, named: Named, conditions: &mut Conditions) {
    if let Some(linked) = named.linked(Path::new(path)) {
        conditions.add(volume::BACKING_FILE_FOREIGN, linked);
    }
    match named {
        Named::Nothing => conditions.add(
            volume::BACKING_FILE_MISSING,
            format!(
                "{path}: the file is missing; mount the filesystem that contains it, or restore \
                 it; while a pod has the volume, copy the data out of it first (docs/health.md, A \
                 removed file)"
            ),
        ),
        Named::Other => conditions.add(volume::BACKING_FILE_FOREIGN, foreign(Path::new(path))),
        Named::File { bytes, .. } if bytes < least_bytes => conditions.add(
            volume::BACKING_FILE_SHORT,
            truncated(path, bytes, least_bytes),
        ),
        Named::File { .. } => {}
    }
}

/// Adds a health reason if the backing file of a filesystem has lost all its data.
fn judge_data(path: &str, is_emptied: Result<bool, Failure>, conditions: &mut Conditions) {
    match is_emptied {
        Ok(false) => {}
        Ok(true) => conditions.add(volume::BACKING_FILE_EMPTY, emptied(path)),
        // The node agent is holding a lease, which lasts only a moment. The next call checks again.
        Err(failure) if failure.kind == Kind::Busy => {}
        Err(failure) => conditions.add(volume::BACKING_FILE_UNREADABLE, failure.to_string()),
    }
}

fn judge_storage(
    path: &str,
    named: &Result<Named, Failure>,
    storage: Storage,
    conditions: &mut Conditions,
) {
    if let Ok(Named::File {
        bytes, allocated, ..
    }) = named
    {
        let unwritten = bytes.saturating_sub(*allocated);
        if storage.free < storage.reserve.min(unwritten) {
            conditions.add(
                volume::STORAGE_NEARLY_FULL,
                format!(
                    "{path}: may still need {} of disk space, but {} are left for all volumes: \
                     when none is left, writes fail with ENOSPC or EIO; delete volumes or \
                     snapshots, or enlarge the filesystem",
                    Rounded(unwritten),
                    Rounded(storage.free)
                ),
            );
        }
    }
    if storage.read_only {
        conditions.add(
            volume::STORAGE_READ_ONLY,
            format!(
                "{path}: its filesystem is read-only now, so the volume cannot be written; check \
                 the kernel log, check the filesystem, and mount it writable"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::health::Reason;
    use std::path::Path;

    const MIB: u64 = 1 << 20;
    const WELL: Storage = Storage {
        free: 100 * MIB,
        reserve: 50 * MIB,
        read_only: false,
    };

    fn told(named: Named, storage: Storage) -> Vec<Reason> {
        told_of(&Ok(named), &Ok(storage))
    }

    fn told_of(named: &Result<Named, Failure>, storage: &Result<Storage, Failure>) -> Vec<Reason> {
        let conditions = judge("/volumes/vol-1", 64 * MIB, named, storage);
        let all = conditions.iter();
        all.map(|condition| condition.reason).collect()
    }

    fn file(bytes: u64, allocated: u64) -> Named {
        Named::File {
            bytes,
            allocated,
            names: 1,
        }
    }

    #[test]
    fn a_file_with_several_names_is_foreign() {
        let foreign = volume::BACKING_FILE_FOREIGN;
        for (names, expected) in [(1, None), (2, Some(foreign))] {
            let named = Named::File {
                bytes: 64 * MIB,
                allocated: 0,
                names,
            };
            assert_eq!(told(named, WELL).first().copied(), expected, "{names}");
        }
    }

    #[test]
    fn a_file_must_be_there_and_be_one_and_be_whole() {
        assert_eq!(told(file(64 * MIB, 0), WELL), []);
        assert_eq!(told(file(65 * MIB, 0), WELL), []);
        let missing = volume::BACKING_FILE_MISSING;
        assert_eq!(told(Named::Nothing, WELL), [missing]);
        let foreign = volume::BACKING_FILE_FOREIGN;
        assert_eq!(told(Named::Other, WELL), [foreign]);
        let short = volume::BACKING_FILE_SHORT;
        assert_eq!(told(file(64 * MIB - 1, 0), WELL), [short]);
    }

    #[test]
    fn what_does_not_answer_is_unreadable() {
        let eio = || os("stat", Path::new("/volumes/vol-1"), Errno::IO);
        let file_unreadable = volume::BACKING_FILE_UNREADABLE;
        let storage_unreadable = volume::STORAGE_UNREADABLE;
        let whole = file(64 * MIB, 0);
        assert_eq!(told_of(&Err(eio()), &Ok(WELL)), [file_unreadable]);
        assert_eq!(told_of(&Ok(whole), &Err(eio())), [storage_unreadable]);
        let both = [file_unreadable, storage_unreadable];
        assert_eq!(told_of(&Err(eio()), &Err(eio())), both);
        let conditions = judge("/volumes/vol-1", 64 * MIB, &Err(eio()), &Ok(WELL));
        let message = &conditions.iter().next().unwrap().message;
        assert!(message.contains("/volumes/vol-1: EIO"), "{message}");
    }

    #[test]
    fn a_file_without_data_is_empty_and_one_that_is_leased_is_checked_the_next_time() {
        let eio = os("stat", Path::new("/volumes/vol-1"), Errno::IO);
        for (is_emptied, expected) in [
            (Ok(false), None),
            (Ok(true), Some(volume::BACKING_FILE_EMPTY)),
            (Err(Failure::busy("a lease")), None),
            (Err(eio), Some(volume::BACKING_FILE_UNREADABLE)),
        ] {
            let mut conditions = Conditions::default();
            judge_data("/volumes/vol-1", is_emptied, &mut conditions);
            let found = conditions.iter().next();
            assert_eq!(found.map(|condition| condition.reason), expected);
            assert!(found.is_none_or(|it| it.message.contains("/volumes/vol-1")));
        }
    }

    #[test]
    fn the_reserve_is_a_part_of_the_filesystem_up_to_a_maximum() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().join("files")).unwrap();
        let (storage, stat) = (files.storage().unwrap(), files.statvfs().unwrap());
        let total = stat.f_blocks * stat.f_frsize;
        assert_eq!(storage.reserve, (total / 20).min(10 << 30));
        assert!((1..=total).contains(&storage.free) && !storage.read_only);
    }

    #[test]
    fn a_full_disk_matters_to_volumes_that_have_holes_left() {
        let full = Storage { free: MIB, ..WELL };
        let nearly = [volume::STORAGE_NEARLY_FULL];
        assert_eq!(told(file(64 * MIB, 0), full), nearly);
        assert_eq!(told(file(64 * MIB, 62 * MIB), full), nearly);
        // The free space suffices for the data that is not written yet.
        assert_eq!(told(file(64 * MIB, 63 * MIB), full), []);
        assert_eq!(told(file(64 * MIB, 65 * MIB), full), []);
    }

    #[test]
    fn a_read_only_disk_matters_to_all() {
        let read_only = Storage {
            read_only: true,
            ..WELL
        };
        let expected = [volume::STORAGE_READ_ONLY];
        assert_eq!(told(file(64 * MIB, 64 * MIB), read_only), expected);
        assert_eq!(told(Named::Nothing, read_only).len(), 2);
    }
}
