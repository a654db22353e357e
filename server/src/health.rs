//! What is wrong with a volume or with the storage behind all, in the words of CSI 1.13, and for
//! volumes in the one bit that came before. Knows no cause and no reason by name.

use belay_proto::csi::v1 as csi;
use csi::node_get_storage_health_response::StorageBackendHealth;
use csi::volume_health::VolumeHealthEntry;
use csi::{StorageHealthErrorType, VolumeHealthErrorType};

/// How badly a volume fares (CSI 1.13, `VolumeHealthErrorType`), the least bad first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Works, but worse than it should.
    Degraded,
    /// Cannot be used.
    Inaccessible,
    /// Data is gone, or very likely so.
    DataLoss,
}

/// How badly the storage behind all volumes fares (CSI 1.13, `StorageHealthErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageSeverity {
    /// Works, but worse than it should.
    Degraded,
    /// No volume works here.
    Unreachable,
}

/// Why something is complained of, for programs. The reason decides how bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason<S = Severity> {
    name: &'static str,
    severity: S,
}

impl<S: Copy> Reason<S> {
    /// `name` is one word in CamelCase, which monitors match: it never changes.
    #[must_use]
    pub const fn new(name: &'static str, severity: S) -> Self {
        Self { name, severity }
    }

    /// The word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// How bad.
    #[must_use]
    pub const fn severity(self) -> S {
        self.severity
    }
}

/// One thing that is wrong with a volume, or with the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint<S = Severity> {
    /// For programs.
    pub reason: Reason<S>,
    /// For people: what, since when if that is known, and what to do. Never holds a secret.
    pub message: String,
}

impl<S> Complaint<S> {
    /// For that reason; the message as above.
    #[must_use]
    pub fn new(reason: Reason<S>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// All that is wrong with a volume; empty = nothing is known to be. Each reason is there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaints(Vec<Complaint>);

impl Complaints {
    /// Adds one, unless there is one with the same reason, which then tells enough.
    pub fn add(&mut self, reason: Reason, message: impl Into<String>) {
        if !self.0.iter().any(|known| known.reason == reason) {
            self.0.push(Complaint::new(reason, message));
        }
    }

    /// Nothing is known to be wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One after the other, in the order in which they came.
    pub fn iter(&self) -> std::slice::Iter<'_, Complaint> {
        self.0.iter()
    }

    /// As CSI 1.13 has it.
    #[must_use]
    pub fn volume_health(&self, id: &str) -> csi::VolumeHealth {
        let entry = |complaint: &Complaint| VolumeHealthEntry {
            status: complaint.reason.severity.on_the_wire().into(),
            reason: complaint.reason.name.to_owned(),
            message: complaint.message.clone(),
        };
        csi::VolumeHealth {
            volume_id: id.to_owned(),
            health_statuses: self.0.iter().map(entry).collect(),
        }
    }

    /// As kubelets up to 1.36 read it: the worst first.
    #[must_use]
    pub fn condition(&self) -> csi::VolumeCondition {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by_key(|complaint| std::cmp::Reverse(complaint.reason.severity));
        let told =
            |complaint: &&Complaint| format!("{}: {}", complaint.reason.name, complaint.message);
        let message = match sorted.is_empty() {
            true => "nothing is known to be wrong".to_owned(),
            false => sorted.iter().map(told).collect::<Vec<_>>().join("; "),
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

impl Complaint<StorageSeverity> {
    /// As CSI 1.13 has it.
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
        let mut complaints = Complaints::default();
        complaints.add(SLOW, "since noon");
        complaints.add(SLOW, "since one");
        complaints.add(GONE, "by now it is gone");
        let health = complaints.volume_health("vol-1");
        assert_eq!(health.volume_id, "vol-1");
        let told: Vec<_> = health
            .health_statuses
            .iter()
            .map(|entry| (entry.status(), entry.message.as_str()))
            .collect();
        let expected = [
            (VolumeHealthErrorType::Degraded, "since noon"),
            (VolumeHealthErrorType::DataLoss, "by now it is gone"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_old_bit_begins_with_the_worst() {
        let mut complaints = Complaints::default();
        assert!(!complaints.condition().abnormal);
        assert!(!complaints.condition().message.is_empty());
        complaints.add(SLOW, "it is slow");
        complaints.add(GONE, "it is gone");
        let condition = complaints.condition();
        assert!(condition.abnormal);
        assert_eq!(condition.message, "Gone: it is gone; Slow: it is slow");
    }
}
