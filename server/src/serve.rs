//! A server from its first connection to its last: accepts, serves, and on request drains. Owns the
//! sockets and the pages for people; what is served is given to it.

use crate::call::CallLayer;
use crate::kubelet::{Registrar, Registration};
use crate::log;
use crate::metrics::{self, MetricsError};
use crate::readiness::Readiness;
use crate::services::Services;
use crate::transport::{Pages, Server, Socket};
use futures_util::{Stream, StreamExt as _, future};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::UnixListener;

/// Connections at a time; of more, one on which no call runs is closed. Far beyond what a kubelet
/// and its sidecars hold, and well below the 1024 descriptors that a process may usually have.
const CONNECTIONS_MAX: usize = 256;

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
