//! Connects to a gRPC server on a Unix socket.

use std::io;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Reasons why a connection cannot be established.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No process listens on the socket.
    #[error("{}: cannot connect: {source}", path.display())]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// The error of connect(2).
        source: io::Error,
    },
    /// A process listens, but does not speak HTTP/2.
    #[error("{}: connected, but the server does not speak gRPC: {message}", path.display())]
    NotGrpc {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the handshake.
        message: String,
    },
}

/// Connects to the socket at `path`. If the connection breaks, it is not re-established: calls then
/// fail instead of reaching a different process.
///
/// # Errors
/// Fails if no process listens at `path`, or if the process does not speak HTTP/2.
pub async fn dial(path: &Path) -> Result<Channel, DialError> {
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|source| DialError::Connect {
        path: path.to_owned(),
        source,
    })?;
    let mut stream = Some(TokioIo::new(stream));
    let hand_over = service_fn(move |_| {
        let stream = stream.take();
        std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    // The authority must be a valid host, since h2 servers reset calls whose authority is a path.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(hand_over)
        .await
        .map_err(|error| DialError::NotGrpc {
            path: path.to_owned(),
            message: chain(&error),
        })
}

/// Returns the message of an error with all its causes, since transport errors alone are
/// unspecific.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_socket_is_named_with_its_reason() {
        let error = dial(Path::new("/nonexistent/csi.sock")).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nonexistent/csi.sock"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }
}
