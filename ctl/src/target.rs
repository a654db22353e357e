//! The flags of every command: the socket to call, the timeout, the output format.

use std::time::Duration;

use belay_proto::dial::dial;
use belay_proto::endpoint::Endpoint;
use clap::Args;

use crate::failure::Failure;
use crate::render::{self, Answer, Output};

/// The socket to call, the timeout, the output format.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Target {
    /// Socket of the driver: unix:///path, unix:/path or an absolute path
    #[arg(long, global = true, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    pub(crate) endpoint: Option<Endpoint>,
    /// Timeout of the call, in seconds
    #[arg(long, global = true, default_value_t = 120, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Output format
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

impl Target {
    /// Connects to the socket.
    ///
    /// # Errors
    /// No socket given (bad usage), or no driver answers on it.
    pub(crate) async fn connect(&self) -> Result<tonic::transport::Channel, Failure> {
        let endpoint = self.endpoint.as_ref().ok_or_else(|| {
            Failure::Usage(
                "no socket given: use --endpoint unix:///run/belay/node.sock or set CSI_ENDPOINT"
                    .to_owned(),
            )
        })?;
        Ok(dial(&endpoint.path).await?)
    }

    /// Waits for one call, at most for the timeout.
    ///
    /// # Errors
    /// The driver's error, or no response in time.
    pub(crate) async fn wait_for<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Failure> {
        let limit = Duration::from_secs(self.timeout);
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_elapsed) => Err(Failure::NoAnswer {
                seconds: self.timeout,
            }),
        }
    }

    /// Prints a response in the selected format.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(crate) fn print(&self, answer: &Answer) -> Result<(), Failure> {
        Ok(render::print(answer, self.output)?)
    }
}
