//! The gRPC services of one server. All services are created in this module, so that each has a
//! limit on the size of its requests.

use crate::config::GrpcArgs;
use crate::grpc::{GrpcHealth, with_reflection};
use crate::identity::Identity;
use crate::readiness::Readiness;
use belay_proto::csi::v1 as csi;
use csi::controller_server::{Controller, ControllerServer};
use csi::identity_server::IdentityServer;
use csi::node_server::{Node, NodeServer};
use std::sync::Arc;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::pb::{v1, v1alpha};

/// Maximum size of a request to the identity and node services, in bytes: twice the size of three
/// maps of 4 KiB, the mount flags, two paths and an ID (CSI 1.13, "Size Limits").
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Maximum size of a request to the controller service, in bytes. The limit allows 5000 nodes,
/// since the provisioner may send the topologies of all nodes twice, as requisite and as preferred.
const CONTROLLER_REQUEST_BYTES_MAX: usize = 1 << 20;

/// The gRPC services of a server.
#[derive(Clone, Debug)]
pub struct Services {
    routes: Routes,
    /// The names of the services, which the reflection and health services report.
    names: Vec<&'static str>,
}

impl Services {
    /// Creates services that contain the Identity service, which every server has.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        let identity = IdentityServer::new(identity).max_decoding_message_size(REQUEST_BYTES_MAX);
        Self {
            routes: Routes::new(identity),
            names: vec![IdentityServer::<Identity>::NAME],
        }
    }

    /// Adds the controller service.
    #[must_use]
    pub fn with_controller<C: Controller>(mut self, controller: C) -> Self {
        let server = ControllerServer::new(controller);
        let server = server.max_decoding_message_size(CONTROLLER_REQUEST_BYTES_MAX);
        self.names.push(ControllerServer::<C>::NAME);
        self.routes = self.routes.add_service(server);
        self
    }

    /// Adds the node service.
    #[must_use]
    pub fn with_node<N: Node>(mut self, node: Arc<N>) -> Self {
        let server = NodeServer::from_arc(node).max_decoding_message_size(REQUEST_BYTES_MAX);
        self.names.push(NodeServer::<N>::NAME);
        self.routes = self.routes.add_service(server);
        self
    }

    /// Adds the optional reflection and health services, if configured. Call this function last,
    /// since the two services report all services that were added before.
    #[must_use]
    pub fn with_grpc(mut self, args: &GrpcArgs, readiness: &Readiness) -> Self {
        if args.grpc_health {
            let health = GrpcHealth::new(readiness.clone(), self.names.clone());
            let server = HealthServer::new(health).max_decoding_message_size(REQUEST_BYTES_MAX);
            self.names.push(HealthServer::<GrpcHealth>::NAME);
            self.routes = self.routes.add_service(server);
        }
        if args.grpc_reflection {
            self.names.extend([
                v1::server_reflection_server::SERVICE_NAME,
                v1alpha::server_reflection_server::SERVICE_NAME,
            ]);
            self.routes = with_reflection(self.routes, &self.names, REQUEST_BYTES_MAX);
        }
        self
    }

    /// Returns the services as routes for the server, which adds the call layer.
    pub(crate) fn into_routes(self) -> Routes {
        self.routes.prepare()
    }
}
