//! Every remote call of CSI 1.13, with its name, its path, and whether it changes state. This
//! module does not depend on the messages of the calls.

/// Declares [`Rpc`] from one table, so that the name, the path and the effect of a call cannot
/// contradict each other.
macro_rules! rpcs {
    ($($service:ident { $($rpc:ident $effect:ident $doc:literal,)+ })+) => {
        /// A remote call of CSI 1.13.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rpc {
            $($(#[doc = $doc] $rpc,)+)+
        }

        impl Rpc {
            /// Every call, in the order of the specification.
            pub const ALL: &[Rpc] = &[$($(Rpc::$rpc,)+)+];

            /// Returns the name as the specification writes it, e.g. `NodeStageVolume`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Rpc::$rpc => stringify!($rpc),)+)+
                }
            }

            /// Returns the path of the HTTP/2 request, e.g. `/csi.v1.Node/NodeStageVolume`.
            #[must_use]
            pub const fn path(self) -> &'static str {
                match self {
                    $($(Rpc::$rpc => {
                        concat!("/csi.v1.", stringify!($service), "/", stringify!($rpc))
                    })+)+
                }
            }

            /// Returns the call with this HTTP/2 path, or `None` if CSI 1.13 has no such call.
            #[must_use]
            pub fn from_path(path: &str) -> Option<Rpc> {
                match path {
                    $($(
                        concat!("/csi.v1.", stringify!($service), "/", stringify!($rpc)) => {
                            Some(Rpc::$rpc)
                        }
                    )+)+
                    _ => None,
                }
            }

            /// Whether the call may leave changes behind if it is cancelled half-way.
            #[must_use]
            pub const fn changes_state(self) -> bool {
                match self {
                    $($(Rpc::$rpc => rpcs!(@$effect),)+)+
                }
            }
        }
    };
    (@changes) => { true };
    (@reads) => { false };
}

rpcs! {
    Identity {
        GetPluginInfo reads "Name and version of the driver.",
        GetPluginCapabilities reads "The services of the driver.",
        Probe reads "Is the driver ready?",
    }
    Controller {
        CreateVolume changes "Create a volume.",
        DeleteVolume changes "Delete a volume.",
        ControllerPublishVolume changes "Attach a volume to a node.",
        ControllerUnpublishVolume changes "Detach a volume from a node.",
        ValidateVolumeCapabilities reads "Check capabilities of a volume.",
        ListVolumes reads "All volumes, page by page.",
        GetCapacity reads "Free capacity for new volumes.",
        ControllerGetCapabilities reads "The capabilities of the controller.",
        CreateSnapshot changes "Create a snapshot.",
        DeleteSnapshot changes "Delete a snapshot.",
        ListSnapshots reads "All snapshots, page by page.",
        GetSnapshot reads "One snapshot.",
        ControllerExpandVolume changes "Grow a volume.",
        ControllerGetVolume reads "One volume.",
        ControllerModifyVolume changes "Change the mutable parameters of a volume.",
        ControllerListVolumeHealth reads "All unhealthy volumes, page by page.",
        ControllerGetVolumeHealth reads "The health of a volume.",
    }
    Node {
        NodeStageVolume changes "Make a volume usable on this node.",
        NodeUnstageVolume changes "Unstage a volume.",
        NodePublishVolume changes "Make a staged volume available to a workload.",
        NodeUnpublishVolume changes "Undo the publish.",
        NodeGetVolumeStats reads "The usage of a volume.",
        NodeExpandVolume changes "Grow the filesystem to the size of its device.",
        NodeGetCapabilities reads "The capabilities of the node agent.",
        NodeGetInfo reads "Id, limits and topology of this node.",
        NodeGetVolumeHealth reads "The health of a volume, as seen from this node.",
        NodeGetStorageHealth reads "The health of the storage, as seen from this node.",
    }
    GroupController {
        GroupControllerGetCapabilities reads "The capabilities of the group controller.",
        CreateVolumeGroupSnapshot changes "Create snapshots of several volumes at one instant.",
        DeleteVolumeGroupSnapshot changes "Delete a group of snapshots.",
        GetVolumeGroupSnapshot reads "One group of snapshots.",
    }
    SnapshotMetadata {
        GetMetadataAllocated reads "Which blocks of a snapshot hold data.",
        GetMetadataDelta reads "Which blocks differ between two snapshots.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_call_is_found_by_its_own_path_and_no_two_share_one() {
        assert_eq!(Rpc::ALL.len(), 36);
        let paths: HashSet<_> = Rpc::ALL.iter().map(|rpc| rpc.path()).collect();
        assert_eq!(paths.len(), Rpc::ALL.len());
        for rpc in Rpc::ALL {
            assert_eq!(Rpc::from_path(rpc.path()), Some(*rpc));
        }
        assert_eq!(Rpc::NodeStageVolume.path(), "/csi.v1.Node/NodeStageVolume");
    }

    #[test]
    fn the_index_in_the_list_is_the_number_of_the_variant() {
        for (position, rpc) in Rpc::ALL.iter().enumerate() {
            assert_eq!(*rpc as usize, position);
        }
    }

    #[test]
    fn paths_that_are_not_csi_1_13_are_unknown() {
        for path in [
            "",
            "/",
            "/csi.v1.Node/",
            "/csi.v1.Node/CreateVolume",
            "/csi.v0.Node/NodeStageVolume",
            "csi.v1.Identity/Probe",
            "/csi.v1.Identity/probe",
            "/grpc.health.v1.Health/Check",
        ] {
            assert_eq!(Rpc::from_path(path), None, "{path}");
        }
    }

    /// A panic in a call that changes state leaves an unknown state, which the gRPC code must
    /// report.
    #[test]
    fn calls_that_create_delete_or_change_something_are_known() {
        let changing = Rpc::ALL.iter().filter(|rpc| rpc.changes_state());
        let changing: Vec<_> = changing.map(|rpc| rpc.name()).collect();
        assert_eq!(
            changing,
            [
                "CreateVolume",
                "DeleteVolume",
                "ControllerPublishVolume",
                "ControllerUnpublishVolume",
                "CreateSnapshot",
                "DeleteSnapshot",
                "ControllerExpandVolume",
                "ControllerModifyVolume",
                "NodeStageVolume",
                "NodeUnstageVolume",
                "NodePublishVolume",
                "NodeUnpublishVolume",
                "NodeExpandVolume",
                "CreateVolumeGroupSnapshot",
                "DeleteVolumeGroupSnapshot",
            ]
        );
    }

    /// Clients are generated from the descriptor set, so the list of calls must match it.
    #[test]
    fn the_list_is_that_of_the_protocol() {
        let descriptors = belay_proto::FILE_DESCRIPTOR_SET;
        for rpc in Rpc::ALL {
            let name = rpc.name().as_bytes();
            assert!(
                descriptors.windows(name.len()).any(|window| window == name),
                "{}",
                rpc.name()
            );
        }
    }
}
