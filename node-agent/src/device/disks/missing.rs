//! The message about a volume whose disk is missing.

use std::fmt;

use belay_contract::disk::DiskIdentity;

/// How many disks a message lists.
const LISTED_MAX: usize = 32;

/// A volume's disk is missing; with the disks that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    wanted: String,
    disks: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { wanted, disks } = self;
        write!(f, "{wanted} is not on this node; there are: {disks}")
    }
}

impl Missing {
    /// That disk is missing; the node has these.
    pub(super) fn new(wanted: &DiskIdentity, disks: &[String]) -> Self {
        let listed = disks.get(..LISTED_MAX).unwrap_or(disks).join(", ");
        let disks = match disks.len().saturating_sub(LISTED_MAX) {
            0 if disks.is_empty() => "none".to_owned(),
            0 => listed,
            more => format!("{listed}, {more} more"),
        };
        Missing {
            wanted: words(wanted),
            disks,
        }
    }
}

/// The identity of a disk, for messages.
pub(super) fn words(wanted: &DiskIdentity) -> String {
    match wanted {
        DiskIdentity::Serial(serial) => format!("the disk with serial {serial:?}"),
        DiskIdentity::Wwn(wwn) => format!("the disk with world-wide name {wwn}"),
        DiskIdentity::Names(names) => format!("the disk {}", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_lists_some_disks_and_counts_the_rest() {
        let wanted = DiskIdentity::Names(vec!["virtio-a".to_owned(), "virtio-b".to_owned()]);
        let message = |count: usize| {
            let disks: Vec<_> = (0..count).map(|number| format!("d{number}")).collect();
            Missing::new(&wanted, &disks).to_string()
        };
        let begin = "the disk virtio-a or virtio-b is not on this node; there are: ";
        assert_eq!(message(0), format!("{begin}none"));
        assert_eq!(message(2), format!("{begin}d0, d1"));
        assert!(message(LISTED_MAX + 3).ends_with("d31, 3 more"));
    }
}
