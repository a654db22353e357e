//! Finds the files of a disk that have no object.

use super::super::store::Store;
use super::super::{id, record, snapshot_record};
use crate::kubernetes::{Unlisted, UnlistedFile};
use belay_server::call::Failure;
use std::collections::HashSet;

/// Maximum number of files that a report names.
const NAMED_MAX: usize = 20;

/// The files without an object.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Unlisted,
    /// The total size of the files, in bytes.
    pub(super) bytes: u64,
    /// The IDs of volumes and snapshots whose intent is recorded, but that have no object.
    pub(super) intents: Vec<String>,
}

impl Found {
    fn add(&mut self, id: &str, name: Option<String>, bytes: u64) {
        self.files.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.files.first.len() < NAMED_MAX {
            let id = id.to_owned();
            self.files.first.push(UnlistedFile { id, name, bytes });
        }
    }
}

impl Store {
    /// Returns the files of volumes and snapshots whose IDs are not in `listed`.
    ///
    /// # Errors
    /// Returns the errors of reading the ledger and the directories.
    pub(super) fn unlisted(&self, listed: &HashSet<String>) -> Result<Found, Failure> {
        let mut found = Found::default();
        let mut recorded = HashSet::new();
        self.ledger.scan(None, |id, record| {
            recorded.insert(id.to_owned());
            if listed.contains(id) {
                return Ok(true);
            }
            match record {
                Ok(record) if record.state == record::State::Creating => {
                    found.intents.push(id.to_owned());
                }
                Ok(record) => found.add(id, Some(record.name), record.bytes),
                Err(_) => found.add(id, None, 0),
            }
            Ok(true)
        })?;
        self.ledger.scan_snapshots(None, None, |id, record| {
            recorded.insert(id.to_owned());
            if listed.contains(id) {
                return Ok(true);
            }
            match record {
                Ok(record) if record.state == snapshot_record::SnapshotState::Cutting => {
                    found.intents.push(id.to_owned());
                }
                Ok(record) => found.add(id, Some(record.name), record.bytes),
                Err(_) => found.add(id, None, 0),
            }
            Ok(true)
        })?;
        for (files, kind) in [(&self.files, id::VOLUME), (&self.snapshots, id::SNAPSHOT)] {
            files.each(|name, bytes| {
                if id::is_ours(kind, name) && !recorded.contains(name) {
                    found.add(name, None, bytes);
                }
            })?;
        }
        Ok(found)
    }

    /// Returns the limit of the bytes of all volumes and snapshots, and the bytes of other files.
    ///
    /// # Errors
    /// Returns the errors of reading the filesystem.
    pub(super) fn promisable(&self) -> Result<Promisable, Failure> {
        let statvfs = self.files.statvfs()?;
        let limit = self.recent_ceiling()?;
        Ok(Promisable {
            total: statvfs.f_blocks.saturating_mul(statvfs.f_frsize),
            limit: limit.bytes,
            foreign: limit.foreign,
            is_read_only: self.files.storage()?.read_only,
        })
    }
}

/// The space of a disk, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promisable {
    /// The size of the filesystem.
    pub(super) total: u64,
    /// The maximum size of all volumes and snapshots together.
    pub(super) limit: u64,
    /// The size of other files.
    pub(super) foreign: u64,
    /// Whether the filesystem refuses writes.
    pub(super) is_read_only: bool,
}
