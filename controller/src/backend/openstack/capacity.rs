//! Capacity: what the quota of the project leaves.

use super::Cloud;
use super::wire::GIB;
use crate::backend::measured::{Verb, measured};
use crate::backend::{Answer, Capacity, Planned};

impl Capacity for Cloud {
    /// By the quota for all volume types, which counts snapshots too, unless `no_snapshot_gb_quota`
    /// is set in `cinder.conf`. Quotas of a volume type, and the room of the storage, are not known
    /// to the project.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        measured(Verb::Available, async move {
            if !self.zones.may_be(planned.topology.as_ref()).await? {
                return Ok(0);
            }
            let free = self.client.limits().await?.free_gib();
            Ok(free.saturating_mul(GIB))
        })
    }
}
