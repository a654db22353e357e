//! Names of creations whose state no caller knows, for storage that cannot search for a name. There
//! a repeated call that does not reach the storage does not know whether something exists: with a
//! final code, the caller would forget what an earlier call has created.

use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::Name;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many names are remembered. Beyond, every name counts as one of them.
const NAMES_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Unknown(Mutex<HashSet<String>>);

/// Whether an earlier call of that name may have created something.
fn has(names: &HashSet<String>, name: &Name) -> bool {
    names.len() >= NAMES_MAX || names.contains(name.as_str())
}

impl Unknown {
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`has`].
    pub(super) fn has(&self, name: &Name) -> bool {
        has(&self.names(), name)
    }

    /// The result of a creation. A failure that changed nothing does not say what an earlier call
    /// of that name has done, unless what it has created is known to be another's.
    pub(super) fn judge<T>(&self, name: &Name, result: Result<T, Failure>) -> Result<T, Failure> {
        let mut names = self.names();
        let is_known = match &result {
            Ok(_) => true,
            Err(failure) => match failure.certainty {
                Certainty::RolledBack => true,
                Certainty::NothingHappened => failure.kind == Kind::Incompatible,
                Certainty::MayBeRunning => false,
            },
        };
        if is_known {
            names.remove(name.as_str());
            return result;
        }
        result.map_err(|failure| match has(&names, name) {
            true => failure.may_be_running(),
            false => {
                if failure.certainty == Certainty::MayBeRunning {
                    names.insert(name.as_str().to_owned());
                }
                failure
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certainty(unknown: &Unknown, name: &str, result: Result<(), Failure>) -> Option<Certainty> {
        let judged = unknown.judge(&Name::new(name).unwrap(), result);
        judged.err().map(|failure| failure.certainty)
    }

    #[test]
    fn a_failure_is_final_only_if_no_earlier_call_may_have_created_it() {
        let unknown = Unknown::default();
        let unreachable = || Err(Failure::new(Kind::Unreachable, "why"));
        let running = || Err(Failure::busy("why").may_be_running());
        let nothing = Some(Certainty::NothingHappened);
        let may_be = Some(Certainty::MayBeRunning);
        let ends: [fn() -> Result<(), Failure>; 3] = [
            || Ok(()),
            || Err(Failure::busy("why").rolled_back()),
            || Err(Failure::incompatible("why")),
        ];
        for end in ends {
            assert_eq!(certainty(&unknown, "pvc-1", unreachable()), nothing);
            assert_eq!(certainty(&unknown, "pvc-1", running()), may_be);
            for _ in 0..2 {
                assert_eq!(certainty(&unknown, "pvc-1", unreachable()), may_be);
            }
            let gone = Err(Failure::not_found("the source"));
            assert_eq!(certainty(&unknown, "pvc-1", gone), may_be);
            assert_eq!(certainty(&unknown, "pvc-2", unreachable()), nothing);
            let has = |name| unknown.has(&Name::new(name).unwrap());
            assert!(has("pvc-1") && !has("pvc-2"));
            let ended = end();
            let expected = ended.as_ref().err().map(|failure| failure.certainty);
            assert_eq!(certainty(&unknown, "pvc-1", ended), expected);
        }
        assert_eq!(certainty(&unknown, "pvc-1", unreachable()), nothing);
    }

    #[test]
    fn with_too_many_names_each_one_may_exist() {
        let unknown = Unknown::default();
        for n in 0..=NAMES_MAX {
            let running = Err(Failure::busy("why").may_be_running());
            certainty(&unknown, &format!("pvc-{n}"), running);
        }
        assert_eq!(unknown.0.lock().unwrap().len(), NAMES_MAX);
        let unreachable = Err(Failure::new(Kind::Unreachable, "why"));
        let found = certainty(&unknown, "other", unreachable);
        assert_eq!(found, Some(Certainty::MayBeRunning));
    }
}
