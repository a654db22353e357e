//! The four kinds of volume that the demo shows, its scenes, and what all of it stands on.

use belay_bed::requests;
use belay_proto::csi::v1::VolumeCapability;
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use clap::ValueEnum;

/// How a volume is used, in the order in which the kinds are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// A filesystem, ext4
    Ext4,
    /// A filesystem, xfs
    Xfs,
    /// A filesystem, btrfs
    Btrfs,
    /// A raw block device
    Block,
}

impl Kind {
    /// Filesystem type, or `block`; also the name of its folder.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Block => "block",
        }
    }

    pub(crate) fn is_block(self) -> bool {
        self == Self::Block
    }

    /// What a stage does that finds data.
    pub(crate) fn found(self) -> &'static str {
        if self.is_block() {
            "device bound"
        } else {
            "not formatted, mounted"
        }
    }

    /// The capability that a kubelet would send.
    pub(crate) fn capability(self, mode: Mode) -> VolumeCapability {
        requests::capability(self.name(), mode)
    }
}

/// A part of the demo, with a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scene {
    /// A volume's whole life.
    Life(Kind),
    /// A snapshot, what is restored from it, and a clone.
    Copies(Kind),
}

impl Scene {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Life(kind) | Self::Copies(kind) => kind,
        }
    }

    /// In reports, tables and JSON.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Life(kind) => kind.name().to_owned(),
            Self::Copies(kind) => format!("copies of {}", kind.name()),
        }
    }
}

/// What may be shown alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The lives of all kinds of volume
    Lives,
    /// Snapshot, restore and clone
    Copies,
}

impl Part {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lives => "lives",
            Self::Copies => "copies",
        }
    }
}

/// The filesystem beneath everything, which the controller's state directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateFs {
    /// Shares blocks: snapshots and clones while the volume is in use
    Xfs,
    /// Shares no blocks: snapshots and clones of detached volumes only, by copying
    Ext4,
}

impl StateFs {
    /// As mount(8) calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }
}
