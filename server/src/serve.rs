//! A server from its first connection to its last: accepts, serves, and on request drains. Owns the
//! sockets and the pages for people; what is served is given to it.

use crate::acceptor::{Acceptor, Connection};
use crate::authority::Authorized;
use crate::http::Pages;
use crate::layer::{CallLayer, CallService};
use crate::log;
use crate::metrics::{self, MetricsError};
use crate::readiness::Readiness;
use crate::registration::{Registrar, Registration};
use crate::services::Services;
use crate::socket::Socket;
use futures_util::{Stream, StreamExt as _, future};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::service::Routes;
use tower::Layer as _;

/// Connections at a time; of more, one on which no call runs is closed. Far beyond what a kubelet
/// and its sidecars hold, and well below the 1024 descriptors that a process may usually have.
const CONNECTIONS_MAX: usize = 256;

/// What a client of HTTP/2 says first (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a client may take to say it. All known ones do at once.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the last answers may be on their way, and the other side take to say goodbye, when no
/// call runs any more.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes a client may send ahead. CSI requests are small, and with HTTP/2's own first value (RFC
/// 9113, section 6.9.2) no frame about it is needed on each of the kubelet's many connections.
const WINDOW_BYTES: u32 = 65_535;

/// A driver, as a server has it.
#[derive(Debug)]
pub struct Driver {
    /// Its CSI socket.
    pub socket: Socket,
    /// What is served there.
    pub services: Services,
    /// How it is made known to the kubelet for as long as calls are taken; none = it is not.
    pub registration: Option<Registration>,
}

/// How to serve.
#[derive(Debug)]
pub struct ServeConfig {
    /// Where /metrics, /healthz and /livez are shown; none = nowhere, and nothing is measured.
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
    /// The address is not of this machine, or the port not for this process.
    #[error("cannot listen on {0} for /metrics, /healthz and /livez: {1}")]
    Http(SocketAddr, io::Error),
    /// The registration socket cannot be had.
    #[error("cannot register with the kubelet: {0}")]
    Registration(io::Error),
    /// See [`MetricsError`].
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// Serves these drivers until `shutdown` yields: then accepts nothing more, lets running calls
/// finish within the drain time, and ends; at once if `shutdown` yields again. See
/// [`crate::signal::terminations`].
///
/// What has not ended by then still runs in the runtime: shut that down without waiting.
///
/// # Errors
/// Only before the first connection, see [`ServeError`].
pub async fn serve(
    config: ServeConfig,
    drivers: Vec<Driver>,
    shutdown: impl Stream<Item = ()>,
) -> Result<(), ServeError> {
    log::serving();
    let ServeConfig {
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
    let layer = CallLayer::new();
    let (mut servers, mut listeners, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let mut registrations = Vec::new();
    for driver in drivers {
        let (listener, file) = driver.socket.into_parts().map_err(ServeError::Socket)?;
        let routes = driver.services.into_routes();
        servers.push(Server::new(routes, &layer, CONNECTIONS_MAX));
        listeners.push(listener);
        files.push(file);
        registrations.extend(driver.registration);
    }
    // Whoever dials now is served as soon as this thread waits for the first time.
    let registrars = registrations
        .into_iter()
        .map(|registration| Registrar::open(registration, &layer))
        .collect::<Result<Vec<_>, _>>()
        .map_err(ServeError::Registration)?;
    let mut shutdown = pin!(shutdown.fuse());
    {
        let mut pages = pin!(show(pages));
        tokio::select! {
            biased;
            Some(()) = shutdown.next() => {}
            never = accept(&servers, listeners) => match never {},
            never = register(registrars) => match never {},
            never = &mut pages => match never {},
        }
    }
    tracing::info!(
        seconds = drain.as_secs(),
        "ending: running calls may finish"
    );
    let drained = future::join_all(servers.iter().map(Server::drain));
    tokio::select! {
        biased;
        Some(()) = shutdown.next() => tracing::warn!("asked again: ending at once"),
        cut = drained => {
            let connections_cut: usize = cut.into_iter().sum();
            tracing::info!(connections_cut, "ended");
        }
        () = tokio::time::sleep(drain) => {
            let calls = layer.running().receiver_count();
            let seconds = drain.as_secs();
            tracing::warn!(calls, seconds, "some calls did not finish: ending anyway");
        }
    }
    drop(files);
    Ok(())
}

async fn accept(servers: &[Server], listeners: Vec<UnixListener>) -> Infallible {
    let all = servers.iter().zip(listeners);
    let all = all.map(|(server, listener)| server.accept("csi", listener));
    future::join_all(all).await;
    // There were none.
    std::future::pending().await
}

async fn show(pages: Option<Pages>) -> Infallible {
    match pages {
        Some(pages) => pages.serve().await,
        None => std::future::pending().await,
    }
}

async fn register(registrars: Vec<Registrar>) -> Infallible {
    future::join_all(registrars.into_iter().map(Registrar::run)).await;
    // There were none.
    std::future::pending().await
}

/// What all connections to one socket share. When it is dropped, they are told to end.
pub(crate) struct Server {
    service: CallService<Routes>,
    /// Every running call listens to it, and by that is counted.
    running: Arc<watch::Sender<()>>,
    http2: http2::Builder<TokioExecutor>,
    /// Every connection listens to it, and by that is counted.
    ending: watch::Sender<()>,
    connections_max: usize,
}

impl Server {
    /// For these services, within the layer, and so many connections at a time.
    pub(crate) fn new(routes: Routes, layer: &CallLayer, connections_max: usize) -> Self {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(WINDOW_BYTES);
        Self {
            running: layer.running(),
            service: layer.layer(routes),
            http2,
            ending: watch::Sender::new(()),
            connections_max,
        }
    }

    /// Serves all who connect. The name of the listener is for log and metrics.
    pub(crate) async fn accept(&self, name: &'static str, listener: UnixListener) -> Infallible {
        let mut acceptor = Acceptor::new(name, self.connections_max);
        let accept = async || Ok((listener.accept().await?.0, None));
        loop {
            let (stream, connection) = acceptor.next(accept).await;
            self.begin(stream, connection);
        }
    }

    fn begin(&self, stream: UnixStream, slot: Connection) {
        let inner = TowerToHyperService::new(self.service.clone());
        let calls = slot.calls();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let call = calls.begin();
            request.extensions_mut().insert(call.record());
            let answer = inner.call(request);
            async move {
                let answer = answer.await;
                drop(call);
                answer
            }
        });
        let http2 = self.http2.clone();
        let mut ending = self.ending.subscribe();
        tokio::spawn(async move {
            // A connection without a preface has nothing to lose, and is dropped where others are
            // shut down.
            let greeted = tokio::select! {
                biased;
                greeted = greeted(stream) => greeted,
                () = slot.unwanted() => return,
                _ = ending.changed() => return,
            };
            let stream = match greeted {
                Ok(stream) => TokioIo::new(stream),
                Err(error) => return tracing::debug!(%error, "a connection never began"),
            };
            let mut connection = pin!(http2.serve_connection(stream, service));
            let ended = tokio::select! {
                ended = &mut connection => ended,
                _ = ending.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
                () = slot.unwanted() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection => ended,
                        () = overdue(&slot) => Ok(()),
                    }
                }
            };
            if let Err(error) = ended {
                // Garbage instead of HTTP/2, or a client that ended in the middle: its own affair.
                tracing::debug!(%error, "a connection broke");
            }
        });
    }

    /// Takes no more calls, and waits for those that run, but not for callers that merely hold on
    /// to their connection. Returns how many of these are left.
    async fn drain(&self) -> usize {
        self.ending.send_replace(());
        loop {
            self.running.closed().await;
            tokio::select! {
                () = self.ending.closed() => return 0,
                () = tokio::time::sleep(GOODBYE_TIMEOUT) => {}
            }
            // A call that was on its way when the end began has its time too.
            if self.running.receiver_count() == 0 {
                return self.ending.receiver_count();
            }
        }
    }
}

/// Returns when a connection that is shutting down must be dropped: no call runs on it, and its
/// client has not closed it in time, or others need its slot.
async fn overdue(slot: &Connection) {
    loop {
        tokio::select! {
            () = slot.cut() => return,
            () = tokio::time::sleep(GOODBYE_TIMEOUT) => {}
        }
        if !slot.is_running() {
            return;
        }
    }
}

/// The connection, whole again, once the other side has begun to speak HTTP/2.
async fn greeted(mut stream: UnixStream) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let mut said = [0; PREFACE.len()];
    tokio::time::timeout(PREFACE_TIMEOUT, stream.read_exact(&mut said)).await??;
    if said != PREFACE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
    }
    let (reader, writer) = stream.into_split();
    let reader = io::Cursor::new(said).chain(Authorized::new(reader));
    Ok(tokio::io::join(reader, writer))
}
