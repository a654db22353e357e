//! A gRPC connection over a Unix socket. Knows nothing of what is said on it.

use std::io;
use std::path::Path;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::failure::Failure;

/// A new connection to the socket at `path`. It is never redialled: one that breaks stays broken,
/// so that a call fails instead of reaching a process that was not meant.
///
/// # Errors
/// Nobody listens there, or what listens does not speak HTTP/2.
pub(crate) async fn dial(path: &Path) -> Result<Channel, Failure> {
    let stream = UnixStream::connect(path)
        .await
        .map_err(|source| Failure::Connect {
            path: path.to_owned(),
            source,
        })?;
    let mut stream = Some(TokioIo::new(stream));
    let hand_over = service_fn(move |_| {
        let stream = stream
            .take()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        async move { stream }
    });
    // The authority must be a valid host: h2 servers reset calls whose authority is a path.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(hand_over)
        .await
        .map_err(|error| Failure::NotGrpc {
            path: path.to_owned(),
            message: chain(&error),
        })
}

/// An error with all its causes: transport errors say nothing by themselves.
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
        let failure = dial(Path::new("/nonexistent/csi.sock")).await.unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("/nonexistent/csi.sock"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }
}
