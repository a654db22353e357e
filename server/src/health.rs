//! What is wrong with a volume, in the words of CSI 1.13 and in the one bit that came before. Knows
//! no cause: those who find one give it a word, and `docs/health.md` tells operators what to do.

use belay_proto::csi::v1 as csi;
use csi::VolumeHealthErrorType;
use csi::volume_health::VolumeHealthEntry;

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

/// One thing that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// How bad.
    pub severity: Severity,
    /// For programs: one word in CamelCase.
    pub reason: &'static str,
    /// For people: what, since when if that is known, and what to do. Never holds a secret.
    pub message: String,
}

/// All that is wrong with a volume; empty = nothing is known to be. No two complaints have both
/// severity and reason in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaints(Vec<Complaint>);

impl Complaints {
    /// Adds one, unless there is one with the same severity and reason, which then tells enough.
    pub fn add(&mut self, severity: Severity, reason: &'static str, message: impl Into<String>) {
        let is_same = |known: &Complaint| known.severity == severity && known.reason == reason;
        if !self.0.iter().any(is_same) {
            self.0.push(Complaint {
                severity,
                reason,
                message: message.into(),
            });
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
            status: complaint.severity.on_the_wire().into(),
            reason: complaint.reason.to_owned(),
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
        sorted.sort_by_key(|complaint| std::cmp::Reverse(complaint.severity));
        let told = |complaint: &&Complaint| format!("{}: {}", complaint.reason, complaint.message);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_entries_share_severity_and_reason() {
        let mut complaints = Complaints::default();
        complaints.add(Severity::Degraded, "Slow", "since noon");
        complaints.add(Severity::Degraded, "Slow", "since one");
        complaints.add(Severity::Inaccessible, "Slow", "by now it stands");
        let health = complaints.volume_health("vol-1");
        assert_eq!(health.volume_id, "vol-1");
        let told: Vec<_> = health
            .health_statuses
            .iter()
            .map(|entry| (entry.status(), entry.message.as_str()))
            .collect();
        let expected = [
            (VolumeHealthErrorType::Degraded, "since noon"),
            (VolumeHealthErrorType::Inaccessible, "by now it stands"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_old_bit_begins_with_the_worst() {
        let mut complaints = Complaints::default();
        assert!(!complaints.condition().abnormal);
        assert!(!complaints.condition().message.is_empty());
        complaints.add(Severity::Degraded, "Slow", "it is slow");
        complaints.add(Severity::DataLoss, "Gone", "it is gone");
        let condition = complaints.condition();
        assert!(condition.abnormal);
        assert_eq!(condition.message, "Gone: it is gone; Slow: it is slow");
    }
}
