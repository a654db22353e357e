//! The four kinds of volume in the demo, and its scenes.

use belay_bed::requests;
use belay_proto::csi::v1::VolumeCapability;
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use clap::ValueEnum;

/// A kind of volume, in the order of the demo.
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
    /// Filesystem type, or `block`; also the name of its directory.
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

    /// What a stage does if it finds data.
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

/// A part of the demo, with its own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scene {
    /// A volume's whole lifecycle.
    Life(Kind),
    /// A snapshot, a volume restored from it, and a clone.
    Copies(Kind),
}

impl Scene {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Life(kind) | Self::Copies(kind) => kind,
        }
    }

    /// For reports.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Life(kind) => kind.name().to_owned(),
            Self::Copies(kind) => format!("copies of {}", kind.name()),
        }
    }
}

/// A part that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The lifecycles of all kinds of volume
    Lives,
    /// Snapshot, restore and clone
    Copies,
}

impl Part {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lives => "lives",
            Self::Copies => "copies",
        }
    }
}
