//! Extracts the error message from a response that refuses a call, and masks secrets in it, so that
//! Belay's errors can quote it.

use http::HeaderMap;
use serde_json::Value;

/// Maximum number of characters that an error quotes.
const QUOTED_MAX: usize = 300;
/// Minimum length of a secret that is masked, in bytes. Shorter texts would often occur by chance.
const SECRET_BYTES_MIN: usize = 4;
const MASK: &str = "***";

/// Texts that must not appear in errors: the values of headers marked as sensitive, and secrets in
/// the body.
#[derive(Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    pub(super) fn new(headers: &HeaderMap, others: &[&str]) -> Self {
        let values = headers.values().filter(|value| value.is_sensitive());
        let values = values.filter_map(|value| value.to_str().ok());
        let plain = values.chain(others.iter().copied());
        let plain = plain.filter(|secret| secret.len() >= SECRET_BYTES_MIN);
        let mut secrets = Vec::new();
        for secret in plain {
            // A JSON text contains the secret with JSON escapes.
            let escaped = Value::from(secret).to_string();
            secrets.push(escaped.trim_matches('"').to_owned());
            secrets.push(secret.to_owned());
        }
        Self(secrets)
    }

    /// Returns the text with the secrets masked.
    pub(super) fn masked(&self, text: &str) -> String {
        let mask = |text: String, secret: &String| text.replace(secret.as_str(), MASK);
        self.0.iter().fold(text.to_owned(), mask)
    }
}

/// Returns the error message in the body of a response that refuses a call: the first `message` or
/// `reason` in its JSON, or the start of its text.
pub(super) fn of(body: &[u8], secrets: &Secrets) -> String {
    let parsed = serde_json::from_slice(body).ok();
    let text = match parsed.as_ref().and_then(message) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    quoted(&text, secrets)
}

/// Returns the text in one line, with secrets masked, and truncated to [`QUOTED_MAX`] characters.
pub(super) fn quoted(text: &str, secrets: &Secrets) -> String {
    let masked = secrets.masked(text);
    let words = masked.split_whitespace().collect::<Vec<_>>().join(" ");
    let plain: String = words.chars().filter(|char| !char.is_control()).collect();
    match plain.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}...", &plain[..end]),
        None => plain,
    }
}

/// Finds the message in JSON such as `{"badRequest": {"message": "..."}}` (Cinder, Nova),
/// `{"error": {"message": "..."}}` (Keystone) or `{"code": "...", "reason": "..."}` (Civo).
fn message(value: &Value) -> Option<&str> {
    let object = value.as_object()?;
    let own = ["message", "reason"]
        .iter()
        .find_map(|key| object.get(*key)?.as_str());
    own.or_else(|| object.values().find_map(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_words_are_the_message_or_the_beginning_and_one_line() {
        let none = Secrets::default();
        for (body, words) in [
            (
                r#"{"badRequest": {"code": 400, "message": "no\nroom"}}"#,
                "no room",
            ),
            (
                r#"{"error": {"message": "who are you", "code": 401}}"#,
                "who are you",
            ),
            (r#"{"message": "plain"}"#, "plain"),
            (r#"{"code": "quota_limit_reached", "reason": "no"}"#, "no"),
            ("503 Service  Unavailable\n", "503 Service Unavailable"),
            ("[1]", "[1]"),
            ("\u{1b}[31mred", "[31mred"),
            ("", ""),
        ] {
            assert_eq!(of(body.as_bytes(), &none), words);
        }
        let long = of("ä".repeat(1000).as_bytes(), &none);
        assert_eq!(long.chars().count(), QUOTED_MAX + 3);
        assert!(!of(&[0xff, 0xfe], &none).is_empty());
    }

    #[test]
    fn no_secret_is_quoted_in_any_form() {
        let mut headers = HeaderMap::new();
        let mut token = HeaderValue::from_static("gAAAA-canary");
        token.set_sensitive(true);
        headers.insert("x-auth-token", token);
        headers.insert("accept", HeaderValue::from_static("application/json"));
        let secrets = Secrets::new(&headers, &["pass\"word", "ab"]);
        for body in [
            r#"{"error": {"message": "token gAAAA-canary is not pass\"word"}}"#,
            r#"bad request: {"password": "pass\"word", "token": "gAAAA-canary"}"#,
        ] {
            let words = of(body.as_bytes(), &secrets);
            assert!(!words.contains("canary"), "{words}");
            assert!(
                !words.contains("pass\"") && !words.contains("pass\\"),
                "{words}"
            );
            assert!(words.contains(MASK), "{words}");
        }
        assert_eq!(
            of(b"about application/json", &secrets),
            "about application/json"
        );
    }
}
