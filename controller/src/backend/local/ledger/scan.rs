//! Passes all records to a function. The records are read in pieces, and the database is not in use
//! while the function runs. The function may therefore use the ledger and wait for files.

use super::snapshots::read;
use super::{Ledger, SNAPSHOTS, SNAPSHOTS_OF, VOLUMES, failed};
use crate::backend::local::record::Record;
use crate::backend::local::snapshot_record::SnapshotRecord;
use belay_server::call::Failure;
use redb::{ReadTransaction, TableDefinition};
use std::ops::Bound;

/// The number of records in the first piece. Each further piece has twice as many records, up to
/// [`PIECE_MAX`]. Most calls need only one page of records.
const FIRST_PIECE: usize = 32;
const PIECE_MAX: usize = 1024;

/// Records, ordered by ID. A record that cannot be read is replaced by an error.
type Piece<T> = Vec<(String, Result<T, Failure>)>;

impl Ledger {
    /// Passes the records whose IDs follow `after` to `take`, ordered by ID, until `take` returns
    /// false. If a record cannot be read, passes the error instead. Other calls may change records
    /// between two pieces.
    pub(in crate::backend::local) fn scan(
        &self,
        after: Option<&str>,
        take: impl FnMut(&str, Result<Record, Failure>) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let piece = |after: Option<&str>, most| {
            self.read(|transaction| rows(transaction, VOLUMES, (after, most), Record::decode))
        };
        by_pieces(after, piece, take)
    }

    /// Passes the records of snapshots to `take`, like [`Self::scan`]. If `of` is set, passes only
    /// the snapshots of this volume.
    pub(in crate::backend::local) fn scan_snapshots(
        &self,
        of: Option<&str>,
        after: Option<&str>,
        take: impl FnMut(&str, Result<SnapshotRecord, Failure>) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let piece = |after: Option<&str>, most| {
            self.read(|transaction| match of {
                None => rows(
                    transaction,
                    SNAPSHOTS,
                    (after, most),
                    SnapshotRecord::decode,
                ),
                Some(volume) => rows_of(transaction, volume, (after, most)),
            })
        };
        by_pieces(after, piece, take)
    }
}

fn by_pieces<T>(
    after: Option<&str>,
    piece: impl Fn(Option<&str>, usize) -> Result<Piece<T>, Failure>,
    mut take: impl FnMut(&str, Result<T, Failure>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let (mut after, mut most) = (after.map(str::to_owned), FIRST_PIECE);
    loop {
        let rows = piece(after.as_deref(), most)?;
        let is_last = rows.len() < most;
        for (id, record) in rows {
            if !take(&id, record)? {
                return Ok(());
            }
            after = Some(id);
        }
        if is_last {
            return Ok(());
        }
        most = (2 * most).min(PIECE_MAX);
    }
}

/// Returns the first `most` records whose IDs follow `after`.
fn rows<T>(
    transaction: &ReadTransaction,
    table: TableDefinition<'_, &'static str, &'static [u8]>,
    (after, most): (Option<&str>, usize),
    decode: impl Fn(&str, &[u8]) -> Result<T, Failure>,
) -> Result<Piece<T>, Failure> {
    let records = transaction.open_table(table).map_err(failed)?;
    let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
    let range = records.range::<&str>((begin, Bound::Unbounded));
    let mut rows = Vec::new();
    for entry in range.map_err(failed)?.take(most) {
        let (id, bytes) = entry.map_err(failed)?;
        let record = decode(id.value(), bytes.value());
        rows.push((id.value().to_owned(), record));
    }
    Ok(rows)
}

/// Returns the first `most` snapshots of the volume whose IDs follow `after`.
fn rows_of(
    transaction: &ReadTransaction,
    volume: &str,
    (after, most): (Option<&str>, usize),
) -> Result<Piece<SnapshotRecord>, Failure> {
    let snapshots = transaction.open_table(SNAPSHOTS).map_err(failed)?;
    let of_volume = transaction.open_table(SNAPSHOTS_OF).map_err(failed)?;
    let begin = Bound::Excluded((volume, after.unwrap_or("")));
    let range = of_volume.range::<(&str, &str)>((begin, Bound::Unbounded));
    let mut rows = Vec::new();
    for entry in range.map_err(failed)?.take(most) {
        let key = entry.map_err(failed)?.0;
        let (source, id) = key.value();
        if source != volume {
            break;
        }
        let record = read(&snapshots, id).and_then(|record| {
            let missing = || Failure::bug(format!("state.redb: snapshot {id}: has no record"));
            record.ok_or_else(missing)
        });
        rows.push((id.to_owned(), record));
    }
    Ok(rows)
}
