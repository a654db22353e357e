//! The four kinds of volume that the demo shows.

use belay_proto::csi::v1::VolumeCapability;
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use belay_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use clap::ValueEnum;

/// How a volume is used, in the order in which the kinds are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Kind {
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
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Block => "block",
        }
    }

    pub(super) fn is_block(self) -> bool {
        self == Self::Block
    }

    /// The capability that a kubelet would send.
    pub(super) fn capability(self, mode: Mode) -> VolumeCapability {
        let access_type = if self.is_block() {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.name().to_owned(),
                ..Default::default()
            })
        };
        VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }
}
