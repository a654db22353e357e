//! The drivers of this node: finds their sockets, probes the services on each socket, and chooses
//! the default socket of a service.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_proto::dial::DialError;
use clap::Args;
use serde_json::{Value, json};

use crate::call::Connection;
use crate::failure::Failure;
use crate::machine::{kubelet, process, sockets};
use crate::render::{Answer, Cell, Rows};

/// Timeout for the responses of one driver. A driver that responds later is listed without its
/// name.
const PATIENCE: Duration = Duration::from_secs(2);

/// The plugin capability by which a driver reports that it has a controller service, on the same
/// socket or on a different one.
const CONTROLLER: &str = "CONTROLLER_SERVICE";

/// Directories to search for sockets.
#[derive(Args, Clone)]
pub(crate) struct Search {
    /// Search this directory instead of the usual ones; may be repeated
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// The kubelet's directory
    #[arg(long, value_name = "DIR", default_value = kubelet::DIRECTORY)]
    pub(crate) kubelet_dir: PathBuf,
}

/// A socket, and the driver that listens on the socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverSocket {
    /// The path of the socket.
    pub(crate) socket: PathBuf,
    /// The name of the driver; empty if no driver responds.
    pub(crate) driver: String,
    /// The version of the driver.
    pub(crate) version: String,
    /// The services on the socket: `controller`, `node`, `registration`; empty if no driver
    /// responds.
    pub(crate) serves: Vec<String>,
    /// Whether the driver reports that it is ready; `None` if the driver does not respond, or if
    /// the socket is not a CSI socket.
    pub(crate) ready: Option<bool>,
    /// The ID of the driver's process.
    pub(crate) pid: Option<u32>,
    /// The reason why no driver responds.
    pub(crate) trouble: String,
}

impl Search {
    /// Finds all sockets in the directories, and probes each one.
    pub(crate) async fn look(&self) -> Vec<DriverSocket> {
        let mut found = Vec::new();
        for socket in sockets::find(&self.directories, &self.kubelet_dir) {
            found.push(probe(&socket).await);
        }
        found
    }

    /// Returns the options for a search of the usual directories.
    fn usual() -> Self {
        Self {
            directories: Vec::new(),
            kubelet_dir: kubelet::DIRECTORY.into(),
        }
    }
}

impl DriverSocket {
    /// Whether the driver serves a service on the socket. Every CSI socket serves `identity`.
    pub(crate) fn has(&self, service: &str) -> bool {
        let is = |served: &String| {
            served == service || (service == "identity" && served != "registration")
        };
        self.serves.iter().any(is)
    }

    /// Whether a CSI driver may listen on the socket, although no driver has responded. A kubelet
    /// plugin that is not a CSI driver, such as a DRA plugin, returns UNIMPLEMENTED.
    fn is_silent(&self) -> bool {
        let has_answered = self.trouble.is_empty() || self.trouble.starts_with("UNIMPLEMENTED");
        !has_answered && !is_registration(&self.socket)
    }

    /// Returns the path of the socket, and the reason why no driver responds.
    fn with_trouble(&self) -> String {
        match (self.socket.display(), self.trouble.as_str()) {
            (path, "") => path.to_string(),
            (path, trouble) => format!("{path} ({trouble})"),
        }
    }
}

/// Returns the default socket of a service: Belay's socket in `/run/belay`, or else the only socket
/// of this node that may have the service.
///
/// # Errors
/// Fails unless exactly one socket may have the service; the message lists the candidates.
pub(crate) async fn default_socket(service: &str) -> Result<PathBuf, Failure> {
    let usual = Path::new("/run/belay").join(format!("{service}.sock"));
    match fs::metadata(&usual) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            choose(service, &Search::usual().look().await)
        }
        _ => Ok(usual),
    }
}

fn choose(service: &str, found: &[DriverSocket]) -> Result<PathBuf, Failure> {
    // Include drivers that do not respond: the intended driver may be one of them, and a call to a
    // different driver would use different storage.
    let candidates = found.iter().filter(|it| it.has(service) || it.is_silent());
    let start = "; start the driver, or";
    let (why, cure) = match candidates.collect::<Vec<_>>().as_slice() {
        [only] => return Ok(only.socket.clone()),
        [] if found.is_empty() => (
            "no socket of a driver in the usual directories".into(),
            start,
        ),
        [] => {
            let why = format!("none of the sockets that `belayctl ls` shows serves {service}");
            (why, start)
        }
        several => {
            let list: Vec<_> = several.iter().map(|it| it.with_trouble()).collect();
            (
                format!("several sockets may serve {service}: {}", list.join(", ")),
                ";",
            )
        }
    };
    Err(Failure::Usage(format!(
        "{why}{cure} name its socket by --endpoint or CSI_ENDPOINT"
    )))
}

/// Returns the sockets that have a service.
fn having(service: &str, found: &[DriverSocket]) -> Vec<String> {
    let having = found.iter().filter(|it| it.has(service));
    having.map(|it| it.socket.display().to_string()).collect()
}

/// Explains the error of a call. If the socket does not serve the called service, returns an error
/// that names the sockets of this node that do; otherwise returns the error unchanged.
pub(crate) async fn explain(mut failure: Failure) -> Failure {
    let cause = failure.cause_mut();
    let Failure::Unserved(call) = cause else {
        return failure;
    };
    let called = probe(&call.socket).await;
    if !called.trouble.is_empty() || called.has(call.service) {
        return failure;
    }
    let having = having(call.service, &Search::usual().look().await);
    let cure = match having.as_slice() {
        [] => "no known socket of this node has that".to_owned(),
        sockets => format!("use --endpoint {}", sockets.join(" or ")),
    };
    let text = format!(
        "UNIMPLEMENTED: {} serves {}, not {}: {cure}",
        call.socket.display(),
        called.serves.join(" and "),
        call.service
    );
    *cause = Failure::Machine(text);
    failure
}

/// Calls a driver on its socket to find out its name, version, services and readiness.
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

/// Describes a failure without the path of the socket, which is printed in a separate column.
fn short(failure: &Failure) -> String {
    match failure {
        Failure::Dial(DialError::Connect { source, .. }) => source.kind().to_string(),
        Failure::Dial(_) => "not gRPC".to_owned(),
        other => other.to_string(),
    }
}

async fn ask(socket: &Path, found: &mut DriverSocket) -> Result<(), Failure> {
    let connection = Connection::open(socket, PATIENCE.as_secs()).await?;
    let call = async |method| connection.call(method, json!({})).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if is_registration(socket) {
        let info = call("pluginregistration.Registration/GetInfo").await?;
        found.driver = text(&info["name"]);
        found.serves.push("registration".to_owned());
        return Ok(());
    }
    let info = call("GetPluginInfo").await?;
    found.driver = text(&info["name"]);
    found.version = text(&info["vendor_version"]);
    // Belay's programs report their service in the manifest. Probe the drivers of other projects by
    // calls, although a driver may log a call to a missing service as a failure.
    match info.pointer("/manifest/service") {
        Some(service) => found.serves.push(text(service)),
        None => {
            let is_served = async |method| !matches!(call(method).await, Err(Failure::Unserved(_)));
            let has_node = is_served("NodeGetCapabilities").await;
            let may = !has_node || connection.has("GetPluginCapabilities", CONTROLLER).await?;
            if may && is_served("ControllerGetCapabilities").await {
                found.serves.push("controller".to_owned());
            }
            if has_node {
                found.serves.push("node".to_owned());
            }
        }
    }
    // By the specification, a driver that omits `ready` is ready, and a driver that returns
    // FAILED_PRECONDITION is not.
    let probe = call("Probe").await;
    found.ready = Some(probe.is_ok_and(|answer| answer.get("ready").is_none_or(|it| *it == true)));
    Ok(())
}

/// Whether the kubelet registers a driver over this socket. Recognizes the file names that
/// node-driver-registrar and the kubelet use.
fn is_registration(socket: &Path) -> bool {
    let path = socket.to_string_lossy();
    path.ends_with("-reg.sock") || path.contains("/plugins_registry/")
}

/// Runs `belayctl ls`: lists the sockets of drivers on this node, and the services on each.
///
/// # Errors
/// Never fails; a socket without an answer is listed with the reason.
pub(crate) async fn ls(search: &Search) -> Result<Answer, Failure> {
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
            Cell::number(found.pid),
        ]
    });
    let columns = ["socket", "driver", "serves", "ready", "version", "pid"];
    Ok(Answer::Rows(Rows {
        narrow: 4,
        ..Rows::new("sockets", &columns, rows)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(path: &str, serves: &str) -> DriverSocket {
        DriverSocket {
            socket: path.into(),
            serves: vec![serves.to_owned()],
            ..DriverSocket::default()
        }
    }

    #[test]
    fn the_only_socket_of_a_service_is_its_default() {
        let found = [
            socket("/a.sock", "node"),
            socket("/b.sock", "controller"),
            socket("/d-reg.sock", "registration"),
        ];
        let chosen = |service, found: &[_]| choose(service, found).map_err(|it| it.to_string());
        assert_eq!(chosen("controller", &found), Ok("/b.sock".into()));
        assert_eq!(chosen("identity", &found[..1]), Ok("/a.sock".into()));
        for (service, found, part) in [
            (
                "identity",
                &found[..],
                "several sockets may serve identity: /a.sock, /b.sock; name",
            ),
            (
                "controller",
                &found[..1],
                "none of the sockets that `belayctl ls` shows serves controller;",
            ),
            (
                "node",
                &found[..0],
                "no socket of a driver in the usual directories",
            ),
        ] {
            let error = chosen(service, found).unwrap_err();
            assert!(
                error.contains(part) && error.contains("--endpoint"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_driver_that_does_not_answer_may_be_the_right_one() {
        let silent = |path| DriverSocket {
            trouble: "no answer in 2 s".to_owned(),
            ..socket(path, "")
        };
        let node = socket("/a.sock", "node");
        let found = [node.clone(), silent("/b.sock"), silent("/d-reg.sock")];
        let error = choose("node", &found).unwrap_err().to_string();
        let part = "several sockets may serve node: /a.sock, /b.sock (no answer in 2 s); name";
        assert!(error.contains(part), "{error}");
        // The only candidate is chosen although its driver does not respond; the later call then
        // returns the error.
        assert_eq!(choose("controller", &found).unwrap(), found[1].socket);
        let dra = DriverSocket {
            trouble: "UNIMPLEMENTED: unknown service csi.v1.Identity".to_owned(),
            ..silent("/dra.sock")
        };
        let found = [node, silent("/d-reg.sock"), dra];
        assert_eq!(choose("node", &found).unwrap(), found[0].socket);
    }
}
