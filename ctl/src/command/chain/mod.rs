//! `belayctl mount` and `belayctl umount`: create and mount a volume, or undo this, with the same
//! CSI calls that Kubernetes makes.

mod down;
mod place;
mod record;
mod up;

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

pub(crate) use down::Umount;
pub(crate) use up::Mount;

use crate::call::Connection;
use crate::failure::Failure;
use crate::target::{Target, socket};

/// The two sockets, and the directory for records of mounts.
#[derive(Args, Clone)]
#[command(next_help_heading = "Sockets and state")]
pub(crate) struct Sockets {
    /// Socket of the controller [default: the value of --endpoint, or its default]
    #[arg(long, env = "BELAYCTL_CONTROLLER", value_name = "SOCKET", value_parser = socket)]
    controller: Option<PathBuf>,
    /// Socket of the node agent [default: the value of --endpoint, or its default]
    #[arg(long, env = "BELAYCTL_NODE", value_name = "SOCKET", value_parser = socket)]
    node: Option<PathBuf>,
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
    async fn paths(&self, target: &Target) -> Result<[PathBuf; 2], Failure> {
        let path = async |flag: &Option<PathBuf>, service| match flag {
            Some(path) => Ok(path.clone()),
            None => target.socket(service).await,
        };
        Ok([
            path(&self.controller, "controller").await?,
            path(&self.node, "node").await?,
        ])
    }
}

impl Driver {
    async fn connect(target: &Target, [controller, node]: &[PathBuf; 2]) -> Result<Self, Failure> {
        Ok(Self {
            controller: Connection::open(controller, target.timeout).await?,
            node: Connection::open(node, target.timeout).await?,
        })
    }

    /// Checks that both sockets are of the same driver, since another driver's node agent would not
    /// find the volume.
    ///
    /// # Errors
    /// Fails if the drivers differ; the message names both sockets and drivers. Also fails if a
    /// driver does not return its name.
    async fn refuse_two_drivers(&self, sockets: &[PathBuf; 2]) -> Result<(), Failure> {
        let name = async |on: &Connection| {
            let info = on.call("GetPluginInfo", json!({})).await;
            let info = info.map_err(|cause| step("GetPluginInfo", cause, ""))?;
            Ok::<_, Failure>(info["name"].as_str().unwrap_or_default().to_owned())
        };
        let names = [name(&self.controller).await?, name(&self.node).await?];
        let ([controller, node], [attaches, mounts]) = (sockets, &names);
        if attaches == mounts {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "{} is a socket of {attaches}, and {} of {mounts}; name the sockets of one driver by \
             --controller and --node",
            controller.display(),
            node.display()
        )))
    }

    /// Makes a call on the socket of its service. If the call fails, the error names the call and
    /// says what to do.
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
        answer.map_err(|cause| step(method, cause, advice))
    }

    /// Returns whether the driver requires an attachment of its volumes, and whether it requires
    /// staging.
    async fn needs(&self) -> Result<(bool, bool), Failure> {
        let (of_controller, of_node) = ("ControllerGetCapabilities", "NodeGetCapabilities");
        let attaches = self
            .controller
            .has(of_controller, "PUBLISH_UNPUBLISH_VOLUME");
        let attaches = attaches
            .await
            .map_err(|cause| step(of_controller, cause, ""))?;
        let stages = self.node.has(of_node, "STAGE_UNSTAGE_VOLUME").await;
        Ok((attaches, stages.map_err(|cause| step(of_node, cause, ""))?))
    }
}

/// Adds the name of the call, and the advice on what to do, to the error of a call.
fn step(method: &'static str, cause: Failure, advice: &str) -> Failure {
    Failure::Step {
        step: method,
        cause: Box::new(cause),
        advice: advice.to_owned(),
    }
}

/// Returns the error for a file of this machine that cannot be used.
fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Machine(format!("{}: {error}", path.display()))
}
