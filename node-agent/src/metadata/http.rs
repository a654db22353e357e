//! One GET of HTTP/1.1 (RFC 9112) over a plain connection: no proxy, no name, no redirect, and
//! limits on everything. What it reads is in no error.

use std::io;
use std::net::SocketAddr;

use belay_server::size::Exact;
use tokio::io::BufReader;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Most bytes of a line of the head.
const LINE_MAX: u64 = 4096;
/// Most lines of the head.
const LINES_MAX: usize = 64;

/// Why there is no body.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// The connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another status than 200.
    #[error("HTTP status {0}{hint}", hint = hint(*.0))]
    Status(u16),
    /// More than the caller takes.
    #[error("the response has more than {}", Exact(*.0 as u64))]
    TooLong(usize),
    /// Not what HTTP says.
    #[error("the response is not HTTP/1.1: {0}")]
    Malformed(&'static str),
}

fn hint(status: u16) -> &'static str {
    match status {
        300..=399 => ", a redirect, which is not followed",
        404 => ": the service does not know this node, or does not have this document",
        500.. => ": the service fails",
        _ => "",
    }
}

/// The body of the document at `path`, of at most `bytes_max`. Has no deadline.
///
/// # Errors
/// [`Refused`].
pub(super) async fn get(
    address: SocketAddr,
    path: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET /{path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: belay-node\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    body(&mut BufReader::new(stream), bytes_max).await
}

/// The body of a response with status 200.
async fn body(
    response: &mut (impl AsyncBufRead + Unpin),
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let status = status(&line(response).await?)?;
    if status != 200 {
        return Err(Refused::Status(status));
    }
    let (mut length, mut is_chunked) = (None, false);
    for _ in 0..LINES_MAX {
        let line = line(response).await?;
        if line.is_empty() {
            return match (is_chunked, length) {
                (true, _) => chunks(response, bytes_max).await,
                (false, Some(length)) => exactly(response, Vec::new(), length, bytes_max).await,
                (false, None) => up_to_the_end(response, bytes_max).await,
            };
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(Refused::Malformed("a header without a colon"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let bytes = number(value, 10).ok_or(Refused::Malformed("Content-Length"))?;
            if length.is_some_and(|other| other != bytes) {
                return Err(Refused::Malformed("two values of Content-Length"));
            }
            length = Some(bytes);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(Refused::Malformed("unknown Transfer-Encoding"));
            }
            is_chunked = true;
        }
    }
    Err(Refused::Malformed("too many headers"))
}

/// `HTTP/1.1 200 OK`.
fn status(line: &str) -> Result<u16, Refused> {
    let mut words = line.split(' ');
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let code = words.next().filter(|code| is_http && code.len() == 3);
    let code = code.and_then(|code| number(code, 10)?.try_into().ok());
    code.ok_or(Refused::Malformed("the status line"))
}

/// A line of the head, without its end.
async fn line(response: &mut (impl AsyncBufRead + Unpin)) -> Result<String, Refused> {
    let mut line = Vec::new();
    response.take(LINE_MAX).read_until(b'\n', &mut line).await?;
    if line.pop() != Some(b'\n') {
        return Err(Refused::Malformed("a line that is too long or has no end"));
    }
    line.pop_if(|last| *last == b'\r');
    String::from_utf8(line).map_err(|_| Refused::Malformed("a line that is not UTF-8"))
}

async fn chunks(
    response: &mut (impl AsyncBufRead + Unpin),
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let mut body = Vec::new();
    loop {
        let size = line(response).await?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = number(size, 16).ok_or(Refused::Malformed("the size of a chunk"))?;
        // What may follow the last one is of no use here.
        if size == 0 {
            return Ok(body);
        }
        body = exactly(response, body, size, bytes_max).await?;
        if !line(response).await?.is_empty() {
            return Err(Refused::Malformed("a chunk that is longer than its size"));
        }
    }
}

/// The body so far, and `length` more bytes.
async fn exactly(
    response: &mut (impl AsyncBufRead + Unpin),
    mut body: Vec<u8>,
    length: usize,
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let whole = body.len().saturating_add(length);
    if whole > bytes_max {
        return Err(Refused::TooLong(bytes_max));
    }
    // Grows with what arrives, whatever size was announced.
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    response.take(length).read_to_end(&mut body).await?;
    if body.len() != whole {
        return Err(Refused::Malformed("it ends before its announced length"));
    }
    Ok(body)
}

async fn up_to_the_end(
    response: &mut (impl AsyncBufRead + Unpin),
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let mut body = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    response
        .take(limit.saturating_add(1))
        .read_to_end(&mut body)
        .await?;
    if body.len() > bytes_max {
        return Err(Refused::TooLong(bytes_max));
    }
    Ok(body)
}

/// Digits only: `parse` accepts a sign.
fn number(text: &str, radix: u32) -> Option<usize> {
    let is_plain = text.chars().all(|char| char.is_digit(radix));
    usize::from_str_radix(text, radix).ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES_MAX: usize = 32;

    fn read(response: &[u8]) -> Result<Vec<u8>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut response = response;
        let body = runtime.block_on(body(&mut response, BYTES_MAX));
        body.map_err(|refused| refused.to_string())
    }

    #[test]
    fn a_document_is_requested_by_its_path_from_its_host() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let served = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = String::new();
                let mut reader = BufReader::new(&mut stream);
                while !request.ends_with("\r\n\r\n") {
                    reader.read_line(&mut request).await.unwrap();
                }
                let response = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nzone";
                stream.write_all(response).await.unwrap();
                request
            });
            let got = get(address, "latest/meta-data", 9).await;
            // Before the server, which waits for a request.
            assert_eq!(got.unwrap(), b"zone");
            let request = served.await.unwrap();
            assert!(request.starts_with("GET /latest/meta-data HTTP/1.1\r\n"));
            assert!(request.contains(&format!("\r\nHost: {address}\r\n")));
        });
    }

    #[test]
    fn a_body_ends_by_its_length_its_last_chunk_or_the_connection() {
        for response in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more",
            "HTTP/1.0 200 OK\nContent-Length: 5\n\nhello",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n\
             0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 9\r\nTransfer-Encoding: chunked\r\n\r\n\
             5\r\nhello\r\n0\r\n",
        ] {
            assert_eq!(
                read(response.as_bytes()),
                Ok(b"hello".to_vec()),
                "{response}"
            );
        }
        assert_eq!(
            read(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            Ok(vec![])
        );
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(5000));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(100));
        let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "y".repeat(BYTES_MAX + 1));
        for (response, why) in [
            ("", "has no end"),
            ("SSH-2.0-server\r\n", "the status line"),
            ("HTTP/1.1 2000 OK\r\n", "the status line"),
            ("HTTP/1.1 +20 OK\r\n", "the status line"),
            ("HTTP/2 200\r\n", "the status line"),
            (
                "HTTP/1.1 404 Not Found\r\n\r\n",
                "status 404: the service does not know",
            ),
            (
                "HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n",
                "302, a redirect",
            ),
            ("HTTP/1.1 500 Oh\r\n\r\n", "status 500: the service fails"),
            ("HTTP/1.1 403 No\r\n\r\n", "HTTP status 403"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length 5\r\n\r\nhello",
                "a header without a colon",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n",
                "more than 32 bytes",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n",
                "Content-Length",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
                "Content-Length",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                "two values",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
                "before its announced",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
                "unknown Transfer",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
                "size of a chunk",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
                "longer than its size",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                "no end",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n21\r\n",
                "more than 32",
            ),
            (&long, "too long"),
            (&many, "too many headers"),
            (&endless, "more than 32 bytes"),
        ] {
            let refused = read(response.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{response}: {refused}");
        }
    }

    #[test]
    fn what_is_as_long_as_it_may_be_is_read() {
        let body = "y".repeat(BYTES_MAX);
        let ok = "HTTP/1.1 200 OK\r\n";
        let line = |length: usize| format!("X: {}\r\n", "y".repeat(length - "X: \r\n".len()));
        let longest = usize::try_from(LINE_MAX).unwrap();
        // The empty line that ends the head is one.
        let lines = |count: usize| "X: y\r\n".repeat(count - 1);
        for (head, is_read) in [
            (format!("Content-Length: {BYTES_MAX}\r\n"), true),
            (line(longest), true),
            (line(longest + 1), false),
            (lines(LINES_MAX), true),
            (lines(LINES_MAX + 1), false),
        ] {
            let read = read(format!("{ok}{head}\r\n{body}").as_bytes());
            assert_eq!(
                read.is_ok_and(|read| read == body.as_bytes()),
                is_read,
                "{head}"
            );
        }
        let half = BYTES_MAX / 2;
        let chunk = |bytes: usize| format!("{bytes:x}\r\n{}\r\n", "y".repeat(bytes));
        for (last, is_read) in [(half, true), (half + 1, false)] {
            let chunks = chunk(half) + &chunk(last) + "0\r\n";
            let whole = format!("{ok}Transfer-Encoding: chunked\r\n\r\n{chunks}");
            assert_eq!(read(whole.as_bytes()).is_ok(), is_read, "{last}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            status in "(HTTP/1.1 200 OK\r\n)?",
            head in "((Content-Length|Transfer-Encoding): (chunked|[0-9]{1,25})\r\n){0,2}(\r\n)?",
            rest in proptest::collection::vec(any::<u8>(), 0..128),
        ) {
            drop(read(&[status.as_bytes(), head.as_bytes(), &rest].concat()));
        }
    }
}
