//! What people, Prometheus and the kubelet's probes look at: GET /metrics, /healthz and /livez over
//! HTTP/1. Shows nothing of requests, and changes nothing.

use crate::door::Door;
use crate::metrics::Metrics;
use crate::readiness::{Readiness, State};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// Connections at a time; more wait. This port may be open to a whole cluster, the memory is not.
const CONNECTIONS_MAX: usize = 16;

/// How long a connection has for all it is for: one request and its page.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How often measured values are sorted in while nobody looks.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS_TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// The pages, bound but not yet served.
#[derive(Debug)]
pub(crate) struct Pages {
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
}

impl Pages {
    pub(crate) async fn bind(
        address: SocketAddr,
        metrics: Metrics,
        readiness: Readiness,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        // Port 0 asks for any free one: then this line is the only place to learn it.
        tracing::info!(address = %listener.local_addr()?, "showing /metrics, /healthz and /livez");
        Ok(Self {
            listener,
            metrics,
            readiness,
        })
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self) -> Infallible {
        let mut door = Door::new("the port for metrics", CONNECTIONS_MAX);
        let mut tidy = tokio::time::interval(TIDY_INTERVAL);
        let pages = (self.metrics, self.readiness);
        loop {
            tokio::select! {
                _ = tidy.tick() => pages.0.tidy(),
                ((stream, _), place) = door.next(|| self.listener.accept()) => {
                    let pages = pages.clone();
                    tokio::spawn(async move {
                        serve_connection(stream, pages).await;
                        drop(place);
                    });
                }
            }
        }
    }
}

/// One request, its page, and the end: whoever holds on to a connection holds one of few places.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    pages: (Metrics, Readiness),
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = page(request.method(), request.uri().path(), &pages.0, &pages.1);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics broke"),
        Err(_) => tracing::debug!("a connection for metrics took too long"),
    }
}

fn page(
    method: &Method,
    path: &str,
    metrics: &Metrics,
    readiness: &Readiness,
) -> Response<Full<Bytes>> {
    match (method, path) {
        (&Method::GET, "/metrics") => text(StatusCode::OK, PROMETHEUS_TEXT, metrics.render()),
        (&Method::GET, "/healthz") => match readiness.state() {
            State::Ready => text(StatusCode::OK, TEXT, "ok\n"),
            State::Starting(why) | State::Unhealthy(why) => {
                text(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n"))
            }
        },
        // That this thread came to answer is all there is to tell: what a restart does not mend,
        // such as a kubelet that refuses the driver, must not cause one.
        (&Method::GET, "/livez") => text(StatusCode::OK, TEXT, "ok\n"),
        _ => text(
            StatusCode::NOT_FOUND,
            TEXT,
            "only GET /metrics, GET /healthz and GET /livez are here\n",
        ),
    }
}

fn text(status: StatusCode, form: HeaderValue, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn get(path: &str, readiness: &Readiness) -> (u16, String, String) {
        let metrics = crate::metrics::install().unwrap();
        let response = page(&Method::GET, path, &metrics, readiness);
        let form = response.headers()[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, form, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn healthz_tells_the_readiness_and_its_reason() {
        let readiness = Readiness::new(State::Starting("reading the mounts".to_owned()));
        let plain = "text/plain; charset=utf-8".to_owned();
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
    async fn livez_is_well_whatever_the_readiness() {
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
    async fn metrics_say_which_form_they_have_and_other_paths_are_not_there() {
        let readiness = Readiness::new(State::Ready);
        let (status, form, body) = get("/metrics", &readiness).await;
        assert_eq!((status, form.as_str()), (200, "text/plain; version=0.0.4"));
        assert!(body.contains("process_start_time_seconds "), "{body}");
        for path in ["/", "/metrics/", "/debug"] {
            assert_eq!(get(path, &readiness).await.0, 404, "{path}");
        }
        let metrics = crate::metrics::install().unwrap();
        let posted = page(&Method::POST, "/metrics", &metrics, &readiness);
        assert_eq!(posted.status(), StatusCode::NOT_FOUND);
    }

    fn pages() -> (Metrics, Readiness) {
        let metrics = crate::metrics::install().unwrap();
        (metrics, Readiness::new(State::Ready))
    }

    #[tokio::test]
    async fn one_request_is_all_that_a_connection_is_for() {
        let (mut client, server) = tokio::io::duplex(4096);
        let served = tokio::spawn(serve_connection(server, pages()));
        let request = "GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n".repeat(2);
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        served.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_or_reads_nothing_gives_its_place_back() {
        let half = "GET /healthz HTTP/1.1\r\n";
        let whole = "GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n";
        for request in ["", half, whole] {
            // Too small for any page, and nobody takes it out at the other end.
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(request.as_bytes()).await.unwrap();
            let served = serve_connection(server, pages());
            let ended = tokio::time::timeout(Duration::from_secs(3600), served).await;
            assert!(ended.is_ok(), "{request:?}");
        }
    }
}
