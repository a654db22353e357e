//! Locks the state directory for one process, and reads its content. Other files contain the
//! methods that change the state.

use super::copies::Copies;
use super::fault::{at, emptied, os};
use super::files::{Backing, Files, Use};
use super::id;
use super::ledger::{Changes, Ledger};
use super::record::{Record, State};
use super::slots::InProgress;
use super::snapshot_record::SnapshotState;
use super::space::{Ceiling, Limit};
use super::state_file::{damaged, is_there, sync_names};
use super::{Config, STEP_BYTES};
use crate::backend::{Page, Phase, Sizes, Volume};
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::request::{Name, Segments, VolumeId};
use belay_server::size::{Exact, Rounded};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

/// The state of `local`. Each change of a volume has three steps: record the intent in the ledger,
/// change the file, and commit in the ledger. With the recorded intent, [`Store::recover`] finds
/// each interrupted change after a crash.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) ledger: Ledger,
    /// The backing files of volumes.
    pub(super) files: Files,
    /// The backing files of snapshots.
    pub(super) snapshots: Files,
    pub(super) copies: Arc<Copies>,
    /// The topology of all volumes; `None` if volumes report no topology.
    pub(super) place: Option<Arc<Topology>>,
    pub(super) ceiling: Ceiling,
    pub(super) largest_file_bytes: u64,
    /// Names of volumes on which a thread is working.
    pub(super) in_progress: InProgress,
    /// Names of snapshots on which a thread is working.
    pub(super) cutting: InProgress,
    /// Whether the record of an interrupted creation is kept, so that the creation can be repeated
    /// with the same ID.
    pub(super) keeps_intents: bool,
    /// The lock on the file `lock`, held until the process exits.
    _lock: File,
    /// A second lock, on the directory itself. If a restore from a backup replaces the file `lock`,
    /// the new file is not locked.
    _dir_lock: File,
}

impl Store {
    /// Opens the state directory, and recovers from an earlier crash.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`] and [`Store::recover`].
    pub(super) fn start(config: Config) -> Result<Self, Failure> {
        let store = Self::open(config)?;
        store.copies.show();
        let recovered = store.recover();
        match store.ledger.is_suspect() {
            true => Err(damaged()),
            false => recovered.map(|_| store),
        }
    }

    /// Locks the directory and opens its content, without recovery.
    pub(super) fn open(config: Config) -> Result<Self, Failure> {
        let dir = &config.state_dir;
        present(dir)?;
        if config.require_state && !Ledger::is_in(dir)? {
            return Err(not_mounted(dir));
        }
        let (lock, dir_lock) = (lock(dir)?, lock_dir(dir)?);
        let files = Files::open(dir.join("volumes"))?;
        let snapshots = Files::open(dir.join("snapshots"))?;
        if !Ledger::is_in(dir)? {
            refuse_orphans(dir, &files, id::VOLUME)?;
            refuse_orphans(dir, &snapshots, id::SNAPSHOT)?;
        }
        // Sync the directories before anything is stored in them. An earlier start may have created
        // the directories without a sync.
        sync_names(dir)?;
        Ok(Self {
            ledger: Ledger::open(dir)?,
            largest_file_bytes: files.largest(&lock),
            files,
            snapshots,
            copies: Arc::default(),
            place: config.place.map(Arc::new),
            ceiling: Ceiling::new(config.overcommit),
            in_progress: InProgress::default(),
            cutting: InProgress::default(),
            keeps_intents: config.keeps_intents,
            _lock: lock,
            _dir_lock: dir_lock,
        })
    }

    pub(super) fn find(&self, name: &Name) -> Result<Option<Volume>, Failure> {
        let found = self.ledger.find(name.as_str())?;
        let ready = found.filter(|(_, record)| record.state == State::Ready);
        ready
            .map(|(id, record)| self.volume(&id, &record))
            .transpose()
    }

    pub(super) fn get(&self, id: &VolumeId) -> Result<Option<Volume>, Failure> {
        let record = self.ledger.get(id.as_str())?;
        let ready = record.filter(|record| record.state == State::Ready);
        ready
            .map(|record| self.volume(id.as_str(), &record))
            .transpose()
    }

    /// Converts a record to a volume for callers.
    pub(super) fn volume(&self, id: &str, record: &Record) -> Result<Volume, Failure> {
        record.volume(id, self.place.clone())
    }

    /// Lists volumes, ordered by ID. The token is the last ID of the previous page, even if that
    /// volume has been deleted meanwhile.
    pub(super) fn list(&self, after: Option<&str>, limit: usize) -> Result<Page, Failure> {
        refuse_foreign_token(after)?;
        let mut page = Page::default();
        self.ledger.scan(after, |id, record| {
            let volume = match record {
                Ok(record) if record.state != State::Ready => return Ok(true),
                Ok(record) => self.volume(id, &record),
                Err(failure) => Err(failure),
            };
            let volume = volume.or_else(|failure| self.unreadable(id, failure))?;
            if page.volumes.len() == limit {
                page.next = page
                    .volumes
                    .last()
                    .map(|volume| volume.id.as_str().to_owned());
                return Ok(false);
            }
            page.volumes.push(volume);
            Ok(true)
        })?;
        Ok(page)
    }

    /// Returns the list entry of a volume whose record cannot be read. Only its ID is known.
    fn unreadable(&self, id: &str, failure: Failure) -> Result<Volume, Failure> {
        if failure.kind != Kind::Bug {
            return Err(failure);
        }
        let id = VolumeId::new(id).map_err(|_| failure)?;
        Ok(Volume {
            place: self.place.clone(),
            ..Volume::new(id, Phase::Ready)
        })
    }

    /// Opens, for reading and writing, the file of a volume that was ready a moment ago.
    pub(super) fn backing(&self, id: &str) -> Result<Backing, Failure> {
        self.own(id, self.files.get(id))
    }

    /// Opens, read-only, the file of a volume that was ready a moment ago.
    pub(super) fn backing_for_reading(&self, id: &str) -> Result<Backing, Failure> {
        self.own(id, self.files.get_for_reading(id))
    }

    fn own(&self, id: &str, found: Result<Backing, Failure>) -> Result<Backing, Failure> {
        let file = found.or_else(|missing| {
            // Check whether the file is missing because its volume was deleted.
            ready(id, self.ledger.get(id)?)?;
            Err(missing)
        })?;
        file.refuse_linked()?;
        Ok(file)
    }

    /// Whether the snapshot was taken and its file is still being filled.
    pub(super) fn is_copying(&self, snapshot: &str) -> Result<bool, Failure> {
        let record = self.ledger.snapshot(snapshot)?;
        Ok(record.is_some_and(|record| record.state == SnapshotState::Copying))
    }

    /// Whether a node may format a copy of the volume's file, since the volume was not used before
    /// the copy was made. Must be called after the copy was made.
    ///
    /// # Errors
    /// Returns `Busy` if the file was copied while a node was formatting it. Returns `Precondition`
    /// if the copy has no data, although the filesystem of the volume was used.
    pub(super) fn is_new(
        &self,
        file: &Backing,
        copy: &Backing,
        record: &Record,
    ) -> Result<bool, Failure> {
        match (file.use_so_far()?, copy.holds_data()?) {
            // The copy may contain zeros. The node agent does not format a copy that contains other
            // data.
            (Use::New, _) | (Use::Formatting, false) => Ok(true),
            (Use::Formatting, true) => Err(Failure::busy(format!(
                "{}: its format has begun and not ended; start a pod that uses the volume, and \
                 repeat the call",
                file.path().display()
            ))),
            (Use::Used, false) if record.is_filesystem() => {
                Err(Failure::precondition(emptied(file.path().display())))
            }
            // The user of a raw volume may have discarded all of its blocks.
            (Use::Used, _) => Ok(false),
        }
    }

    pub(super) fn available_bytes(&self, topology: Option<&Segments>) -> Result<u64, Failure> {
        if let (Some(here), Some(there)) = (&self.place, topology)
            && !here.is_in(there)
        {
            return Ok(0);
        }
        let limit = self.recent_ceiling()?;
        Ok(limit.bytes.saturating_sub(self.ledger.totals()?.bytes))
    }

    /// Returns the limit of the bytes that may be provisioned, as of a recent scan of all files.
    pub(super) fn recent_ceiling(&self) -> Result<Limit, Failure> {
        self.ceiling
            .shortly(&self.files, &self.snapshots, &self.ledger)
    }

    pub(super) fn sizes(&self) -> Sizes {
        let largest = self.largest_file_bytes;
        Sizes {
            step: STEP_BYTES,
            min: STEP_BYTES,
            max: largest - largest % STEP_BYTES,
        }
    }

    /// Returns the exact limit of the bytes that may be provisioned for all volumes and snapshots.
    pub(super) fn ceiling(&self) -> Result<Limit, Failure> {
        self.ceiling
            .exact(&self.files, &self.snapshots, &self.ledger)
    }

    /// Makes a change that provisions space, with an estimate of the maximum number of provisioned
    /// bytes. If the change returns `Quota`, repeats the change with the exact maximum. The change
    /// must call [`fits`].
    pub(super) fn provision<T>(
        &self,
        change: impl Fn(&mut Changes<'_>, Limit) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Some(limit) = self.ceiling.estimate(&self.files)? {
            match self.ledger.change(|changes| change(changes, limit)) {
                Err(failure) if failure.kind == Kind::Quota => {}
                done => return done,
            }
        }
        let limit = self.ceiling()?;
        self.ledger.change(|changes| change(changes, limit))
    }
}

/// Refuses a page token that [`Store::list`] has not returned.
pub(super) fn refuse_foreign_token(after: Option<&str>) -> Result<(), Failure> {
    let Some(token) = after.filter(|token| !id::is_ours(id::VOLUME, token)) else {
        return Ok(());
    };
    let message =
        format!("starting_token {token:?}: not a token of this driver; list from the start");
    Err(Failure::new(Kind::BadToken, message))
}

/// Returns the record of a ready volume.
///
/// # Errors
/// Returns `NotFound` if there is no record, and `Busy` while the volume is being created or
/// deleted.
pub(super) fn ready(id: &str, record: Option<Record>) -> Result<Record, Failure> {
    let record = record.ok_or_else(|| Failure::not_found(format!("volume {id}: not found")))?;
    match record.state {
        State::Ready => Ok(record),
        State::Creating => Err(being_created(id)),
        State::Deleting => Err(Failure::busy(format!("volume {id}: being deleted"))),
    }
}

/// Returns the error for a volume whose creation has not ended.
pub(super) fn being_created(id: &str) -> Failure {
    Failure::busy(format!("volume {id}: still being created"))
}

/// Returns `Quota` if provisioning `more` bytes would exceed the limit.
pub(super) fn fits(changes: &Changes<'_>, limit: Limit, more: u64) -> Result<(), Failure> {
    let left = limit.bytes.saturating_sub(changes.totals()?.bytes);
    if more <= left {
        return Ok(());
    }
    // Show the exact number if the remaining space would look sufficient after rounding.
    let left = match Rounded(left).to_string() {
        rounded if rounded == Rounded(more).to_string() => Exact(left).to_string(),
        rounded => rounded,
    };
    Err(Failure::quota(format!(
        "no room for {} in the state directory: {left} of {} are left for volumes and snapshots, \
         which count at full size; {} are used by other files and by the filesystem itself; \
         delete volumes, snapshots or other files, or enlarge the filesystem",
        Exact(more),
        Rounded(limit.bytes),
        Rounded(limit.foreign)
    )))
}

/// Checks that the directory exists. Does not create a missing directory: its filesystem may not be
/// mounted, and all volumes would seem to be deleted.
fn present(dir: &Path) -> Result<(), Failure> {
    if dir.try_exists().map_err(|error| at("stat", dir, &error))? {
        return Ok(());
    }
    Err(Failure::precondition(format!(
        "{}: the state directory does not exist; mount the filesystem that contains it, or create \
         it if this is the first start",
        dir.display()
    )))
}

/// Returns the error for a state directory whose disk may not be mounted. State that is created
/// there now would be hidden once the disk is mounted.
fn not_mounted(dir: &Path) -> Failure {
    Failure::precondition(format!(
        "{}: has no state.redb, which --require-state demands; mount the disk that holds it, or \
         restore it; for the first start, omit --require-state",
        dir.display()
    ))
}

/// Refuses to start if there are files of volumes or snapshots, but no ledger. The ledger was lost,
/// and with an empty one all volumes would seem to be deleted.
fn refuse_orphans(dir: &Path, files: &Files, kind: &str) -> Result<(), Failure> {
    let mut orphan = None;
    files.each(|name, _| {
        if id::is_ours(kind, name) {
            orphan = Some(name.to_owned());
        }
    })?;
    let Some(name) = orphan else { return Ok(()) };
    Err(Failure::precondition(format!(
        "{}: state.redb is missing, but {} exists; restore state.redb, or, to abandon all volumes \
         and snapshots, move their files away",
        dir.display(),
        files.path_of(&name).display()
    )))
}

/// Locks the file `lock`, so that no other process uses the directory.
fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join("lock");
    is_there(&path, "remove it")?;
    let lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| at("open", &path, &error))?;
    take(&lock, &path)?;
    Ok(lock)
}

/// Locks the directory itself, since a restore from a backup may replace the file `lock`.
fn lock_dir(dir: &Path) -> Result<File, Failure> {
    let opened = File::open(dir).map_err(|error| at("open", dir, &error))?;
    take(&opened, dir)?;
    Ok(opened)
}

fn take(lock: &File, path: &Path) -> Result<(), Failure> {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Failure::precondition(format!(
            "{}: held by another belay-controller; stop it, or use another --state-dir",
            path.display()
        ))),
        Err(errno) => Err(os("flock", path, errno)),
    }
}

/// Returns the minimum size of the volume's file, in bytes, after checking that the file is large
/// enough.
///
/// # Errors
/// Returns `Precondition` if the file is smaller.
pub(super) fn whole_bytes(file: &Backing, record: &Record) -> Result<u64, Failure> {
    let least_bytes = record.least_bytes(file.recorded_bytes()?.unwrap_or(0));
    file.refuse_truncated(least_bytes)?;
    Ok(least_bytes)
}
