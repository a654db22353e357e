//! The meaning of an object for a call that creates, deletes or expands it. Makes no calls.

use super::item::{Item, about, failure, reported, unreachable, wanted};
use crate::kubernetes::{FINALIZER, LocalVolume, Object, Parsed, Phase, SPEC_VERSION};
use belay_server::call::Failure;

/// The state of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// No store has accepted the order. If a conditional deletion of the object succeeds, nothing
    /// was created and nothing will be.
    Ordered,
    /// The store has refused the order: no file exists.
    Refused(Failure),
    /// The store has accepted the order and is creating the file.
    Making,
    /// The volume is complete, or the data of the snapshot is captured.
    Usable,
    /// The file has been lost. It is never created again.
    Lost,
    /// The store is deleting the file, which can no longer be prevented.
    Removing,
    /// The file is deleted, so the object can be deleted.
    Removed,
    /// The object cannot be used. Contains the reason and the remedy.
    Odd(String),
}

/// Returns the state of the object.
pub(super) fn meaning<R: Item>(object: &Object<R>) -> Meaning {
    let wanted = match &object.spec {
        Parsed::Known(spec) => R::wanted(spec),
        Parsed::Unknown(why) => return newer(why),
    };
    if wanted.version > SPEC_VERSION {
        return newer(&format!("spec.version {}", wanted.version));
    }
    if let Some(Parsed::Unknown(why)) = &object.status {
        return newer(why);
    }
    let is_accepted = object.is_accepted();
    let reported = reported(object);
    let phase = reported.map(|reported| reported.phase);
    let refused = reported.and_then(|reported| reported.refused_removal);
    let is_ending = object.metadata.deletion_timestamp.is_some();
    match (phase, is_accepted) {
        (Some(Phase::Removing), true) => Meaning::Removing,
        (Some(Phase::Refused), false) => Meaning::Refused(failure(object)),
        // A person may delete an object during an attempt, and the store then keeps the file.
        (phase, _) if is_ending && phase != Some(Phase::Removing) => Meaning::Odd(
            "its object was deleted, not the file; repeat the call when the file has an object \
             again"
                .to_owned(),
        ),
        // The store removes the finalizer also if it has no file for the object.
        (Some(_), false) if wanted.remove > refused => Meaning::Removed,
        (None, false) => Meaning::Ordered,
        (Some(Phase::Lost), _) => Meaning::Lost,
        (Some(_), false) => Meaning::Odd(format!(
            "its store has not added the finalizer {FINALIZER} again; repeat the call"
        )),
        (Some(Phase::Ready), true) => Meaning::Usable,
        (Some(Phase::Making), true) if reported.is_some_and(|it| it.is_cut) => Meaning::Usable,
        // The store is about to remove the finalizer of a refused object.
        (None | Some(Phase::Making | Phase::Refused), true) => Meaning::Making,
    }
}

fn newer(why: &str) -> Meaning {
    Meaning::Odd(format!(
        "its object is from another release of Belay ({why}); upgrade this controller"
    ))
}

/// The next step of a call that deletes a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// No file exists: delete the object.
    Delete,
    /// Write an attempt with this number.
    Begin(u64),
    /// Wait for the store.
    Wait,
    /// Wait for the store, which is deleting the file.
    Claimed,
    /// The store has refused the attempt of this call: cancel the attempt in the object.
    Refused(Failure),
    /// The attempt of this call has ended, and was cancelled by another controller. Contains the
    /// failure.
    Ended(Failure),
    /// The object cannot be deleted. Contains the reason and the remedy.
    Odd(String),
}

/// Returns the next step of a call that deletes the object. `own` is the number of the attempt that
/// the call has written.
///
/// The number of a new attempt is the generation of the object, so that no attempt of any
/// controller had this number or a higher one: each attempt increases the generation.
pub(super) fn removal<R: Item>(object: &Object<R>, own: Option<u64>) -> Removal {
    let state = meaning(object);
    if matches!(state, Meaning::Ordered | Meaning::Refused(_))
        && wanted(object).is_some_and(|wanted| wanted.adopts)
    {
        return Removal::Odd("its file is being adopted; repeat the call".to_owned());
    }
    match state {
        Meaning::Ordered | Meaning::Refused(_) | Meaning::Removed => return Removal::Delete,
        Meaning::Removing => return Removal::Claimed,
        Meaning::Odd(why) => return Removal::Odd(why),
        // No store has the file of a backup's object.
        Meaning::Lost if !object.is_accepted() => return Removal::Delete,
        Meaning::Making | Meaning::Usable | Meaning::Lost => {}
    }
    let refused = reported(object).and_then(|reported| reported.refused_removal);
    let refused = refused.unwrap_or_default();
    let attempt = wanted(object).and_then(|wanted| wanted.remove);
    let next = |after: u64| {
        let generation = u64::try_from(object.metadata.generation).unwrap_or_default();
        Removal::Begin(generation.max(after.saturating_add(1)))
    };
    // Another controller may have written a later attempt, which was refused as well.
    let is_refused = own.is_some_and(|own| own <= refused);
    match attempt {
        Some(number) if number > refused => Removal::Wait,
        Some(_) if is_refused => Removal::Refused(failure(object)),
        None if is_refused => Removal::Ended(failure(object)),
        None if own.is_some() => {
            let why = "another controller has cancelled its removal; repeat the call";
            Removal::Ended(Failure::busy(about(object, why)))
        }
        Some(_) | None => next(refused),
    }
}

/// The next step of a call that expands a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// The volume has this number of bytes, which is enough.
    Done(u64),
    /// Request the new size.
    Begin,
    /// Wait for the store.
    Wait,
    /// The store has refused the last requested size. The volume has this number of bytes, which
    /// must be requested again.
    Refused(Failure, u64),
    /// The volume cannot be expanded. Contains the failure.
    Failed(Failure),
}

/// Returns the next step of a call that expands the volume to at least `bytes`.
pub(super) fn growth(object: &Object<LocalVolume>, bytes: u64) -> Growth {
    let failed = |why: &str| Growth::Failed(unreachable(object, why));
    match meaning(object) {
        Meaning::Usable => {}
        Meaning::Odd(why) => return failed(&why),
        Meaning::Lost => {
            let why = about(object, LOST);
            return Growth::Failed(Failure::precondition(why));
        }
        _ => {
            let why = about(object, "not ready; repeat the call");
            return Growth::Failed(Failure::busy(why));
        }
    }
    let spec = object.spec.known();
    let status = object.known_status();
    let (Some(spec), Some(status)) = (spec, status) else {
        return failed("its object has no size");
    };
    let Some(now) = status.bytes else {
        return failed("its store has reported no size");
    };
    match (is_growing(object), spec.bytes > now) {
        _ if now >= bytes && spec.bytes <= now => Growth::Done(now),
        (true, _) if now >= bytes => Growth::Done(now),
        (true, _) => Growth::Wait,
        (false, true) => Growth::Refused(failure(object), now),
        (false, false) => Growth::Begin,
    }
}

/// Whether the store may still expand the volume to the requested size.
pub(super) fn is_growing(object: &Object<LocalVolume>) -> bool {
    let spec = object.spec.known();
    let status = object.known_status();
    let (Some(spec), Some(status)) = (spec, status) else {
        return false;
    };
    let is_answered = status.observed_generation >= Some(object.metadata.generation);
    status.bytes.is_some_and(|now| spec.bytes > now) && !is_answered
}

/// The reason why a lost volume or snapshot cannot be used.
pub(super) const LOST: &str = "its file is lost: it can only be deleted; restore a backup";

#[cfg(test)]
mod tests {
    use super::super::examples::{changed, volume};
    use super::*;
    use belay_server::call::Kind;

    const STORE: &[&str] = &[FINALIZER];
    const QUOTA: &str = r#"{"kind": "Quota", "certainty": "RolledBack", "message": "no room"}"#;

    fn status(phase: &str, more: &str) -> String {
        format!(r#"{{"phase": "{phase}", "bytes": 2{more}}}"#)
    }

    fn refused(phase: &str, more: &str) -> String {
        status(phase, &format!(r#", "failure": {QUOTA}{more}"#))
    }

    #[test]
    fn an_order_is_refused_or_accepted_and_only_then_made_lost_or_removed() {
        let of = |finalizers: &[&str], status: &str| meaning(&volume(finalizers, status));
        let quota = Failure::quota(format!("volume {}: no room", super::super::examples::ID));
        for (finalizers, status, expected) in [
            (&[][..], "null".to_owned(), Meaning::Ordered),
            (&["other"], "null".to_owned(), Meaning::Ordered),
            (STORE, "null".to_owned(), Meaning::Making),
            (STORE, status("Making", ""), Meaning::Making),
            (STORE, refused("Making", ""), Meaning::Making),
            (STORE, status("Ready", ""), Meaning::Usable),
            (STORE, refused("Refused", ""), Meaning::Making),
            (&[], refused("Refused", ""), Meaning::Refused(quota)),
            (STORE, status("Lost", ""), Meaning::Lost),
            (STORE, status("Removing", ""), Meaning::Removing),
        ] {
            assert_eq!(of(finalizers, &status), expected, "{finalizers:?} {status}");
        }
        // A store removes the finalizer for an attempt that it has not refused.
        for phase in ["Making", "Ready", "Removing"] {
            let without = volume(&[], &status(phase, ""));
            assert!(matches!(meaning(&without), Meaning::Odd(_)), "{phase}");
            let removed = changed(&without, "spec", r#"{"remove": 2}"#);
            assert_eq!(meaning(&removed), Meaning::Removed, "{phase}");
            let refused = changed(&removed, "status", r#"{"refusedRemoval": 2}"#);
            assert!(matches!(meaning(&refused), Meaning::Odd(_)), "{phase}");
        }
        let restored = volume(&[], &status("Lost", ""));
        assert_eq!(meaning(&restored), Meaning::Lost);
        assert_eq!(removal(&restored, None), Removal::Delete);
    }

    #[test]
    fn an_object_in_deletion_or_of_another_release_is_neither_used_nor_deleted() {
        let ready = volume(STORE, &status("Ready", ""));
        let in_deletion = r#"{"deletionTimestamp": "2026-11-30T10:00:00Z"}"#;
        for (odd, part) in [
            (changed(&ready, "metadata", in_deletion), "was deleted"),
            (changed(&ready, "spec", r#"{"encrypted": true}"#), "upgrade"),
            (
                changed(&ready, "status", r#"{"phase": "Moving"}"#),
                "upgrade",
            ),
        ] {
            let Meaning::Odd(why) = meaning(&odd) else {
                panic!("{part}");
            };
            assert!(why.contains(part), "{why}");
            assert_eq!(removal(&odd, None), Removal::Odd(why));
        }
        let removing = volume(STORE, &status("Removing", ""));
        let removing = changed(&removing, "metadata", in_deletion);
        assert_eq!(meaning(&removing), Meaning::Removing);
    }

    #[test]
    fn each_attempt_has_a_higher_number_than_all_before_and_is_answered_by_its_number() {
        let of = |remove: &str, refused_removal: &str, own| {
            let more = format!(r#", "refusedRemoval": {refused_removal}"#);
            let volume = volume(STORE, &refused("Ready", &more));
            let remove = format!(r#"{{"remove": {remove}}}"#);
            removal(&changed(&volume, "spec", &remove), own)
        };
        // The generation of the example is 3.
        assert_eq!(of("null", "null", None), Removal::Begin(3));
        assert_eq!(of("null", "2", None), Removal::Begin(3));
        assert_eq!(of("null", "7", None), Removal::Begin(8));
        assert_eq!(of("4", "null", None), Removal::Wait);
        assert_eq!(of("4", "3", Some(4)), Removal::Wait);
        let is_quota = |why: &Failure| why.kind == Kind::Quota;
        assert!(matches!(of("4", "4", Some(4)), Removal::Refused(why) if is_quota(&why)));
        // The attempt of an earlier call was refused.
        assert_eq!(of("4", "4", None), Removal::Begin(5));
        // Another controller has written a later attempt, or has cancelled this one.
        assert_eq!(of("5", "4", Some(4)), Removal::Wait);
        assert!(matches!(of("5", "5", Some(4)), Removal::Refused(why) if is_quota(&why)));
        assert!(matches!(of("null", "4", Some(4)), Removal::Ended(why) if is_quota(&why)));
        let is_busy = |why: &Failure| why.kind == Kind::Busy;
        assert!(matches!(of("null", "3", Some(4)), Removal::Ended(why) if is_busy(&why)));

        for lost in ["Making", "Lost"] {
            let lost = volume(STORE, &status(lost, ""));
            assert_eq!(removal(&lost, None), Removal::Begin(3));
        }
        assert_eq!(removal(&volume(&[], "null"), None), Removal::Delete);
        let claimed = volume(STORE, &status("Removing", ""));
        assert_eq!(removal(&claimed, Some(1)), Removal::Claimed);
    }

    #[test]
    fn a_growth_ends_with_a_size_or_with_the_refusal_of_its_generation() {
        let of = |asked: u64, more: &str, bytes| {
            let volume = volume(STORE, &status("Ready", more));
            let asked = format!(r#"{{"bytes": {asked}}}"#);
            growth(&changed(&volume, "spec", &asked), bytes)
        };
        let refusal = format!(r#", "failure": {QUOTA}, "observedGeneration": "#);
        assert_eq!(of(2, "", 2), Growth::Done(2));
        assert_eq!(of(2, "", 5), Growth::Begin);
        assert_eq!(of(5, "", 5), Growth::Wait);
        assert_eq!(of(5, &format!("{refusal}2"), 5), Growth::Wait);
        assert!(matches!(
            of(5, &format!("{refusal}3"), 5),
            Growth::Refused(_, 2)
        ));
        assert!(matches!(
            of(5, &format!("{refusal}3"), 2),
            Growth::Refused(_, 2)
        ));
        // The refusal of an earlier growth, whose size was restored.
        assert_eq!(of(2, &format!("{refusal}3"), 5), Growth::Begin);
        assert!(matches!(
            growth(&volume(STORE, &status("Making", "")), 5),
            Growth::Failed(why) if why.kind == Kind::Busy
        ));
    }
}
