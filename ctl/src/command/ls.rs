//! `belayctl ls`: the sockets of drivers on this node, and what each serves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_proto::csi::v1::controller_client::ControllerClient;
use belay_proto::csi::v1::identity_client::IdentityClient;
use belay_proto::csi::v1::node_client::NodeClient;
use belay_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, GetPluginInfoRequest, NodeGetCapabilitiesRequest,
    ProbeRequest,
};
use belay_proto::dial::dial;
use belay_proto::pluginregistration::InfoRequest;
use belay_proto::pluginregistration::registration_client::RegistrationClient;
use clap::Args;
use tonic::Code;

use crate::failure::Failure;
use crate::machine::{kubelet, process, sockets};
use crate::render::{Answer, Cell, Rows};

/// A driver that takes longer for its name is shown without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where to look for sockets.
#[derive(Args, Clone)]
pub(crate) struct Search {
    /// Search this directory instead of the usual ones; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// The kubelet's directory
    #[arg(long, value_name = "DIR", default_value = kubelet::DIRECTORY)]
    pub(crate) kubelet_dir: PathBuf,
}

/// A socket, and what answers on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Its path.
    pub(crate) socket: PathBuf,
    /// Name of the driver; empty if nothing answers.
    pub(crate) driver: String,
    /// Its version.
    pub(crate) version: String,
    /// `controller`, `node`, `registration`; empty if nothing answers.
    pub(crate) serves: Vec<String>,
    /// Whether it says that it is ready; only CSI sockets do.
    pub(crate) ready: Option<bool>,
    /// Its process.
    pub(crate) pid: Option<u32>,
    /// Why there is no answer.
    pub(crate) trouble: String,
}

impl Search {
    /// All sockets, each with what answers on it.
    pub(crate) async fn look(&self) -> Vec<Found> {
        let mut found = Vec::new();
        for socket in sockets::find(&self.directories, &self.kubelet_dir) {
            found.push(probe(&socket).await);
        }
        found
    }
}

/// Lists them.
///
/// # Errors
/// None; a socket that does not answer is listed with the reason.
pub(crate) async fn run(search: &Search) -> Result<Answer, Failure> {
    let rows = search.look().await.into_iter().map(|found| {
        let ready = found.ready.map(|ready| if ready { "yes" } else { "no" });
        let ready = if found.trouble.is_empty() {
            ready.unwrap_or_default().to_owned()
        } else {
            found.trouble
        };
        vec![
            Cell::Text(found.socket.display().to_string()),
            Cell::Text(found.driver),
            Cell::List(found.serves),
            Cell::Text(ready),
            Cell::Text(found.version),
            Cell::Text(found.pid.map(|pid| pid.to_string()).unwrap_or_default()),
        ]
    });
    let columns = ["socket", "driver", "serves", "ready", "version", "pid"];
    Ok(Answer::Rows(Rows {
        narrow: 4,
        ..Rows::new("sockets", &columns, rows)
    }))
}

/// What answers on a socket.
pub(crate) async fn probe(socket: &Path) -> Found {
    let pid = tokio::time::timeout(PATIENCE, process::of(socket)).await;
    let mut found = Found {
        socket: socket.to_owned(),
        pid: pid.ok().flatten(),
        ..Found::default()
    };
    match tokio::time::timeout(PATIENCE, ask(socket, &mut found)).await {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => found.trouble = short(&failure),
        Err(_elapsed) => found.trouble = format!("no answer in {} s", PATIENCE.as_secs()),
    }
    found
}

/// The socket is in its own column.
fn short(failure: &Failure) -> String {
    match failure {
        Failure::Dial(belay_proto::dial::DialError::Connect { source, .. }) => {
            source.kind().to_string()
        }
        Failure::Dial(_) => "not gRPC".to_owned(),
        other => other.to_string(),
    }
}

async fn ask(socket: &Path, found: &mut Found) -> Result<(), Failure> {
    let channel = dial(socket).await?;
    let info = IdentityClient::new(channel.clone())
        .get_plugin_info(GetPluginInfoRequest {})
        .await;
    let info = match info {
        Err(status) if status.code() == Code::Unimplemented => {
            let info = RegistrationClient::new(channel)
                .get_info(InfoRequest {})
                .await?;
            found.driver = info.into_inner().name;
            found.serves.push("registration".to_owned());
            return Ok(());
        }
        info => info?.into_inner(),
    };
    (found.driver, found.version) = (info.name, info.vendor_version);
    let mut controller = ControllerClient::new(channel.clone());
    let capabilities = ControllerGetCapabilitiesRequest {};
    let controller = controller.controller_get_capabilities(capabilities).await;
    found.serves.extend(served(&controller, "controller"));
    let mut node = NodeClient::new(channel.clone());
    let node = node
        .node_get_capabilities(NodeGetCapabilitiesRequest {})
        .await;
    found.serves.extend(served(&node, "node"));
    let probe = IdentityClient::new(channel).probe(ProbeRequest {}).await;
    // The specification: absent means ready, FAILED_PRECONDITION that it is not.
    found.ready = Some(match probe {
        Ok(answer) => answer.into_inner().ready.unwrap_or(true),
        Err(_status) => false,
    });
    Ok(())
}

fn served<T>(answer: &Result<T, tonic::Status>, name: &str) -> Option<String> {
    let absent = matches!(answer, Err(status) if status.code() == Code::Unimplemented);
    (!absent).then(|| name.to_owned())
}
