//! The parts that all objects have in common. Knows no particular kind.

use super::FINALIZER;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// A kind of objects.
pub trait Resource: Send + Sync + 'static {
    /// The name of the kind.
    const KIND: &'static str;
    /// The name of the kind in URLs.
    const PLURAL: &'static str;
    /// The requested state.
    type Spec: Clone + Serialize + DeserializeOwned + Send + Sync;
    /// The reported state.
    type Status: Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync;
}

/// An object as the API server returns it.
#[derive(Deserialize)]
#[serde(bound = "")]
pub struct Object<R: Resource> {
    /// The metadata.
    pub metadata: Metadata,
    /// The requested state.
    pub spec: Parsed<R::Spec>,
    /// The reported state; `None` if no state was reported, or if the object was restored from a
    /// backup without it.
    pub status: Option<Parsed<R::Status>>,
}

impl<R: Resource> Object<R> {
    /// Returns the status; `None` if there is none, or if this release does not know all of it.
    pub fn known_status(&self) -> Option<&R::Status> {
        self.status.as_ref()?.known()
    }

    /// Whether a store has accepted the object.
    pub fn is_accepted(&self) -> bool {
        self.metadata.finalizers.iter().any(|it| it == FINALIZER)
    }
}

/// The metadata that Belay uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The name.
    pub name: String,
    /// The random ID of this object, which differs from the ID of a later object with the same
    /// name.
    pub uid: String,
    /// The version, which changes with each write.
    pub resource_version: String,
    /// The number of changes of the spec.
    pub generation: i64,
    /// The time at which the deletion was requested; `None` if no deletion was requested.
    pub deletion_timestamp: Option<String>,
    /// The finalizers: while the list is not empty, the API server does not remove the object.
    pub finalizers: Vec<String>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// Returns the version as a number, which Kubernetes guarantees: a later version of the same
    /// object is greater. Returns `None` if it is not a number.
    pub fn version(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }
}

/// A part of an object, which another release of Belay may have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// This release of Belay knows all fields of the part.
    Known(T),
    /// This release of Belay does not know a field of the part, or a value. Contains the reason. A
    /// spec with an unknown field must not be executed, since the field may change the meaning of
    /// the spec.
    Unknown(String),
}

impl<T> Parsed<T> {
    /// Whether there is a part that this release does not know.
    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn is_unknown(part: &Option<Self>) -> bool {
        matches!(part, Some(Self::Unknown(_)))
    }

    /// Returns the part if this release knows all of it.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(part) => Some(part),
            Self::Unknown(_) => None,
        }
    }
}

impl<T: Serialize> Serialize for Parsed<T> {
    /// Fails for an unknown part: its value must be left as it is.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(part) => part.serialize(to),
            Self::Unknown(why) => Err(S::Error::custom(why)),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        Ok(match T::deserialize(value) {
            Ok(part) => Self::Known(part),
            Err(error) => Self::Unknown(error.to_string()),
        })
    }
}
