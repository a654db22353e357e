//! What a start does with what a death left half done. Nobody was told of a volume that is being
//! created, so it goes, unless its file is marked as whole: then it is ready. One that is being
//! deleted goes too; one whose growth was promised grows, if its file was not truncated
//! meanwhile. A half-made file that holds data all the same is kept, and no stray file is
//! touched.

use super::record::{Record, State};
use super::store::{Store, whole_bytes};
use belay_server::call::Failure;
use std::collections::HashSet;

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// Creations whose files turned out to be whole.
    pub(super) completed: usize,
    /// Creations that were undone.
    pub(super) undone: usize,
    /// Deletions that were finished.
    pub(super) deleted: usize,
    /// Growths that were finished.
    pub(super) grown: usize,
    /// Copies that begin again.
    pub(super) resumed: usize,
    /// Volumes that may need more room than their size, since btrfs copies them on write.
    pub(super) copy_on_write: usize,
    /// What needs a person: told in the log.
    pub(super) troubles: usize,
}

impl Recovered {
    /// Counts a record that cannot be read, and logs it.
    pub(super) fn report(&mut self, id: &str, failure: &Failure) {
        tracing::error!(id, "recovery: {failure}");
        self.troubles += 1;
    }
}

impl Store {
    /// Mends the state. Trouble with one volume does not keep the others from being served.
    ///
    /// # Errors
    /// Only if the ledger or the directory cannot be read.
    pub(super) fn recover(&self) -> Result<Recovered, Failure> {
        let mut done = Recovered::default();
        let (mut volumes, mut known) = (Vec::new(), HashSet::new());
        self.ledger.scan(None, |id, record| {
            known.insert(id.to_owned());
            match record {
                Ok(record) => volumes.push((id.to_owned(), record)),
                Err(failure) => done.report(id, &failure),
            }
            Ok(true)
        })?;
        for (id, record) in &volumes {
            if let Err(failure) = self.recover_volume(id, record, &mut done) {
                tracing::error!(volume = id, state = ?record.state, "recovery: {failure}");
                done.troubles += 1;
            }
        }
        self.files.each(|name, bytes| {
            if !known.contains(name) {
                tracing::warn!(
                    file = name,
                    bytes,
                    "recovery: a file of no volume; left alone"
                );
                done.troubles += 1;
            }
        })?;
        self.recover_held(&known, &volumes, &mut done)?;
        self.recover_snapshots(&mut done)?;
        let totals = self.ledger.totals()?;
        totals.show();
        self.ceiling()?;
        if done.copy_on_write > 0 {
            tracing::warn!(
                volumes = done.copy_on_write,
                "volumes on btrfs without NOCOW, which may need more room than their size; see \
                 docs/operations.md"
            );
        }
        tracing::info!(
            volumes = totals.volumes,
            snapshots = totals.snapshots,
            provisioned_bytes = totals.bytes,
            completed = done.completed,
            undone = done.undone,
            deleted = done.deleted,
            grown = done.grown,
            resumed = done.resumed,
            copy_on_write = done.copy_on_write,
            troubles = done.troubles,
            "state recovered"
        );
        Ok(done)
    }

    fn recover_volume(
        &self,
        id: &str,
        record: &Record,
        done: &mut Recovered,
    ) -> Result<(), Failure> {
        match record.state {
            State::Creating if self.complete_whole(id, record)?.is_some() => {
                tracing::info!(
                    volume = id,
                    "recovery: its file was complete, so it is ready"
                );
                done.completed += 1;
            }
            State::Creating => {
                self.clear(id, record)?;
                done.undone += 1;
            }
            State::Deleting => {
                self.clear(id, record)?;
                done.deleted += 1;
            }
            State::Ready => {
                let backing = self.files.get(id)?;
                let bytes = backing.bytes()?;
                whole_bytes(&backing, record)?;
                if record.node().is_some() {
                    self.remember_used_file(id, &backing)?;
                }
                done.copy_on_write += usize::from(backing.is_copied_on_write()?);
                if record.growing_from.is_some() {
                    self.finish_growth(id, &backing)?;
                    done.grown += 1;
                } else if bytes > record.bytes {
                    tracing::warn!(volume = id, bytes, recorded = record.bytes, "larger file");
                }
            }
        }
        Ok(())
    }

    /// Removes what is left of a volume that nobody makes or deletes any more.
    ///
    /// # Errors
    /// `Precondition` if it was never handed out, but holds data that is nowhere else.
    pub(super) fn clear(&self, id: &str, record: &Record) -> Result<(), Failure> {
        // One that was being filled holds data, but its source still has it.
        if record.state == State::Creating
            && record.source.is_none()
            && let Some(backing) = self.files.find(id)?
            && backing.holds_data()?
        {
            return Err(Failure::precondition(format!(
                "{}: holds data, though its volume was never handed out; kept; move it away to \
                 free the name {:?}",
                backing.path().display(),
                record.name
            )));
        }
        self.finish_delete(id)
    }
}
