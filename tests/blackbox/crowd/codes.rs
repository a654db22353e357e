//! The codes of a call when others work on the same volume at the same time. The codes for invalid
//! calls are not among them: these calls are valid.

use tonic::Code::{self, Aborted, AlreadyExists, FailedPrecondition, NotFound, Ok};

/// OK and ABORTED (another call about that volume is pending) are always allowed; in addition:
const BESIDES: &[(&str, &[Code])] = &[
    // The name belongs to a volume from another source; the source is gone, or has just grown.
    (
        "CreateVolume",
        &[AlreadyExists, NotFound, FailedPrecondition],
    ),
    // Attached, or staged.
    ("DeleteVolume", &[FailedPrecondition]),
    ("ControllerPublishVolume", &[NotFound]),
    ("ControllerUnpublishVolume", &[]),
    ("ControllerExpandVolume", &[NotFound]),
    ("ControllerGetVolume", &[NotFound]),
    ("ListVolumes", &[]),
    // The name belongs to a snapshot of another volume; the volume is gone.
    ("CreateSnapshot", &[AlreadyExists, NotFound]),
    ("DeleteSnapshot", &[]),
    ("ListSnapshots", &[]),
    // Deleted; or cut from its origin in the middle of a format.
    ("NodeStageVolume", &[NotFound, FailedPrecondition]),
    // Still published.
    ("NodeUnstageVolume", &[FailedPrecondition]),
    // Published there, but for reading only, or for writing; not staged.
    (
        "NodePublishVolume",
        &[AlreadyExists, NotFound, FailedPrecondition],
    ),
    ("NodeUnpublishVolume", &[]),
    ("NodeGetVolumeStats", &[NotFound]),
    // Neither staged nor published; ext4 without CAP_SYS_RESOURCE.
    ("NodeExpandVolume", &[NotFound, FailedPrecondition]),
];

/// Every RPC that the crowd uses.
pub(crate) fn rpcs() -> impl Iterator<Item = &'static str> {
    BESIDES.iter().map(|(rpc, _)| *rpc)
}

/// Whether a call may end with that code.
pub(crate) fn may_end(rpc: &str, code: Code) -> bool {
    let besides = BESIDES.iter().find(|(known, _)| *known == rpc);
    let (_, besides) = besides.unwrap_or_else(|| panic!("{rpc} is not in the table"));
    matches!(code, Ok | Aborted) || besides.contains(&code)
}
