//! The flags of every command: the socket to call, the timeout and the output format.

use std::path::PathBuf;

use belay_proto::endpoint::Endpoint;
use clap::Args;

use crate::call::Connection;
use crate::failure::Failure;
use crate::hidden::Visibility;
use crate::render::{self, Answer, Output};

/// The socket to call, the timeout, the output format.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Target {
    /// Socket of the driver: unix:///path, unix:/path or an absolute path
    #[arg(
        long,
        short,
        global = true,
        env = "CSI_ENDPOINT",
        value_name = "SOCKET"
    )]
    pub(crate) endpoint: Option<Endpoint>,
    /// Timeout of each call, in seconds
    #[arg(long, short, global = true, default_value_t = 120, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// Output format
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) visibility: Visibility,
}

impl Target {
    /// Returns the socket.
    ///
    /// # Errors
    /// Fails if no socket is given, which is bad usage.
    pub(crate) fn socket(&self) -> Result<PathBuf, Failure> {
        let endpoint = self.endpoint.as_ref().ok_or_else(|| {
            Failure::Usage(
                "no socket given: use --endpoint unix:///run/belay/node.sock or set CSI_ENDPOINT; \
                 `belayctl ls` lists the sockets of this node"
                    .to_owned(),
            )
        })?;
        Ok(endpoint.path.clone())
    }

    /// Connects to the socket.
    ///
    /// # Errors
    /// Fails if no socket is given (bad usage), or if no driver answers.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(&self.socket()?, self.timeout).await
    }

    /// Prints a response in the selected format.
    ///
    /// # Errors
    /// Fails if stdout cannot be written.
    pub(crate) fn print(&self, answer: &Answer) -> Result<(), Failure> {
        Ok(render::write(&answer.text(self.output))?)
    }
}
