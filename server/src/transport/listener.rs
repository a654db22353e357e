//! Accepts, checks and serves the connections to one socket. A connection must begin with the
//! HTTP/2 preface. The connection is closed when the server shuts down, or when a new connection
//! needs its slot. This module does not depend on the services.

use super::acceptor::{Acceptor, Connection};
use super::authority::SanitizedAuthority;
use crate::call::{CallLayer, CallService, Callers};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::service::Routes;
use tower::Layer as _;

/// The first bytes of an HTTP/2 client (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum time in which a client must send the preface. All known clients send the preface at
/// once.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum time for sending the last responses and the HTTP/2 shutdown, after the last call has
/// ended.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// The flow-control window: the number of bytes that a client may send before the server has
/// consumed them. CSI requests are small. With the default of HTTP/2 (RFC 9113, section 6.9.2), no
/// frame that sets the window is needed on each of the kubelet's many connections.
const WINDOW_BYTES: u32 = 65_535;

/// The state that all connections to one socket share. Dropping this state shuts the connections
/// down.
pub(crate) struct Server {
    service: CallService<Routes>,
    /// A channel with one receiver for each running call; the number of receivers is the number of
    /// calls.
    running: Arc<watch::Sender<()>>,
    http2: http2::Builder<TokioExecutor>,
    /// A channel with one receiver for each connection; the number of receivers is the number of
    /// connections.
    ending: watch::Sender<()>,
    connections_max: usize,
    callers: Callers,
}

impl Server {
    /// Creates a server of these services, wrapped in the call layer, with at most this number of
    /// connections at a time.
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
            callers: layer.callers().clone(),
        }
    }

    /// Serves all clients. `name` is the name of the listener in the log and the metrics.
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
        let stranger = self.callers.stranger(|| stream.peer_cred());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let call = calls.begin();
            if let Some(stranger) = &stranger {
                request.extensions_mut().insert(stranger.clone());
            }
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
            let served = async {
                let stream = tokio::select! {
                    biased;
                    greeted = greeted(stream) => TokioIo::new(greeted?),
                    // A connection that has not sent its preface has no running call, so it is
                    // closed at once.
                    _ = ending.changed() => return Ok::<_, Box<dyn Error + Send + Sync>>(()),
                };
                let mut connection = pin!(http2.serve_connection(stream, service));
                tokio::select! {
                    ended = &mut connection => return Ok(ended?),
                    _ = ending.changed() => connection.as_mut().graceful_shutdown(),
                }
                Ok(connection.await?)
            };
            let ended = tokio::select! {
                // Before the connection is closed, the response to a call that has just ended is
                // written.
                biased;
                ended = served => ended,
                () = slot.unwanted() => Err("closed to make room for others".into()),
            };
            if let Err(error) = ended {
                // The client does not use HTTP/2, or has disconnected early, which is not an error
                // of the server.
                tracing::debug!(error, "a connection broke");
            }
        });
    }

    /// Stops accepting calls, and waits until running calls have ended, but not for clients that
    /// only keep a connection open. Returns the number of connections that are still open.
    pub(crate) async fn drain(&self) -> usize {
        self.ending.send_replace(());
        loop {
            self.running.closed().await;
            tokio::select! {
                () = self.ending.closed() => return 0,
                () = tokio::time::sleep(GOODBYE_TIMEOUT) => {}
            }
            // Also wait for a call that arrived at the moment when the shutdown began.
            if self.running.receiver_count() == 0 {
                return self.ending.receiver_count();
            }
        }
    }
}

/// Waits until the client has sent the HTTP/2 preface, and returns the connection with all its
/// bytes.
async fn greeted(mut stream: UnixStream) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    let mut said = [0; PREFACE.len()];
    tokio::time::timeout(PREFACE_TIMEOUT, stream.read_exact(&mut said)).await??;
    if said != PREFACE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
    }
    let (reader, writer) = stream.into_split();
    let reader = io::Cursor::new(said).chain(SanitizedAuthority::new(reader));
    Ok(tokio::io::join(reader, writer))
}
