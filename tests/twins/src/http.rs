//! The parts of HTTP/1.1 (RFC 9112) that cloud clients use: requests with a Content-Length on
//! persistent connections. This module does not depend on the meaning of the requests.

use std::io::{self, BufRead, Read as _, Write};

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Maximum size of a request's head, in bytes.
const HEAD_MAX: u64 = 64 << 10;
const BODY_MAX: u64 = 1 << 20;
/// The name of the Content-Type header.
const TYPE: &str = "content-type";

/// A request.
#[derive(Debug, Default)]
pub struct Request {
    /// The method, in upper case.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query, decoded.
    pub query: Vec<(String, String)>,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; may be empty.
    pub body: Vec<u8>,
}

/// A response, with a body of JSON unless its headers say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// All headers except the length, and except the Content-Type of a JSON body.
    pub headers: Vec<(&'static str, String)>,
    /// The body; may be empty.
    pub body: String,
}

impl Request {
    /// Reads the next request of a connection; `None` at the end of the connection.
    ///
    /// # Errors
    /// Fails if the connection broke, or if the input is not a request.
    pub fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut lines = Vec::new();
        let mut head = from.take(HEAD_MAX);
        loop {
            let mut line = String::new();
            if head.read_line(&mut line)? == 0 {
                let is_end = lines.is_empty() && head.limit() > 0;
                return match is_end {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut words = lines.first().map_or("", String::as_str).split(' ');
        let (method, target) = (words.next(), words.next());
        let (Some(method), Some(target)) = (method, target) else {
            return Err(io::Error::other("no request line"));
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request {
            method: method.to_owned(),
            path: decoded(path),
            query: query.split('&').filter_map(pair).collect(),
            headers: lines
                .iter()
                .skip(1)
                .filter_map(|line| field(line))
                .collect(),
            body: Vec::new(),
        };
        let length = request.header("content-length").map_or(Ok(0), str::parse);
        let length: u64 = length.map_err(io::Error::other)?;
        if length > BODY_MAX || request.header("transfer-encoding").is_some() {
            return Err(io::Error::other("a body that is too long, or in chunks"));
        }
        from.take(length).read_to_end(&mut request.body)?;
        Ok(Some(request))
    }

    /// Returns the value of a header. `name` is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(field, _)| field == name)?;
        Some(&found.1)
    }

    /// Whether this is the client's last request on the connection.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.header("connection") == Some("close")
    }

    /// Returns the body as JSON; null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Returns the value of a query parameter.
    #[must_use]
    pub fn asked(&self, key: &str) -> Option<&str> {
        let pair = self.query.iter().find(|(name, _)| name == key)?;
        Some(&pair.1)
    }
}

impl Response {
    /// Creates a response with this JSON body; null means an empty body.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        let text = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        Self {
            status,
            headers: Vec::new(),
            body: text,
        }
    }

    /// Creates a response like that of a proxy that cannot reach the service: with an HTML page, or
    /// without a body.
    #[must_use]
    pub fn of_proxy(status: u16, has_page: bool) -> Self {
        let page = format!("<html>\n<h1>{status}</h1>\n<hr>a proxy\n</html>\n");
        Self {
            status,
            headers: vec![(TYPE, "text/html".to_owned())],
            body: if has_page { page } else { String::new() },
        }
    }

    /// Replaces the values at these JSON pointers (RFC 6901) in the body. Ignores pointers to
    /// values that are missing in the body.
    #[must_use]
    pub fn altered(self, values: &[(&str, Value)]) -> Self {
        let mut body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        for (place, value) in values {
            if let Some(at) = body.pointer_mut(place) {
                at.clone_from(value);
            }
        }
        let body = body.to_string();
        Self { body, ..self }
    }

    /// Writes the response.
    ///
    /// # Errors
    /// Fails if the connection broke.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut text = format!("HTTP/1.1 {} -\r\n", self.status);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        // Per RFC 9110, 8.6, a 204 response has no Content-Length.
        if self.status != 204 {
            let length = self.body.len();
            if self.headers.iter().all(|(name, _)| *name != TYPE) {
                text.push_str(&format!("{TYPE}: application/json\r\n"));
            }
            text.push_str(&format!("content-length: {length}\r\n"));
        }
        to.write_all(format!("{text}\r\n{}", self.body).as_bytes())
    }
}

fn field(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    Some((name.to_ascii_lowercase(), value.trim().to_owned()))
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((decoded(name), decoded(value)))
}

/// Decodes percent-encoding (RFC 3986).
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_connection_are_read_one_after_the_other() {
        let mut sent = "POST /v3/a%2Db?name=x%2Ey&limit=3 HTTP/1.1\r\nHost: a\r\n\
                        X-Auth-Token: t\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\n\r\n"
            .as_bytes();
        let first = Request::read(&mut sent).unwrap().unwrap();
        assert_eq!(
            (first.method.as_str(), first.path.as_str()),
            ("POST", "/v3/a-b")
        );
        assert_eq!(
            [first.asked("name"), first.asked("limit")],
            [Some("x.y"), Some("3")]
        );
        assert_eq!(
            (first.header("x-auth-token"), &first.body[..]),
            (Some("t"), &b"{}"[..])
        );
        let second = Request::read(&mut sent).unwrap().unwrap();
        assert_eq!((second.path.as_str(), second.asked("name")), ("/", None));
        assert!(Request::read(&mut sent).unwrap().is_none());
        Request::read(&mut "GET / HTTP/1.1\r\nHost".as_bytes()).unwrap_err();
    }

    #[test]
    fn a_response_has_its_length_unless_it_has_no_body() {
        let written = |status, body: &str| {
            let headers = vec![("x-subject-token", "t".to_owned())];
            let response = Response {
                status,
                headers,
                body: body.to_owned(),
            };
            let mut bytes = Vec::new();
            response.write(&mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let head = "HTTP/1.1 200 -\r\nx-subject-token: t\r\n";
        let json = "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(written(200, "{}"), format!("{head}{json}"));
        let mut bytes = Vec::new();
        Response::of_proxy(404, true).write(&mut bytes).unwrap();
        let page = String::from_utf8(bytes).unwrap();
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        let length = body.len();
        let expected = format!("content-type: text/html\r\ncontent-length: {length}");
        assert_eq!(head, format!("HTTP/1.1 404 -\r\n{expected}"));
        assert!(body.starts_with("<html>"), "{body}");
        let nothing = "HTTP/1.1 204 -\r\nx-subject-token: t\r\n\r\n";
        assert_eq!(written(204, ""), nothing);
    }
}
