//! Kubernetes objects, as `kubectl get -o json` prints them. This module does not depend on the
//! driver.

use std::str::FromStr as _;
use std::time::SystemTime;

use prost_types::Timestamp;
use serde_json::Value;

use crate::failure::Failure;

/// A Kubernetes object. A field that is missing or of another type is treated as unset.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a>(&'a Value);

impl<'a> Object<'a> {
    pub(crate) fn new(value: &'a Value) -> Self {
        Self(value)
    }

    /// Returns the value at a JSON pointer (RFC 6901).
    pub(crate) fn at(self, pointer: &str) -> Option<&'a Value> {
        self.0.pointer(pointer).filter(|value| !value.is_null())
    }

    /// Returns the string at a JSON pointer; empty if there is none.
    pub(crate) fn text(self, pointer: &str) -> &'a str {
        self.at(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the number at a JSON pointer; 0 if there is none.
    pub(crate) fn number(self, pointer: &str) -> u64 {
        self.at(pointer).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Returns the elements of the list at a JSON pointer.
    pub(crate) fn list(self, pointer: &str) -> impl Iterator<Item = Object<'a>> + use<'a> {
        let list = self.at(pointer).and_then(Value::as_array);
        list.into_iter().flatten().map(Object)
    }

    /// Returns the strings of the list at a JSON pointer.
    pub(crate) fn texts(self, pointer: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.list(pointer).filter_map(|element| element.0.as_str())
    }

    /// Returns the keys of the map at a JSON pointer.
    pub(crate) fn keys(self, pointer: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let map = self.at(pointer).and_then(Value::as_object);
        map.into_iter().flatten().map(|(key, _)| key.as_str())
    }

    /// Returns the keys and string values of the map at a JSON pointer.
    pub(crate) fn entries(self, pointer: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let map = self.at(pointer).and_then(Value::as_object);
        let entries = map.into_iter().flatten();
        entries.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// Returns the time at a JSON pointer (RFC 3339).
    pub(crate) fn time(self, pointer: &str) -> Option<SystemTime> {
        let stamp = Timestamp::from_str(self.text(pointer)).ok()?;
        SystemTime::try_from(stamp).ok()
    }

    pub(crate) fn name(self) -> &'a str {
        self.text("/metadata/name")
    }

    /// Returns the name, with the namespace if the object has one.
    pub(crate) fn full_name(self) -> String {
        match self.text("/metadata/namespace") {
            "" => self.name().to_owned(),
            namespace => format!("{namespace}/{}", self.name()),
        }
    }

    pub(crate) fn is_being_deleted(self) -> bool {
        self.at("/metadata/deletionTimestamp").is_some()
    }
}

/// Escapes a key for use in a JSON pointer (RFC 6901).
pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The objects of a cluster in the input.
pub(crate) struct Objects(Vec<Value>);

impl Objects {
    /// Reads a list of objects, or several concatenated lists, as several calls of kubectl print
    /// them.
    ///
    /// # Errors
    /// Fails if the text is not JSON, or has no object.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut objects = Vec::new();
        for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            let value = value.map_err(|error| Failure::Usage(format!("objects: {error}")))?;
            match value {
                Value::Object(mut list) if list.get("items").is_some_and(Value::is_array) => {
                    if let Some(Value::Array(items)) = list.remove("items") {
                        objects.extend(items);
                    }
                }
                other => objects.push(other),
            }
        }
        let objects = Self(objects);
        if objects.0.iter().all(|object| object.get("kind").is_none()) {
            let message = "objects: none; give the output of the command that `belayctl doctor \
                           --help` shows";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(objects)
    }

    /// Returns the objects of a kind.
    pub(crate) fn of(&self, kind: &str) -> impl Iterator<Item = Object<'_>> + Clone {
        let is_it = move |object: &&Value| object["kind"].as_str() == Some(kind);
        self.0.iter().filter(is_it).map(Object)
    }

    /// Whether the input has an object of this kind. If the input has none, the user may have
    /// omitted the kind from the kubectl command.
    pub(crate) fn have(&self, kind: &str) -> bool {
        self.of(kind).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_single_objects_are_read_one_after_the_other() {
        let text = r#"{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "a"}}]}
            {"kind": "Lease", "metadata": {"namespace": "n", "name": "b"}}"#;
        let objects = Objects::parse(text).unwrap();
        assert_eq!(objects.of("Node").next().unwrap().full_name(), "a");
        assert_eq!(objects.of("Lease").next().unwrap().full_name(), "n/b");
        assert!(!objects.have("Pod"));
    }

    #[test]
    fn input_without_objects_is_refused() {
        for text in ["", "{}", r#"{"items": []}"#, "No resources found", "[1]"] {
            assert!(Objects::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_field_of_another_type_counts_as_not_set() {
        let value = serde_json::json!({"metadata": {"name": 7}, "spec": "text"});
        let object = Object(&value);
        assert_eq!((object.name(), object.number("/spec/replicas")), ("", 0));
        assert_eq!(object.list("/spec").count(), 0);
        assert!(object.time("/metadata/name").is_none());
    }
}
