//! An index of the node's disks by their identities, and of the volumes that need a disk. The agent
//! updates the index when the kernel reports a change. NodeStageVolume searches the index for the
//! volume's disk, and waits for the next change if the disk is missing.
//!
//! A virtio disk must be queried for its serial number, and a failing disk may never respond.
//! Therefore only the thread that queries the disk waits for the response. Meanwhile, the index
//! lists the disk as not responding.

mod foreign;
mod held;
mod queries;

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use belay_contract::disk::DiskIdentity;
use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use tokio::sync::watch;

use super::identity::{Identity, Match};
use super::volume::{Missing, is_plugged, words};
use crate::device::Search;
use crate::kernel::{self, Dev, Disk, Disks};
use queries::Again;

pub(crate) use foreign::{DiskSeen, DiskUser};

/// All disks of the node, for all drivers of this process.
pub(crate) struct DiskIndex {
    inner: Lock<Inner>,
    arrivals: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    /// Whether all disks were listed at least once.
    is_scanned: bool,
    disks: BTreeMap<Dev, Entry>,
    users: BTreeMap<Owner, User>,
}

/// A volume that needs a disk.
struct User {
    /// The identity of the volume's disk; `None` if only a mount or a name in `/dev/belay`
    /// identifies the disk.
    wanted: Option<DiskIdentity>,
    /// The disk that was found for the volume. The assignment is valid only while the disk is
    /// plugged in.
    held: Option<Disk>,
}

struct Entry {
    disk: Disk,
    state: State,
    again: Again,
    /// The time since which the disk is plugged in or unused: see [`DiskSeen::since`].
    since: Option<Instant>,
}

enum State {
    /// The disk must be queried for its serial number.
    Unasked,
    /// The query is running.
    Asked,
    /// The disk has not responded in time, and may never respond.
    Late,
    /// The disk has responded with an error.
    Unread(String),
    Known(Arc<Identity>),
}

impl DiskIndex {
    /// Returns an index without disks; [`DiskIndex::rescan`] adds the disks.
    pub(crate) fn new() -> Self {
        DiskIndex {
            inner: Lock::default(),
            arrivals: watch::Sender::new(0),
        }
    }

    /// Returns a receiver that is notified of every change of a disk.
    pub(crate) fn arrivals(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }

    /// Updates the list of disks. Does not query any disk.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn rescan<K: Disks>(&self, kernel: &K) -> kernel::Result<()> {
        let seen = kernel.disks()?;
        let mut has_changed = self.keep_only(&seen);
        for disk in seen {
            if self.is_known(&disk) {
                continue;
            }
            let Some(facts) = kernel.disk_facts(&disk)? else {
                continue;
            };
            let identity = Identity::of(&facts).map(Arc::new);
            let state = identity.map_or(State::Unasked, State::Known);
            let mut inner = self.lock();
            let since = inner.is_scanned.then(Instant::now);
            inner.disks.insert(disk.dev, Entry::new(disk, state, since));
            has_changed = true;
        }
        self.lock().is_scanned = true;
        if has_changed {
            self.announce();
        }
        Ok(())
    }

    /// Returns the only disk that matches `wanted`, and assigns it to the volume.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if several disks match, or if the disk also matches or belongs
    /// to another volume.
    pub(super) fn find(
        &self,
        owner: &Owner,
        wanted: &DiskIdentity,
    ) -> Result<Search<Disk>, Failure> {
        let mut inner = self.lock();
        let known = inner.users.get(owner).and_then(|user| user.wanted.as_ref());
        // The disk was the only match when it was found, and is still plugged in. The assignment
        // remains, even if other disks match by now.
        if let Some(disk) = inner.held_by(owner).cloned()
            && known.is_none_or(|known| known == wanted)
            && inner.may_match(&disk, wanted)
        {
            if let Some(user) = inner.users.get_mut(owner) {
                user.wanted = Some(wanted.clone());
            }
            return Ok(Search::Found(disk));
        }
        // This is the first search for the volume, or the cloud has attached the volume again, as a
        // different disk.
        let found = inner.search(owner, wanted);
        let held = match &found {
            Ok(Search::Found(disk)) => Some(disk.clone()),
            Ok(Search::Missing(_)) | Err(_) => None,
        };
        // Keep the volume's disk if a new attachment is refused.
        if found.is_ok() || !inner.users.contains_key(owner) {
            let wanted = Some(wanted.clone());
            inner.users.insert(owner.clone(), User { wanted, held });
        }
        found
    }

    /// Returns the identity of the volume's disk, if a call has named it.
    pub(super) fn wanted(&self, owner: &Owner) -> Option<DiskIdentity> {
        let inner = self.lock();
        inner.users.get(owner)?.wanted.clone()
    }

    /// Whether the volume's disk can be distinguished from all others.
    pub(super) fn can_recognise(&self, owner: &Owner) -> bool {
        let inner = self.lock();
        let user = inner.users.get(owner);
        user.is_some_and(|user| user.wanted.is_some()) || inner.held_by(owner).is_some()
    }

    /// Whether any disk has not been queried yet, or has not responded yet.
    pub(super) fn is_any_unknown(&self) -> bool {
        self.lock().is_any_awaited()
    }

    /// Returns the disk's identity, if it is known already.
    pub(super) fn known(&self, disk: &Disk) -> Option<Arc<Identity>> {
        // Without sequence numbers, a different disk may have replaced the known disk.
        if disk.diskseq == 0 {
            return None;
        }
        let inner = self.lock();
        let entry = inner.disks.get(&disk.dev)?;
        match &entry.state {
            State::Known(identity) if entry.disk.diskseq == disk.diskseq => {
                Some(Arc::clone(identity))
            }
            _ => None,
        }
    }

    /// Returns the disk's identity, and queries the disk if the identity is unknown. `None` if the
    /// disk was removed.
    ///
    /// # Errors
    /// Returns an error if the disk or sysfs cannot be read.
    pub(super) fn identity<K: Disks>(
        &self,
        kernel: &K,
        disk: &Disk,
    ) -> kernel::Result<Option<Arc<Identity>>> {
        if let Some(known) = self.known(disk) {
            return Ok(Some(known));
        }
        let identity = self.read(kernel, disk)?;
        if let Some(identity) = &identity {
            self.set(disk, State::Known(Arc::clone(identity)));
        }
        Ok(identity)
    }

    /// Drops removed disks and updates sizes. Returns whether anything has changed.
    fn keep_only(&self, seen: &[Disk]) -> bool {
        let seen: BTreeMap<Dev, &Disk> = seen.iter().map(|disk| (disk.dev, disk)).collect();
        let mut inner = self.lock();
        let before = inner.disks.len();
        let now = |entry: &Entry| {
            let disk = seen.get(&entry.disk.dev);
            disk.filter(|disk| is_same(disk, &entry.disk))
        };
        inner.disks.retain(|_, entry| now(entry).is_some());
        let mut has_changed = inner.disks.len() != before;
        for entry in inner.disks.values_mut() {
            let bytes = now(entry).map_or(0, |disk| disk.bytes);
            has_changed |= bytes != entry.disk.bytes;
            entry.disk.bytes = bytes;
        }
        has_changed
    }

    fn is_known(&self, disk: &Disk) -> bool {
        let inner = self.lock();
        let entry = inner.disks.get(&disk.dev);
        entry.is_some_and(|entry| is_same(&entry.disk, disk))
    }

    fn announce(&self) {
        self.arrivals.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic cannot leave a partial change: each change is one insertion or assignment.
        self.inner.lock()
    }
}

fn is_same(one: &Disk, other: &Disk) -> bool {
    (one.dev, &one.name, one.diskseq) == (other.dev, &other.name, other.diskseq)
}

impl Inner {
    /// Returns the only disk that matches; `None` if no disk matches. Fails if several disks match.
    fn only(&self, wanted: &DiskIdentity) -> Result<Option<(Disk, Arc<Identity>, Match)>, Failure> {
        let known = self.disks.values().filter_map(|entry| match &entry.state {
            State::Known(identity) => Some((&entry.disk, identity)),
            _ => None,
        });
        let mut found = known.filter_map(|(disk, identity)| match identity.matches(wanted) {
            Match::No => None,
            matched => Some((disk, identity, matched)),
        });
        let Some((disk, identity, matched)) = found.next() else {
            return Ok(None);
        };
        if let Some((other, ..)) = found.next() {
            return Err(Failure::precondition(format!(
                "{} and {} both match {}; neither is used: find the volume's disk in the cloud, \
                 and detach the other one",
                disk.name,
                other.name,
                words(wanted)
            )));
        }
        Ok(Some((disk.clone(), Arc::clone(identity), matched)))
    }

    /// Returns the disk that was found for the volume, if it is still plugged in.
    fn held_by(&self, owner: &Owner) -> Option<&Disk> {
        let user = self.users.get(owner)?;
        let entry = self.disks.get(&user.held.as_ref()?.dev)?;
        user.has(&entry.disk).then_some(&entry.disk)
    }

    /// Returns the only disk that matches, if the disk belongs to no other volume.
    fn search(&self, owner: &Owner, wanted: &DiskIdentity) -> Result<Search<Disk>, Failure> {
        let Some((disk, identity, matched)) = self.only(wanted)? else {
            return Ok(Search::Missing(self.missing(wanted)));
        };
        // The serial number may be truncated, so a disk that has not responded yet may match as
        // well.
        if matched == Match::Cut && self.is_any_awaited() {
            return Ok(Search::Missing(self.missing(wanted)));
        }
        self.refuse_taken(owner, &disk, &identity)?;
        Ok(Search::Found(disk))
    }

    /// Whether the disk may have the identity `wanted`; true until the disk has reported its
    /// identity.
    fn may_match(&self, disk: &Disk, wanted: &DiskIdentity) -> bool {
        match self.disks.get(&disk.dev).map(|entry| &entry.state) {
            Some(State::Known(identity)) => identity.matches(wanted) != Match::No,
            _ => true,
        }
    }

    fn is_any_awaited(&self) -> bool {
        let mut entries = self.disks.values();
        entries.any(|entry| matches!(entry.state, State::Unasked | State::Asked))
    }

    fn refuse_taken(&self, owner: &Owner, disk: &Disk, identity: &Identity) -> Result<(), Failure> {
        let is_wanted = |wanted: &DiskIdentity| identity.matches(wanted) != Match::No;
        let has_it = |user: &User| user.has(disk) || user.wanted.as_ref().is_some_and(is_wanted);
        let mut users = self.users.iter().filter(|(other, _)| *other != owner);
        let Some((other, _)) = users.find(|(_, user)| has_it(user)) else {
            return Ok(());
        };
        Err(Failure::precondition(format!(
            "{} ({}) matches both volume {} and volume {} of {}; it is unknown which of them it \
             belongs to: detach one of them",
            disk.name,
            identity.describe(),
            owner.volume,
            other.volume,
            other.driver
        )))
    }

    fn missing(&self, wanted: &DiskIdentity) -> Missing {
        Missing::new(
            wanted,
            &self.disks.values().map(Entry::describe).collect::<Vec<_>>(),
        )
    }
}

impl User {
    /// Whether the disk was found for the volume. Always false without sequence numbers, because
    /// another disk may have replaced the disk that was found.
    fn has(&self, disk: &Disk) -> bool {
        let is_it = |held: &Disk| (held.dev, held.diskseq) == (disk.dev, disk.diskseq);
        disk.diskseq != 0 && self.held.as_ref().is_some_and(is_it)
    }
}

/// A volume, and the driver that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) driver: String,
    pub(super) volume: VolumeId,
}

impl Owner {
    pub(super) fn new(driver: &DriverName, volume: &VolumeId) -> Self {
        Owner {
            driver: driver.as_str().to_owned(),
            volume: volume.clone(),
        }
    }
}
