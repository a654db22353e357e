//! Sends HTTP/1.1 requests, each on a separate connection, with the features that the bed's proxy
//! supports. Does not retry.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Maximum time for a response. Nova responds to an attach within 30 s (`rpc_response_timeout` of
/// the bed).
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// A complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status, such as 202.
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; `Null` if it is empty or not JSON.
    pub body: Value,
}

impl Answer {
    /// Returns the value of a header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The error if the connection failed, or if the connection ended before the end of the response.
#[derive(Debug)]
pub struct Cut(pub io::Error);

/// Sends a request to an `http://` URL, and reads the response.
///
/// # Errors
/// Fails if there is no complete response.
pub fn send(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> Result<Answer, Cut> {
    exchange(method, url, headers, body).map_err(Cut)
}

fn exchange(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> io::Result<Answer> {
    let rest = url.strip_prefix("http://").ok_or_else(|| wrong(url))?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer)
}

fn parse(answer: &[u8]) -> io::Result<Answer> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let body = &answer[end + 4..];
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let answer = Answer {
        status: status.ok_or_else(|| wrong(first))?,
        headers,
        body: serde_json::from_slice(body).unwrap_or(Value::Null),
    };
    let length = answer
        .header("content-length")
        .and_then(|text| text.parse().ok());
    match length {
        Some(length) if body.len() < length => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(answer),
    }
}

fn wrong(text: &str) -> io::Error {
    io::Error::other(format!("no HTTP: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_status_headers_and_body() {
        let answer =
            parse(b"HTTP/1.1 202 Accepted\r\nX-A: b\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 202);
        assert_eq!(answer.header("x-a"), Some("b"));
        assert_eq!(answer.body["a"], 1);
    }

    #[test]
    fn a_body_or_head_that_is_too_short_is_an_error() {
        for cut in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{}",
        ] {
            assert!(parse(cut.as_bytes()).is_err(), "{cut:?}");
        }
    }
}
