//! Changes of volumes that Civo has accepted from this process. Its reads may be stale: a volume
//! that looks as if a change had not begun is waited for, and not asked for the change again. A
//! second detach could take it from the instance that has it by then.

use super::wire::{CivoVolume, Status};
use belay_server::call::{Certainty, Failure};
use belay_server::request::VolumeId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a volume may look as it did before a change that Civo has accepted; then the change is
/// begun again.
pub(super) const STALE_MAX: Duration = Duration::from_secs(10);
/// The same for a change whose answer is lost: it may not have begun.
const LOST_MAX: Duration = Duration::from_secs(2);

/// What a volume was asked to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Attached to that instance.
    Attach(String),
    /// Detached from that instance.
    Detach(String),
    /// Of so many GiB.
    Resize(u64),
}

/// What a volume shows of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    Begun,
    Done,
}

/// The changes, by volume.
#[derive(Debug, Default)]
pub(super) struct Begun(Mutex<BTreeMap<String, Entry>>);

/// A change that was begun.
#[derive(Debug)]
struct Entry {
    change: Change,
    /// A read may hide it until then.
    until: Instant,
    /// A read has shown that it is done; the next one may hide that again.
    is_done: bool,
}

impl Begun {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: &VolumeId, change: Change, hidden: Duration) {
        let now = Instant::now();
        let mut all = self.all();
        all.retain(|_, entry| now < entry.until);
        let entry = Entry {
            change,
            until: now + hidden,
            is_done: false,
        };
        all.insert(id.to_string(), entry);
    }

    /// Civo has accepted the change.
    pub(super) fn accepted(&self, id: &VolumeId, change: Change) {
        self.add(id, change, STALE_MAX);
    }

    /// The call has failed, and Civo may have accepted the change nonetheless.
    pub(super) fn failed(&self, id: &VolumeId, change: Change, failure: &Failure) {
        if failure.certainty == Certainty::MayBeRunning {
            self.add(id, change, LOST_MAX);
        }
    }

    /// The word for a change of the volume that was begun a short time ago and does not show.
    pub(super) fn hidden(&self, volume: &CivoVolume) -> Option<&'static str> {
        let mut all = self.all();
        let entry = all.get_mut(&volume.id)?;
        let now = Instant::now();
        if now >= entry.until {
            return None;
        }
        match entry.change.shown(volume) {
            Shown::Nothing => return Some(entry.change.word()),
            Shown::Done if !entry.is_done => {
                (entry.is_done, entry.until) = (true, now + STALE_MAX);
            }
            Shown::Done | Shown::Begun => {}
        }
        None
    }
}

impl Change {
    fn word(&self) -> &'static str {
        match self {
            Self::Attach(_) => "attaching",
            Self::Detach(_) => "detaching",
            Self::Resize(_) => "resizing",
        }
    }

    fn shown(&self, volume: &CivoVolume) -> Shown {
        match (self, volume.status(), volume.instance()) {
            (Self::Attach(to), Status::Attached, Some(on)) if to == on => Shown::Done,
            // Another instance may have had it before.
            (Self::Attach(_), Status::Available | Status::Attached, _) => Shown::Nothing,
            (Self::Detach(from), Status::Attached, Some(on)) if from == on => Shown::Nothing,
            (Self::Detach(_), Status::Available | Status::Attached, _) => Shown::Done,
            (Self::Resize(gib), _, _) if volume.gib() >= *gib => Shown::Done,
            (Self::Resize(_), Status::Available, _) => Shown::Nothing,
            _ => Shown::Begun,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "00000000-0000-4000-8000-000000000001";

    fn volume(status: &str, instance: &str, gib: u64) -> CivoVolume {
        let shown = json!({"id": ID, "status": status, "instance_id": instance, "size_gb": gib});
        serde_json::from_value(shown).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_hidden_until_the_volume_shows_it_or_some_time_has_passed() {
        let id = VolumeId::new(ID).unwrap();
        let node = || "node".to_owned();
        for (change, word, before, during, after) in [
            (
                Change::Attach(node()),
                "attaching",
                volume("available", "", 1),
                volume("attaching", "node", 1),
                volume("attached", "node", 1),
            ),
            (
                Change::Detach(node()),
                "detaching",
                volume("attached", "node", 1),
                volume("detaching", "node", 1),
                // Another controller was faster.
                volume("attached", "other", 1),
            ),
            (
                Change::Resize(2),
                "resizing",
                volume("available", "", 1),
                volume("resizing", "", 1),
                volume("available", "", 2),
            ),
        ] {
            let begun = Begun::default();
            assert_eq!(begun.hidden(&before), None);
            begun.accepted(&id, change.clone());
            for (seen, hidden) in [
                (&before, Some(word)),
                (&during, None),
                (&before, Some(word)),
                (&after, None),
                // A stale read may follow.
                (&before, Some(word)),
                (&after, None),
            ] {
                assert_eq!(begun.hidden(seen), hidden, "{change:?} {seen:?}");
            }
            tokio::time::advance(STALE_MAX).await;
            // From then on it is another change that it waits for.
            assert_eq!(begun.hidden(&before), None);
            begun.accepted(&id, change.clone());
            tokio::time::advance(STALE_MAX).await;
            assert_eq!(begun.hidden(&before), None);
            let lost = Failure::busy("no answer").may_be_running();
            begun.failed(&id, change.clone(), &lost);
            assert_eq!(begun.hidden(&before), Some(word));
            tokio::time::advance(LOST_MAX).await;
            assert_eq!(begun.hidden(&before), None);
            begun.failed(&id, change, &lost.nothing_happened());
            assert_eq!(begun.hidden(&before), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_another_instance_had_before_is_not_attached_yet() {
        let id = VolumeId::new(ID).unwrap();
        let begun = Begun::default();
        begun.accepted(&id, Change::Attach("node".to_owned()));
        let shown = |instance| begun.hidden(&volume("attached", instance, 1));
        assert_eq!(shown("other"), Some("attaching"));
        assert_eq!(shown("node"), None);
        tokio::time::advance(STALE_MAX - Duration::from_secs(1)).await;
        assert_eq!(shown("other"), Some("attaching"));
        assert_eq!(shown("node"), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(shown("other"), None, "another controller has moved it");
    }
}
