//! `local`: a volume is a file on one node, and reachable there alone.

use super::Profile;
use belay_server::identity::PluginCapability;

/// See the module.
pub const LOCAL: Profile = Profile {
    name: "local.csi.belay.dev",
    topology_key: "topology.local.csi.belay.dev/node",
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
};
