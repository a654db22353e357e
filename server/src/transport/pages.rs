//! The HTTP/1 pages for people, tools, Prometheus and the kubelet's probes: GET /, /jobs, /metrics,
//! /healthz, /readyz and /livez. Changes nothing.

use super::acceptor::{Acceptor, Connection};
use crate::facts::AllFacts;
use crate::metrics::Metrics;
use crate::readiness::{Readiness, State};
use bytes::Bytes;
use http::header::{self, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_tcp_user_timeout;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Maximum number of connections. If there are more connections, the oldest connection of an
/// address with the most connections is closed. The port may be open to a whole cluster, so the
/// memory of its connections is limited.
const CONNECTIONS_MAX: usize = 32;

/// Maximum time in which a client must send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of the head of a request, in bytes. A probe sends 100 bytes, and a Prometheus with
/// a token sends a few thousand bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Maximum size of hyper's buffer, in bytes. hyper accepts no less than 8 KiB.
const PARSER_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// Maximum time in which a client must read its page, equal to the default timeout of Prometheus.
/// The kernel keeps data that a client does not acknowledge for the same time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The headers of every page. Browsers must not cache the page or guess its type. Browsers may
/// apply the style in the status page, but must not load other resources or run scripts.
const HEADERS: [(HeaderName, &str); 3] = [
    (CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'",
    ),
];

/// Pause between two attempts to bind a port that is taken.
const PORT_PAUSE: Duration = Duration::from_secs(2);

/// Counter: attempts to listen on a port that was taken.
const TAKEN: &str = "belay_http_port_taken_total";

/// The content of the pages, except for the metrics.
#[derive(Clone)]
pub(crate) struct PageContent {
    /// The readiness that is reported by /healthz and /readyz.
    pub(crate) readiness: Readiness,
    /// The facts, which are measured again before each response to /metrics and /.
    pub(crate) facts: AllFacts,
    /// Creates the status page. Must not wait.
    pub(crate) status: Arc<dyn Fn(&State) -> String + Send + Sync>,
    /// Lists the operations in progress. Must not wait.
    pub(crate) jobs: fn() -> String,
}

impl fmt::Debug for PageContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageContent").field(&self.readiness).finish()
    }
}

/// The HTTP port of the pages, before the pages are served.
#[derive(Debug)]
pub struct Pages {
    address: SocketAddr,
    /// The listener. `None` while a different process uses the port, most likely a killed earlier
    /// process of this program. CSI calls are served nevertheless.
    listener: Option<TcpListener>,
    metrics: Metrics,
}

impl Pages {
    /// Listens on the port. If the port is taken, [`Pages::serve`] waits until the port is free.
    ///
    /// # Errors
    /// Returns an error if the address does not belong to this machine, or if this process may not
    /// use the port.
    pub(crate) async fn bind(address: SocketAddr, metrics: Metrics) -> io::Result<Self> {
        metrics::describe_counter!(TAKEN, "Attempts to listen on an HTTP port that was taken.");
        metrics::counter!(TAKEN).increment(0);
        let listener = listen(address).await?;
        if listener.is_none() {
            tracing::warn!(
                "{address} is taken by another process: calls are served, but /metrics, /healthz \
                 and /livez only once it is free; stop that process (`ss --tcp --listening \
                 --processes` shows it), or choose another --http-endpoint"
            );
        }
        Ok(Self {
            address,
            listener,
            metrics,
        })
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self, shown: PageContent) -> Infallible {
        let content = Arc::new((self.metrics, shown));
        serve(self.address, self.listener, content).await
    }
}

/// The state that all connections share.
type Content = Arc<(Metrics, PageContent)>;

async fn serve(
    address: SocketAddr,
    mut listener: Option<TcpListener>,
    content: Content,
) -> Infallible {
    let listener = loop {
        if let Some(listener) = listener {
            break listener;
        }
        tokio::time::sleep(PORT_PAUSE).await;
        // Errors other than a taken port will recur, and this function cannot repair them, so
        // ignore them.
        listener = listen(address).await.ok().flatten();
    };
    let mut acceptor = Acceptor::new("http", CONNECTIONS_MAX);
    let accept = async || {
        let (stream, source) = listener.accept().await?;
        Ok((stream, Some(source.ip())))
    };
    loop {
        let (stream, connection) = acceptor.next(accept).await;
        let content = Arc::clone(&content);
        tokio::spawn(async move {
            bound_unacknowledged(&stream);
            serve_connection(stream, content, connection).await;
        });
    }
}

/// Listens on the address. Returns `None` if the port is taken.
async fn listen(address: SocketAddr) -> io::Result<Option<TcpListener>> {
    let listener = match TcpListener::bind(address).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            metrics::counter!(TAKEN).increment(1);
            return Ok(None);
        }
        listener => listener?,
    };
    // Port 0 selects a free port, which only this log line reports.
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /healthz and /livez");
    Ok(Some(listener))
}

/// Makes the kernel drop data that a client has not acknowledged in time, even after the connection
/// was closed. By default, the kernel would keep whole pages for clients that do not read.
fn bound_unacknowledged(stream: &TcpStream) {
    let milliseconds = u32::try_from(ANSWER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = set_tcp_user_timeout(stream, milliseconds) {
        tracing::debug!(%error, "cannot limit how long unread pages are kept");
    }
}

/// Serves one request and closes the connection. Closes the connection earlier if a new connection
/// needs the slot.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    content: Content,
    connection: Connection,
) {
    let ended = tokio::select! {
        biased;
        ended = answer(stream, content) => ended,
        () = connection.unwanted() => Err("closed to make room for others".into()),
    };
    if let Err(error) = ended {
        tracing::debug!(error, "an HTTP connection failed");
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    content: Content,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let head = tokio::time::timeout(HEAD_TIMEOUT, head(&mut stream)).await??;
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(io::Cursor::new(head).chain(reader), writer);
    let service = service_fn(move |request: Request<Incoming>| {
        let content = Arc::clone(&content);
        async move {
            let (method, path) = (request.method(), request.uri().path());
            Ok::<_, Infallible>(page(method, path, &content).await)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(PARSER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    Ok(tokio::time::timeout(ANSWER_TIMEOUT, served).await??)
}

/// Reads all bytes that the client sends up to the empty line after its request (RFC 9112, section
/// 2.1).
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut stream = stream.take(HEAD_BYTES_MAX as u64);
    loop {
        let known = head.len();
        if stream.read_buf(&mut head).await? == 0 {
            let why = "the request is incomplete or too long";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if known == 0 {
            // Empty lines before the request are ignored (section 2.2).
            let blank = head.len() - head.trim_ascii_start().len();
            head.drain(..blank);
        }
        // The line end and the empty line may start in the last three bytes of the previous read.
        if has_empty_line(&head[known.saturating_sub(3).min(head.len())..]) {
            return Ok(head);
        }
    }
}

fn has_empty_line(bytes: &[u8]) -> bool {
    let has = |end: &[u8]| bytes.windows(end.len()).any(|at| at == end);
    has(b"\n\r\n") || has(b"\n\n")
}

async fn page(method: &Method, path: &str, content: &Content) -> Response<Full<Bytes>> {
    let (metrics, shown) = &**content;
    match (method, path) {
        (&Method::GET, "/") => {
            shown.facts.refresh().await;
            let page = (shown.status)(&shown.readiness.state());
            text(StatusCode::OK, HTML, page)
        }
        (&Method::GET, "/metrics") => {
            shown.facts.refresh().await;
            text(StatusCode::OK, PROMETHEUS_TEXT, metrics.render())
        }
        (&Method::GET, "/jobs") => text(StatusCode::OK, TEXT, (shown.jobs)()),
        (&Method::GET, "/healthz" | "/readyz") => match shown.readiness.state() {
            State::Ready => text(StatusCode::OK, TEXT, "ok\n"),
            State::Starting(why) | State::Unhealthy(why) => {
                text(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n"))
            }
        },
        // Any response to /livez shows that this thread is alive. A problem that a restart does not
        // solve, such as a kubelet that refuses the driver, must not cause a restart.
        (&Method::GET, "/livez") => text(StatusCode::OK, TEXT, "ok\n"),
        _ => text(
            StatusCode::NOT_FOUND,
            TEXT,
            "only GET /, /jobs, /metrics, /healthz, /readyz and /livez are here\n",
        ),
    }
}

fn text(status: StatusCode, form: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, form);
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use tokio::io::AsyncWriteExt as _;

    fn content(readiness: &Readiness) -> Content {
        let shown = PageContent {
            readiness: readiness.clone(),
            facts: AllFacts::default(),
            status: Arc::new(|state| format!("<p>{state:?}")),
            jobs: || "1.0\trunning\tNodeStageVolume\tvol-1\t\n".to_owned(),
        };
        Arc::new((crate::metrics::install().unwrap(), shown))
    }

    async fn get(path: &str, readiness: &Readiness) -> (u16, String, String) {
        let response = page(&Method::GET, path, &content(readiness)).await;
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        let form = response.headers()[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, form, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn healthz_reports_the_readiness_and_its_reason() {
        let readiness = Readiness::new(State::Starting("reading the mounts".to_owned()));
        let plain = "text/plain; charset=utf-8".to_owned();
        assert_eq!(
            get("/readyz", &readiness).await,
            get("/healthz", &readiness).await
        );
        let (status, form, body) = get("/healthz", &readiness).await;
        assert_eq!(
            (status, form, body),
            (503, plain.clone(), "reading the mounts\n".to_owned())
        );
        readiness.set(State::Ready);
        assert_eq!(
            get("/healthz", &readiness).await,
            (200, plain.clone(), "ok\n".to_owned())
        );
        readiness.set(State::Unhealthy("no shared mounts".to_owned()));
        let (status, form, body) = get("/healthz", &readiness).await;
        assert_eq!(
            (status, form, body),
            (503, plain, "no shared mounts\n".to_owned())
        );
    }

    #[tokio::test]
    async fn livez_is_ok_whatever_the_readiness() {
        for state in [
            State::Ready,
            State::Starting("reading the mounts".to_owned()),
            State::Unhealthy("no shared mounts".to_owned()),
        ] {
            let (status, _, body) = get("/livez", &Readiness::new(state.clone())).await;
            assert_eq!((status, body.as_str()), (200, "ok\n"), "{state:?}");
        }
    }

    #[tokio::test]
    async fn metrics_have_a_content_type_and_other_paths_are_not_found() {
        let readiness = Readiness::new(State::Ready);
        let (status, form, body) = get("/metrics", &readiness).await;
        assert_eq!((status, form.as_str()), (200, "text/plain; version=0.0.4"));
        assert!(body.contains("process_start_time_seconds "), "{body}");
        let (status, form, body) = get("/jobs", &readiness).await;
        assert_eq!((status, form.as_str()), (200, "text/plain; charset=utf-8"));
        assert!(body.ends_with("\tNodeStageVolume\tvol-1\t\n"), "{body}");
        for path in ["//", "/index.html", "/metrics/", "/debug"] {
            assert_eq!(get(path, &readiness).await.0, 404, "{path}");
        }
        let posted = page(&Method::POST, "/metrics", &content(&readiness)).await;
        assert_eq!(posted.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn the_status_page_is_html_that_loads_and_runs_nothing() {
        let readiness = Readiness::new(State::Ready);
        let (status, form, body) = get("/", &readiness).await;
        assert_eq!((status, form.as_str()), (200, "text/html; charset=utf-8"));
        assert_eq!(body, "<p>Ready");
        let response = page(&Method::GET, "/", &content(&readiness)).await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
    }

    /// Serves the pages on a single connection.
    async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut acceptor = Acceptor::new("http", 1);
        let accept = || std::future::ready(Ok(((), None)));
        let ((), connection) = acceptor.next(accept).await;
        let content = content(&Readiness::new(State::Ready));
        serve_connection(stream, content, connection).await;
    }

    #[tokio::test]
    async fn a_connection_serves_one_request() {
        let (mut client, server) = tokio::io::duplex(4096);
        let served = tokio::spawn(serve(server));
        let request = "GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n".repeat(2);
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_is_found_however_it_arrives() {
        let plain = "GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n";
        let bare = "GET /healthz HTTP/1.1\nHost: b\n\n";
        let late = "\r\n\r\nGET /healthz HTTP/1.1\r\nHost: b\r\n\r\n";
        for request in [plain, bare, late] {
            for bytes_at_once in [1, 2, 3, 4096] {
                let (mut client, server) = tokio::io::duplex(bytes_at_once);
                let served = tokio::spawn(serve(server));
                client.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.unwrap();
                assert!(
                    answer.starts_with("HTTP/1.1 200 OK"),
                    "{request:?}: {answer}"
                );
                served.await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_cut_off() {
        let (mut client, server) = tokio::io::duplex(4096);
        let served = tokio::spawn(serve(server));
        let long = format!("GET /livez HTTP/1.1\r\nX: {}", "y".repeat(HEAD_BYTES_MAX));
        // The server closes the connection while the client is still sending this request.
        assert!(client.write_all(long.as_bytes()).await.is_err());
        served.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_or_reads_nothing_loses_its_slot() {
        let half = "GET /healthz HTTP/1.1\r\n";
        let whole = "GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n";
        for (request, seconds) in [("", 1), (half, 1), (whole, 10)] {
            // The buffer is too small for any page, and the client does not read.
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(request.as_bytes()).await.unwrap();
            let begun = tokio::time::Instant::now();
            let ended = tokio::time::timeout(Duration::from_secs(3600), serve(server)).await;
            assert!(ended.is_ok(), "{request:?}");
            assert_eq!(begun.elapsed().as_secs(), seconds, "{request:?}");
        }
    }
}
