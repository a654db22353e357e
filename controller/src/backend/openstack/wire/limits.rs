//! The quota of a project (Block Storage API, *Limits*).

use super::super::BYTES_MAX;
use super::GIB;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(in super::super) struct Limits {
    pub(in super::super) limits: Kinds,
}

#[derive(Debug, Deserialize)]
pub(in super::super) struct Kinds {
    pub(in super::super) absolute: AbsoluteLimits,
}

/// For all volume types together; a negative maximum is none.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct AbsoluteLimits {
    max_total_volumes: i64,
    total_volumes_used: i64,
    max_total_volume_gigabytes: i64,
    total_gigabytes_used: i64,
}

impl AbsoluteLimits {
    /// What new volumes can have, in GiB.
    pub(in super::super) fn free_gib(&self) -> u64 {
        let unlimited = BYTES_MAX / GIB;
        let left = |max: i64, used: i64| match max {
            ..0 => unlimited,
            _ => u64::try_from(max.saturating_sub(used)).unwrap_or(0),
        };
        match left(self.max_total_volumes, self.total_volumes_used) {
            0 => 0,
            _ => left(self.max_total_volume_gigabytes, self.total_gigabytes_used).min(unlimited),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_of_the_scarcer_of_both() {
        for (volumes, gigabytes, left) in [
            ((10, 2), (1000, 5), 995),
            ((2, 2), (1000, 5), 0),
            ((10, 2), (5, 9), 0),
            ((-1, 2), (7, 5), 2),
            ((10, 2), (-1, 5), BYTES_MAX / GIB),
        ] {
            let limits = AbsoluteLimits {
                max_total_volumes: volumes.0,
                total_volumes_used: volumes.1,
                max_total_volume_gigabytes: gigabytes.0,
                total_gigabytes_used: gigabytes.1,
            };
            assert_eq!(limits.free_gib(), left, "{limits:?}");
        }
    }
}
