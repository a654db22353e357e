//! A server from start to shutdown: accepts, serves, and drains on request. Owns the sockets and
//! the HTTP pages; the services are passed to it.

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

/// Connections at a time; beyond that, one without a running call is closed. Far above what a
/// kubelet and its sidecars need, and well below the usual limit of 1024 descriptors per process.
const CONNECTIONS_MAX: usize = 256;

/// A driver, as the server sees it.
#[derive(Debug)]
pub struct Driver {
    /// Its CSI socket.
    pub socket: Socket,
    /// The services on that socket.
    pub services: Services,
    /// Its registration with the kubelet while calls are accepted; none = it is not registered.
    pub registration: Option<Registration>,
}

/// The settings of a server.
#[derive(Debug)]
pub struct ServeConfig {
    /// The address of /metrics, /healthz and /livez; none = disabled, and nothing is measured.
    pub http: Option<SocketAddr>,
    /// How long running calls may take at shutdown.
    pub drain: Duration,
    /// What /healthz reports.
    pub readiness: Readiness,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket cannot be watched.
    #[error("cannot watch the socket: {0}")]
    Socket(io::Error),
    /// The address is not local, or this process may not use the port.
    #[error("cannot listen on {0} for /metrics, /healthz and /livez: {1}")]
    Http(SocketAddr, io::Error),
    /// The registration socket cannot be created.
    #[error("cannot register with the kubelet: {0}")]
    Registration(io::Error),
    /// See [`MetricsError`].
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// Serves these drivers until `shutdown` yields: then accepts no connections, lets running calls
/// finish within the drain time, and returns; at once if `shutdown` yields again. See
/// [`crate::signal::terminations`].
///
/// Work that has not ended by then still runs in the runtime: shut that down without waiting.
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
    // A client that connects now is served as soon as this thread first waits.
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
        "shutting down: waiting for running calls"
    );
    let drained = future::join_all(servers.iter().map(Server::drain));
    tokio::select! {
        biased;
        Some(()) = shutdown.next() => tracing::warn!("second signal: shutting down at once"),
        cut = drained => {
            let connections_cut: usize = cut.into_iter().sum();
            tracing::info!(connections_cut, "ended");
        }
        () = tokio::time::sleep(drain) => {
            let calls = layer.running().receiver_count();
            let seconds = drain.as_secs();
            tracing::warn!(calls, seconds, "some calls did not finish: shutting down anyway");
        }
    }
    drop(files);
    Ok(())
}

async fn accept(servers: &[Server], listeners: Vec<UnixListener>) -> Infallible {
    let all = servers.iter().zip(listeners);
    let all = all.map(|(server, listener)| server.accept("csi", listener));
    future::join_all(all).await;
    // There are no servers.
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
    // There are no registrars.
    std::future::pending().await
}
