//! The flags of every command: the socket to call, the timeout and the output format.

use std::path::PathBuf;

use belay_proto::endpoint::Endpoint;
use clap::Args;
use serde_json::json;

use crate::call::Connection;
use crate::drivers;
use crate::failure::Failure;
use crate::hidden::Visibility;
use crate::render::{self, Answer, Output};

/// The socket to call, the timeout, the output format.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Target {
    /// Socket of the driver, as a path or unix:///path [default: /run/belay/controller.sock or
    /// node.sock, else the only socket of this node that serves the call]
    #[arg(long, short, global = true, env = "CSI_ENDPOINT", value_name = "SOCKET",
          value_parser = socket)]
    pub(crate) endpoint: Option<PathBuf>,
    /// Timeout of each call, in seconds
    #[arg(long, short, global = true, default_value_t = 120, value_name = "SECONDS",
          value_parser = seconds)]
    pub(crate) timeout: u64,
    /// Output format
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) visibility: Visibility,
}

/// Parses a timeout.
///
/// # Errors
/// Fails unless the text is a number of seconds of at most one day.
fn seconds(text: &str) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|it| (1..=86_400).contains(it));
    parsed.ok_or_else(|| "must be a whole number of seconds from 1 to 86400".to_owned())
}

/// Parses the endpoint of a socket. Unlike the endpoint of a server, the endpoint may be a relative
/// path.
///
/// # Errors
/// Fails unless the endpoint names a file whose path fits into the address of a Unix socket
/// (unix(7)).
pub(crate) fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    let is_relative = !path.is_empty() && !path.starts_with('/') && !path.contains("://");
    let absolute = std::path::absolute(path).map_err(|error| error.to_string());
    let endpoint: Result<Endpoint, _> = match is_relative {
        true => absolute?.to_string_lossy().parse(),
        false => text.parse(),
    };
    endpoint
        .map(|it| it.path)
        .map_err(|error| error.to_string())
}

impl Target {
    /// Returns the socket that `--endpoint` names, or else the default socket of a service.
    ///
    /// # Errors
    /// Fails if `--endpoint` is not set, and this node does not have exactly one socket with the
    /// service.
    pub(crate) async fn socket(&self, service: &str) -> Result<PathBuf, Failure> {
        match &self.endpoint {
            Some(path) => Ok(path.clone()),
            None => drivers::default_socket(service).await,
        }
    }

    /// Connects to the socket of a service.
    ///
    /// # Errors
    /// Fails if the socket is not known (bad usage), or if no driver responds.
    pub(crate) async fn connect(&self, service: &str) -> Result<Connection, Failure> {
        Connection::open(&self.socket(service).await?, self.timeout).await
    }

    /// Connects to the controller of the driver that `on` is connected to. Returns `None` if this
    /// node has no socket of that controller.
    pub(crate) async fn controller_of(&self, on: &Connection) -> Option<Connection> {
        let socket = drivers::default_socket("controller").await.ok()?;
        let controller = Connection::open(&socket, self.timeout).await.ok()?;
        let name = async |on: &Connection| on.call("GetPluginInfo", json!({})).await.ok();
        let names = (name(on).await?, name(&controller).await?);
        (names.0["name"] == names.1["name"]).then_some(controller)
    }

    /// Prints a response in the selected format.
    ///
    /// # Errors
    /// Fails if stdout cannot be written.
    pub(crate) fn print(&self, answer: &Answer) -> Result<(), Failure> {
        Ok(render::write(&answer.text(self.output))?)
    }
}
