//! Volumes that this process has asked Civo for and that no read has shown as usable since. Such a
//! volume was never answered to a caller here, so it has no data. Civo has no place for a mark, so
//! another process does not know this of them.

use super::wire::{CivoVolume, Status};
use crate::backend::{Attempt, Mark};
use belay_server::request::VolumeId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// After that time another controller may have answered a volume that was not read here.
const KNOWN_MAX: Duration = Duration::from_secs(3600);

/// The attempts that created them, by volume.
#[derive(Debug, Default)]
pub(super) struct Unfinished(Mutex<BTreeMap<String, Asked>>);

#[derive(Debug)]
struct Asked {
    /// The name that the volume has at Civo, unless Civo has answered with another one's ID.
    name: String,
    attempt: Attempt,
    at: Instant,
}

impl Unfinished {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Civo has answered the creation of that name with that ID.
    pub(super) fn begun(&self, id: &VolumeId, name: String, attempt: Attempt) {
        let at = Instant::now();
        let mut all = self.all();
        all.retain(|_, begun| at.duration_since(begun.at) < KNOWN_MAX);
        all.insert(id.to_string(), Asked { name, attempt, at });
    }

    /// The mark of a volume that is still being created or has failed; none from then on once it
    /// is seen in any other state.
    pub(super) fn mark(&self, volume: &CivoVolume) -> Mark {
        let mut all = self.all();
        let Some(begun) = all.get(&volume.id) else {
            return Mark::None;
        };
        let is_its = volume.name.as_ref() == Some(&begun.name);
        let is_unfinished = match volume.status() {
            Status::Failed(_) | Status::Deleting => true,
            Status::Other(word) => word == "creating",
            _ => false,
        };
        let is_free = volume.instance().is_none();
        if is_its && is_unfinished && is_free && begun.at.elapsed() < KNOWN_MAX {
            return Mark::Open(begun.attempt.clone());
        }
        all.remove(&volume.id);
        Mark::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "00000000-0000-4000-8000-000000000001";

    fn volume(status: &str, instance: &str) -> CivoVolume {
        let shown = json!({"id": ID, "name": "pvc-1", "status": status, "instance_id": instance,
                           "size_gb": 1});
        serde_json::from_value(shown).unwrap()
    }

    fn begun() -> (Unfinished, Mark) {
        let unfinished = Unfinished::default();
        let attempt = Attempt::new(7, 1);
        let id = VolumeId::new(ID).unwrap();
        unfinished.begun(&id, "pvc-1".to_owned(), attempt.clone());
        (unfinished, Mark::Open(attempt))
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
            let (unfinished, mark) = begun();
            for first in ["", "creating", "error", "deleting"] {
                assert_eq!(unfinished.mark(&volume(first, "")), mark, "{first}");
            }
            for seen in [volume(status, instance), volume("error", "")] {
                assert_eq!(unfinished.mark(&seen), Mark::None, "{status} {instance}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_was_not_read_for_long_has_no_mark() {
        let (unfinished, mark) = begun();
        let failed = volume("failed", "");
        tokio::time::advance(KNOWN_MAX - Duration::from_secs(1)).await;
        assert_eq!(unfinished.mark(&failed), mark);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(unfinished.mark(&failed), Mark::None);
        assert_eq!(Unfinished::default().mark(&failed), Mark::None);
    }

    /// Civo may answer a creation with the ID of another volume, which may have data.
    #[tokio::test(start_paused = true)]
    async fn a_volume_of_another_name_has_no_mark() {
        let (unfinished, _) = begun();
        let shown = json!({"id": ID, "name": "pvc-2", "status": "error", "size_gb": 1});
        let other = serde_json::from_value(shown).unwrap();
        assert_eq!(unfinished.mark(&other), Mark::None);
    }
}
