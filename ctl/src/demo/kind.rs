//! The three kinds of volume that the demo shows.

use belay_proto::csi::v1::VolumeCapability;
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use belay_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Ext4,
    Xfs,
    Block,
}

impl Kind {
    /// In the order in which they are shown.
    pub(super) const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Block];

    /// Filesystem type, or `block`; also the name of its folder.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
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
