//! Names that were passed to CreateVolume or CreateSnapshot, for storage that cannot be searched by
//! name. While such storage is unreachable, a repeated call cannot determine whether an earlier
//! call has created the object. If the repeated call returned a final error code, the caller would
//! never delete that object.
//!
//! The name of a successful creation is also recorded, since the caller may have disconnected
//! before the response. If a creation continues after its last call has ended, its name is
//! recorded, too, since the object may still be created.

use belay_server::call::{Certainty, Failure, Kind};
use belay_server::lock::Lock;
use belay_server::request::Name;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum number of remembered names. If the maximum is reached, a new name replaces the name
/// whose last call is the oldest. csi-provisioner and csi-snapshotter repeat a creation within five
/// minutes. In five minutes, calls create far fewer objects than this maximum.
const NAMES_MAX: usize = 65_536;

/// Names of volumes and snapshots that a call may have created.
#[derive(Debug, Default)]
pub struct StartedCreations {
    /// Names of volumes that a call has begun to create.
    pub volumes: Arc<Names>,
    /// Names of snapshots that a call has begun to create.
    pub snapshots: Arc<Names>,
}

/// Names of volumes, or names of snapshots.
#[derive(Debug, Default)]
pub struct Names(Lock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The sequence number of the last call for each name.
    calls: HashMap<Arc<str>, u64>,
    names: BTreeMap<u64, Arc<str>>,
    next: u64,
    /// The number of creations that continue even if their calls have ended, by name.
    unattended: HashMap<String, usize>,
}

impl Known {
    fn note(&mut self, name: &str) {
        self.forget(name);
        if self.calls.len() >= NAMES_MAX
            && let Some((_, oldest)) = self.names.pop_first()
        {
            self.calls.remove(&oldest);
        }
        let name = Arc::<str>::from(name);
        self.calls.insert(Arc::clone(&name), self.next);
        self.names.insert(self.next, name);
        self.next += 1;
    }

    fn forget(&mut self, name: &str) {
        if let Some(call) = self.calls.remove(name) {
            self.names.remove(&call);
        }
    }
}

/// Records that the creation with one name continues after its calls have ended.
#[derive(Clone, Debug)]
pub(super) struct NameRecorder {
    names: Arc<Names>,
    name: String,
}

impl NameRecorder {
    /// Records the start of a creation that continues if its calls are cancelled.
    pub(super) fn start(self) -> Unattended {
        let mut known = self.names.0.lock();
        *known.unattended.entry(self.name.clone()).or_default() += 1;
        drop(known);
        Unattended {
            recorder: self,
            has_left: true,
        }
    }
}

/// A creation that continues even if all its calls have ended. Until the creation has ended,
/// [`Names::has`] returns true for its name.
#[derive(Debug)]
pub(super) struct Unattended {
    recorder: NameRecorder,
    /// Whether the name must be recorded at the end of the creation, since an object may have been
    /// created.
    has_left: bool,
}

impl Unattended {
    /// Ends the creation, and records whether an object may have been created, since the callers
    /// may have disconnected before the result.
    pub(super) fn end<T>(mut self, result: &Result<T, Failure>) {
        let is_left = |failure: &Failure| failure.certainty == Certainty::MayBeRunning;
        self.has_left = result.as_ref().err().is_none_or(is_left);
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        let NameRecorder { names, name } = &self.recorder;
        let mut known = names.0.lock();
        if self.has_left {
            known.note(name);
        }
        if let Entry::Occupied(mut count) = known.unattended.entry(name.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Names {
    /// Returns a handle for a creation that may continue after its call has ended.
    pub(super) fn recorder(self: &Arc<Self>, name: &str) -> NameRecorder {
        NameRecorder {
            names: Arc::clone(self),
            name: name.to_owned(),
        }
    }

    /// Whether an earlier call with the name may have created an object, or may still create one.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let known = self.0.lock();
        known.calls.contains_key(name) || known.unattended.contains_key(name)
    }

    /// Records that a creation may have created an object without the knowledge of its caller.
    pub fn note(&self, name: &str) {
        self.0.lock().note(name);
    }

    /// Records the result of a creation, and converts a failure. Even if this call failed without a
    /// change, an earlier call may have created the object, or a creation that is still in progress
    /// may create it. After the failure [`Kind::Incompatible`], no earlier call can have created
    /// the object, since the existing object with the name belongs to a different request.
    ///
    /// # Errors
    /// Returns the failure, with `Certainty::MayBeRunning` if an earlier call may have created the
    /// object, or a running creation may still create it.
    pub fn judge<T>(&self, name: &Name, result: Result<T, Failure>) -> Result<T, Failure> {
        let name = name.as_str();
        let mut known = self.0.lock();
        let Err(failure) = &result else {
            known.note(name);
            return result;
        };
        match failure.certainty {
            Certainty::MayBeRunning => known.note(name),
            Certainty::RolledBack => known.forget(name),
            Certainty::NothingHappened if failure.kind == Kind::Incompatible => known.forget(name),
            Certainty::NothingHappened => {
                if known.calls.contains_key(name) {
                    known.note(name);
                    return result.map_err(Failure::may_be_running);
                }
            }
        }
        match known.unattended.contains_key(name) {
            true => result.map_err(Failure::may_be_running),
            false => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certainty(names: &Names, name: &str, result: Result<(), Failure>) -> Option<Certainty> {
        let judged = names.judge(&Name::new(name).unwrap(), result);
        judged.err().map(|failure| failure.certainty)
    }

    fn unreachable() -> Result<(), Failure> {
        Err(Failure::new(Kind::Unreachable, "why"))
    }

    #[test]
    fn a_failure_is_final_only_if_no_earlier_call_may_have_created_it() {
        let names = Names::default();
        let nothing = Some(Certainty::NothingHappened);
        let may_be = Some(Certainty::MayBeRunning);
        let begins: [fn() -> Result<(), Failure>; 2] =
            [|| Err(Failure::busy("why").may_be_running()), || Ok(())];
        let ends: [fn() -> Failure; 2] = [
            || Failure::busy("why").rolled_back(),
            || Failure::incompatible("why"),
        ];
        for (begin, end) in begins.iter().zip(ends) {
            assert_eq!(certainty(&names, "pvc-1", unreachable()), nothing);
            let begun = begin();
            let expected = begun.as_ref().err().map(|failure| failure.certainty);
            assert_eq!(certainty(&names, "pvc-1", begun), expected);
            for _ in 0..2 {
                assert_eq!(certainty(&names, "pvc-1", unreachable()), may_be);
            }
            let gone = Err(Failure::not_found("the source"));
            assert_eq!(certainty(&names, "pvc-1", gone), may_be);
            assert_eq!(certainty(&names, "pvc-2", unreachable()), nothing);
            assert!(names.has("pvc-1") && !names.has("pvc-2"));
            let expected = Some(end().certainty);
            assert_eq!(certainty(&names, "pvc-1", Err(end())), expected);
        }
        assert_eq!(certainty(&names, "pvc-1", unreachable()), nothing);
    }

    #[test]
    fn a_creation_without_a_call_counts_until_it_has_ended_and_then_if_it_has_left_something() {
        type End = Option<Result<(), Failure>>;
        let nothing = Some(Certainty::NothingHappened);
        let may_be = Some(Certainty::MayBeRunning);
        let ends: [(fn() -> End, _); 5] = [
            (|| Some(Err(Failure::timeout("why"))), nothing),
            (|| Some(Err(Failure::busy("why").rolled_back())), nothing),
            (|| Some(Err(Failure::busy("why").may_be_running())), may_be),
            (|| Some(Ok(())), may_be),
            // The creation has panicked.
            (|| None, may_be),
        ];
        for (end, expected) in ends {
            let names = Arc::<Names>::default();
            let (first, second) = (
                names.recorder("pvc-1").start(),
                names.recorder("pvc-1").start(),
            );
            for _ in 0..2 {
                assert_eq!(certainty(&names, "pvc-1", unreachable()), may_be);
            }
            assert!(names.has("pvc-1") && !names.has("pvc-2"));
            first.end(&Err::<(), _>(Failure::timeout("why")));
            // The failures of one creation do not show whether the second creation has left an
            // object.
            for other in [
                Failure::busy("why").rolled_back(),
                Failure::incompatible("why"),
            ] {
                assert_eq!(certainty(&names, "pvc-1", Err(other)), may_be);
            }
            assert_eq!(certainty(&names, "pvc-1", unreachable()), may_be);
            match end() {
                Some(result) => second.end(&result),
                None => drop(second),
            }
            assert_eq!(certainty(&names, "pvc-1", unreachable()), expected);
            assert!(names.0.lock().unattended.is_empty());
        }
    }

    /// A name that is used repeatedly is not dropped, even if many other names are added.
    #[test]
    fn of_too_many_names_the_one_whose_last_call_is_the_oldest_is_forgotten() {
        let names = Names::default();
        names.note("first");
        names.note("repeated");
        for n in 2..NAMES_MAX {
            names.note(&format!("pvc-{n}"));
        }
        let may_be = Some(Certainty::MayBeRunning);
        assert_eq!(certainty(&names, "repeated", unreachable()), may_be);
        assert!(names.has("first"));
        for n in 0..NAMES_MAX - 1 {
            names.note(&format!("other-{n}"));
        }
        assert!(!names.has("first"));
        assert_eq!(certainty(&names, "repeated", unreachable()), may_be);
        let known = names.0.lock();
        assert_eq!(
            (known.calls.len(), known.names.len()),
            (NAMES_MAX, NAMES_MAX)
        );
    }
}
