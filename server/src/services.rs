//! The services of one server, each with its limit: made here, so that none is served without.

use crate::identity::Identity;
use belay_proto::csi::v1 as csi;
use csi::controller_server::{Controller, ControllerServer};
use csi::identity_server::IdentityServer;
use csi::node_server::{Node, NodeServer};
use tonic::service::Routes;

/// Largest request to the identity and node services, in bytes: three maps of 4 KiB, the mount
/// flags, two paths and an id (CSI 1.13, "Size Limits") fit in it twice.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Largest request to the controller service, in bytes. The provisioner may send the places of all
/// nodes twice, as requisite and as preferred ones: this is room for 5000 nodes.
const CONTROLLER_REQUEST_BYTES_MAX: usize = 1 << 20;

/// What a server serves.
#[derive(Clone, Debug)]
pub struct Services(Routes);

impl Services {
    /// The Identity service, which every server has.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        let identity = IdentityServer::new(identity).max_decoding_message_size(REQUEST_BYTES_MAX);
        Self(Routes::new(identity))
    }

    /// And this controller.
    #[must_use]
    pub fn with_controller(self, controller: impl Controller) -> Self {
        let server = ControllerServer::new(controller);
        let server = server.max_decoding_message_size(CONTROLLER_REQUEST_BYTES_MAX);
        Self(self.0.add_service(server))
    }

    /// And this node.
    #[must_use]
    pub fn with_node(self, node: impl Node) -> Self {
        let server = NodeServer::new(node).max_decoding_message_size(REQUEST_BYTES_MAX);
        Self(self.0.add_service(server))
    }

    /// For the server, which puts its layer around them.
    pub(crate) fn into_routes(self) -> Routes {
        self.0.prepare()
    }
}
