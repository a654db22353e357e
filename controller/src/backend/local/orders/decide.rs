//! Decides the next step for an object. Does nothing itself.
//!
//! The object states the request of the controller, and the ledger states the content of the disk.
//! A volume or snapshot that was complete is never created again, and no file is deleted without an
//! attempt to remove that this process has received as a change.

use super::kind::{Held, Told, Wanted};
use crate::kubernetes::Phase;

/// The parts of an object that determine the next step.
pub(super) struct View {
    /// Whether the object has the finalizer by which a store accepts it.
    pub(super) is_accepted: bool,
    /// Whether the deletion of the object was requested.
    pub(super) is_ending: bool,
    /// The generation of the spec.
    pub(super) generation: i64,
    /// The request in the spec; `None` if this release does not know the version or a field.
    pub(super) wanted: Option<Wanted>,
    /// The status; `None` if there is none.
    pub(super) told: Option<Told>,
    /// The number of the last attempt to remove that must not be executed: it was refused, or was
    /// found in a list. Other attempts have arrived as changes.
    pub(super) barred: Option<u64>,
}

/// The next step for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing must be done until the object changes.
    Rest,
    /// Report that the object is refused, since its spec is not known. Nothing exists for it.
    Refuse,
    /// Report that the object is refused, since the file that it adopts does not exist.
    Miss,
    /// Record the intent, and add the finalizer.
    Accept,
    /// Create the file.
    Make,
    /// Wait for the copy that fills the file.
    Await,
    /// Remove the incomplete file and its record, and take the finalizer off.
    Abandon,
    /// Remove the record of an intent. The object has no finalizer.
    Forget,
    /// Take the finalizer off. A complete file is kept.
    Release,
    /// Report that the file does not exist and will not be created again.
    Lose,
    /// Report the state of the complete file.
    Report,
    /// Expand the file to this number of bytes.
    Grow(u64),
    /// Execute this attempt to remove, if the file is not in use.
    Claim(u64),
    /// Report that this attempt to remove is refused.
    Bar(u64),
    /// Delete the file. The attempt to remove it can no longer be withdrawn.
    Remove,
}

/// Returns the next step for an object with this state on the disk.
pub(super) fn next(view: &View, held: &Held) -> Step {
    let phase = view.told.as_ref().map(|told| told.phase);
    let Some(wanted) = &view.wanted else {
        return match (view.is_accepted, view.is_ending, phase) {
            (true, true, _) => Step::Release,
            (false, false, None) => Step::Refuse,
            _ => Step::Rest,
        };
    };
    match view.is_accepted {
        true => accepted(view, wanted, phase, held),
        false => ordered(view, wanted, phase, held),
    }
}

/// Returns the next step for an object without the finalizer.
fn ordered(view: &View, wanted: &Wanted, phase: Option<Phase>, held: &Held) -> Step {
    let was_made = matches!(phase, Some(Phase::Ready | Phase::Removing | Phase::Lost));
    let is_over = view.is_ending || wanted.remove.is_some() || phase == Some(Phase::Refused);
    match held {
        Held::Intended if is_over => Step::Forget,
        _ if is_over => Step::Rest,
        // Only a backup, or a change by hand, leaves a status without the finalizer.
        Held::Nothing | Held::Intended if phase == Some(Phase::Lost) => Step::Rest,
        Held::Nothing if phase.is_some() => Step::Lose,
        Held::Intended if was_made => Step::Lose,
        Held::Deleting => Step::Rest,
        Held::Nothing | Held::Intended if wanted.is_adopted => Step::Miss,
        _ => Step::Accept,
    }
}

fn accepted(view: &View, wanted: &Wanted, phase: Option<Phase>, held: &Held) -> Step {
    let is_claimed = phase == Some(Phase::Removing) && wanted.remove.is_some();
    if is_claimed || *held == Held::Deleting {
        return match held {
            Held::Nothing => Step::Release,
            _ => Step::Remove,
        };
    }
    // A caller may have received a snapshot whose copy is running.
    let is_incomplete = matches!(held, Held::Intended | Held::Failed(_));
    if view.is_ending {
        return match is_incomplete {
            true => Step::Abandon,
            false => Step::Release,
        };
    }
    if phase == Some(Phase::Refused) && is_incomplete {
        return Step::Abandon;
    }
    if phase == Some(Phase::Refused) && *held == Held::Nothing {
        return Step::Release;
    }
    let refused = view.told.as_ref().and_then(|told| told.refused_removal);
    if let Some(attempt) = wanted.remove.filter(|attempt| Some(*attempt) > refused) {
        return match (Some(attempt) <= view.barred, held) {
            (true, _) => Step::Bar(attempt),
            (false, Held::Nothing) => Step::Release,
            (false, _) => Step::Claim(attempt),
        };
    }
    match held {
        Held::Nothing | Held::Intended | Held::Failed(_) | Held::Copying(_)
            if phase == Some(Phase::Lost) =>
        {
            Step::Rest
        }
        Held::Nothing => Step::Lose,
        // The ledger was restored from an older backup.
        Held::Intended if phase == Some(Phase::Ready) => Step::Lose,
        Held::Intended => Step::Make,
        Held::Copying(_) | Held::Failed(_) => Step::Await,
        Held::Deleting => Step::Remove,
        Held::Whole(state) => whole(view, wanted, state.bytes),
    }
}

/// Returns the next step for an accepted object whose file is complete.
fn whole(view: &View, wanted: &Wanted, bytes: u64) -> Step {
    let told = view.told.as_ref();
    let observed = told.and_then(|told| told.observed_generation);
    let is_reported =
        told.is_some_and(|told| told.phase == Phase::Ready && told.bytes == Some(bytes));
    // The size in an adopted object is from its PersistentVolume. No caller has requested it.
    let is_new = told.is_none() && wanted.is_adopted;
    match wanted.bytes {
        Some(more) if more > bytes && observed != Some(view.generation) && !is_new => {
            Step::Grow(more)
        }
        _ if is_reported => Step::Rest,
        _ => Step::Report,
    }
}

#[cfg(test)]
mod tests {
    use super::super::kind::State;
    use super::*;
    use belay_server::call::Failure;
    use std::time::UNIX_EPOCH;

    const WHOLE: Held = Held::Whole(State {
        bytes: 10,
        time: UNIX_EPOCH,
    });

    fn told(phase: Phase) -> Told {
        Told {
            phase,
            observed_generation: Some(1),
            bytes: Some(10),
            refused_removal: None,
            has_time: false,
            failure: None,
        }
    }

    fn view(is_accepted: bool, told: Option<Told>) -> View {
        View {
            is_accepted,
            is_ending: false,
            generation: 1,
            wanted: Some(Wanted {
                bytes: Some(10),
                is_adopted: false,
                remove: None,
            }),
            told,
            barred: None,
        }
    }

    fn removal(attempt: u64, view: View) -> View {
        let wanted = Wanted {
            bytes: Some(10),
            is_adopted: false,
            remove: Some(attempt),
        };
        View {
            wanted: Some(wanted),
            generation: 2,
            ..view
        }
    }

    #[test]
    fn a_good_life() {
        let order = view(false, None);
        assert_eq!(next(&order, &Held::Nothing), Step::Accept);
        let accepted = view(true, None);
        assert_eq!(next(&accepted, &Held::Intended), Step::Make);
        assert_eq!(next(&accepted, &WHOLE), Step::Report);
        let ready = || view(true, Some(told(Phase::Ready)));
        assert_eq!(next(&ready(), &WHOLE), Step::Rest);
        assert_eq!(next(&removal(1, ready()), &WHOLE), Step::Claim(1));
        let claimed = removal(1, view(true, Some(told(Phase::Removing))));
        assert_eq!(next(&claimed, &WHOLE), Step::Remove);
        assert_eq!(next(&claimed, &Held::Nothing), Step::Release);
        let over = removal(1, view(false, Some(told(Phase::Removing))));
        assert_eq!(next(&over, &Held::Nothing), Step::Rest);
    }

    #[test]
    fn nothing_that_was_accepted_is_made_again() {
        for phase in [None, Some(Phase::Making), Some(Phase::Ready)] {
            let accepted = view(true, phase.map(told));
            assert_eq!(next(&accepted, &Held::Nothing), Step::Lose, "{phase:?}");
        }
        // The ledger was restored from an older backup.
        let ready = view(true, Some(told(Phase::Ready)));
        assert_eq!(next(&ready, &Held::Intended), Step::Lose);
        // The finalizer was taken off by hand, or a backup does not contain it.
        for phase in [Phase::Making, Phase::Ready, Phase::Removing] {
            let stripped = view(false, Some(told(phase)));
            assert_eq!(next(&stripped, &Held::Nothing), Step::Lose, "{phase:?}");
            assert_eq!(next(&stripped, &WHOLE), Step::Accept, "{phase:?}");
            let is_made = phase != Phase::Making;
            let again = [Step::Accept, Step::Lose][usize::from(is_made)];
            assert_eq!(next(&stripped, &Held::Intended), again, "{phase:?}");
        }
        for is_accepted in [false, true] {
            let lost = view(is_accepted, Some(told(Phase::Lost)));
            assert_eq!(next(&lost, &Held::Nothing), Step::Rest);
            assert_eq!(next(&lost, &Held::Intended), Step::Rest);
        }
        let failed = Held::Failed(Failure::busy("the copy failed"));
        let lost = view(true, Some(told(Phase::Lost)));
        assert_eq!(next(&lost, &failed), Step::Rest);
    }

    #[test]
    fn an_attempt_in_a_list_or_refused_before_is_not_executed() {
        for held in [WHOLE, Held::Intended, Held::Nothing] {
            let listed = View {
                barred: Some(3),
                ..removal(3, view(true, Some(told(Phase::Ready))))
            };
            assert_eq!(next(&listed, &held), Step::Bar(3), "{held:?}");
        }
        let refused = Told {
            refused_removal: Some(3),
            ..told(Phase::Ready)
        };
        let before = removal(3, view(true, Some(refused.clone())));
        assert_eq!(next(&before, &WHOLE), Step::Rest);
        let barred = View {
            barred: Some(3),
            ..removal(4, view(true, Some(refused)))
        };
        assert_eq!(next(&barred, &WHOLE), Step::Claim(4));
    }

    #[test]
    fn a_claimed_attempt_is_completed_after_a_restart() {
        let claimed = || View {
            barred: Some(1),
            ..removal(1, view(true, Some(told(Phase::Removing))))
        };
        for held in [WHOLE, Held::Intended, Held::Deleting] {
            assert_eq!(next(&claimed(), &held), Step::Remove, "{held:?}");
        }
        let ending = View {
            is_ending: true,
            ..claimed()
        };
        assert_eq!(next(&ending, &WHOLE), Step::Remove);
        // Only a person withdraws a claimed attempt.
        let withdrawn = view(true, Some(told(Phase::Removing)));
        assert_eq!(next(&withdrawn, &WHOLE), Step::Report);
    }

    #[test]
    fn the_end_of_an_object_deletes_no_complete_file() {
        let ending = |phase: Option<Phase>| View {
            is_ending: true,
            ..view(true, phase.map(told))
        };
        for phase in [None, Some(Phase::Ready), Some(Phase::Lost)] {
            assert_eq!(next(&ending(phase), &WHOLE), Step::Release);
            assert_eq!(next(&ending(phase), &Held::Nothing), Step::Release);
        }
        let copying = Held::Copying(State {
            bytes: 10,
            time: UNIX_EPOCH,
        });
        assert_eq!(next(&ending(Some(Phase::Making)), &copying), Step::Release);
        // No caller has received an incomplete volume.
        assert_eq!(next(&ending(None), &Held::Intended), Step::Abandon);
        // A person may also ask for a removal that was not claimed.
        let unclaimed = removal(1, ending(Some(Phase::Ready)));
        assert_eq!(next(&unclaimed, &WHOLE), Step::Release);
    }

    #[test]
    fn a_refused_order_leaves_nothing() {
        let refused = |is_accepted| view(is_accepted, Some(told(Phase::Refused)));
        let failed = Held::Failed(Failure::busy("the copy failed"));
        assert_eq!(next(&refused(true), &Held::Intended), Step::Abandon);
        assert_eq!(next(&refused(true), &failed), Step::Abandon);
        assert_eq!(next(&refused(true), &Held::Nothing), Step::Release);
        assert_eq!(next(&refused(false), &Held::Intended), Step::Forget);
        assert_eq!(next(&refused(false), &Held::Nothing), Step::Rest);
        let withdrawn = View {
            is_ending: true,
            ..view(false, None)
        };
        assert_eq!(next(&withdrawn, &Held::Intended), Step::Forget);
    }

    #[test]
    fn an_adopted_object_makes_nothing() {
        let adopted = View {
            wanted: Some(Wanted {
                bytes: Some(10),
                is_adopted: true,
                remove: None,
            }),
            ..view(false, None)
        };
        assert_eq!(next(&adopted, &Held::Nothing), Step::Miss);
        assert_eq!(next(&adopted, &WHOLE), Step::Accept);
        let larger = View {
            is_accepted: true,
            wanted: Some(Wanted {
                bytes: Some(20),
                is_adopted: true,
                remove: None,
            }),
            ..view(true, None)
        };
        assert_eq!(next(&larger, &WHOLE), Step::Report);
    }

    #[test]
    fn a_growth_is_tried_once_per_generation() {
        let grown = |observed| View {
            generation: 2,
            wanted: Some(Wanted {
                bytes: Some(20),
                is_adopted: false,
                remove: None,
            }),
            told: Some(Told {
                observed_generation: Some(observed),
                ..told(Phase::Ready)
            }),
            ..view(true, None)
        };
        assert_eq!(next(&grown(1), &WHOLE), Step::Grow(20));
        assert_eq!(next(&grown(2), &WHOLE), Step::Rest);
        // The larger size was requested before the first report.
        let early = View {
            told: None,
            ..grown(1)
        };
        assert_eq!(next(&early, &WHOLE), Step::Grow(20));
    }

    #[test]
    fn an_unknown_spec_is_refused_before_it_is_accepted_and_left_alone_after() {
        let unknown = |is_accepted, told| View {
            wanted: None,
            ..view(is_accepted, told)
        };
        assert_eq!(next(&unknown(false, None), &Held::Nothing), Step::Refuse);
        let refused = unknown(false, Some(told(Phase::Refused)));
        assert_eq!(next(&refused, &Held::Nothing), Step::Rest);
        let ready = unknown(true, Some(told(Phase::Ready)));
        assert_eq!(next(&ready, &WHOLE), Step::Rest);
        let ending = View {
            is_ending: true,
            ..ready
        };
        assert_eq!(next(&ending, &WHOLE), Step::Release);
    }
}
