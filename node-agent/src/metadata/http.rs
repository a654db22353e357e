//! Makes a single GET request of HTTP/1.1 (RFC 9112) over a connection without TLS. The client uses
//! no proxy, resolves no host name, follows no redirect, and limits the size of the headers and of
//! the body. Error messages do not quote the response.

use std::io;
use std::net::SocketAddr;

use belay_server::size::Exact;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Maximum size of the response's status line and headers, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of headers in the response.
const HEADERS_MAX: usize = 64;

/// The reason why a request returned no body.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// The connection could not be opened, or failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The HTTP status is this number instead of 200.
    #[error("HTTP status {0}{hint}", hint = hint(*.0))]
    Status(u16),
    /// The body is longer than the caller's limit, which is this number of bytes.
    #[error("the response has more than {}", Exact(*.0 as u64))]
    TooLong(usize),
    /// The response violates HTTP/1.1 or is truncated.
    #[error("the response is not HTTP/1.1: {0}")]
    Malformed(hyper::Error),
}

impl From<hyper::Error> for Refused {
    /// Extracts the operating system's error from the source of hyper's error, because hyper's own
    /// message omits the operating system's error.
    fn from(error: hyper::Error) -> Self {
        let source = std::error::Error::source(&error);
        let source = source.and_then(|source| source.downcast_ref::<io::Error>());
        match source.and_then(io::Error::raw_os_error) {
            Some(errno) => Self::Io(io::Error::from_raw_os_error(errno)),
            None => Self::Malformed(error),
        }
    }
}

fn hint(status: u16) -> &'static str {
    match status {
        300..=399 => ", a redirect, which is not followed",
        404 => ": the service does not know this node, or does not have this document",
        500.. => ": the service fails",
        _ => "",
    }
}

/// Returns the body of the document at `path`, which may have at most `bytes_max` bytes. The caller
/// must limit the time of the request.
///
/// # Errors
/// Returns an error if the connection fails, if the status is not 200, or if the response is
/// invalid or too long.
pub(super) async fn get(
    address: SocketAddr,
    path: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let stream = TcpStream::connect(address).await?;
    get_over(stream, &address.to_string(), path, bytes_max).await
}

async fn get_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, Refused> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    let request = Request::get(format!("/{path}"))
        .header(HOST, host)
        .header(USER_AGENT, "belay-node")
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(String::new())
        .map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(Refused::Status(response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), bytes_max).collect();
        match body.await {
            Ok(body) => Ok(body.to_bytes().into()),
            Err(error) if error.is::<LengthLimitError>() => Err(Refused::TooLong(bytes_max)),
            Err(error) => Err(match error.downcast::<hyper::Error>() {
                Ok(error) => (*error).into(),
                Err(error) => io::Error::other(error).into(),
            }),
        }
    };
    tokio::select! {
        body = exchange => body,
        // If the connection fails, the exchange of request and response fails as well, and its
        // error has the reason.
        Err(error) = connection => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

    const BYTES_MAX: usize = 32;

    fn read(response: &[u8]) -> Result<Vec<u8>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (ours, mut service) = tokio::io::duplex(1 << 16);
            let serve = async {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    service.read_buf(&mut request).await.unwrap();
                }
                // Ignore errors, because the client may have closed the connection after it has
                // read enough.
                service.write_all(response).await.ok();
                service.shutdown().await.ok();
            };
            let get = get_over(ours, "host", "path", BYTES_MAX);
            let ((), body) = tokio::join!(serve, get);
            body.map_err(|refused| refused.to_string())
        })
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
            // Check the client's result before the server's task is awaited: without a request,
            // this task would wait forever.
            assert_eq!(got.unwrap(), b"zone");
            let request = served.await.unwrap();
            assert!(request.starts_with("GET /latest/meta-data HTTP/1.1\r\n"));
            assert!(request.contains(&format!("\r\nhost: {address}\r\n")));
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
             5\r\nhello\r\n0\r\n\r\n",
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
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(20_000));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(100));
        let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "y".repeat(BYTES_MAX + 1));
        let chunked =
            |chunks: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let with = |header: &str| format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\nhello");
        for (response, why) in [
            ("", "not HTTP/1.1"),
            ("SSH-2.0-server\r\n", "not HTTP/1.1"),
            ("HTTP/1.1 2000 OK\r\n\r\n", "not HTTP/1.1"),
            ("HTTP/2 200\r\n\r\n", "not HTTP/1.1"),
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
            (&with("Content-Length 5"), "not HTTP/1.1"),
            (
                &format!("{}{}", with("Content-Length: 33"), "y".repeat(28)),
                "more than 32 bytes",
            ),
            (
                &with("Content-Length: 18446744073709551616"),
                "not HTTP/1.1",
            ),
            (&with("Content-Length: +5"), "not HTTP/1.1"),
            (
                &with("Content-Length: 5\r\nContent-Length: 6"),
                "not HTTP/1.1",
            ),
            (&with("Content-Length: 6"), "not HTTP/1.1"),
            (&chunked("x\r\n"), "not HTTP/1.1"),
            (&chunked("2\r\nhello\r\n"), "not HTTP/1.1"),
            (&chunked("5\r\nhello\r\n"), "not HTTP/1.1"),
            (
                &chunked(&format!("21\r\n{}\r\n0\r\n\r\n", "y".repeat(33))),
                "more than 32",
            ),
            (&long, "not HTTP/1.1"),
            (&many, "not HTTP/1.1"),
            (&endless, "more than 32 bytes"),
        ] {
            let refused = read(response.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{response}: {refused}");
        }
    }

    #[test]
    fn what_is_as_long_as_it_may_be_is_read() {
        let body = "y".repeat(BYTES_MAX);
        for head in [
            format!("Content-Length: {BYTES_MAX}\r\n"),
            "X: y\r\n".repeat(HEADERS_MAX),
            format!("X: {}\r\n", "y".repeat(HEAD_BYTES_MAX / 2)),
        ] {
            let read = read(format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}").as_bytes());
            assert_eq!(read, Ok(body.clone().into_bytes()), "{head}");
        }
        let half = BYTES_MAX / 2;
        let chunk = |bytes: usize| format!("{bytes:x}\r\n{}\r\n", "y".repeat(bytes));
        for (last, is_read) in [(half, true), (half + 1, false)] {
            let chunks = chunk(half) + &chunk(last) + "0\r\n\r\n";
            let whole = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
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
