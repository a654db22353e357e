//! Totals over all records. The totals are stored in the database, so that no call has to read all
//! records.

use crate::backend::local::state_file::failed;
use belay_server::call::Failure;
use redb::{ReadableTable, Table, TableDefinition};

/// The table of totals, with the keys [`BYTES`], [`VOLUMES`] and [`SNAPSHOTS`].
pub(super) const TOTALS: TableDefinition<'_, &str, u64> = TableDefinition::new("totals");
const BYTES: &str = "bytes";
const VOLUMES: &str = "volumes";
const SNAPSHOTS: &str = "snapshots";

/// Totals over all records of volumes and snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backend::local) struct Totals {
    /// The number of ready volumes.
    pub(in crate::backend::local) volumes: u64,
    /// The number of ready snapshots.
    pub(in crate::backend::local) snapshots: u64,
    /// The bytes provisioned for all volumes and snapshots, including those that are being created
    /// or deleted.
    pub(in crate::backend::local) bytes: u64,
}

impl Totals {
    /// Sets the gauges of the totals.
    pub(in crate::backend::local) fn show(self) {
        metrics::gauge!("belay_controller_volumes").set(self.volumes as f64);
        metrics::gauge!("belay_controller_snapshots").set(self.snapshots as f64);
        metrics::gauge!("belay_controller_provisioned_bytes").set(self.bytes as f64);
    }

    /// Reads the totals. A total that is not in the database is 0.
    pub(super) fn read(table: &impl ReadableTable<&'static str, u64>) -> Result<Self, Failure> {
        let sum = |key| {
            let value = table.get(key).map_err(failed)?;
            Ok::<u64, Failure>(value.map_or(0, |value| value.value()))
        };
        Ok(Self {
            volumes: sum(VOLUMES)?,
            snapshots: sum(SNAPSHOTS)?,
            bytes: sum(BYTES)?,
        })
    }

    /// Writes the totals.
    pub(super) fn write(self, table: &mut Table<'_, &'static str, u64>) -> Result<(), Failure> {
        for (key, value) in [
            (VOLUMES, self.volumes),
            (SNAPSHOTS, self.snapshots),
            (BYTES, self.bytes),
        ] {
            table.insert(key, value).map_err(failed)?;
        }
        Ok(())
    }
}
