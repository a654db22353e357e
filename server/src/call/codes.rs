//! Maps failures to gRPC codes; nothing else does. A code is an instruction to the caller, not a
//! description: the comments say how the official sidecars and the kubelet react. Must not read
//! messages.
//!
//! From the sources of external-provisioner 6.3, -attacher 4.12, -resizer 2.2, -snapshotter 8.6 and
//! the kubelet 1.36:
//! - *Non-final* for all of them: CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED, i.e. "it may
//!   still be running": they retry, and keep the object until a final code.
//! - RESOURCE_EXHAUSTED is non-final for all but the provisioner, which takes it as "nothing was
//!   created" and, for a volume that several nodes can reach, lets the scheduler pick another.
//! - Everything else is final: the provisioner may drop the claim without a DeleteVolume, the
//!   kubelet the record of a stage without an unstage.

use super::{Certainty, Kind, Rpc};
use tonic::Code;

/// Returns the code of a failure. Never OK.
#[must_use]
pub const fn code(rpc: Rpc, kind: Kind, certainty: Certainty) -> Code {
    use Certainty::{MayBeRunning, NothingHappened, RolledBack};
    match (certainty, kind) {
        (MayBeRunning, kind) => non_final(kind),
        (NothingHappened | RolledBack, kind) => settled(rpc, kind),
    }
}

/// Returns the code of a call that may have left something behind: whatever the kind, the code
/// makes the caller retry.
const fn non_final(kind: Kind) -> Code {
    match kind {
        // The caller retries with back-off; the deadline was ours, not the caller's.
        Kind::Timeout => Code::DeadlineExceeded,
        // The caller reacts as to a broken connection.
        Kind::Unreachable => Code::Unavailable,
        // "Operation pending": right for any unfinished state, since the retry will settle it.
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

/// Returns the code of a call that has left nothing behind: it describes the failure.
const fn settled(rpc: Rpc, kind: Kind) -> Code {
    match kind {
        // Provisioner: final, event on the claim. Resizer: infeasible, the user may ask for less.
        Kind::Invalid => Code::InvalidArgument,
        // Attacher and kubelet: retry with back-off. Resizer: infeasible. Calls that undo return OK
        // instead, and never come here.
        Kind::NotFound => Code::NotFound,
        Kind::Incompatible if names_an_object(rpc) => Code::AlreadyExists,
        // The specification has ALREADY_EXISTS for those calls only.
        Kind::Incompatible => Code::FailedPrecondition,
        // The operation still runs: all retry, and the provisioner must remember the volume.
        Kind::Busy => Code::Aborted,
        // Final, retried with back-off. Resizer: the volume must be offline first.
        Kind::Precondition => Code::FailedPrecondition,
        Kind::Range if has_a_range(rpc) => Code::OutOfRange,
        // A size that is wrong only because of the state of the object.
        Kind::Range => Code::FailedPrecondition,
        // Resizer: infeasible, the user may ask for less. After RESOURCE_EXHAUSTED, it would repeat
        // the size that has no room, even if the user asks for less.
        Kind::Quota if matches!(rpc, Rpc::ControllerExpandVolume) => Code::OutOfRange,
        // Resizer: infeasible, the user may choose another class, and this one is repeated slowly.
        // After RESOURCE_EXHAUSTED, it would repeat this class even if the user chooses another.
        Kind::Quota if matches!(rpc, Rpc::ControllerModifyVolume) => Code::InvalidArgument,
        // Provisioner: drops this node and lets the scheduler choose again. Others: retry. The
        // snapshotter keeps the object meanwhile, so the message says how it is deleted.
        Kind::Quota => Code::ResourceExhausted,
        // "May still be running" would make the provisioner (and the snapshotter) keep an object
        // that was never begun, and block its deletion: final, and retried anyway.
        Kind::Unreachable | Kind::Timeout if creates(rpc) => Code::Internal,
        Kind::Unreachable => Code::Unavailable,
        Kind::Timeout => Code::DeadlineExceeded,
        Kind::Unsupported => unsupported(rpc),
        // The caller starts again at the first page.
        Kind::BadToken if is_paged(rpc) => Code::Aborted,
        // Final, retried with back-off: an operator must give the driver other credentials.
        Kind::Unauthenticated => Code::Unauthenticated,
        Kind::Denied => Code::PermissionDenied,
        // A token in a call without pages is an internal error. Final, retried with back-off.
        Kind::BadToken | Kind::System | Kind::Bug => Code::Internal,
    }
}

/// Returns the code for a feature that the driver lacks, requested through a call that it has.
const fn unsupported(rpc: Rpc) -> Code {
    match rpc {
        // "Unsupported field": a parameter, a source or a capability. Final, event on the claim.
        Rpc::CreateVolume
        | Rpc::CreateSnapshot
        | Rpc::CreateVolumeGroupSnapshot
        | Rpc::ControllerModifyVolume => Code::InvalidArgument,
        // "Exceeds capabilities": the caller must query the capabilities before it retries.
        Rpc::ControllerPublishVolume | Rpc::NodeStageVolume | Rpc::NodePublishVolume => {
            Code::FailedPrecondition
        }
        // The call is not implemented: sidecars disable the feature.
        _ => Code::Unimplemented,
    }
}

/// Whether the call creates, or binds, an object that the caller has named. Such a call may report
/// that the object exists, but differs.
const fn names_an_object(rpc: Rpc) -> bool {
    creates(rpc)
        || matches!(
            rpc,
            Rpc::ControllerPublishVolume | Rpc::NodeStageVolume | Rpc::NodePublishVolume
        )
}

/// Whether the caller may forget the object after the call, although only the caller knows its
/// name.
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

    /// The exception is a snapshot for which there is no room: the code of the specification is not
    /// final for csi-snapshotter, so the message says how to delete the object of the snapshot.
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

    /// Kind, its code, and the calls that have another code.
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
