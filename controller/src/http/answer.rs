//! The response to a call, and the failures that are derived from the response. Independent of the
//! clouds.

use super::words::{self, Secrets};
use belay_server::call::{Failure, Kind};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::response::Parts;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The maximum pause that a service can request.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A response with any status. The `Debug` output of a response omits the headers and the body,
/// which may be secret.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    body: Bytes,
    asked: Asked,
    /// The error message of the service, if it has refused the call.
    words: String,
    secrets: Secrets,
}

/// The call, for error messages.
pub(super) struct Asked {
    /// The method and path.
    pub(super) what: String,
    pub(super) host: String,
    /// Whether the call is read-only.
    pub(super) is_safe: bool,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.asked.what, self.status)
    }
}

impl Answer {
    pub(super) fn new(head: Parts, body: Bytes, asked: Asked, secrets: Secrets) -> Self {
        let words = match head.status.is_success() {
            true => String::new(),
            false => words::of(&body, &secrets),
        };
        Self {
            status: head.status,
            headers: head.headers,
            body,
            asked,
            words,
            secrets,
        }
    }

    /// Parses the body as JSON.
    ///
    /// # Errors
    /// Returns `Unreachable`, with an unknown state, if the body is not the expected JSON: the
    /// response is incomplete, or is not from the service.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| self.not_understood(&error))
    }

    /// Parses the part of a JSON body at a JSON pointer (RFC 6901) that contains only names; a
    /// missing part is parsed as `null`. Skips the rest of the body, so that no tree of the whole
    /// body is in memory.
    ///
    /// # Errors
    /// Returns the errors of [`Self::json`].
    pub fn member<T: DeserializeOwned>(&self, pointer: &str) -> Result<T, Failure> {
        let mut part: &RawValue =
            serde_json::from_slice(&self.body).map_err(|error| self.not_understood(&error))?;
        for name in pointer.split('/').skip(1) {
            let members: BTreeMap<String, &RawValue> =
                serde_json::from_str(part.get()).unwrap_or_default();
            part = members.get(name).copied().unwrap_or(RawValue::NULL);
        }
        let member = serde_json::from_str(part.get());
        member.map_err(|error| self.not_understood(&format_args!("{pointer}: {error}")))
    }

    /// Returns the response if it has one of these statuses.
    ///
    /// # Errors
    /// If the response has a different status, returns the failure that `refused` derives from the
    /// response.
    pub fn with_status(
        self,
        statuses: &[StatusCode],
        refused: fn(&Self) -> Failure,
    ) -> Result<Self, Failure> {
        match statuses.contains(&self.status) {
            true => Ok(self),
            false => Err(refused(&self)),
        }
    }

    fn not_understood(&self, error: &dyn fmt::Display) -> Failure {
        let message = format!(
            "{}: {}, and its body is not understood: {error}",
            self.asked.what, self.status
        );
        Failure::new(Kind::Unreachable, message).may_be_running()
    }

    /// Returns a text with the method and path, the status, and the error message of the service.
    #[must_use]
    pub fn refusal(&self) -> String {
        self.refusal_for(&self.words)
    }

    /// Returns a text with the method and path, the status, and this part of the service's error
    /// message.
    #[must_use]
    pub(crate) fn refusal_for(&self, words: &str) -> String {
        let reason = self.status.canonical_reason().unwrap_or("");
        let (what, code) = (&self.asked.what, self.status.as_str());
        match words.is_empty() {
            true => format!("{what}: {code} {reason}"),
            false => format!("{what}: {code} {reason}: {words}"),
        }
    }

    /// Returns the error message of the service, if it has refused the call.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Returns the failure of a call to which a proxy has responded instead of the service, or
    /// whose endpoint is wrong. A proxy's response says nothing about the object of the call. The
    /// proxy may have forwarded a change, unless the proxy refuses the size of the request or the
    /// sender (RFC 9110, 15.5.8 and 15.5.14).
    #[must_use]
    pub fn foreign(&self, service: &str) -> Failure {
        let (asked, code, words) = (&self.asked, self.status.as_str(), &self.words);
        let mut message = format!(
            "{} at {}: {code}, which is not an answer of {service}: a proxy on the way has \
             answered, or the endpoint is wrong",
            asked.what, asked.host
        );
        if !words.is_empty() {
            message = format!("{message}: {words}");
        }
        let failure = Failure::new(Kind::Unreachable, message);
        let is_stopped = matches!(
            self.status,
            StatusCode::PROXY_AUTHENTICATION_REQUIRED | StatusCode::PAYLOAD_TOO_LARGE
        );
        match asked.is_safe || is_stopped {
            true => failure,
            false => failure.may_be_running(),
        }
    }

    /// Whether the body is an HTML page.
    fn is_page(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE);
        let is_html = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
        is_html || self.body.trim_ascii_start().starts_with(b"<")
    }

    /// Whether the response is an HTML page that refuses the call. No API of a cloud responds with
    /// HTML, so a proxy blocks the call or limits its size. Returns false if a proxy limits the
    /// rate of calls, since the client observes the proxy's limit.
    #[must_use]
    pub fn is_refusal_of_proxy(&self) -> bool {
        let is_pace = self.status == StatusCode::TOO_MANY_REQUESTS;
        self.status.is_client_error() && !is_pace && self.is_page()
    }

    /// Masks the secrets in a text from the body, and shortens the text, so that an error can quote
    /// it.
    #[must_use]
    pub fn quoted(&self, text: &str) -> String {
        words::quoted(text, &self.secrets)
    }

    /// Whether the same call may succeed soon.
    pub(super) fn is_overload(&self) -> bool {
        matches!(self.status.as_u16(), 502..=504)
    }

    /// Returns the pause until the next attempt that the service requests, if any.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let after = self.after_header().or_else(|| self.after_reset())?;
        Some(after.min(PAUSE_MAX))
    }

    /// Parses the header `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
    fn after_header(&self) -> Option<Duration> {
        let value = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        match value.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => Some(until(httpdate::parse_http_date(value).ok()?)),
        }
    }

    /// Returns the pause until an exhausted rate limit is replenished, from a time in seconds since
    /// 1970.
    fn after_reset(&self) -> Option<Duration> {
        let number = |name| self.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
        let reset = number("ratelimit-reset").filter(|_| number("ratelimit-remaining") == Some(0));
        Some(until(UNIX_EPOCH.checked_add(Duration::from_secs(reset?))?))
    }
}

/// Returns the time from now until this time; zero if this time is past.
fn until(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::now()).unwrap_or_default()
}

/// The statuses that clouds use.
const KNOWN: [u16; 15] = [
    200, 201, 202, 204, 400, 401, 403, 404, 409, 413, 429, 500, 502, 503, 504,
];

/// Returns the value of the metric's label `code`: the status if clouds are known to use this
/// status, and otherwise the class of the status.
pub(super) fn code(status: StatusCode) -> String {
    match status.as_u16() {
        code if KNOWN.contains(&code) => code.to_string(),
        other @ 200..=599 => format!("{}xx", other / 100),
        _ => "other".to_owned(),
    }
}
