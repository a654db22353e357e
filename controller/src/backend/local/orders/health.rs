//! Reports the health of the volumes of a disk in their objects.

use super::super::Local;
use super::Orders;
use crate::backend::Health as _;
use crate::kubernetes::{Change, Condition, LocalVolume, Phase, VolumeStatus};
use belay_contract::reason::volume;
use belay_server::call::{Failure, shortened};
use belay_server::health::Conditions;
use belay_server::request::Secrets;
use std::collections::HashMap;
use tokio::time::Instant;

/// Maximum length of the message of a condition in bytes; the definition of LocalVolume has a
/// larger maximum.
const MESSAGE_BYTES_MAX: usize = 1000;

/// The checks of the volumes of one disk.
#[derive(Default)]
pub(super) struct Health {
    /// The time of the last check; `None` before the first check.
    checked: Option<Instant>,
}

impl Health {
    /// Checks the volumes of a disk if the last check is old, and writes the conditions of each
    /// volume whose reasons have changed. If another process changes the object at the same time,
    /// the next check writes the conditions.
    pub(super) async fn tell(
        &mut self,
        orders: &Orders,
        disk: &str,
        local: &Local,
    ) -> Result<(), Failure> {
        let interval = orders.config.report_interval;
        let is_recent = self.checked.is_some_and(|at| at.elapsed() < interval);
        let Some(objects) = orders.volumes.all().filter(|_| !is_recent) else {
            return Ok(());
        };
        self.checked = Some(Instant::now());
        let page = local.list_unhealthy(None, usize::MAX, Secrets::default());
        let unhealthy = page.await?.volumes.into_iter();
        let unhealthy: HashMap<_, _> = unhealthy
            .map(|it| (it.id.as_str().to_owned(), it.conditions))
            .collect();
        for object in objects {
            let (Some(spec), Some(status)) = (object.spec.known(), object.known_status()) else {
                continue;
            };
            if spec.disk != disk || status.phase != Phase::Ready {
                continue;
            }
            let conditions = unhealthy.get(&spec.id).and_then(shown);
            if reasons(&conditions) == reasons(&status.conditions) {
                continue;
            }
            let status = VolumeStatus {
                conditions,
                ..status.clone()
            };
            let change = Change::<LocalVolume>::Status(&status);
            orders.client.patch(&object.metadata, change).await?;
        }
        Ok(())
    }
}

/// Returns the conditions for the object of a volume; `None` if there are none. A filesystem that
/// is read-only or nearly full is reported once, and not in each volume.
fn shown(conditions: &Conditions) -> Option<Vec<Condition>> {
    let conditions = conditions
        .iter()
        .filter(|it| ![volume::STORAGE_READ_ONLY, volume::STORAGE_NEARLY_FULL].contains(&it.reason))
        .map(|it| Condition {
            reason: it.reason.name().to_owned(),
            message: shortened(&it.message, MESSAGE_BYTES_MAX),
        });
    let conditions: Vec<_> = conditions.collect();
    (!conditions.is_empty()).then_some(conditions)
}

/// Returns the reasons. Messages contain free space, which changes often.
#[expect(clippy::ref_option, reason = "the field of a status")]
fn reasons(conditions: &Option<Vec<Condition>>) -> Vec<&str> {
    let all = conditions.iter().flatten();
    all.map(|it| it.reason.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_its_own_conditions_and_not_those_of_its_disk() {
        let mut found = Conditions::default();
        assert_eq!(shown(&found), None);
        found.add(volume::STORAGE_READ_ONLY, "read-only");
        assert_eq!(shown(&found), None);
        found.add(volume::BACKING_FILE_MISSING, "m".repeat(5000));
        let shown = shown(&found);
        assert_eq!(reasons(&shown), ["BackingFileMissing"]);
        assert!(shown.unwrap()[0].message.len() < 1024);
    }
}
