//! Parses endpoints: all spellings of `CSI_ENDPOINT`, for servers and clients. Opens no socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum length of the path of a Unix socket, in bytes: `sun_path` of unix(7) without the NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// An absolute path for a Unix socket, short enough for bind(2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The path of the socket file.
    pub path: PathBuf,
}

/// Reasons why an endpoint is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The endpoint has a scheme other than `unix`, or is a relative path.
    #[error("not the absolute path of a Unix socket; write unix:///absolute/path.sock")]
    Scheme,
    /// The path is empty, a directory, or contains a NUL byte.
    #[error("names no file; write unix:///absolute/path.sock")]
    NoFile,
    /// The path is longer than the kernel allows.
    #[error("the path is longer than {SOCKET_PATH_BYTES_MAX} bytes; shorten it")]
    TooLong,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Parses `unix:///p`, `unix://p` (which means `/p`, as in Go drivers), `unix:/p` and an
    /// absolute path.
    ///
    /// # Errors
    /// Fails unless the endpoint is the absolute path of a file, of at most
    /// [`SOCKET_PATH_BYTES_MAX`] bytes.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => path.to_owned(),
            Some(("unix", path)) => format!("/{path}"),
            Some(_) => return Err(EndpointError::Scheme),
            None => text.strip_prefix("unix:").unwrap_or(text).to_owned(),
        };
        if !path.starts_with('/') {
            return Err(EndpointError::Scheme);
        }
        if path.ends_with('/') || path.contains('\0') {
            return Err(EndpointError::NoFile);
        }
        if path.len() > SOCKET_PATH_BYTES_MAX {
            return Err(EndpointError::TooLong);
        }
        Ok(Self {
            path: PathBuf::from(path),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_common_spellings_mean_the_same_file() {
        for text in [
            "unix:///run/csi.sock",
            "unix://run/csi.sock",
            "unix:/run/csi.sock",
            "/run/csi.sock",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.path, PathBuf::from("/run/csi.sock"), "{text}");
            assert_eq!(endpoint.to_string(), "unix:///run/csi.sock");
        }
    }

    #[test]
    fn a_path_that_is_not_absolute_is_refused() {
        let scheme = [
            "",
            "csi.sock",
            "tcp://127.0.0.1:1",
            "unix:csi.sock",
            "http:///csi.sock",
        ];
        for text in scheme {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error, EndpointError::Scheme);
        }
        for text in ["/", "unix:///", "unix://", "/run/csi/", "/run/\0"] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error, EndpointError::NoFile);
        }
    }

    #[test]
    fn the_longest_path_that_the_kernel_takes_is_taken_and_no_longer_one() {
        let longest = format!("/{}", "x".repeat(SOCKET_PATH_BYTES_MAX - 1));
        assert!(longest.parse::<Endpoint>().is_ok());
        let error = format!("{longest}x").parse::<Endpoint>().unwrap_err();
        assert_eq!(error, EndpointError::TooLong);
    }
}
