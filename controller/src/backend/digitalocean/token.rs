//! The token of the account. It may be replaced at any time: the file is read again when the cloud
//! refuses the current token.

use belay_server::call::Failure;
use belay_server::file;
use belay_server::lock::Lock;
use http::HeaderValue;
use std::fmt;
use std::path::{Path, PathBuf};

/// The authentication scheme before the token.
pub(super) const BEARER: &str = "Bearer ";

/// The maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The source of the token.
#[derive(Clone)]
pub enum TokenSource {
    /// A file that contains only the token.
    File(PathBuf),
    /// The token itself, from the environment.
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

/// The token, as a header that errors do not quote.
pub(super) struct Token {
    source: TokenSource,
    header: Lock<HeaderValue>,
}

impl Token {
    /// Reads the token. Blocks.
    ///
    /// # Errors
    /// Returns `Precondition`, naming the file.
    pub(super) fn open(source: TokenSource) -> Result<Self, Failure> {
        let header = match &source {
            TokenSource::File(path) => read(path)?,
            TokenSource::Given(token) => bearer(token)
                .ok_or_else(|| Failure::precondition("the token in the environment is none"))?,
        };
        Ok(Self {
            source,
            header: Lock::new(header),
        })
    }

    pub(super) fn header(&self) -> HeaderValue {
        let header = self.header.lock();
        header.clone()
    }

    /// Returns the token of the file, if it differs from the token that the cloud has refused.
    pub(super) async fn newer(&self, refused: &HeaderValue) -> Option<HeaderValue> {
        let TokenSource::File(path) = &self.source else {
            return None;
        };
        let path = path.clone();
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let read = read.ok()?.inspect_err(|failure| {
            tracing::warn!(%failure, "the token was refused, and no other can be read");
        });
        read.ok().filter(|newer| newer != refused)
    }

    /// Sets the token for all further calls.
    pub(super) fn replace(&self, by: HeaderValue) {
        *self.header.lock() = by;
    }
}

fn read(path: &Path) -> Result<HeaderValue, Failure> {
    let bad = |why: &dyn fmt::Display| {
        let path = path.display();
        Failure::precondition(format!("--token-file {path}: {why}"))
    };
    let text = file::read_text(path, FILE_BYTES_MAX).map_err(|error| bad(&error))?;
    bearer(&text).ok_or_else(|| bad(&"must contain only the API token"))
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

    #[tokio::test]
    async fn a_token_is_read_again_when_it_was_refused_and_is_printed_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "canary-1\n").unwrap();
        let source = TokenSource::File(path.clone());
        let token = Token::open(source).unwrap();
        let first = token.header();
        assert_eq!(first, "Bearer canary-1");
        assert!(token.newer(&first).await.is_none(), "it is the same");
        std::fs::write(&path, "canary-2").unwrap();
        let second = token.newer(&first).await.unwrap();
        assert_eq!(token.header(), first, "it is not used yet");
        token.replace(second.clone());
        assert_eq!(
            (second, token.header()),
            ("Bearer canary-2".parse().unwrap(), token.header())
        );
        let given = TokenSource::Given("canary-3".to_owned());
        assert!(!format!("{given:?} {:?}", token.header()).contains("canary"));
    }

    #[test]
    fn a_file_without_a_token_is_named_and_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for content in ["", " \n", "canary two"] {
            std::fs::write(&path, content).unwrap();
            let failure = Token::open(TokenSource::File(path.clone())).err().unwrap();
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
            let failure = Token::open(TokenSource::File(path)).err().unwrap();
            assert!(failure.message.contains(why), "{failure}");
        }
    }
}
