//! `belayctl ls`: the sockets of drivers on this node, and the services on each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tonic::Code;

use crate::call::Connection;
use crate::failure::Failure;
use crate::machine::{kubelet, process, sockets};
use crate::render::{Answer, Cell, Rows};

/// The timeout for a driver; a slower one is listed without its name.
const PATIENCE: Duration = Duration::from_secs(2);

/// The directories to search for sockets.
#[derive(Args, Clone)]
pub(crate) struct Search {
    /// Search this directory instead of the usual ones; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// The kubelet's directory
    #[arg(long, value_name = "DIR", default_value = kubelet::DIRECTORY)]
    pub(crate) kubelet_dir: PathBuf,
}

/// A socket, and the driver that answers on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverSocket {
    /// The path of the socket.
    pub(crate) socket: PathBuf,
    /// The name of the driver; empty if none answers.
    pub(crate) driver: String,
    /// The version of the driver.
    pub(crate) version: String,
    /// The services on the socket: `controller`, `node`, `registration`; empty if no driver
    /// answers.
    pub(crate) serves: Vec<String>,
    /// Whether the driver reports that it is ready; `None` on sockets other than CSI.
    pub(crate) ready: Option<bool>,
    /// The ID of the driver's process.
    pub(crate) pid: Option<u32>,
    /// The reason why no driver answers.
    pub(crate) trouble: String,
}

impl Search {
    /// Finds all sockets, and probes each.
    pub(crate) async fn look(&self) -> Vec<DriverSocket> {
        let mut found = Vec::new();
        for socket in sockets::find(&self.directories, &self.kubelet_dir) {
            found.push(probe(&socket).await);
        }
        found
    }
}

/// Lists the sockets.
///
/// # Errors
/// Never fails; a socket without an answer is listed with the reason.
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

/// Calls the services on a socket to find out what it serves.
pub(crate) async fn probe(socket: &Path) -> DriverSocket {
    let pid = tokio::time::timeout(PATIENCE, process::of(socket)).await;
    let mut found = DriverSocket {
        socket: socket.to_owned(),
        pid: pid.ok().flatten(),
        ..DriverSocket::default()
    };
    match tokio::time::timeout(PATIENCE, ask(socket, &mut found)).await {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => found.trouble = short(&failure),
        Err(_elapsed) => found.trouble = format!("no answer in {} s", PATIENCE.as_secs()),
    }
    found
}

/// Describes a failure without the socket, which has a separate column.
fn short(failure: &Failure) -> String {
    match failure {
        Failure::Dial(belay_proto::dial::DialError::Connect { source, .. }) => {
            source.kind().to_string()
        }
        Failure::Dial(_) => "not gRPC".to_owned(),
        other => other.to_string(),
    }
}

async fn ask(socket: &Path, found: &mut DriverSocket) -> Result<(), Failure> {
    let connection = Connection::open(socket, PATIENCE.as_secs()).await?;
    let call = async |method| connection.call(method, json!({})).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let info = match call("GetPluginInfo").await {
        Err(failure) if is_absent(&failure) => {
            found.driver = text(&call("pluginregistration.Registration/GetInfo").await?["name"]);
            found.serves.push("registration".to_owned());
            return Ok(());
        }
        info => info?,
    };
    found.driver = text(&info["name"]);
    found.version = text(&info["vendor_version"]);
    for (method, service) in [
        ("ControllerGetCapabilities", "controller"),
        ("NodeGetCapabilities", "node"),
    ] {
        let answer = call(method).await;
        if !answer.is_err_and(|failure| is_absent(&failure)) {
            found.serves.push(service.to_owned());
        }
    }
    // By the specification, a driver without this value is ready, and FAILED_PRECONDITION means
    // that it is not.
    let probe = call("Probe").await;
    found.ready = Some(probe.is_ok_and(|answer| answer.get("ready").is_none_or(|it| *it == true)));
    Ok(())
}

/// Whether the error means that the socket does not serve the called service.
fn is_absent(failure: &Failure) -> bool {
    matches!(failure, Failure::Status(status) if status.code() == Code::Unimplemented)
}
