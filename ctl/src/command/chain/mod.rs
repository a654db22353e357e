//! `belayctl mount` and `belayctl umount`: a volume from nothing to a directory, and back, by the
//! calls that Kubernetes makes.

mod down;
mod place;
mod record;
mod up;

use std::io;
use std::path::{Path, PathBuf};

use belay_proto::csi::v1::controller_client::ControllerClient;
use belay_proto::csi::v1::controller_service_capability::{self as controller, rpc as controllers};
use belay_proto::csi::v1::node_client::NodeClient;
use belay_proto::csi::v1::node_service_capability::{self as node, rpc as nodes};
use belay_proto::csi::v1::{ControllerGetCapabilitiesRequest, NodeGetCapabilitiesRequest};
use belay_proto::dial::dial;
use belay_proto::endpoint::Endpoint;
use clap::Args;
use tonic::transport::Channel;

pub(crate) use down::Umount;
pub(crate) use up::Mount;

use crate::failure::Failure;
use crate::target::Target;

/// The two sockets, and where the records of what is mounted are kept.
#[derive(Args, Clone)]
#[command(next_help_heading = "Sockets and state")]
pub(crate) struct Sockets {
    /// Socket of the controller [default: --endpoint, else /run/belay/controller.sock]
    #[arg(long, env = "BELAYCTL_CONTROLLER", value_name = "SOCKET")]
    controller: Option<Endpoint>,
    /// Socket of the node agent [default: --endpoint, else /run/belay/node.sock]
    #[arg(long, env = "BELAYCTL_NODE", value_name = "SOCKET")]
    node: Option<Endpoint>,
    /// Directory for staging paths, and for a record of each mount. Like the mounts, it may vanish
    /// at a reboot
    #[arg(long, value_name = "DIR", default_value = "/run/belayctl")]
    state_dir: PathBuf,
}

/// Both services of a driver.
struct Driver<'a> {
    target: &'a Target,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
}

impl Sockets {
    fn paths(&self, target: &Target) -> [PathBuf; 2] {
        let path = |flag: &Option<Endpoint>, usual: &str| {
            let endpoint = flag.as_ref().or(target.endpoint.as_ref());
            endpoint.map_or_else(|| PathBuf::from(usual), |endpoint| endpoint.path.clone())
        };
        [
            path(&self.controller, "/run/belay/controller.sock"),
            path(&self.node, "/run/belay/node.sock"),
        ]
    }
}

impl<'a> Driver<'a> {
    async fn connect(
        target: &'a Target,
        [controller, node]: &[PathBuf; 2],
    ) -> Result<Self, Failure> {
        Ok(Self {
            target,
            controller: ControllerClient::new(dial(controller).await?),
            node: NodeClient::new(dial(node).await?),
        })
    }

    /// Whether volumes must be attached, and whether they must be staged.
    async fn needs(&mut self) -> Result<(bool, bool), Failure> {
        let request = ControllerGetCapabilitiesRequest {};
        let call = self.controller.controller_get_capabilities(request);
        let all = step(
            "ControllerGetCapabilities",
            self.target.wait_for(call).await,
        )?;
        let attach = all.capabilities.iter().any(|it| {
            matches!(&it.r#type, Some(controller::Type::Rpc(rpc))
                if rpc.r#type() == controllers::Type::PublishUnpublishVolume)
        });
        let call = self
            .node
            .node_get_capabilities(NodeGetCapabilitiesRequest {});
        let all = step("NodeGetCapabilities", self.target.wait_for(call).await)?;
        let stage = all.capabilities.iter().any(|it| {
            matches!(&it.r#type, Some(node::Type::Rpc(rpc))
                if rpc.r#type() == nodes::Type::StageUnstageVolume)
        });
        Ok((attach, stage))
    }
}

/// Names the step that failed.
fn step<T>(step: &'static str, result: Result<T, Failure>) -> Result<T, Failure> {
    advised(step, result, String::new)
}

/// The same, with what to do about it.
fn advised<T>(
    step: &'static str,
    result: Result<T, Failure>,
    advice: impl FnOnce() -> String,
) -> Result<T, Failure> {
    result.map_err(|cause| Failure::Step {
        step,
        cause: Box::new(cause),
        advice: advice(),
    })
}

/// A file of this machine cannot be used.
fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Machine(format!("{}: {error}", path.display()))
}
