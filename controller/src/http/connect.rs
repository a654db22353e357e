//! Connections over TCP and TLS, through a proxy if an environment variable names one.

use super::proxies::{Proxies, Proxy};
use super::trust::Trust;
use super::tunnel;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::Service;

/// Maximum time to connect to one address of a host.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

type BoxError = Box<dyn Error + Send + Sync>;

/// Opens connections for the HTTP client.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    trust: Arc<Trust>,
    proxies: Arc<Proxies>,
}

impl Connector {
    /// Creates a connector that accepts servers whose certificates these authorities have issued.
    pub(super) fn new(trust: Arc<Trust>, proxies: Proxies) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_DEADLINE));
        Self {
            tcp,
            trust,
            proxies: Arc::new(proxies),
        }
    }

    /// Returns the certificate authorities that new connections trust.
    pub(super) fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust)
    }

    /// Returns the proxy for a URL; `None` if the connection is direct.
    pub(super) fn proxy(&self, uri: &Uri) -> Option<&Proxy> {
        self.proxies.of(uri)
    }

    async fn connect(self, uri: Uri) -> Result<Stream, BoxError> {
        let is_https = is_https(&uri);
        let proxy = self.proxies.of(&uri);
        let to = proxy.map_or(&uri, |proxy| &proxy.uri);
        let tcp = self.tcp.clone().call(to.clone()).await;
        let tcp = match proxy {
            None => tcp?,
            Some(_) => tcp.map_err(|error| NoProxy(error.into()))?,
        };
        if !is_https {
            return Ok(Stream {
                io: Box::new(tcp),
                by_proxy: proxy.is_some(),
            });
        }
        let tcp = match proxy {
            None => tcp.into_inner(),
            Some(proxy) => tunnel::open(tcp, proxy, &uri).await?,
        };
        let host = uri.host().ok_or("a URL without a host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())?;
        let tls = self.trust.tls().connect(name, tcp).await?;
        Ok(Stream {
            io: Box::new(TokioIo::new(tls)),
            by_proxy: false,
        })
    }
}

/// The error for a proxy that cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("no connection to the proxy")]
struct NoProxy(#[source] BoxError);

fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection to a server or proxy, over TCP or TLS.
pub(super) struct Stream {
    io: Box<dyn Io>,
    /// Whether the connection ends at a proxy that forwards each request (HTTP without a tunnel).
    by_proxy: bool,
}

trait Io: Read + Write + Send + Unpin {}

impl<T: Read + Write + Send + Unpin> Io for T {}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.by_proxy)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }
}
