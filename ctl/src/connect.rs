//! A gRPC connection over a Unix socket. Knows nothing of what is said on it.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::failure::Failure;

/// Where a driver listens: an absolute path, however it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket(PathBuf);

impl FromStr for Socket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"))
            .unwrap_or(text);
        if !path.starts_with('/') {
            return Err("must be unix:///path, unix:/path or an absolute path".to_owned());
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl Socket {
    /// A new connection.
    ///
    /// # Errors
    /// Nobody listens there, or what listens does not speak HTTP/2.
    pub(crate) async fn connect(&self) -> Result<Channel, Failure> {
        dial(&self.0).await
    }
}

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

    #[test]
    fn every_spelling_of_a_socket_is_the_same_path() {
        for text in [
            "/run/csi.sock",
            "unix:/run/csi.sock",
            "unix:///run/csi.sock",
        ] {
            assert_eq!(
                text.parse(),
                Ok(Socket(PathBuf::from("/run/csi.sock"))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_an_absolute_path_is_refused() {
        for text in [
            "",
            "csi.sock",
            "unix://csi.sock",
            "tcp://127.0.0.1:1",
            "unix:",
        ] {
            assert!(text.parse::<Socket>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_missing_socket_is_named_with_its_reason() {
        let failure = dial(Path::new("/nonexistent/csi.sock")).await.unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("/nonexistent/csi.sock"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }
}
