//! `belayctl mount` and `belayctl umount`: create and mount a volume, and undo that, by the calls
//! that Kubernetes makes.

mod down;
mod place;
mod record;
mod up;

use std::io;
use std::path::{Path, PathBuf};

use belay_proto::endpoint::Endpoint;
use clap::Args;
use serde_json::{Value, json};

pub(crate) use down::Umount;
pub(crate) use up::Mount;

use crate::call::Connection;
use crate::failure::Failure;
use crate::target::Target;

/// The two sockets, and the directory for records of mounts.
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

/// The controller service and the node service of a driver.
struct Driver {
    controller: Connection,
    node: Connection,
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

impl Driver {
    async fn connect(target: &Target, [controller, node]: &[PathBuf; 2]) -> Result<Self, Failure> {
        Ok(Self {
            controller: Connection::open(controller, target.timeout).await?,
            node: Connection::open(node, target.timeout).await?,
        })
    }

    /// Makes a call on the socket of its service. An error names the call and the remedy.
    async fn call(
        &self,
        method: &'static str,
        request: Value,
        advice: &str,
    ) -> Result<Value, Failure> {
        let connection = match method.starts_with("Node") {
            true => &self.node,
            false => &self.controller,
        };
        let answer = connection.call(method, request).await;
        answer.map_err(|cause| Failure::Step {
            step: method,
            cause: Box::new(cause),
            advice: advice.to_owned(),
        })
    }

    /// Returns whether volumes must be attached, and whether they must be staged.
    async fn needs(&self) -> Result<(bool, bool), Failure> {
        let has = async |method, capability: &str| {
            let all = self.call(method, json!({}), "").await?;
            let mut all = all["capabilities"].as_array().into_iter().flatten();
            Ok::<_, Failure>(all.any(|it| it["rpc"]["type"] == capability))
        };
        Ok((
            has("ControllerGetCapabilities", "PUBLISH_UNPUBLISH_VOLUME").await?,
            has("NodeGetCapabilities", "STAGE_UNSTAGE_VOLUME").await?,
        ))
    }
}

/// Returns the error for an unusable file of this machine.
fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Machine(format!("{}: {error}", path.display()))
}
