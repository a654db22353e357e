//! Connects to a gRPC server on a Unix socket.

use std::io;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No process listens on the socket.
    #[error("{}: cannot connect: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// A process listens, but does not speak HTTP/2.
    #[error("{}: connected, but the server does not speak gRPC: {message}", path.display())]
    NotGrpc {
        /// The socket.
        path: PathBuf,
        /// The error of the handshake.
        message: String,
    },
}

/// A new connection to the socket at `path`. It never reconnects: if it breaks, calls fail instead
/// of reaching another process.
///
/// # Errors
/// No process listens there, or it does not speak HTTP/2.
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
    // The authority must be a valid host: h2 servers reset calls whose authority is a path.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(hand_over)
        .await
        .map_err(|error| DialError::NotGrpc {
            path: path.to_owned(),
            message: chain(&error),
        })
}

/// An error with all its causes: transport errors alone say nothing.
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
