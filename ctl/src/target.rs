//! The flags of every command: the socket to call, the timeout, the output format.

use std::path::PathBuf;
use std::time::Duration;

use belay_proto::dial::dial;
use belay_proto::endpoint::Endpoint;
use clap::Args;
use tonic::transport::Channel;

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
    /// The socket.
    ///
    /// # Errors
    /// None is given: bad usage.
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
    /// No socket given (bad usage), or no driver answers on it.
    pub(crate) async fn connect(&self) -> Result<Channel, Failure> {
        Ok(dial(&self.socket()?).await?)
    }

    /// Waits for one call, at most for the timeout.
    ///
    /// # Errors
    /// The driver's error, or no response in time.
    pub(crate) async fn wait_for<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Failure> {
        within(self.timeout, async { Ok(call.await?.into_inner()) }).await
    }

    /// Prints a response in the selected format.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(crate) fn print(&self, answer: &Answer) -> Result<(), Failure> {
        Ok(render::write(&answer.text(self.output))?)
    }

    /// Whether the output is for a person.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.output, Output::Table | Output::Wide)
    }
}

/// Waits for at most so many seconds.
///
/// # Errors
/// That of the work, or no result in time.
pub(crate) async fn within<T>(
    seconds: u64,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(Duration::from_secs(seconds), work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(Failure::NoAnswer { seconds }),
    }
}
