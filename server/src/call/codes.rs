//! Maps failures to gRPC codes. No other module selects a code. A code is an instruction to the
//! caller, not a description, so the comments explain how the official sidecars and the kubelet
//! react to each code. This module must not depend on the messages of failures.
//!
//! The reactions in the sources of external-provisioner 6.3, external-attacher 4.12,
//! external-resizer 2.2, external-snapshotter 8.6 and the kubelet 1.36 are:
//! - CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE and ABORTED are *non-final* for all callers: the
//!   operation may still be running. The callers retry, and keep the object until they get a final
//!   code.
//! - RESOURCE_EXHAUSTED is non-final for all callers except the provisioner, which concludes that
//!   nothing was created. If the volume may be created for a different node, the provisioner lets
//!   the scheduler select a node.
//! - All other codes are final: the provisioner may forget the volume without a DeleteVolume call,
//!   and the kubelet may forget a staged volume without a NodeUnstageVolume call.

use super::{Certainty, Kind, Rpc};
use tonic::Code;

/// Returns the code for a failure. The code is never OK.
#[must_use]
pub const fn code(rpc: Rpc, kind: Kind, certainty: Certainty) -> Code {
    use Certainty::{MayBeRunning, NothingHappened, RolledBack};
    match (certainty, kind) {
        (MayBeRunning, kind) => non_final(kind),
        (NothingHappened | RolledBack, kind) => settled(rpc, kind),
    }
}

/// Returns the code for a call that may have left changes behind. All of these codes make the
/// caller retry.
const fn non_final(kind: Kind) -> Code {
    match kind {
        // The caller retries with back-off. The server's deadline has expired, not the caller's.
        Kind::Timeout => Code::DeadlineExceeded,
        // The caller reacts to UNAVAILABLE as to a broken connection.
        Kind::Unreachable => Code::Unavailable,
        // ABORTED means "operation pending". ABORTED suits any unfinished state, since the retry
        // completes the operation.
        Kind::Invalid
        | Kind::NotFound
        | Kind::Incompatible
        | Kind::Busy
        | Kind::Precondition
        | Kind::Range
        | Kind::Quota
        | Kind::Unsupported
        | Kind::BadToken
        | Kind::Unauthenticated
        | Kind::Denied
        | Kind::System
        | Kind::Bug => Code::Aborted,
    }
}

/// Returns the code for a call that has left no changes behind. This code describes the failure.
const fn settled(rpc: Rpc, kind: Kind) -> Code {
    match kind {
        // The provisioner treats INVALID_ARGUMENT as final, and adds an event to the
        // PersistentVolumeClaim. The resizer treats the request as infeasible, and the user may
        // request a smaller size.
        Kind::Invalid => Code::InvalidArgument,
        // The attacher and the kubelet retry with back-off. The resizer treats the request as
        // infeasible. Calls that undo a change return OK if the object does not exist, instead of
        // this failure.
        Kind::NotFound => Code::NotFound,
        Kind::Incompatible if names_an_object(rpc) => Code::AlreadyExists,
        // The specification defines ALREADY_EXISTS only for calls that name an object.
        Kind::Incompatible => Code::FailedPrecondition,
        // An operation is still running: all callers retry, and the provisioner must not forget the
        // volume.
        Kind::Busy => Code::Aborted,
        // The code is final, and callers retry with back-off. For the resizer, the code means that
        // the volume must be offline first.
        Kind::Precondition => Code::FailedPrecondition,
        Kind::Range if has_a_range(rpc) => Code::OutOfRange,
        // The size is invalid only because of the state of the object.
        Kind::Range => Code::FailedPrecondition,
        // The resizer treats the request as infeasible, and the user may request a smaller size.
        // After RESOURCE_EXHAUSTED, the resizer would keep requesting the size for which there is
        // no space, even if the user requests a smaller size.
        Kind::Quota if matches!(rpc, Rpc::ControllerExpandVolume) => Code::OutOfRange,
        // The resizer treats the request as infeasible, and repeats the request slowly. The user
        // may choose a different VolumeAttributesClass. After RESOURCE_EXHAUSTED, the resizer would
        // keep requesting the first class even if the user chooses a different class.
        Kind::Quota if matches!(rpc, Rpc::ControllerModifyVolume) => Code::InvalidArgument,
        // The provisioner drops the selected node and lets the scheduler choose again. The other
        // callers retry. The snapshotter keeps the VolumeSnapshot object meanwhile, so the message
        // explains how to delete the object.
        Kind::Quota => Code::ResourceExhausted,
        // A non-final code would make the provisioner and the snapshotter keep an object whose
        // creation was never begun, and block its deletion. INTERNAL is final, and callers retry
        // anyway.
        Kind::Unreachable | Kind::Timeout if creates(rpc) => Code::Internal,
        Kind::Unreachable => Code::Unavailable,
        Kind::Timeout => Code::DeadlineExceeded,
        Kind::Unsupported => unsupported(rpc),
        // After ABORTED, the caller starts again at the first page.
        Kind::BadToken if is_paged(rpc) => Code::Aborted,
        // The code is final, and callers retry with back-off. An operator must give the driver
        // different credentials.
        Kind::Unauthenticated => Code::Unauthenticated,
        Kind::Denied => Code::PermissionDenied,
        // The code is final, and callers retry with back-off. A page token in a call without pages
        // is an internal error.
        Kind::BadToken | Kind::System | Kind::Bug => Code::Internal,
    }
}

/// Returns the code for a call that the driver implements, but that requests an unsupported
/// feature.
const fn unsupported(rpc: Rpc) -> Code {
    match rpc {
        // The specification calls this "unsupported field": a parameter, a source or a capability.
        // INVALID_ARGUMENT is final, and the sidecar adds an event to the PersistentVolumeClaim.
        Rpc::CreateVolume
        | Rpc::CreateSnapshot
        | Rpc::CreateVolumeGroupSnapshot
        | Rpc::ControllerModifyVolume => Code::InvalidArgument,
        // The specification calls this "exceeds capabilities": the caller must query the
        // capabilities before it retries.
        Rpc::ControllerPublishVolume | Rpc::NodeStageVolume | Rpc::NodePublishVolume => {
            Code::FailedPrecondition
        }
        // The driver does not implement the call, so the sidecars disable the feature.
        _ => Code::Unimplemented,
    }
}

/// Whether the call creates or attaches an object that the caller has named. Only calls of this
/// kind may report that the object exists, but differs from the request.
const fn names_an_object(rpc: Rpc) -> bool {
    creates(rpc)
        || matches!(
            rpc,
            Rpc::ControllerPublishVolume | Rpc::NodeStageVolume | Rpc::NodePublishVolume
        )
}

/// Whether the call creates an object whose name only the caller knows. After a final error, the
/// caller may forget the object.
const fn creates(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::CreateVolume | Rpc::CreateSnapshot | Rpc::CreateVolumeGroupSnapshot
    )
}

/// Whether the call carries a capacity range or an offset.
const fn has_a_range(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::CreateVolume
            | Rpc::ControllerExpandVolume
            | Rpc::NodeExpandVolume
            | Rpc::GetMetadataAllocated
            | Rpc::GetMetadataDelta
    )
}

/// Whether the call returns pages.
const fn is_paged(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::ListVolumes | Rpc::ListSnapshots | Rpc::ControllerListVolumeHealth
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NON_FINAL: [Code; 3] = [Code::Aborted, Code::Unavailable, Code::DeadlineExceeded];

    fn every_failure() -> impl Iterator<Item = (Rpc, Kind, Certainty)> {
        Rpc::ALL.iter().flat_map(|rpc| {
            Kind::ALL.iter().flat_map(|kind| {
                Certainty::ALL
                    .iter()
                    .map(|certainty| (*rpc, *kind, *certainty))
            })
        })
    }

    #[test]
    fn failures_that_may_be_running_have_a_non_final_code_whatever_the_kind() {
        for (rpc, kind, _) in every_failure() {
            let code = code(rpc, kind, Certainty::MayBeRunning);
            assert!(NON_FINAL.contains(&code), "{rpc:?} {kind:?}: {code:?}");
        }
    }

    /// The exception is a snapshot for which there is no space. The specification's code for this
    /// failure is not final for csi-snapshotter, so the message says how to delete the
    /// VolumeSnapshot object.
    #[test]
    fn an_operation_never_begun_or_undone_does_not_block_the_provisioner() {
        for rpc in CREATING {
            let is_snapshot = *rpc != Rpc::CreateVolume;
            for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Busy) {
                for certainty in [Certainty::NothingHappened, Certainty::RolledBack] {
                    let code = code(*rpc, *kind, certainty);
                    let blocks =
                        NON_FINAL.contains(&code) || is_snapshot && code == Code::ResourceExhausted;
                    let is_exception = is_snapshot && *kind == Kind::Quota;
                    assert_eq!(blocks, is_exception, "{rpc:?} {kind:?}: {code:?}");
                }
            }
        }
    }

    #[test]
    fn undone_has_the_code_of_never_begun_and_no_failure_is_ok() {
        for (rpc, kind, certainty) in every_failure() {
            assert_ne!(code(rpc, kind, certainty), Code::Ok, "{rpc:?} {kind:?}");
            let never_begun = code(rpc, kind, Certainty::NothingHappened);
            assert_eq!(
                code(rpc, kind, Certainty::RolledBack),
                never_begun,
                "{rpc:?} {kind:?}"
            );
        }
    }

    type Exceptions = &'static [(Code, &'static [Rpc])];

    /// Each row has the kind of a failure, its code, and the calls that return a different code.
    const TABLE: [(Kind, Code, Exceptions); 15] = [
        (Kind::Invalid, Code::InvalidArgument, &[]),
        (Kind::NotFound, Code::NotFound, &[]),
        (
            Kind::Incompatible,
            Code::FailedPrecondition,
            &[(Code::AlreadyExists, NAMING)],
        ),
        (Kind::Busy, Code::Aborted, &[]),
        (Kind::Precondition, Code::FailedPrecondition, &[]),
        (
            Kind::Range,
            Code::FailedPrecondition,
            &[(Code::OutOfRange, RANGED)],
        ),
        (
            Kind::Quota,
            Code::ResourceExhausted,
            &[
                (Code::OutOfRange, &[Rpc::ControllerExpandVolume]),
                (Code::InvalidArgument, &[Rpc::ControllerModifyVolume]),
            ],
        ),
        (
            Kind::Unreachable,
            Code::Unavailable,
            &[(Code::Internal, CREATING)],
        ),
        (
            Kind::Unsupported,
            Code::Unimplemented,
            &[
                (Code::InvalidArgument, PARAMETERISED),
                (Code::FailedPrecondition, USING),
            ],
        ),
        (
            Kind::Timeout,
            Code::DeadlineExceeded,
            &[(Code::Internal, CREATING)],
        ),
        (Kind::BadToken, Code::Internal, &[(Code::Aborted, PAGED)]),
        (Kind::Unauthenticated, Code::Unauthenticated, &[]),
        (Kind::Denied, Code::PermissionDenied, &[]),
        (Kind::System, Code::Internal, &[]),
        (Kind::Bug, Code::Internal, &[]),
    ];
    const CREATING: &[Rpc] = &[
        Rpc::CreateVolume,
        Rpc::CreateSnapshot,
        Rpc::CreateVolumeGroupSnapshot,
    ];
    const USING: &[Rpc] = &[
        Rpc::ControllerPublishVolume,
        Rpc::NodeStageVolume,
        Rpc::NodePublishVolume,
    ];
    const NAMING: &[Rpc] = &[
        CREATING[0],
        CREATING[1],
        CREATING[2],
        USING[0],
        USING[1],
        USING[2],
    ];
    const PARAMETERISED: &[Rpc] = &[
        CREATING[0],
        CREATING[1],
        CREATING[2],
        Rpc::ControllerModifyVolume,
    ];
    const PAGED: &[Rpc] = &[
        Rpc::ListVolumes,
        Rpc::ListSnapshots,
        Rpc::ControllerListVolumeHealth,
    ];
    const RANGED: &[Rpc] = &[
        Rpc::CreateVolume,
        Rpc::ControllerExpandVolume,
        Rpc::NodeExpandVolume,
        Rpc::GetMetadataAllocated,
        Rpc::GetMetadataDelta,
    ];

    #[test]
    fn every_call_and_kind_has_the_code_of_the_specification() {
        assert_eq!(TABLE.map(|(kind, ..)| kind).as_slice(), Kind::ALL);
        for (kind, usual, exceptions) in TABLE {
            for rpc in Rpc::ALL {
                let exception = exceptions.iter().find(|(_, rpcs)| rpcs.contains(rpc));
                let expected = exception.map_or(usual, |(code, _)| *code);
                let code = code(*rpc, kind, Certainty::NothingHappened);
                assert_eq!(code, expected, "{rpc:?} {kind:?}");
            }
        }
    }

    #[test]
    fn failures_that_may_be_running_have_one_code_for_all_calls_and_kinds_but_two() {
        for (rpc, kind, _) in every_failure() {
            let expected = match kind {
                Kind::Timeout => Code::DeadlineExceeded,
                Kind::Unreachable => Code::Unavailable,
                _ => Code::Aborted,
            };
            let code = code(rpc, kind, Certainty::MayBeRunning);
            assert_eq!(code, expected, "{rpc:?} {kind:?}");
        }
    }
}
