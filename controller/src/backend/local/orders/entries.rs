//! The objects of one kind, as the watch has shown them. One task at a time works on an object, and
//! begins again if the object changes meanwhile.

use super::kind::Kept;
use crate::kubernetes::{Event, Metadata, Object};
use belay_server::lock::Lock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The age at which an attempt to remove is no longer executed. It exceeds the time for which the
/// controller waits for a removal.
const ATTEMPT_MAX: Duration = Duration::from_secs(120);

/// The objects of a kind, by name.
pub(super) struct Entries<K: Kept> {
    known: Lock<Known<K>>,
    /// Notifies the waiting tasks of changes.
    changes: watch::Sender<()>,
}

struct Known<K: Kept> {
    by_name: HashMap<String, Entry<K>>,
    /// Whether the objects were listed since the start.
    is_listed: bool,
}

struct Entry<K: Kept> {
    object: Arc<Object<K>>,
    /// Whether the object no longer exists.
    is_gone: bool,
    barred: Option<u64>,
    /// The number of the attempt to remove, and the time at which it arrived.
    attempt: Option<(u64, Instant)>,
    /// Whether a task works on the object.
    is_running: bool,
    /// Whether the object has changed since the task has read it.
    has_changed: bool,
}

/// An object on which a task works.
pub(super) struct Current<K: Kept> {
    pub(super) object: Arc<Object<K>>,
    pub(super) is_gone: bool,
    /// The number of the attempt to remove the object.
    pub(super) attempt: Option<u64>,
    /// The number of the last attempt to remove that must not be executed.
    pub(super) barred: Option<u64>,
}

impl<K: Kept> Default for Entries<K> {
    fn default() -> Self {
        let known = Known {
            by_name: HashMap::new(),
            is_listed: false,
        };
        Self {
            known: Lock::new(known),
            changes: watch::Sender::new(()),
        }
    }
}

/// Returns the number of the attempt to remove the object; `None` if there is none.
fn attempt<K: Kept>(object: &Object<K>) -> Option<u64> {
    object.spec.known().and_then(|spec| K::wanted(spec).remove)
}

impl<K: Kept> Entries<K> {
    /// Applies an event, and returns the names of the objects for which a task must be started.
    pub(super) fn apply(&self, event: Event<K>) -> Vec<String> {
        let started = self.known.lock().apply(event);
        self.changes.send_replace(());
        started
    }

    /// Waits for this time, or until the object changes. Returns whether the time has passed.
    pub(super) async fn sleep(&self, name: &str, pause: Duration) -> bool {
        let mut changes = self.changes.subscribe();
        let changed = async {
            while !self.has_changed(name) {
                // The sender is in this value, which outlives the wait.
                drop(changes.changed().await);
            }
        };
        timeout(pause, changed).await.is_err()
    }

    fn has_changed(&self, name: &str) -> bool {
        let known = self.known.lock();
        known.by_name.get(name).is_none_or(|it| it.has_changed)
    }

    /// Returns the names of all objects on which no task works, and for which tasks must be
    /// started.
    pub(super) fn start_all(&self) -> Vec<String> {
        let known = &mut *self.known.lock();
        for entry in known.by_name.values_mut() {
            entry.has_changed = true;
        }
        let names: Vec<_> = known.by_name.keys().cloned().collect();
        let started = names.into_iter().filter_map(|name| known.start(name));
        started.collect()
    }

    /// Returns the object for the task that works on it; `None` if the task must end.
    pub(super) fn current(&self, name: &str) -> Option<Current<K>> {
        let known = &mut *self.known.lock();
        let entry = known.by_name.get_mut(name)?;
        entry.has_changed = false;
        let attempt = entry.attempt.map(|(attempt, _)| attempt);
        // The controller that has written the attempt no longer waits for it.
        let is_old = |at: &Instant| at.elapsed() >= ATTEMPT_MAX;
        if entry.attempt.is_some_and(|(_, at)| is_old(&at)) {
            entry.barred = entry.barred.max(attempt);
        }
        Some(Current {
            object: Arc::clone(&entry.object),
            is_gone: entry.is_gone,
            attempt,
            barred: entry.barred,
        })
    }

    /// Replaces the object `before` by the server's response to a change, unless the watch has
    /// shown another state meanwhile.
    pub(super) fn replace(&self, before: &Arc<Object<K>>, after: Object<K>) {
        let known = &mut *self.known.lock();
        if let Some(entry) = known.by_name.get_mut(&before.metadata.name)
            && Arc::ptr_eq(&entry.object, before)
            && !entry.is_gone
        {
            entry.object = Arc::new(after);
        }
    }

    /// Records that this attempt to remove an object must not be executed.
    pub(super) fn bar(&self, name: &str, attempt: u64) {
        let known = &mut *self.known.lock();
        if let Some(entry) = known.by_name.get_mut(name) {
            entry.barred = entry.barred.max(Some(attempt));
        }
    }

    /// Ends the task that works on the object, unless the object has changed meanwhile. Returns
    /// whether the task has ended.
    pub(super) fn rest(&self, name: &str) -> bool {
        let known = &mut *self.known.lock();
        let Some(entry) = known.by_name.get_mut(name) else {
            return true;
        };
        if entry.has_changed {
            return false;
        }
        entry.is_running = false;
        if entry.is_gone {
            known.by_name.remove(name);
        }
        true
    }

    /// Returns the IDs of all objects; `None` if they were never listed, or if this release does
    /// not know the spec of an object.
    pub(super) fn ids(&self) -> Option<HashSet<String>> {
        let known = self.known.lock();
        let mut objects = known.by_name.values();
        if objects.any(|it| !it.is_gone && it.object.spec.known().is_none()) {
            return None;
        }
        known
            .is_listed
            .then(|| known.ids().map(|(id, _)| id.to_owned()).collect())
    }

    /// Returns all existing objects; `None` if they were never listed.
    pub(super) fn all(&self) -> Option<Vec<Arc<Object<K>>>> {
        let known = self.known.lock();
        let existing = known.by_name.values().filter(|it| !it.is_gone);
        known
            .is_listed
            .then(|| existing.map(|it| Arc::clone(&it.object)).collect())
    }

    /// Returns the name of another existing object with this ID.
    pub(super) fn other_with(&self, id: &str, name: &str) -> Option<String> {
        let known = self.known.lock();
        let mut others = known
            .ids()
            .filter(|(other, of)| *other == id && *of != name);
        others.next().map(|(_, of)| of.to_owned())
    }
}

impl<K: Kept> Known<K> {
    /// Returns the IDs and names of all objects.
    fn ids(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_name.iter().filter_map(|(name, entry)| {
            let spec = entry.object.spec.known().filter(|_| !entry.is_gone)?;
            Some((K::place(spec).id, name.as_str()))
        })
    }

    fn apply(&mut self, event: Event<K>) -> Vec<String> {
        match event {
            Event::Listed(objects) => self.list(objects),
            Event::Changed(object) => {
                let name = object.metadata.name.clone();
                let before = self.by_name.get(&name).map(|it| &it.object.metadata);
                // The object already has the server's response to this change or a later one. An
                // event of the same state would hide the response to the next change, which the
                // task would then repeat.
                if before.is_some_and(|before| !is_newer(&object.metadata, before)) {
                    return Vec::new();
                }
                self.set(object, false);
                self.start(name).into_iter().collect()
            }
            Event::Deleted(object) => {
                let name = object.metadata.name.clone();
                self.set(object, true);
                self.start(name).into_iter().collect()
            }
        }
    }

    fn list(&mut self, objects: Vec<Object<K>>) -> Vec<String> {
        self.is_listed = true;
        let listed: HashSet<_> = objects.iter().map(|it| it.metadata.name.clone()).collect();
        for (name, entry) in &mut self.by_name {
            if !listed.contains(name) {
                (entry.is_gone, entry.has_changed) = (true, true);
            }
        }
        for object in objects {
            let name = object.metadata.name.clone();
            let before = self.by_name.get(&name);
            let version = |it: &Object<K>| it.metadata.resource_version.clone();
            if before.is_some_and(|it| version(&it.object) == version(&object)) {
                continue;
            }
            let attempt = attempt(&object);
            self.set(object, false);
            if let Some(entry) = self.by_name.get_mut(&name) {
                entry.barred = entry.barred.max(attempt);
            }
        }
        let names: Vec<_> = self.by_name.keys().cloned().collect();
        names
            .into_iter()
            .filter_map(|name| self.start(name))
            .collect()
    }

    fn set(&mut self, object: Object<K>, is_gone: bool) {
        let name = object.metadata.name.clone();
        let number = attempt(&object);
        let object = Arc::new(object);
        match self.by_name.get_mut(&name) {
            Some(entry) => {
                let (before, now) = (&entry.object.metadata, &object.metadata);
                let is_same = before.uid == now.uid;
                if !is_same {
                    (entry.barred, entry.attempt) = (None, None);
                }
                if entry.attempt.map(|(attempt, _)| attempt) != number {
                    entry.attempt = number.map(|number| (number, Instant::now()));
                }
                (entry.object, entry.is_gone, entry.has_changed) = (object, is_gone, true);
            }
            None => {
                let entry = Entry {
                    object,
                    is_gone,
                    barred: None,
                    attempt: number.map(|number| (number, Instant::now())),
                    is_running: false,
                    has_changed: true,
                };
                self.by_name.insert(name, entry);
            }
        }
    }

    /// Returns the name if no task works on the object, and marks the object as being worked on.
    fn start(&mut self, name: String) -> Option<String> {
        let entry = self.by_name.get_mut(&name)?;
        let is_running = std::mem::replace(&mut entry.is_running, true);
        (!is_running).then_some(name)
    }
}

/// Whether a state of an object is newer than another state, or its age is unknown.
fn is_newer(one: &Metadata, other: &Metadata) -> bool {
    match (one.version(), other.version()) {
        (Some(first), Some(second)) => one.uid != other.uid || first > second,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::LocalVolume;
    use serde_json::json;

    fn object(name: &str, version: u32, remove: Option<u64>) -> Object<LocalVolume> {
        let mut spec = json!({
            "version": 1, "id": "vol-1", "name": name, "place": "p", "disk": "d", "node": "n",
            "bytes": 1, "usage": {"mode": "Block"},
        });
        if let Some(remove) = remove {
            spec["remove"] = remove.into();
        }
        let metadata = json!({"name": name, "uid": "u", "resourceVersion": version.to_string()});
        let object = json!({"metadata": metadata, "spec": spec, "status": null});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn an_attempt_to_remove_that_is_in_a_list_is_barred_also_after_later_changes() {
        let entries = Entries::default();
        let started = entries.apply(Event::Listed(vec![object("a", 1, Some(2))]));
        assert_eq!(started, ["a"]);
        assert_eq!(entries.current("a").unwrap().barred, Some(2));
        entries.apply(Event::Changed(object("a", 2, Some(2))));
        assert_eq!(entries.current("a").unwrap().barred, Some(2));

        // The list only repeats a change that has arrived before.
        entries.apply(Event::Changed(object("b", 3, Some(2))));
        entries.apply(Event::Listed(vec![object("b", 3, Some(2))]));
        assert_eq!(entries.current("b").unwrap().barred, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_no_controller_waits_for_is_barred() {
        let entries = Entries::default();
        entries.apply(Event::Changed(object("a", 1, Some(2))));
        let barred = || entries.current("a").unwrap().barred;
        tokio::time::advance(ATTEMPT_MAX - Duration::from_secs(1)).await;
        // A change of another field does not make the attempt younger.
        entries.apply(Event::Changed(object("a", 2, Some(2))));
        assert_eq!(barred(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(barred(), Some(2));
        entries.apply(Event::Changed(object("a", 3, Some(3))));
        assert_eq!(barred(), Some(2));
        assert_eq!(entries.current("a").unwrap().attempt, Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_waits_until_its_object_changes() {
        let entries = Entries::default();
        entries.apply(Event::Changed(object("a", 1, None)));
        entries.current("a").unwrap();
        let pause = Duration::from_secs(60);
        assert!(entries.sleep("a", pause).await);
        let (has_passed, _) = tokio::join!(entries.sleep("a", pause), async {
            entries.apply(Event::Changed(object("b", 2, None)));
            entries.apply(Event::Changed(object("a", 3, None)));
        });
        assert!(!has_passed);
    }

    #[test]
    fn a_state_before_the_own_change_is_ignored_unless_the_server_lists_it() {
        let entries = Entries::default();
        entries.apply(Event::Changed(object("a", 10, None)));
        let first = entries.current("a").unwrap();
        entries.replace(&first.object, object("a", 12, None));
        let version = || {
            let current = entries.current("a").unwrap();
            current.object.metadata.resource_version.clone()
        };
        assert!(
            entries
                .apply(Event::Changed(object("a", 11, None)))
                .is_empty()
        );
        assert_eq!(version(), "12");
        // The server was restored from a backup.
        entries.apply(Event::Listed(vec![object("a", 3, None)]));
        assert_eq!(version(), "3");
    }

    #[test]
    fn an_event_of_the_own_change_does_not_hide_the_next_response() {
        let entries = Entries::default();
        entries.apply(Event::Changed(object("a", 10, None)));
        let order = entries.current("a").unwrap().object;
        entries.replace(&order, object("a", 11, None));
        let accepted = entries.current("a").unwrap().object;
        // The watch shows the acceptance while the next change is on its way.
        entries.apply(Event::Changed(object("a", 11, None)));
        entries.replace(&accepted, object("a", 12, None));
        let reported = entries.current("a").unwrap().object;
        assert_eq!(reported.metadata.resource_version, "12");
        assert!(entries.rest("a"));
    }

    #[test]
    fn one_task_works_on_an_object_and_sees_its_last_change() {
        let entries = Entries::default();
        let change = |version| entries.apply(Event::Changed(object("a", version, None)));
        assert_eq!(change(1), ["a"]);
        let first = entries.current("a").unwrap();
        assert!(change(2).is_empty(), "a task runs already");
        // The response to a change of the earlier state.
        entries.replace(&first.object, object("a", 9, None));
        assert!(!entries.rest("a"), "the object has changed");
        let version = entries
            .current("a")
            .unwrap()
            .object
            .metadata
            .resource_version
            .clone();
        assert_eq!(version, "2");
        assert!(entries.rest("a"));
        assert_eq!(change(3), ["a"]);
    }

    #[test]
    fn an_object_that_is_gone_is_forgotten_after_its_task() {
        let entries = Entries::default();
        entries.apply(Event::Listed(vec![object("a", 1, None)]));
        entries.apply(Event::Listed(Vec::new()));
        assert!(entries.current("a").unwrap().is_gone);
        assert_eq!(entries.ids().unwrap().len(), 0);
        assert!(entries.rest("a"));
        assert!(entries.current("a").is_none());
    }
}
