//! Connections: TCP, by a proxy if the environment names one (`HTTPS_PROXY`, `HTTP_PROXY`,
//! `ALL_PROXY`, `NO_PROXY`), and TLS.

use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

/// For a connection to one address of a host.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Where distributions, and our images, have the certificates of public authorities.
const SYSTEM_BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

type BoxError = Box<dyn Error + Send + Sync>;

/// Makes connections.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: TlsConnector,
    proxies: Arc<Matcher>,
}

/// The certificates of a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct BadCertificates {
    file: PathBuf,
    why: String,
}

impl Connector {
    /// Trusts the authorities in that PEM file, or those of the system.
    pub(super) fn new(ca_file: Option<&Path>, proxies: Matcher) -> Result<Self, BadCertificates> {
        let roots = match ca_file {
            Some(file) => roots(file)?,
            None => {
                let bundle = SYSTEM_BUNDLES
                    .iter()
                    .map(Path::new)
                    .find(|file| file.exists());
                bundle.map_or_else(|| Ok(RootCertStore::empty()), roots)?
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| BadCertificates {
                file: ca_file.unwrap_or(Path::new("TLS")).to_owned(),
                why: error.to_string(),
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_DEADLINE));
        Ok(Self {
            tcp,
            tls: TlsConnector::from(Arc::new(config)),
            proxies: Arc::new(proxies),
        })
    }

    /// What a proxy must get with each request: where there is no tunnel, it sees all of them.
    pub(super) fn proxy_authorization(&self, uri: &Uri) -> Option<HeaderValue> {
        let proxy = (!is_https(uri)).then(|| self.proxies.intercept(uri))??;
        proxy.basic_auth().cloned()
    }

    async fn connect(mut self, uri: Uri) -> Result<Stream, BoxError> {
        let proxy = self.proxies.intercept(&uri);
        let is_https = is_https(&uri);
        let tcp = match &proxy {
            None => self.tcp.call(uri.clone()).await?,
            Some(proxy) if is_https => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), self.tcp);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                tunnel.call(uri.clone()).await?
            }
            Some(proxy) => self.tcp.call(proxy.uri().clone()).await?,
        };
        if !is_https {
            let by_proxy = proxy.is_some();
            return Ok(Stream::Plain { tcp, by_proxy });
        }
        let host = uri.host().ok_or("a URL without a host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())?;
        let tls = self.tls.connect(name, tcp.into_inner()).await?;
        Ok(Stream::Tls(Box::new(TokioIo::new(tls))))
    }
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

fn roots(file: &Path) -> Result<RootCertStore, BadCertificates> {
    let bad = |why: String| BadCertificates {
        file: file.to_owned(),
        why,
    };
    let certificates =
        CertificateDer::pem_file_iter(file).map_err(|error| bad(error.to_string()))?;
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    // A bundle may have one that is too old to be understood.
    let (added, _) = roots.add_parsable_certificates(certificates);
    match added {
        0 => Err(bad("has no certificate in PEM that can be used".to_owned())),
        _ => Ok(roots),
    }
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

/// A connection.
pub(super) enum Stream {
    Plain {
        tcp: TokioIo<TcpStream>,
        by_proxy: bool,
    },
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let by_proxy = matches!(self, Stream::Plain { by_proxy: true, .. });
        Connected::new().proxy(by_proxy)
    }
}

/// Passes a call on to the stream within.
macro_rules! within {
    ($stream:expr, $io:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Plain { tcp, .. } => {
                let $io = Pin::new(tcp);
                $call
            }
            Stream::Tls(tls) => {
                let $io = Pin::new(tls.as_mut());
                $call
            }
        }
    };
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        within!(self, io => io.poll_read(cx, buffer))
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        within!(self, io => io.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, io => io.poll_shutdown(cx))
    }
}
