//! A server from its first connection to its last: accepts, serves, and on request drains. Owns the
//! socket and the pages for people; what is served is given to it.

use crate::http::Pages;
use crate::layer::{CallLayer, CallService};
use crate::metrics::{self, MetricsError};
use crate::readiness::Readiness;
use crate::socket::Socket;
use futures_util::{Stream, StreamExt as _};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::service::Routes;
use tower::Layer as _;

/// The pause after a failed accept, which is nearly always a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bytes a client may send ahead. CSI requests are small, and with HTTP/2's own first value (RFC
/// 9113, section 6.9.2) no frame about it is needed on each of the kubelet's many connections.
const WINDOW_BYTES: u32 = 65_535;

/// Where and how to serve.
#[derive(Debug)]
pub struct ServeConfig {
    /// The CSI socket.
    pub socket: Socket,
    /// Where /metrics and /healthz are shown; none = nowhere, and nothing is measured.
    pub http: Option<SocketAddr>,
    /// How long running calls may take when the server is asked to end.
    pub drain: Duration,
    /// What /healthz tells.
    pub readiness: Readiness,
}

/// Why a server did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket cannot be watched.
    #[error("cannot watch the socket: {0}")]
    Socket(io::Error),
    /// The port is taken, or the address is not of this machine.
    #[error("cannot listen on {0} for /metrics and /healthz: {1}")]
    Http(SocketAddr, io::Error),
    /// See [`MetricsError`].
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// Serves until `shutdown` yields: then accepts nothing more, lets running calls finish within the
/// drain time, and ends; at once if `shutdown` yields again. See [`crate::signal::terminations`].
///
/// What has not ended by then still runs in the runtime: shut that down without waiting.
///
/// # Errors
/// Only before the first connection, see [`ServeError`].
pub async fn serve(
    config: ServeConfig,
    routes: Routes,
    shutdown: impl Stream<Item = ()>,
) -> Result<(), ServeError> {
    let ServeConfig {
        socket,
        http,
        drain,
        readiness,
    } = config;
    let pages = match http {
        None => None,
        Some(address) => {
            let pages = Pages::bind(address, metrics::install()?, readiness).await;
            Some(pages.map_err(|error| ServeError::Http(address, error))?)
        }
    };
    let (listener, file) = socket.into_parts().map_err(ServeError::Socket)?;
    let server = Server::new(routes);
    let mut shutdown = pin!(shutdown.fuse());
    {
        let mut pages = pin!(show(pages));
        tokio::select! {
            biased;
            Some(()) = shutdown.next() => {}
            never = server.accept(listener) => match never {},
            never = &mut pages => match never {},
        }
    }
    tracing::info!(
        seconds = drain.as_secs(),
        "ending: running calls may finish"
    );
    tokio::select! {
        biased;
        Some(()) = shutdown.next() => tracing::warn!("asked again: ending at once"),
        () = server.drain() => tracing::info!("ended"),
        () = tokio::time::sleep(drain) => {
            tracing::warn!(seconds = drain.as_secs(), "some calls did not finish: ending anyway");
        }
    }
    drop(file);
    Ok(())
}

async fn show(pages: Option<Pages>) -> Infallible {
    match pages {
        Some(pages) => pages.serve().await,
        None => std::future::pending().await,
    }
}

/// What all connections share.
struct Server {
    service: CallService<Routes>,
    http2: http2::Builder<TokioExecutor>,
    /// Every connection listens to it, and by that is counted.
    ending: watch::Sender<()>,
}

impl Server {
    fn new(routes: Routes) -> Self {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(WINDOW_BYTES);
        Self {
            service: CallLayer::new().layer(routes.prepare()),
            http2,
            ending: watch::Sender::new(()),
        }
    }

    async fn accept(&self, listener: UnixListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.begin(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn begin(&self, stream: UnixStream) {
        let service = TowerToHyperService::new(self.service.clone());
        let http2 = self.http2.clone();
        let mut ending = self.ending.subscribe();
        tokio::spawn(async move {
            // Who has not said a word has nothing to lose: the end does not wait for it.
            tokio::select! {
                _ = stream.readable() => {}
                _ = ending.changed() => return,
            }
            let connection = http2.serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                _ = ending.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                // Garbage instead of HTTP/2, or a client that ended in the middle: its own affair.
                tracing::debug!(%error, "a connection broke");
            }
        });
    }

    /// Takes no more calls, and waits for those that run.
    async fn drain(&self) {
        self.ending.send_replace(());
        self.ending.closed().await;
    }
}
