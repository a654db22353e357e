//! Follows one object for a call that waits for its store. Changes of the object are conditional,
//! so an object that is out of date delays a call but cannot harm.

use super::Front;
use super::cache::{Cache, Cached};
use super::item::{Item, wanted};
use super::permit;
use crate::kubernetes::{
    Change, Client, FINALIZER, LocalSnapshot, LocalVolume, Metadata, Object, Written,
};
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The pause before the server is queried about an object that is not in the cache.
const CONFIRM: Duration = Duration::from_secs(1);

/// A kind of items that the front keeps in a cache.
pub(super) trait Followed: Item + Cached {
    fn cache(front: &Front) -> &Cache<Self>
    where
        Self: Sized;

    /// Returns the place and the disk that the claim of this ID names. Returns `None` if no claim
    /// has the ID, and `Some(None)` if the claim names no disk.
    fn home(front: &Front, id: &str) -> impl Future<Output = Result<Home, Failure>> + Send;
}

/// The place and the name of the disk that a claim names.
pub(super) type Home = Option<Option<(String, String)>>;

impl Followed for LocalVolume {
    fn cache(front: &Front) -> &Cache<Self> {
        &front.volumes
    }

    async fn home(front: &Front, id: &str) -> Result<Home, Failure> {
        let all = front.client.persistent_volumes(&front.driver).await?;
        let volume = all.iter().find(|volume| volume.handle == id);
        Ok(volume.map(|volume| {
            let place = permit::places(volume).next()?;
            Some((place.to_owned(), permit::disk(volume).to_owned()))
        }))
    }
}

impl Followed for LocalSnapshot {
    fn cache(front: &Front) -> &Cache<Self> {
        &front.snapshots
    }

    async fn home(front: &Front, id: &str) -> Result<Home, Failure> {
        let all = front.client.snapshot_contents(&front.driver).await?;
        let content = all.iter().find(|content| content.handle == id);
        let volume = content.map(|it| it.volume.as_deref().unwrap_or_default());
        Ok(volume.map(|id| {
            let volume = front.volumes.identified(id)?;
            let wanted = wanted(&volume.object)?;
            Some((wanted.place.to_owned(), wanted.disk.to_owned()))
        }))
    }
}

/// The number of calls that wait for each object, by UID, and the end of the last wait.
#[derive(Default)]
pub(super) struct Waits(Lock<HashMap<String, (usize, Instant)>>);

impl Waits {
    fn add(&self, uid: &str) {
        let mut waits = self.0.lock();
        let entry = waits.entry(uid.to_owned());
        entry.or_insert((0, Instant::now())).0 += 1;
    }

    fn end(&self, uid: &str) {
        if let Some((count, last)) = self.0.lock().get_mut(uid) {
            *count -= 1;
            *last = Instant::now();
        }
    }

    /// Returns the end of the last wait: the present if a call waits; `None` if no call has waited.
    pub(super) fn last(&self, uid: &str) -> Option<Instant> {
        let (count, last) = *self.0.lock().get(uid)?;
        match count {
            0 => Some(last),
            _ => Some(Instant::now()),
        }
    }

    /// Forgets the objects for which no call has waited for this time.
    pub(super) fn forget(&self, age: Duration) {
        let is_kept = |(count, last): &mut (usize, Instant)| *count > 0 || last.elapsed() < age;
        self.0.lock().retain(|_, wait| is_kept(wait));
    }
}

/// The result of waiting for a change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The object has changed.
    Changed,
    /// The object no longer exists.
    Gone,
    /// The time has passed without a change.
    Late,
}

/// The result of a change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patched {
    /// The object is changed.
    Done,
    /// Another process has changed the object.
    Conflict,
    /// The object no longer exists.
    Gone,
}

/// An object that a call waits for.
pub(super) struct Follow<'a, R: Followed> {
    front: &'a Front,
    /// The newest known state of the object.
    pub(super) object: Arc<Object<R>>,
    /// The time at which this process first saw the object.
    pub(super) since: Instant,
    changes: watch::Receiver<()>,
    /// The time of the last response of the server about this object.
    checked: Instant,
}

impl<'a, R: Followed> Follow<'a, R> {
    pub(super) fn new(front: &'a Front, object: Arc<Object<R>>) -> Self {
        let (cache, metadata) = (R::cache(front), &object.metadata);
        front.waits.add(&metadata.uid);
        let changes = cache.changes();
        let seen = cache.named(&metadata.name);
        let seen = seen.filter(|seen| seen.object.metadata.uid == metadata.uid);
        let now = Instant::now();
        Self {
            front,
            since: seen.map_or(now, |seen| seen.since),
            object,
            changes,
            checked: now,
        }
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.object.metadata
    }

    fn client(&self) -> &Client {
        &self.front.client
    }

    /// Waits for a change of the object until this time. A failure to reach the server is not an
    /// error, since the watch reconnects.
    pub(super) async fn change(&mut self, until: Instant) -> Step {
        loop {
            self.changes.borrow_and_update();
            let seen = R::cache(self.front).named(&self.metadata().name);
            let seen = seen.filter(|seen| seen.object.metadata.uid == self.metadata().uid);
            let mut wake = until;
            match seen {
                Some(seen) if is_newer(&seen.object.metadata, self.metadata()) => {
                    self.object = seen.object;
                    return Step::Changed;
                }
                Some(_) => {}
                None if self.checked.elapsed() >= CONFIRM => match self.reread().await {
                    Ok(Step::Late) | Err(_) => wake = until.min(Instant::now() + CONFIRM),
                    Ok(step) => return step,
                },
                None => wake = until.min(self.checked + CONFIRM),
            }
            if Instant::now() >= until {
                return Step::Late;
            }
            // The sender is in the cache, which this call borrows, so it cannot end. A timeout is
            // seen at the start of the loop.
            drop(timeout_at(wake, self.changes.changed()).await);
        }
    }

    /// Reads the object from the server. Returns [`Step::Late`] if it has not changed.
    ///
    /// # Errors
    /// Returns the errors of [`Client::get`].
    pub(super) async fn reread(&mut self) -> Result<Step, Failure> {
        self.checked = Instant::now();
        let read = self.client().get::<R>(&self.metadata().name).await?;
        self.checked = Instant::now();
        let Some(read) = read.filter(|read| read.metadata.uid == self.metadata().uid) else {
            return Ok(Step::Gone);
        };
        // The server may have been restored from a backup, with lower versions.
        let is_other = read.metadata.resource_version != self.metadata().resource_version;
        if is_other {
            self.object = Arc::new(read);
        }
        Ok(if is_other { Step::Changed } else { Step::Late })
    }

    /// Deletes the object if it has not changed since.
    ///
    /// # Errors
    /// Returns a failure with an unknown state if the object may have been deleted.
    pub(super) async fn delete(&self) -> Result<Written<()>, Failure> {
        self.client().delete::<R>(self.metadata()).await
    }

    /// Changes fields of the spec if the object has not changed since. If it has, reads the object
    /// again.
    ///
    /// # Errors
    /// Returns the errors of [`Client::patch`] and [`Client::get`], with an unknown state.
    pub(super) async fn patch(&mut self, fields: serde_json::Value) -> Result<Patched, Failure> {
        self.write(Change::Spec(fields)).await
    }

    /// Removes the finalizer of the store, like [`Self::patch`].
    ///
    /// # Errors
    /// Returns the errors of [`Self::patch`].
    pub(super) async fn release(&mut self) -> Result<Patched, Failure> {
        let object = Arc::clone(&self.object);
        let others = object.metadata.finalizers.iter().map(String::as_str);
        let others: Vec<_> = others.filter(|it| *it != FINALIZER).collect();
        self.write(Change::Finalizers(&others)).await
    }

    async fn write(&mut self, change: Change<'_, R>) -> Result<Patched, Failure> {
        let written = self.client().patch(self.metadata(), change).await;
        match written.map_err(Failure::may_be_running)? {
            Written::Done(object) => {
                self.object = Arc::new(object);
                self.checked = Instant::now();
                Ok(Patched::Done)
            }
            Written::Conflict | Written::Missing => {
                let read = self.reread().await.map_err(Failure::may_be_running)?;
                Ok(match read {
                    Step::Gone => Patched::Gone,
                    Step::Changed | Step::Late => Patched::Conflict,
                })
            }
        }
    }
}

impl<R: Followed> Drop for Follow<'_, R> {
    fn drop(&mut self) {
        self.front.waits.end(&self.object.metadata.uid);
    }
}

/// Whether the version of an object is newer than another version of the same object. A version
/// that is not a number counts as newer, if it differs.
fn is_newer(one: &Metadata, other: &Metadata) -> bool {
    match (one.version(), other.version()) {
        (Some(one), Some(other)) => one > other,
        _ => one.resource_version != other.resource_version,
    }
}
