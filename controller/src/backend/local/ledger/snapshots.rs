//! Reads and changes the records of snapshots in the database.

use super::{Changes, Ledger, SNAPSHOTS, Totals, failed};
use crate::backend::local::snapshot_record::SnapshotRecord;
use belay_server::call::Failure;
use redb::ReadableTable as _;
use std::collections::HashSet;

impl Ledger {
    /// Returns the record of a snapshot; `None` if there is none.
    pub(in crate::backend::local) fn snapshot(
        &self,
        id: &str,
    ) -> Result<Option<SnapshotRecord>, Failure> {
        self.read(|transaction| read(&transaction.open_table(SNAPSHOTS).map_err(failed)?, id))
    }

    /// Returns the IDs of all snapshots.
    pub(in crate::backend::local) fn snapshot_ids(&self) -> Result<HashSet<String>, Failure> {
        self.keys(SNAPSHOTS)
    }
}

impl Changes<'_> {
    /// Returns the record of a snapshot; `None` if there is none.
    pub(in crate::backend::local) fn snapshot(
        &self,
        id: &str,
    ) -> Result<Option<SnapshotRecord>, Failure> {
        read(&self.snapshots, id)
    }

    /// Returns the ID of the snapshot with this name; `None` if there is none.
    pub(in crate::backend::local) fn snapshot_named(
        &self,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        let id = self.snapshot_names.get(name).map_err(failed)?;
        Ok(id.map(|id| id.value().to_owned()))
    }

    /// Writes a new or changed record and its index entries, and updates the totals.
    pub(in crate::backend::local) fn put_snapshot(
        &mut self,
        id: &str,
        record: &SnapshotRecord,
    ) -> Result<(), Failure> {
        let encoded = record.encode()?;
        self.forget_snapshot(id)?;
        self.has_written = true;
        self.snapshots
            .insert(id, encoded.as_slice())
            .map_err(failed)?;
        // The first of several snapshots with one name keeps the name.
        if self.snapshot_named(&record.name)?.is_none() {
            self.snapshot_names
                .insert(record.name.as_str(), id)
                .map_err(failed)?;
        }
        self.snapshots_of
            .insert((record.source.as_str(), id), ())
            .map_err(failed)?;
        let totals = self.totals()?;
        self.set_totals(Totals {
            snapshots: totals.snapshots + record.counts(),
            bytes: totals.bytes.saturating_add(record.bytes),
            ..totals
        })
    }

    /// Removes a record and its index entries, and updates the totals. Does nothing if the record
    /// does not exist.
    pub(in crate::backend::local) fn forget_snapshot(&mut self, id: &str) -> Result<(), Failure> {
        let Some(record) = self.snapshot(id)? else {
            return Ok(());
        };
        self.has_written = true;
        self.snapshots.remove(id).map_err(failed)?;
        if self.snapshot_named(&record.name)?.as_deref() == Some(id) {
            self.snapshot_names
                .remove(record.name.as_str())
                .map_err(failed)?;
        }
        self.snapshots_of
            .remove((record.source.as_str(), id))
            .map_err(failed)?;
        let totals = self.totals()?;
        self.set_totals(Totals {
            snapshots: totals.snapshots.saturating_sub(record.counts()),
            bytes: totals.bytes.saturating_sub(record.bytes),
            ..totals
        })
    }
}

pub(super) fn read(
    table: &impl redb::ReadableTable<&'static str, &'static [u8]>,
    id: &str,
) -> Result<Option<SnapshotRecord>, Failure> {
    let bytes = table.get(id).map_err(failed)?;
    bytes
        .map(|bytes| SnapshotRecord::decode(id, bytes.value()))
        .transpose()
}
