//! The health of a volume, or of the storage behind all volumes, in the terms of CSI 1.13. The
//! health of a volume is also available as the older `VolumeCondition`. This module does not depend
//! on the individual reasons.

use belay_proto::csi::v1 as csi;
use csi::node_get_storage_health_response::StorageBackendHealth;
use csi::volume_health::VolumeHealthEntry;
use csi::{StorageHealthErrorType, VolumeHealthErrorType};

/// The severity of a volume's condition (CSI 1.13, `VolumeHealthErrorType`), least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The volume can be used, but is degraded.
    Degraded,
    /// The volume cannot be used.
    Inaccessible,
    /// Data of the volume is lost, or very likely lost.
    DataLoss,
}

/// The severity of a condition of the storage (CSI 1.13, `StorageHealthErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageSeverity {
    /// The storage can be used, but is degraded.
    Degraded,
    /// The storage cannot be used, so no volume can be used on this node.
    Unreachable,
}

/// The machine-readable reason for a condition. It determines the severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason<S = Severity> {
    name: &'static str,
    severity: S,
}

impl<S: Copy> Reason<S> {
    /// Creates a reason. `name` is one CamelCase word. The name must never change, since monitoring
    /// rules match it.
    #[must_use]
    pub const fn new(name: &'static str, severity: S) -> Self {
        Self { name, severity }
    }

    /// Returns the name of the reason.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the severity of the reason.
    #[must_use]
    pub const fn severity(self) -> S {
        self.severity
    }
}

/// A condition of a volume, or of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition<S = Severity> {
    /// The machine-readable reason.
    pub reason: Reason<S>,
    /// The message for users: the problem, its start if known, and the remedy. Never contains a
    /// secret.
    pub message: String,
}

impl<S> Condition<S> {
    /// Creates a condition with this reason and message.
    #[must_use]
    pub fn new(reason: Reason<S>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// All conditions of a volume; empty if no problem is known. Each reason occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(Vec<Condition>);

impl Conditions {
    /// Adds a condition, unless a condition with the same reason is present.
    pub fn add(&mut self, reason: Reason, message: impl Into<String>) {
        if !self.0.iter().any(|known| known.reason == reason) {
            self.0.push(Condition::new(reason, message));
        }
    }

    /// Whether no problem is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the conditions in the order in which they were added.
    pub fn iter(&self) -> std::slice::Iter<'_, Condition> {
        self.0.iter()
    }

    /// Returns the conditions of the volume `id` as a CSI 1.13 message.
    #[must_use]
    pub fn volume_health(&self, id: &str) -> csi::VolumeHealth {
        let entry = |condition: &Condition| VolumeHealthEntry {
            status: condition.reason.severity.on_the_wire().into(),
            reason: condition.reason.name.to_owned(),
            message: condition.message.clone(),
        };
        csi::VolumeHealth {
            volume_id: id.to_owned(),
            health_statuses: self.0.iter().map(entry).collect(),
        }
    }

    /// Returns all conditions as one message for kubelets up to 1.36, with the most severe
    /// condition first.
    #[must_use]
    pub fn volume_condition(&self) -> csi::VolumeCondition {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by_key(|condition| std::cmp::Reverse(condition.reason.severity));
        let reported =
            |condition: &&Condition| format!("{}: {}", condition.reason.name, condition.message);
        let message = match sorted.is_empty() {
            true => "no problem is known".to_owned(),
            false => sorted.iter().map(reported).collect::<Vec<_>>().join("; "),
        };
        csi::VolumeCondition {
            abnormal: !self.is_empty(),
            message,
        }
    }
}

impl Severity {
    fn on_the_wire(self) -> VolumeHealthErrorType {
        match self {
            Severity::Degraded => VolumeHealthErrorType::Degraded,
            Severity::Inaccessible => VolumeHealthErrorType::Inaccessible,
            Severity::DataLoss => VolumeHealthErrorType::DataLoss,
        }
    }
}

impl Condition<StorageSeverity> {
    /// Returns the condition as a CSI 1.13 message.
    #[must_use]
    pub fn backend_health(self) -> StorageBackendHealth {
        let status = match self.reason.severity {
            StorageSeverity::Degraded => StorageHealthErrorType::StorageDegraded,
            StorageSeverity::Unreachable => StorageHealthErrorType::StorageUnreachable,
        };
        StorageBackendHealth {
            status: status.into(),
            reason: self.reason.name.to_owned(),
            message: self.message,
            volume_capability: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Reason = Reason::new("Slow", Severity::Degraded);
    const GONE: Reason = Reason::new("Gone", Severity::DataLoss);

    #[test]
    fn no_two_entries_share_a_reason() {
        let mut conditions = Conditions::default();
        conditions.add(SLOW, "since noon");
        conditions.add(SLOW, "since one");
        conditions.add(GONE, "all blocks are lost");
        let health = conditions.volume_health("vol-1");
        assert_eq!(health.volume_id, "vol-1");
        let reported: Vec<_> = health
            .health_statuses
            .iter()
            .map(|entry| (entry.status(), entry.message.as_str()))
            .collect();
        let expected = [
            (VolumeHealthErrorType::Degraded, "since noon"),
            (VolumeHealthErrorType::DataLoss, "all blocks are lost"),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn the_condition_starts_with_the_most_severe() {
        let mut conditions = Conditions::default();
        assert!(!conditions.volume_condition().abnormal);
        assert!(!conditions.volume_condition().message.is_empty());
        conditions.add(SLOW, "it is slow");
        conditions.add(GONE, "it is gone");
        let condition = conditions.volume_condition();
        assert!(condition.abnormal);
        assert_eq!(condition.message, "Gone: it is gone; Slow: it is slow");
    }
}
