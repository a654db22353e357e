//! The book of volumes and snapshots: `<state-dir>/state.redb`. Keeps records and the indexes over
//! them in step, one transaction a change. Knows no files but its own, and not what states mean.

mod snapshots;

use super::fault::{at, os};
use super::record::Record;
use belay_server::failure::{Failure, Kind};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition};
use std::fs::{File, OpenOptions};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Volume id to [`Record`].
const VOLUMES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("volumes");
/// Volume name to volume id.
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");
/// Node and volume id, for every attachment.
const ATTACHED: TableDefinition<'_, (&str, &str), ()> = TableDefinition::new("attached");
/// Snapshot id to [`SnapshotRecord`](super::snapshot::SnapshotRecord).
const SNAPSHOTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("snapshots");
/// Snapshot name to snapshot id.
const SNAPSHOT_NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("snapshot_names");
/// The volume it was cut from, and snapshot id, for every snapshot.
const SNAPSHOTS_OF: TableDefinition<'_, (&str, &str), ()> = TableDefinition::new("snapshots_of");
/// [`BYTES`], [`COUNT`] and [`SNAPSHOT_COUNT`] over all records.
const TOTALS: TableDefinition<'_, &str, u64> = TableDefinition::new("totals");
const BYTES: &str = "bytes";
const COUNT: &str = "volumes";
const SNAPSHOT_COUNT: &str = "snapshots";

/// Pages kept in memory; the default of 1 GiB is for databases, not for a list of volumes.
const CACHE_BYTES: usize = 16 << 20;

/// The open book.
#[derive(Debug)]
pub(super) struct Ledger {
    database: Database,
}

/// Sums over all records, whatever their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) volumes: u64,
    pub(super) snapshots: u64,
    /// Bytes promised to both.
    pub(super) bytes: u64,
}

impl Ledger {
    /// Opens the book in that directory, or begins one. The caller holds the directory's lock.
    ///
    /// # Errors
    /// `Unreachable` if it cannot be read or written.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join("state.redb");
        if !path
            .try_exists()
            .map_err(|error| at("stat", &path, &error))?
        {
            begin(dir, &path)?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| at("open", &path, &error))?;
        let ledger = Self {
            database: database(file)?,
        };
        // A book that an earlier release began lacks the tables of this one.
        ledger.change(|_| Ok(()))?;
        Ok(ledger)
    }

    /// Does `work` in one transaction, which is on disk when this returns, or did not happen.
    ///
    /// # Errors
    /// Those of `work`; `Unreachable` if the book cannot be written, that may be running if the
    /// outcome is unknown.
    pub(super) fn change<T>(
        &self,
        work: impl FnOnce(&mut Changes<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let transaction = self.database.begin_write().map_err(failed)?;
        let mut changes = Changes {
            volumes: transaction.open_table(VOLUMES).map_err(failed)?,
            names: transaction.open_table(NAMES).map_err(failed)?,
            attached: transaction.open_table(ATTACHED).map_err(failed)?,
            snapshots: transaction.open_table(SNAPSHOTS).map_err(failed)?,
            snapshot_names: transaction.open_table(SNAPSHOT_NAMES).map_err(failed)?,
            snapshots_of: transaction.open_table(SNAPSHOTS_OF).map_err(failed)?,
            totals: transaction.open_table(TOTALS).map_err(failed)?,
        };
        // Whatever goes wrong before the commit aborts the transaction when it is dropped.
        let result = work(&mut changes)?;
        let totals = changes.totals()?;
        drop(changes);
        transaction
            .commit()
            .map_err(|error| failed(error).may_be_running())?;
        totals.show();
        Ok(result)
    }

    /// The record of that volume.
    pub(super) fn get(&self, id: &str) -> Result<Option<Record>, Failure> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let volumes = transaction.open_table(VOLUMES).map_err(failed)?;
        let bytes = volumes.get(id).map_err(failed)?;
        bytes
            .map(|bytes| Record::decode(id, bytes.value()))
            .transpose()
    }

    /// The id and record of the volume of that name.
    pub(super) fn find(&self, name: &str) -> Result<Option<(String, Record)>, Failure> {
        let transaction = self.database.begin_read().map_err(failed)?;
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
    }

    /// The records that follow `after`, by id, as long as `take` wants more.
    pub(super) fn scan(
        &self,
        after: Option<&str>,
        mut take: impl FnMut(&str, Record) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let volumes = transaction.open_table(VOLUMES).map_err(failed)?;
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        for entry in volumes
            .range::<&str>((begin, Bound::Unbounded))
            .map_err(failed)?
        {
            let (id, bytes) = entry.map_err(failed)?;
            if !take(id.value(), Record::decode(id.value(), bytes.value())?)? {
                break;
            }
        }
        Ok(())
    }

    /// The sums.
    pub(super) fn totals(&self) -> Result<Totals, Failure> {
        let transaction = self.database.begin_read().map_err(failed)?;
        totals(&transaction.open_table(TOTALS).map_err(failed)?)
    }
}

/// An open transaction. It sees its own changes.
pub(super) struct Changes<'t> {
    volumes: Table<'t, &'static str, &'static [u8]>,
    names: Table<'t, &'static str, &'static str>,
    attached: Table<'t, (&'static str, &'static str), ()>,
    snapshots: Table<'t, &'static str, &'static [u8]>,
    snapshot_names: Table<'t, &'static str, &'static str>,
    snapshots_of: Table<'t, (&'static str, &'static str), ()>,
    totals: Table<'t, &'static str, u64>,
}

impl Changes<'_> {
    /// The record of that volume.
    pub(super) fn get(&self, id: &str) -> Result<Option<Record>, Failure> {
        let bytes = self.volumes.get(id).map_err(failed)?;
        bytes
            .map(|bytes| Record::decode(id, bytes.value()))
            .transpose()
    }

    /// The id of the volume of that name.
    pub(super) fn id_of(&self, name: &str) -> Result<Option<String>, Failure> {
        Ok(self
            .names
            .get(name)
            .map_err(failed)?
            .map(|id| id.value().to_owned()))
    }

    /// How many volumes that node has.
    pub(super) fn attached_to(&self, node: &str) -> Result<usize, Failure> {
        let mut count = 0;
        for entry in self
            .attached
            .range::<(&str, &str)>((node, "")..)
            .map_err(failed)?
        {
            if entry.map_err(failed)?.0.value().0 != node {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The sums as they stand now.
    pub(super) fn totals(&self) -> Result<Totals, Failure> {
        totals(&self.totals)
    }

    /// Writes a record, new or changed, and the indexes.
    pub(super) fn put(&mut self, id: &str, record: &Record) -> Result<(), Failure> {
        self.forget(id)?;
        self.volumes
            .insert(id, record.encode()?.as_slice())
            .map_err(failed)?;
        self.names
            .insert(record.name.as_str(), id)
            .map_err(failed)?;
        for attached in &record.attached {
            self.attached
                .insert((attached.node.as_str(), id), ())
                .map_err(failed)?;
        }
        let totals = self.totals()?;
        self.set_totals(Totals {
            volumes: totals.volumes + 1,
            bytes: totals.bytes.saturating_add(record.bytes),
            ..totals
        })
    }

    /// Removes a record, if it is there, and what the indexes say of it.
    pub(super) fn forget(&mut self, id: &str) -> Result<(), Failure> {
        let Some(record) = self.get(id)? else {
            return Ok(());
        };
        self.volumes.remove(id).map_err(failed)?;
        self.names.remove(record.name.as_str()).map_err(failed)?;
        for attached in &record.attached {
            self.attached
                .remove((attached.node.as_str(), id))
                .map_err(failed)?;
        }
        let totals = self.totals()?;
        self.set_totals(Totals {
            volumes: totals.volumes.saturating_sub(1),
            bytes: totals.bytes.saturating_sub(record.bytes),
            ..totals
        })
    }

    fn set_totals(&mut self, totals: Totals) -> Result<(), Failure> {
        for (key, value) in [
            (COUNT, totals.volumes),
            (SNAPSHOT_COUNT, totals.snapshots),
            (BYTES, totals.bytes),
        ] {
            self.totals.insert(key, value).map_err(failed)?;
        }
        Ok(())
    }
}

impl Totals {
    /// Shows the sums as metrics.
    pub(super) fn show(self) {
        metrics::gauge!("belay_controller_volumes").set(self.volumes as f64);
        metrics::gauge!("belay_controller_snapshots").set(self.snapshots as f64);
        metrics::gauge!("belay_controller_provisioned_bytes").set(self.bytes as f64);
    }
}

fn totals(table: &impl redb::ReadableTable<&'static str, u64>) -> Result<Totals, Failure> {
    let sum = |key| {
        let value = table.get(key).map_err(failed)?;
        Ok::<u64, Failure>(value.map_or(0, |value| value.value()))
    };
    Ok(Totals {
        volumes: sum(COUNT)?,
        snapshots: sum(SNAPSHOT_COUNT)?,
        bytes: sum(BYTES)?,
    })
}

/// Makes an empty book under another name and renames it: one that was cut short while being made
/// could not be opened again.
fn begin(dir: &Path, path: &Path) -> Result<(), Failure> {
    let draft = dir.join("state.redb.new");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .map_err(|error| at("open", &draft, &error))?;
    let ledger = Ledger {
        database: database(file)?,
    };
    ledger.change(|_| Ok(()))?;
    drop(ledger);
    std::fs::rename(&draft, path).map_err(|error| at("rename", &draft, &error))?;
    let opened = File::open(dir).map_err(|error| at("open", dir, &error))?;
    rustix::fs::fsync(&opened).map_err(|errno| os("fsync", dir, errno))
}

fn database(file: File) -> Result<Database, Failure> {
    Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_file(file)
        .map_err(failed)
}

fn failed(error: impl Into<redb::Error>) -> Failure {
    let error = error.into();
    Failure::new(
        Kind::Unreachable,
        format!("state.redb: {error}; check the disk of the state directory, then restart"),
    )
}
