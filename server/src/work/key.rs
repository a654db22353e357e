//! The key of a job.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// A class of calls: those of one class exclude each other on an object, those of two do not.
pub trait Class: Copy + fmt::Debug + Eq + Hash + Send + 'static {
    /// How long a caller waits for its response.
    fn deadline(self) -> Duration;
}

/// What a job is about, in a table that has all jobs of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key<C> {
    /// The class of the call.
    pub class: C,
    /// The ID or the name of the object.
    pub id: Arc<str>,
    /// The path of the call, if calls for several paths of an object do not exclude each other.
    pub path: Option<Arc<str>>,
}

impl<C> Key<C> {
    /// The object of that ID or name.
    #[must_use]
    pub fn new(class: C, id: &str) -> Self {
        let id = id.into();
        let path = None;
        Self { class, id, path }
    }

    /// The same object at that path alone.
    #[must_use]
    pub fn at(self, path: impl fmt::Display) -> Self {
        let path = Some(path.to_string().into());
        Self { path, ..self }
    }
}

impl<C> fmt::Display for Key<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            None => f.write_str(&self.id),
            Some(path) => write!(f, "{} at {path}", self.id),
        }
    }
}
