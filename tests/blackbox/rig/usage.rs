//! The uses of a volume, given by a word: a filesystem's name, an empty text for the default, or
//! `block`.

use belay_bed::requests::capability;
use belay_proto::csi::v1 as csi;
use csi::VolumeCapability;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType};

/// Returns a capability that allows several targets on one node.
pub(crate) fn access(kind: &str) -> VolumeCapability {
    capability(kind, Mode::SingleNodeMultiWriter)
}

/// Returns the capability with another access mode.
pub(crate) fn with_mode(capability: VolumeCapability, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        ..capability
    }
}

/// Returns the capability with mount flags.
pub(crate) fn with_flags(mut capability: VolumeCapability, flags: &[&str]) -> VolumeCapability {
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    capability
}

/// Returns the minimum size of a volume for this use, in bytes.
pub(crate) fn least_bytes(kind: &str) -> u64 {
    match kind {
        "block" => 16 << 20,
        "xfs" => 300 << 20,
        "btrfs" => 256 << 20,
        _ => 128 << 20,
    }
}
