//! The objects of one kind, as the watch has shown them. One task at a time works on an object, and
//! begins again if the object changes meanwhile.

use super::kind::Kept;
use crate::kubernetes::{Event, Object};
use belay_server::lock::Lock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The objects of a kind, by name.
pub(super) struct Entries<K: Kept>(Lock<Known<K>>);

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
    /// Whether a task works on the object.
    is_running: bool,
    /// Whether the object has changed since the task has read it.
    has_changed: bool,
}

/// An object on which a task works.
pub(super) struct Current<K: Kept> {
    pub(super) object: Arc<Object<K>>,
    pub(super) is_gone: bool,
    /// The number of the last attempt to remove that must not be executed.
    pub(super) barred: Option<u64>,
}

impl<K: Kept> Default for Entries<K> {
    fn default() -> Self {
        Self(Lock::new(Known {
            by_name: HashMap::new(),
            is_listed: false,
        }))
    }
}

/// Returns the number of the attempt to remove the object; `None` if there is none.
fn attempt<K: Kept>(object: &Object<K>) -> Option<u64> {
    object.spec.known().and_then(|spec| K::wanted(spec).remove)
}

impl<K: Kept> Entries<K> {
    /// Applies an event, and returns the names of the objects for which a task must be started.
    pub(super) fn apply(&self, event: Event<K>) -> Vec<String> {
        let known = &mut *self.0.lock();
        match event {
            Event::Listed(objects) => known.list(objects),
            Event::Changed(object) => {
                let name = object.metadata.name.clone();
                known.set(object, false);
                known.start(name).into_iter().collect()
            }
            Event::Deleted(object) => {
                let name = object.metadata.name.clone();
                known.set(object, true);
                known.start(name).into_iter().collect()
            }
        }
    }

    /// Returns the names of all objects on which no task works, and for which tasks must be
    /// started.
    pub(super) fn start_all(&self) -> Vec<String> {
        let known = &mut *self.0.lock();
        let names: Vec<_> = known.by_name.keys().cloned().collect();
        names
            .into_iter()
            .filter_map(|name| known.start(name))
            .collect()
    }

    /// Returns the object for the task that works on it; `None` if the task must end.
    pub(super) fn current(&self, name: &str) -> Option<Current<K>> {
        let known = &mut *self.0.lock();
        let entry = known.by_name.get_mut(name)?;
        entry.has_changed = false;
        Some(Current {
            object: Arc::clone(&entry.object),
            is_gone: entry.is_gone,
            barred: entry.barred,
        })
    }

    /// Replaces the object `before` by the server's response to a change, unless the watch has
    /// shown another state meanwhile.
    pub(super) fn replace(&self, before: &Arc<Object<K>>, after: Object<K>) {
        let known = &mut *self.0.lock();
        if let Some(entry) = known.by_name.get_mut(&before.metadata.name)
            && Arc::ptr_eq(&entry.object, before)
            && !entry.is_gone
        {
            entry.object = Arc::new(after);
        }
    }

    /// Records that this attempt to remove an object must not be executed.
    pub(super) fn bar(&self, name: &str, attempt: u64) {
        let known = &mut *self.0.lock();
        if let Some(entry) = known.by_name.get_mut(name) {
            entry.barred = entry.barred.max(Some(attempt));
        }
    }

    /// Ends the task that works on the object, unless the object has changed meanwhile. Returns
    /// whether the task has ended.
    pub(super) fn rest(&self, name: &str) -> bool {
        let known = &mut *self.0.lock();
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

    /// Returns the IDs of all objects; `None` if they were never listed.
    pub(super) fn ids(&self) -> Option<HashSet<String>> {
        let known = self.0.lock();
        known
            .is_listed
            .then(|| known.ids().map(|(id, _)| id.to_owned()).collect())
    }

    /// Returns the name of another existing object with this ID.
    pub(super) fn other_with(&self, id: &str, name: &str) -> Option<String> {
        let known = self.0.lock();
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
        let object = Arc::new(object);
        match self.by_name.get_mut(&name) {
            Some(entry) => {
                if entry.object.metadata.uid != object.metadata.uid {
                    entry.barred = None;
                }
                (entry.object, entry.is_gone, entry.has_changed) = (object, is_gone, true);
            }
            None => {
                let entry = Entry {
                    object,
                    is_gone,
                    barred: None,
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

    #[test]
    fn one_task_works_on_an_object_and_sees_its_last_change() {
        let entries = Entries::default();
        let change = |version| entries.apply(Event::Changed(object("a", version, None)));
        assert_eq!(change(1), ["a"]);
        let first = entries.current("a").unwrap();
        assert!(change(2).is_empty(), "a task runs already");
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
