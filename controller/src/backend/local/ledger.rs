//! The ledger: the database of volumes and snapshots, `<state-dir>/state.redb`. Each change is one
//! transaction, so that the records and their indexes remain consistent. This module uses no other
//! file, and does not interpret the states of volumes.

#[cfg(test)]
mod alone;
mod commit;
mod scan;
mod snapshots;
mod totals;

use super::record::Record;
use super::state_file::{self, StateFile, builder, damaged, failed, panicked, path_in};
use belay_server::call::{Failure, Kind};
use commit::Callers;
use redb::{Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _};
use redb::{Table, TableDefinition, TableError, WriteTransaction};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use totals::{TOTALS, Totals};

/// Maps volume IDs to [`Record`]s.
const VOLUMES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("volumes");
/// Maps volume names to volume IDs.
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");
/// Maps snapshot IDs to [`SnapshotRecord`](super::snapshot_record::SnapshotRecord)s.
const SNAPSHOTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("snapshots");
/// Maps snapshot names to snapshot IDs.
const SNAPSHOT_NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("snapshot_names");
/// Contains an entry with the source volume ID and the snapshot ID for each snapshot.
const SNAPSHOTS_OF: TableDefinition<'_, (&str, &str), ()> = TableDefinition::new("snapshots_of");

/// The open database.
#[derive(Debug)]
pub(super) struct Ledger {
    file: StateFile,
    /// The database; `None` if reopening it failed.
    database: RwLock<Option<Database>>,
    callers: Callers,
    /// Whether redb has panicked. After a panic, the database must be reopened before further use.
    is_suspect: AtomicBool,
}

impl Ledger {
    /// Opens the database in this directory, or creates it. The caller must hold the directory's
    /// lock.
    ///
    /// # Errors
    /// Returns `Unreachable` if the database cannot be read or written.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        if !Self::is_in(dir)? {
            begin(dir)?;
        }
        let file = StateFile::find(dir)?;
        let ledger = Self {
            database: RwLock::new(Some(file.open()?)),
            file,
            callers: Callers::default(),
            is_suspect: AtomicBool::new(false),
        };
        let checked = ledger.check_tables();
        match ledger.is_suspect() {
            true => Err(damaged()),
            false => checked.map(|()| ledger),
        }
    }

    /// Refuses a database that another program or release has created. Belay creates all tables in
    /// one transaction, so a check for one table suffices.
    fn check_tables(&self) -> Result<(), Failure> {
        self.read(|transaction| match transaction.open_table(SNAPSHOTS) {
            Ok(_) => Ok(()),
            Err(TableError::TableDoesNotExist(_)) => Err(Failure::precondition(
                "state.redb: was not written by this release of Belay; run the release that wrote \
                 it, or restore the file from a backup",
            )),
            Err(error) => Err(failed(error)),
        })
    }

    /// Whether the directory contains a database file.
    pub(super) fn is_in(dir: &Path) -> Result<bool, Failure> {
        let remedy = "move it away and restore state.redb from a backup";
        state_file::is_there(&path_in(dir), remedy)
    }

    /// Checks that a change can be written. If it cannot, reopens the database, because redb
    /// refuses all reads and writes after a failed one until the database is reopened.
    ///
    /// # Errors
    /// Returns `Unreachable` if no change can be written. Reads may still succeed.
    pub(super) fn mend(&self) -> Result<(), Failure> {
        self.file.refuse_replaced()?;
        let mut database = self
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let usable = |opened: &Database| opened.begin_write().is_ok();
        if self.is_suspect() || !database.as_ref().is_some_and(usable) {
            self.reopen(&mut database)?;
            tracing::warn!("state.redb: reopened after a failed read or write");
        }
        let tried = database.as_ref().ok_or_else(closed);
        let tried = tried.and_then(|opened| self.caught(|| rewrite_totals(opened)).flatten());
        if tried.is_err() {
            self.reopen(&mut database)?;
        }
        tried
    }

    fn reopen(&self, database: &mut Option<Database>) -> Result<(), Failure> {
        // Close the old database first, since redb holds a lock on the database file.
        let before = database.take();
        state_file::caught(|| drop(before))?;
        *database = Some(state_file::caught(|| self.file.open()).flatten()?);
        // This call holds the write lock, so no other call can be using the database.
        self.is_suspect.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether redb has panicked. After a panic of redb, all calls fail until [`Self::mend`]
    /// reopens the database.
    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Runs `work`, which uses the database, and catches a panic.
    ///
    /// # Errors
    /// Fails if `work` panics. After that, [`Self::mend`] must reopen the database.
    fn caught<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        state_file::caught(work).inspect_err(|_| self.is_suspect.store(true, Ordering::Relaxed))
    }

    /// Returns the record of a volume; `None` if there is none.
    pub(super) fn get(&self, id: &str) -> Result<Option<Record>, Failure> {
        self.read(|transaction| {
            let volumes = transaction.open_table(VOLUMES).map_err(failed)?;
            let bytes = volumes.get(id).map_err(failed)?;
            bytes
                .map(|bytes| Record::decode(id, bytes.value()))
                .transpose()
        })
    }

    /// Returns the ID and the record of the volume with this name; `None` if there is none.
    pub(super) fn find(&self, name: &str) -> Result<Option<(String, Record)>, Failure> {
        self.read(|transaction| {
            let names = transaction.open_table(NAMES).map_err(failed)?;
            let Some(id) = names
                .get(name)
                .map_err(failed)?
                .map(|id| id.value().to_owned())
            else {
                return Ok(None);
            };
            let volumes = transaction.open_table(VOLUMES).map_err(failed)?;
            let bytes = volumes.get(id.as_str()).map_err(failed)?;
            let record = bytes
                .map(|bytes| Record::decode(&id, bytes.value()))
                .transpose()?;
            Ok(record.map(|record| (id, record)))
        })
    }

    /// Removes all records, but keeps their index entries.
    #[cfg(test)]
    pub(super) fn lose_records(&self) {
        let all = |_: &str, _: &[u8]| false;
        let lost = self.change(|changes| {
            changes.volumes.retain(all).map_err(failed)?;
            changes.snapshots.retain(all).map_err(failed)
        });
        lost.unwrap();
    }

    /// For tests: panics during a read, as redb may panic.
    #[cfg(test)]
    pub(super) fn break_read(&self) -> Result<(), Failure> {
        self.read(|_| panic!("as redb at some damage"))
    }

    /// Returns the totals over all records.
    pub(super) fn totals(&self) -> Result<Totals, Failure> {
        self.read(|transaction| Totals::read(&transaction.open_table(TOTALS).map_err(failed)?))
    }

    /// Returns the IDs of all volumes.
    pub(super) fn ids(&self) -> Result<HashSet<String>, Failure> {
        self.keys(VOLUMES)
    }

    fn keys(
        &self,
        records: TableDefinition<'_, &'static str, &'static [u8]>,
    ) -> Result<HashSet<String>, Failure> {
        self.read(|transaction| {
            let records = transaction.open_table(records).map_err(failed)?;
            let mut ids = HashSet::new();
            for entry in records.range::<&str>(..).map_err(failed)? {
                ids.insert(entry.map_err(failed)?.0.value().to_owned());
            }
            Ok(ids)
        })
    }

    /// Runs `work` on the state after the last transaction that is on disk. `work` must not use the
    /// ledger itself: the nested call would deadlock if [`Self::mend`] is waiting for `work` to
    /// end.
    fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        #[cfg(test)]
        let _alone = alone::begin();
        let database = self.opened()?;
        let database = database.as_ref().ok_or_else(closed)?;
        self.caught(|| work(&database.begin_read().map_err(failed)?))
            .flatten()
    }

    /// Returns the open database. Reads, too, check whether the file was replaced, because a volume
    /// that is missing from the new file may still exist.
    fn opened(&self) -> Result<RwLockReadGuard<'_, Option<Database>>, Failure> {
        self.file.refuse_replaced()?;
        let opened = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match self.is_suspect() {
            true => Err(panicked()),
            false => Ok(opened),
        }
    }
}

/// A transaction in progress. Reads in a transaction see the earlier changes of the same
/// transaction.
pub(super) struct Changes<'t> {
    volumes: Table<'t, &'static str, &'static [u8]>,
    names: Table<'t, &'static str, &'static str>,
    snapshots: Table<'t, &'static str, &'static [u8]>,
    snapshot_names: Table<'t, &'static str, &'static str>,
    snapshots_of: Table<'t, (&'static str, &'static str), ()>,
    totals: Table<'t, &'static str, u64>,
    has_written: bool,
}

impl<'t> Changes<'t> {
    fn of(transaction: &'t WriteTransaction) -> Result<Self, Failure> {
        Ok(Self {
            volumes: transaction.open_table(VOLUMES).map_err(failed)?,
            names: transaction.open_table(NAMES).map_err(failed)?,
            snapshots: transaction.open_table(SNAPSHOTS).map_err(failed)?,
            snapshot_names: transaction.open_table(SNAPSHOT_NAMES).map_err(failed)?,
            snapshots_of: transaction.open_table(SNAPSHOTS_OF).map_err(failed)?,
            totals: transaction.open_table(TOTALS).map_err(failed)?,
            has_written: false,
        })
    }
}

impl Changes<'_> {
    /// Returns the record of a volume; `None` if there is none.
    pub(super) fn get(&self, id: &str) -> Result<Option<Record>, Failure> {
        let bytes = self.volumes.get(id).map_err(failed)?;
        bytes
            .map(|bytes| Record::decode(id, bytes.value()))
            .transpose()
    }

    /// Returns the ID of the volume with this name; `None` if there is none.
    pub(super) fn id_of(&self, name: &str) -> Result<Option<String>, Failure> {
        Ok(self
            .names
            .get(name)
            .map_err(failed)?
            .map(|id| id.value().to_owned()))
    }

    /// Returns the totals over all records, including the changes of this transaction.
    pub(super) fn totals(&self) -> Result<Totals, Failure> {
        Totals::read(&self.totals)
    }

    fn set_totals(&mut self, totals: Totals) -> Result<(), Failure> {
        self.has_written = true;
        totals.write(&mut self.totals)
    }

    /// Writes a new or changed record and its index entries, and updates the totals.
    pub(super) fn put(&mut self, id: &str, record: &Record) -> Result<(), Failure> {
        let encoded = record.encode()?;
        self.forget(id)?;
        self.has_written = true;
        self.volumes
            .insert(id, encoded.as_slice())
            .map_err(failed)?;
        // Objects of Kubernetes may order several volumes with one name. The first keeps the name.
        if self.id_of(&record.name)?.is_none() {
            self.names
                .insert(record.name.as_str(), id)
                .map_err(failed)?;
        }
        let totals = self.totals()?;
        self.set_totals(Totals {
            volumes: totals.volumes + record.counts(),
            bytes: totals.bytes.saturating_add(record.bytes),
            ..totals
        })
    }

    /// Removes a record and its index entries, and updates the totals. Does nothing if the record
    /// does not exist.
    pub(super) fn forget(&mut self, id: &str) -> Result<(), Failure> {
        let Some(record) = self.get(id)? else {
            return Ok(());
        };
        self.has_written = true;
        self.volumes.remove(id).map_err(failed)?;
        if self.id_of(&record.name)?.as_deref() == Some(id) {
            self.names.remove(record.name.as_str()).map_err(failed)?;
        }
        let totals = self.totals()?;
        self.set_totals(Totals {
            volumes: totals.volumes.saturating_sub(record.counts()),
            bytes: totals.bytes.saturating_sub(record.bytes),
            ..totals
        })
    }
}

/// Creates an empty database under a temporary name, and then renames it. If the creation were
/// interrupted under the final name, the next start could not open the database.
fn begin(dir: &Path) -> Result<(), Failure> {
    let (file, draft) = state_file::draft(dir)?;
    let made = builder().create_file(file).map_err(failed)?;
    let transaction = made.begin_write().map_err(failed)?;
    Changes::of(&transaction)?.set_totals(Totals::default())?;
    transaction.commit().map_err(failed)?;
    drop(made);
    state_file::give_name(dir, &draft)
}

/// Makes the smallest possible change, to check that the database can be written.
fn rewrite_totals(database: &Database) -> Result<(), Failure> {
    let transaction = database.begin_write().map_err(failed)?;
    let mut changes = Changes::of(&transaction)?;
    let totals = changes.totals()?;
    changes.set_totals(totals)?;
    drop(changes);
    transaction.commit().map_err(failed)
}

fn closed() -> Failure {
    let message = "state.redb: could not be reopened after a failed read or write; repeat the call";
    Failure::new(Kind::Unreachable, message)
}
