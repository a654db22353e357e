//! The API token of the account, from a file or an environment variable.

use belay_server::call::Failure;
use belay_server::file;
use http::HeaderValue;
use std::fmt;
use std::path::{Path, PathBuf};

/// The authentication scheme, which precedes the token in the header.
pub(super) const BEARER: &str = "Bearer ";

/// The maximum size of the token's file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The source of the API token.
#[derive(Clone)]
pub enum TokenSource {
    /// A file that contains only the token.
    File(PathBuf),
    /// The token itself, from an environment variable.
    Given(String),
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::File(path) => f.debug_tuple("File").field(path).finish(),
            TokenSource::Given(_) => f.write_str("Given(***)"),
        }
    }
}

impl TokenSource {
    /// Reads the token and returns it as a header that is marked as sensitive. Blocks the calling
    /// thread.
    ///
    /// # Errors
    /// Returns `Precondition`, naming the file, if the token cannot be read or is invalid.
    pub(super) fn read(&self) -> Result<HeaderValue, Failure> {
        match self {
            TokenSource::File(path) => read(path),
            TokenSource::Given(token) => bearer(token).ok_or_else(|| {
                Failure::precondition(
                    "DIGITALOCEAN_ACCESS_TOKEN: contains other text than the API token; correct it",
                )
            }),
        }
    }
}

fn read(path: &Path) -> Result<HeaderValue, Failure> {
    let bad = |why: &dyn fmt::Display| {
        let (path, what) = (
            path.display(),
            "name a file that contains only the API token",
        );
        Failure::precondition(format!("--token-file {path}: {why}; {what}"))
    };
    let text = file::read_text(path, FILE_BYTES_MAX).map_err(|error| bad(&error))?;
    bearer(&text).ok_or_else(|| bad(&"is empty, or contains other text than the API token"))
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut header = HeaderValue::from_str(&format!("{BEARER}{token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_printed_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "canary-1\n").unwrap();
        let given = TokenSource::Given("canary-1".to_owned());
        for source in [TokenSource::File(path), given] {
            let token = source.read().unwrap();
            assert_eq!(token, "Bearer canary-1");
            assert!(!format!("{source:?} {token:?}").contains("canary"));
        }
    }

    #[test]
    fn a_file_without_a_token_is_named_and_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for content in ["", " \n", "canary two"] {
            std::fs::write(&path, content).unwrap();
            let failure = TokenSource::File(path.clone()).read().unwrap_err();
            let message = failure.message;
            assert!(message.contains("--token-file"), "{message}");
            assert!(!message.contains("canary"), "{message}");
        }
        std::fs::write(&path, "1".repeat(4097)).unwrap();
        let zero = dir.path().join("zero");
        std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
        for (path, why) in [
            (path, "token: has 4097 bytes; at most 4 KiB are read"),
            (zero, "zero: is a character device, not a regular file"),
        ] {
            let failure = TokenSource::File(path).read().unwrap_err();
            assert!(failure.message.contains(why), "{failure}");
        }
    }
}
