//! The flags that every command has: which socket to call, how long to wait, how to print.

use std::time::Duration;

use belay_proto::dial::dial;
use belay_proto::endpoint::Endpoint;
use clap::Args;

use crate::failure::Failure;
use crate::render::{self, Answer, Output};

/// Which socket to call, how long to wait, how to print.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Target {
    /// Socket of the driver: unix:///path, unix:/path or an absolute path
    #[arg(long, global = true, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    pub(crate) endpoint: Option<Endpoint>,
    /// Seconds to wait for the answer
    #[arg(long, global = true, default_value_t = 120, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// How to print the answer
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
}

impl Target {
    /// A connection to the socket that was named.
    ///
    /// # Errors
    /// No socket named (bad usage), or nobody answers on it.
    pub(crate) async fn connect(&self) -> Result<tonic::transport::Channel, Failure> {
        let endpoint = self.endpoint.as_ref().ok_or_else(|| {
            Failure::Usage(
                "no socket named: give --endpoint unix:///run/belay/node.sock or set CSI_ENDPOINT"
                    .to_owned(),
            )
        })?;
        Ok(dial(&endpoint.path).await?)
    }

    /// Waits for one call, and no longer than the user allowed.
    ///
    /// # Errors
    /// What the driver answered, or that it did not answer in time.
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

    /// Prints an answer as the user wants it.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub(crate) fn print(&self, answer: &Answer) -> Result<(), Failure> {
        Ok(render::print(answer, self.output)?)
    }
}
