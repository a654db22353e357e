//! The calls of a cloud's API, and their URLs. Sends nothing.

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Method, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;

/// A call of a cloud's API.
pub struct Call<'a> {
    /// The purpose of the call, as the value of the label `verb` of the metric.
    pub verb: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The URL. The path must not contain a secret.
    pub uri: Uri,
    /// The headers. Headers that contain secrets must be marked
    /// ([`http::HeaderValue::set_sensitive`]).
    pub headers: HeaderMap,
    /// The request body, which may be empty.
    pub body: Bytes,
    /// More secrets that errors must not quote, such as secrets in the body.
    pub secrets: &'a [&'a str],
    /// Whether the call may be retried after the service may have received it.
    pub repeats: Repeat,
    /// Maximum duration of the call, including all attempts and pauses.
    pub deadline: Duration,
}

/// The calls that may be retried after the service may have received them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Calls with any method.
    Always,
    /// Calls with an idempotent method. PUT is excluded although HTTP defines it as idempotent,
    /// since some clouds start actions with PUT.
    Idempotent,
    /// Calls that only read. Intended for services whose changes have conditions: after a change
    /// was made, its retry would report that the condition does not hold.
    ReadOnly,
}

/// The failure of an attempt that has received no response.
pub(super) struct Broken {
    /// Whether the service may have received any part of the request.
    pub(super) is_sent: bool,
    pub(super) why: String,
}

impl Call<'_> {
    /// Returns the method and path, for error messages.
    pub(super) fn what(&self) -> String {
        format!("{} {}", self.method, self.uri.path())
    }

    /// Whether a retry of the call has no additional effect.
    pub(super) fn is_harmless(&self) -> bool {
        match self.repeats {
            Repeat::Always => true,
            Repeat::Idempotent => self.method.is_idempotent() && self.method != Method::PUT,
            Repeat::ReadOnly => self.method.is_safe(),
        }
    }
}

/// Characters that are percent-encoded in URLs: all except letters, digits, `-`, `_` and `~` (RFC
/// 3986, 2.3). IDs in paths remain readable, because errors quote the paths.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Percent-encodes any text for use in a URL.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}
