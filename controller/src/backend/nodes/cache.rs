//! The objects of one kind, kept up to date by a watch, with the times at which this process saw
//! them. All ages are measured by this process, since the clocks of nodes may be wrong. An object
//! that is not in the cache may exist.

use super::totals::{self, Share, Totals};
use crate::kubernetes::{
    Client, Event, LocalDisk, LocalSnapshot, LocalVolume, Object, Resource, Selector, Watch,
};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Maximum time that a call waits until the objects are listed again.
const RELIST_MAX: Duration = Duration::from_secs(2);

/// A kind whose objects are in a cache.
pub(super) trait Cached: Resource + Sized {
    /// Returns the ID of the volume or snapshot; `None` for a disk.
    fn id(spec: &Self::Spec) -> Option<&str>;

    /// Returns the part of the object in the total of its disk; `None` if it has none.
    fn share(object: &Object<Self>) -> Option<Share>;
}

impl Cached for LocalVolume {
    fn id(spec: &Self::Spec) -> Option<&str> {
        Some(&spec.id)
    }

    fn share(object: &Object<Self>) -> Option<Share> {
        totals::of_volume(object)
    }
}

impl Cached for LocalSnapshot {
    fn id(spec: &Self::Spec) -> Option<&str> {
        Some(&spec.id)
    }

    fn share(object: &Object<Self>) -> Option<Share> {
        totals::of_snapshot(object)
    }
}

impl Cached for LocalDisk {
    fn id(_: &Self::Spec) -> Option<&str> {
        None
    }

    fn share(_: &Object<Self>) -> Option<Share> {
        None
    }
}

/// An object, and the times at which this process saw it.
pub(super) struct Seen<R: Resource> {
    pub(super) object: Arc<Object<R>>,
    /// The time at which this process first saw the object.
    pub(super) since: Instant,
    /// The time of the last change of the status, or [`Self::since`].
    pub(super) changed: Instant,
}

impl<R: Resource> Clone for Seen<R> {
    fn clone(&self) -> Self {
        Self {
            object: Arc::clone(&self.object),
            ..*self
        }
    }
}

/// The objects of one kind.
pub(super) struct Cache<R: Resource> {
    state: Lock<State<R>>,
    /// Notifies all waiters after each change.
    changes: watch::Sender<()>,
}

struct State<R: Resource> {
    objects: HashMap<String, Seen<R>>,
    /// The names of the objects, by ID.
    names: HashMap<String, String>,
    /// The totals of the objects, by disk.
    totals: Totals,
    /// The time of the first list.
    listed: Option<Instant>,
    /// The times at which objects disappeared, by name.
    missing: HashMap<String, Instant>,
    /// The reason why the objects may be out of date; `None` if the watch works.
    failure: Option<Failure>,
}

impl<R: Cached> Cache<R> {
    pub(super) fn new() -> Self {
        let why = format!("{}: not listed yet; repeat the call", R::PLURAL);
        let state = State {
            objects: HashMap::new(),
            names: HashMap::new(),
            totals: Totals::default(),
            listed: None,
            missing: HashMap::new(),
            failure: Some(Failure::new(Kind::Unreachable, why)),
        };
        Self {
            state: Lock::new(state),
            changes: watch::Sender::new(()),
        }
    }

    /// Fails if the objects have not been listed, or if the watch does not work at present.
    ///
    /// # Errors
    /// Returns `Unreachable` with the reason.
    pub(super) fn current(&self) -> Result<(), Failure> {
        match &self.state.lock().failure {
            None => Ok(()),
            Some(failure) => Err(Failure::new(Kind::Unreachable, &*failure.message)),
        }
    }

    /// Waits until [`Self::current`] succeeds, for at most [`RELIST_MAX`]: under a burst of
    /// changes, the API server ends slow watches, and the objects are then listed again.
    ///
    /// # Errors
    /// Returns the error of [`Self::current`].
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        // Subscribe first, so that no change is missed.
        let mut changes = self.changes();
        let listed = async { while self.current().is_err() && changes.changed().await.is_ok() {} };
        // A timeout is the error of the next line.
        timeout(RELIST_MAX, listed).await.ok();
        self.current()
    }

    pub(super) fn named(&self, name: &str) -> Option<Seen<R>> {
        self.state.lock().objects.get(name).cloned()
    }

    pub(super) fn identified(&self, id: &str) -> Option<Seen<R>> {
        let state = self.state.lock();
        state.objects.get(state.names.get(id)?).cloned()
    }

    /// Returns all objects, in no particular order.
    pub(super) fn all(&self) -> Vec<Seen<R>> {
        self.state.lock().objects.values().cloned().collect()
    }

    /// Returns the total size of the objects of a disk in bytes, and the open objects.
    pub(super) fn total(&self, disk: &str) -> (u128, Vec<Seen<R>>) {
        let state = self.state.lock();
        let Some(total) = state.totals.of(disk) else {
            return (0, Vec::new());
        };
        let open = total.open.iter().map(|name| state.objects.get(name));
        (total.bytes, open.flatten().cloned().collect())
    }

    /// Whether no object has had this name for this period.
    pub(super) fn lacks(&self, name: &str, period: Duration) -> bool {
        let state = self.state.lock();
        let since = state.missing.get(name).copied().or(state.listed);
        state.failure.is_none()
            && !state.objects.contains_key(name)
            && since.is_some_and(|since| since.elapsed() >= period)
    }

    /// Whether no object has disappeared for this period.
    pub(super) fn is_whole(&self, period: Duration) -> bool {
        let state = self.state.lock();
        let mut times = state.missing.values().chain(&state.listed);
        state.failure.is_none()
            && state.listed.is_some()
            && times.all(|since| since.elapsed() >= period)
    }

    /// Returns a receiver that is notified after each change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Keeps the cache up to date until the task is aborted.
    pub(super) async fn follow(self: Arc<Self>, client: Arc<Client>) {
        let mut watch = Watch::<R>::new(client, Selector::all());
        loop {
            let event = watch.next().await;
            if let Err(failure) = &event
                && self.current().is_ok()
            {
                tracing::warn!("{failure}; the objects are listed again");
            }
            self.apply(event);
        }
    }

    pub(super) fn apply(&self, event: Result<Event<R>, Failure>) {
        let mut state = self.state.lock();
        match event {
            Err(failure) => state.failure = Some(failure),
            Ok(event) => {
                state.failure = None;
                match event {
                    Event::Listed(objects) => state.replace(objects),
                    Event::Changed(object) => state.insert(object, None),
                    Event::Deleted(object) => {
                        let name = object.metadata.name;
                        state.remove(&name);
                        state.missing.insert(name, Instant::now());
                    }
                }
            }
        }
        drop(state);
        self.changes.send_replace(());
    }
}

impl<R: Cached> State<R> {
    fn replace(&mut self, objects: Vec<Object<R>>) {
        let mut old = std::mem::take(&mut self.objects);
        self.names.clear();
        self.totals = Totals::default();
        for object in objects {
            let same = old.remove(&object.metadata.name);
            self.insert(object, same);
        }
        let now = Instant::now();
        self.listed.get_or_insert(now);
        self.missing.extend(old.into_keys().map(|name| (name, now)));
    }

    /// Inserts the object, and removes the object with its name. `old` is an object with its name
    /// that was removed before.
    fn insert(&mut self, object: Object<R>, old: Option<Seen<R>>) {
        let now = Instant::now();
        let name = object.metadata.name.clone();
        let old = self.remove(&name).or(old);
        let same = old.filter(|old| old.object.metadata.uid == object.metadata.uid);
        let since = same.as_ref().map_or(now, |old| old.since);
        let reported = same.filter(|old| old.object.status == object.status);
        let changed = reported.map_or(now, |old| old.changed);
        if let Some(id) = object.spec.known().and_then(R::id) {
            self.names.insert(id.to_owned(), name.clone());
        }
        if let Some(share) = R::share(&object) {
            self.totals.add(&name, share);
        }
        self.missing.remove(&name);
        let object = Arc::new(object);
        self.objects.insert(
            name,
            Seen {
                object,
                since,
                changed,
            },
        );
    }

    fn remove(&mut self, name: &str) -> Option<Seen<R>> {
        let old = self.objects.remove(name)?;
        // Another object may have the same ID, as a copy by hand has.
        if let Some(id) = old.object.spec.known().and_then(R::id)
            && self.names.get(id).is_some_and(|owner| owner == name)
        {
            self.names.remove(id);
        }
        if let Some(share) = R::share(&old.object) {
            self.totals.subtract(name, &share);
        }
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{changed, volume};
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_next_list_but_not_for_long() {
        let cache = Arc::new(Cache::<LocalVolume>::new());
        let begun = Instant::now();
        assert_eq!(cache.ready().await.unwrap_err().kind, Kind::Unreachable);
        assert_eq!(begun.elapsed(), RELIST_MAX);
        let waiting = tokio::spawn({
            let cache = Arc::clone(&cache);
            async move { cache.ready().await }
        });
        advance(RELIST_MAX / 2).await;
        cache.apply(Err(Failure::bug("down")));
        cache.apply(Ok(Event::Listed(Vec::new())));
        waiting.await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), RELIST_MAX + RELIST_MAX / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn ages_survive_a_new_list_and_end_with_the_object() {
        let cache = Cache::<LocalVolume>::new();
        assert!(cache.current().is_err());
        let ready = r#"{"phase": "Ready", "bytes": 1}"#;
        cache.apply(Ok(Event::Listed(vec![volume(&["a"], ready)])));
        cache.current().unwrap();
        let first = cache.named("pvc-1").unwrap();
        assert!(cache.identified(super::super::examples::ID).is_some());

        advance(Duration::from_secs(1)).await;
        cache.apply(Err(Failure::bug("down")));
        assert_eq!(cache.current().unwrap_err().kind, Kind::Unreachable);
        let same = changed(
            &volume(&["a"], ready),
            "metadata",
            r#"{"resourceVersion": "2"}"#,
        );
        cache.apply(Ok(Event::Listed(vec![same])));
        let again = cache.named("pvc-1").unwrap();
        assert_eq!((again.since, again.changed), (first.since, first.changed));

        let larger = r#"{"phase": "Ready", "bytes": 2}"#;
        cache.apply(Ok(Event::Changed(volume(&["a"], larger))));
        let again = cache.named("pvc-1").unwrap();
        assert_eq!(again.since, first.since);
        assert!(again.changed > first.changed);

        let other = changed(&volume(&["a"], larger), "metadata", r#"{"uid": "other"}"#);
        cache.apply(Ok(Event::Changed(other)));
        assert!(cache.named("pvc-1").unwrap().since > first.since);
        cache.apply(Ok(Event::Deleted(volume(&["a"], larger))));
        assert!(cache.named("pvc-1").is_none());
        assert!(cache.identified(super::super::examples::ID).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_missing_since_the_first_list_or_the_loss_of_its_object() {
        let cache = Cache::<LocalVolume>::new();
        let second = Duration::from_secs(1);
        let one = || volume(&[], "null");
        let lacks = |period| (cache.lacks("pvc-1", period), cache.is_whole(period));
        advance(second).await;
        assert_eq!(lacks(Duration::ZERO), (false, false), "nothing is listed");
        // The first list does not show how long an object has been missing.
        cache.apply(Ok(Event::Listed(vec![])));
        assert_eq!(lacks(second), (false, false));
        advance(second).await;
        assert_eq!(lacks(second), (true, true));
        for loss in [Event::Listed(vec![]), Event::Deleted(one())] {
            cache.apply(Ok(Event::Changed(one())));
            assert_eq!(lacks(second), (false, true));
            cache.apply(Ok(loss));
            assert_eq!(lacks(second), (false, false));
            assert!(cache.lacks("pvc-2", second), "another name");
            advance(second).await;
            cache.apply(Ok(Event::Listed(vec![])));
            assert_eq!(lacks(second), (true, true));
        }
        cache.apply(Err(Failure::bug("down")));
        assert_eq!(lacks(second), (false, false));
    }
}
