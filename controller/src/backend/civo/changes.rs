//! Changes of volumes that Civo has accepted from this process. A read may return stale data. If a
//! read does not show a change, the driver waits and does not request the change again: a second
//! detach request could detach the volume from a different instance that uses the volume by then.
//!
//! A volume has no data if Civo has accepted its creation and no later read has reported the volume
//! as usable, since no caller has received the volume's ID. Civo cannot store marks, so only this
//! process knows which volumes have no data.

use super::wire::{CivoVolume, Status};
use crate::backend::{Attempt, Mark};
use belay_server::call::{Certainty, Failure};
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time until reads show a change that Civo has accepted. If a change is not visible after
/// this time, the driver requests the change again.
pub(super) const STALE_MAX: Duration = Duration::from_secs(10);
/// Maximum time until reads show a change whose response was lost.
const LOST_MAX: Duration = Duration::from_secs(2);
/// The time after which another controller may have returned a new volume to its caller, even if no
/// read in this process has reported the volume as usable.
const NEW_MAX: Duration = Duration::from_secs(3600);

/// A requested change of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A creation by this attempt, with this name. Civo may have responded with the ID of another
    /// volume.
    Create(String, Attempt),
    /// An attach to this instance.
    Attach(String),
    /// A detach from this instance.
    Detach(String),
    /// An expansion to this number of GiB.
    Resize(u64),
}

/// The progress of a change, according to a read of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    Begun,
    Done,
}

/// The recorded changes, by volume ID.
#[derive(Debug, Default)]
pub(super) struct Changes(Lock<BTreeMap<String, Entry>>);

/// A change that this process has requested.
#[derive(Debug)]
struct Entry {
    change: Change,
    /// The time until which a read may be stale and lack the change.
    until: Instant,
    /// Whether a read has shown that the change is complete. A later read may be stale and lack the
    /// change.
    is_done: bool,
}

impl Changes {
    fn add(&self, id: &VolumeId, change: Change, hidden: Duration) {
        let now = Instant::now();
        let mut all = self.0.lock();
        all.retain(|_, entry| now < entry.until);
        // Civo may have responded to a creation with the ID of another volume, which is being
        // changed. Keep the record of the earlier change.
        let is_creation = |change: &Change| matches!(change, Change::Create(..));
        let known = all.get(id.as_str());
        if is_creation(&change) && known.is_some_and(|known| !is_creation(&known.change)) {
            return;
        }
        let entry = Entry {
            change,
            until: now + hidden,
            is_done: false,
        };
        all.insert(id.to_string(), entry);
    }

    /// Records a change that Civo has accepted.
    pub(super) fn accepted(&self, id: &VolumeId, change: Change) {
        let known = match change {
            Change::Create(..) => NEW_MAX,
            _ => STALE_MAX,
        };
        self.add(id, change, known);
    }

    /// Records a change whose call has failed, if Civo may have accepted the change anyway.
    pub(super) fn failed(&self, id: &VolumeId, change: Change, failure: &Failure) {
        if failure.certainty == Certainty::MayBeRunning {
            self.add(id, change, LOST_MAX);
        }
    }

    /// Returns the status word for a recent change that this read of the volume lacks; `None` if
    /// the read is current.
    pub(super) fn hidden(&self, volume: &CivoVolume) -> Option<&'static str> {
        let mut all = self.0.lock();
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

    /// Returns the mark of a volume that is still being created or whose creation has failed. Once
    /// a read has shown the volume in another state, returns [`Mark::None`] forever.
    pub(super) fn mark(&self, volume: &CivoVolume) -> Mark {
        let mut all = self.0.lock();
        let entry = all
            .get(&volume.id)
            .map(|entry| (&entry.change, entry.until));
        let Some((Change::Create(name, attempt), until)) = entry else {
            return Mark::None;
        };
        let is_its = volume.name.as_ref() == Some(name);
        let is_unfinished = match volume.status() {
            Status::Failed(_) | Status::Deleting => true,
            Status::Other(word) => word == "creating",
            _ => false,
        };
        let is_free = volume.instance().is_none();
        if is_its && is_unfinished && is_free && Instant::now() < until {
            return Mark::Open(attempt.clone());
        }
        all.remove(&volume.id);
        Mark::None
    }
}

impl Change {
    fn word(&self) -> &'static str {
        match self {
            Self::Create(..) => "creating",
            Self::Attach(_) => "attaching",
            Self::Detach(_) => "detaching",
            Self::Resize(_) => "resizing",
        }
    }

    fn shown(&self, volume: &CivoVolume) -> Shown {
        match (self, volume.status(), volume.instance()) {
            (Self::Attach(to), Status::Attached, Some(on)) if to == on => Shown::Done,
            // A stale read contains the instance that used the volume before.
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
                // A different controller has completed the change first.
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
            let changes = Changes::default();
            assert_eq!(changes.hidden(&before), None);
            changes.accepted(&id, change.clone());
            for (seen, hidden) in [
                (&before, Some(word)),
                (&during, None),
                (&before, Some(word)),
                (&after, None),
                // A later read may be stale.
                (&before, Some(word)),
                (&after, None),
            ] {
                assert_eq!(changes.hidden(seen), hidden, "{change:?} {seen:?}");
            }
            tokio::time::advance(STALE_MAX).await;
            // From this point, the record belongs to the next change of the volume.
            assert_eq!(changes.hidden(&before), None);
            changes.accepted(&id, change.clone());
            tokio::time::advance(STALE_MAX).await;
            assert_eq!(changes.hidden(&before), None);
            let lost = Failure::busy("no answer").may_be_running();
            changes.failed(&id, change.clone(), &lost);
            assert_eq!(changes.hidden(&before), Some(word));
            tokio::time::advance(LOST_MAX).await;
            assert_eq!(changes.hidden(&before), None);
            changes.failed(&id, change, &lost.nothing_happened());
            assert_eq!(changes.hidden(&before), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_another_instance_had_before_is_not_attached_yet() {
        let id = VolumeId::new(ID).unwrap();
        let changes = Changes::default();
        changes.accepted(&id, Change::Attach("node".to_owned()));
        let shown = |instance| changes.hidden(&volume("attached", instance, 1));
        assert_eq!(shown("other"), Some("attaching"));
        assert_eq!(shown("node"), None);
        tokio::time::advance(STALE_MAX - Duration::from_secs(1)).await;
        assert_eq!(shown("other"), Some("attaching"));
        assert_eq!(shown("node"), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(shown("other"), None, "another controller has moved it");
    }

    fn named(status: &str, instance: &str) -> CivoVolume {
        let shown = json!({"id": ID, "name": "pvc-1", "status": status, "instance_id": instance,
                           "size_gb": 1});
        serde_json::from_value(shown).unwrap()
    }

    fn created() -> (Changes, Mark) {
        let changes = Changes::default();
        let attempt = Attempt::new(7, 1);
        let id = VolumeId::new(ID).unwrap();
        let change = Change::Create("pvc-1".to_owned(), attempt.clone());
        changes.accepted(&id, change);
        (changes, Mark::Open(attempt))
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_marked_until_it_was_seen_as_anything_but_new_or_failed() {
        for (status, instance) in [
            ("available", ""),
            ("attaching", ""),
            ("attached", "i-1"),
            ("attached", ""),
            ("detaching", "i-1"),
            ("resizing", ""),
            ("perplexed", ""),
            ("error", "i-1"),
            ("creating", "i-1"),
        ] {
            let (changes, mark) = created();
            for first in ["", "creating", "error", "deleting"] {
                assert_eq!(changes.mark(&named(first, "")), mark, "{first}");
            }
            for seen in [named(status, instance), named("error", "")] {
                assert_eq!(changes.mark(&seen), Mark::None, "{status} {instance}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_was_not_read_for_long_has_no_mark() {
        let (changes, mark) = created();
        let failed = named("failed", "");
        tokio::time::advance(NEW_MAX - Duration::from_secs(1)).await;
        assert_eq!(changes.mark(&failed), mark);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(changes.mark(&failed), Mark::None);
        assert_eq!(Changes::default().mark(&failed), Mark::None);
    }

    /// Civo may respond to a creation with the ID of another volume, which may have data.
    #[tokio::test(start_paused = true)]
    async fn a_volume_of_another_name_has_no_mark() {
        let (changes, _) = created();
        let shown = json!({"id": ID, "name": "pvc-2", "status": "error", "size_gb": 1});
        let other = serde_json::from_value(shown).unwrap();
        assert_eq!(changes.mark(&other), Mark::None);
    }
}
