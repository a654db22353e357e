//! The codes that a call may return while others work on the same volume. The codes for invalid
//! calls are not among them, since all these calls are valid.

use tonic::Code::{self, Aborted, AlreadyExists, FailedPrecondition, NotFound, Ok};

/// The codes that each RPC may return, in addition to OK and ABORTED (another call about the volume
/// is pending).
const BESIDES: &[(&str, &[Code])] = &[
    // The name belongs to a volume from another source; or the source was deleted, or has just
    // grown.
    (
        "CreateVolume",
        &[AlreadyExists, NotFound, FailedPrecondition],
    ),
    // The volume is staged.
    ("DeleteVolume", &[FailedPrecondition]),
    ("ControllerExpandVolume", &[NotFound]),
    ("ControllerGetVolume", &[NotFound]),
    ("ListVolumes", &[]),
    // The name belongs to a snapshot of another volume; or the volume was deleted.
    ("CreateSnapshot", &[AlreadyExists, NotFound]),
    ("DeleteSnapshot", &[]),
    ("ListSnapshots", &[]),
    // The volume was deleted; or it was cut from its source in the middle of a format.
    ("NodeStageVolume", &[NotFound, FailedPrecondition]),
    // The volume is still published.
    ("NodeUnstageVolume", &[FailedPrecondition]),
    // The volume is published there with other write access; or it is not staged.
    (
        "NodePublishVolume",
        &[AlreadyExists, NotFound, FailedPrecondition],
    ),
    ("NodeUnpublishVolume", &[]),
    ("NodeGetVolumeStats", &[NotFound]),
    // The volume is neither staged nor published; or ext4 requires CAP_SYS_RESOURCE.
    ("NodeExpandVolume", &[NotFound, FailedPrecondition]),
];

/// Returns every RPC that the crowd uses.
pub(crate) fn rpcs() -> impl Iterator<Item = &'static str> {
    BESIDES.iter().map(|(rpc, _)| *rpc)
}

/// Whether a call may end with this code.
pub(crate) fn may_end(rpc: &str, code: Code) -> bool {
    let besides = BESIDES.iter().find(|(known, _)| *known == rpc);
    let (_, besides) = besides.unwrap_or_else(|| panic!("{rpc} is not in the table"));
    matches!(code, Ok | Aborted) || besides.contains(&code)
}
