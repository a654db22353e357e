//! Runs a server from its start to its shutdown: accepts connections, serves calls, and drains
//! running calls on request. This module creates the sockets and the HTTP pages; the caller passes
//! the services.

use crate::call::{CallLayer, Callers};
use crate::facts::{AllFacts, Facts};
use crate::identity::DriverName;
use crate::kubelet::{Registrar, Registration};
use crate::log;
use crate::metrics::{self, MetricsError};
use crate::readiness::{Readiness, State};
use crate::services::Services;
use crate::status::{self, Status};
use crate::transport::{PageContent, Pages, Server, Socket, SocketFile};
use futures_util::{Stream, StreamExt as _, future, stream};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Maximum number of connections; beyond that, a connection without a running call is closed. A
/// kubelet and the sidecars need far fewer connections, and the usual limit is 1024 descriptors per
/// process.
const CONNECTIONS_MAX: usize = 256;

/// Time from the end of a call until free memory is returned to the kernel. After a burst of calls,
/// memory is returned once.
const REST_AFTER: Duration = Duration::from_secs(5);

/// A driver to serve.
pub struct Driver {
    /// The name of the driver.
    pub name: DriverName,
    /// The CSI socket of the driver.
    pub socket: Socket,
    /// The services on that socket.
    pub services: Services,
    /// The registration with the kubelet, for as long as calls are accepted. `None` if the driver
    /// is not registered.
    pub registration: Option<Registration>,
    /// The facts about the driver's storage and volumes. `None` if the driver reports no facts.
    pub facts: Option<Arc<dyn Facts>>,
}

/// The settings of a server.
#[derive(Debug)]
pub struct ServeConfig {
    /// Name and version of the program, for the status page.
    pub program: &'static str,
    /// The pages, from [`listen`]. `None` if no pages are served. If no pages are served, no
    /// metrics are collected.
    pub pages: Option<Pages>,
    /// Maximum time that running calls may take after a shutdown request.
    pub drain: Duration,
    /// The readiness that /healthz and /readyz report.
    pub readiness: Readiness,
    /// The users that may call the server, on all sockets.
    pub callers: Callers,
    /// Function that returns free memory to the kernel. The server calls this function a few
    /// seconds after a call has ended, and repeatedly under load. Must not wait.
    pub rest: fn(),
    /// Notified when work other than a call has ended, so that [`ServeConfig::rest`] is called.
    /// `None` if all work is done in calls.
    pub worked: Option<&'static Notify>,
}

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket cannot be watched.
    #[error("cannot watch the socket: {0}")]
    Socket(io::Error),
    /// The address is not local, or this process may not use the port.
    #[error(
        "cannot listen on {0} for /metrics, /healthz and /livez: {1}; use an address of this \
         machine, such as 127.0.0.1, and a port that this process may use"
    )]
    Http(SocketAddr, io::Error),
    /// The registration socket cannot be created.
    #[error("cannot register with the kubelet: {0}")]
    Registration(io::Error),
    /// The metrics cannot be set up.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// Returns the word for the log when a driver begins to accept calls.
#[must_use]
pub fn word(readiness: &Readiness) -> &'static str {
    match readiness.own() {
        State::Ready => "serving",
        State::Starting(_) | State::Unhealthy(_) => "listening, not serving yet",
    }
}

/// Listens for the pages, if an address is given. Call this function before a CSI socket is bound,
/// so that an error in the address is reported before any call is served.
///
/// # Errors
/// Returns [`ServeError::Http`] or [`ServeError::Metrics`]. If a different process uses the port,
/// this is not an error: the pages are served as soon as the port is free.
pub async fn listen(address: Option<SocketAddr>) -> Result<Option<Pages>, ServeError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let pages = Pages::bind(address, metrics::install()?).await;
    let pages = pages.map_err(|error| ServeError::Http(address, error))?;
    Ok(Some(pages))
}

/// Serves these drivers until `shutdown` yields. After that, accepts no more connections, lets
/// running calls finish within the drain time, and returns. Returns at once if `shutdown` yields
/// again. [`terminations`] yields on SIGTERM and SIGINT.
///
/// Work that has not ended when this function returns is still running in the runtime, so the
/// caller must shut down the runtime without waiting.
///
/// # Errors
/// Returns a [`ServeError`] if the server cannot start, never after the first connection.
pub async fn serve(
    config: ServeConfig,
    drivers: Vec<Driver>,
    shutdown: impl Stream<Item = ()>,
) -> Result<(), ServeError> {
    log::serving();
    let ServeConfig {
        program,
        pages,
        drain,
        readiness,
        callers,
        rest: give_back,
        worked,
    } = config;
    let running = Running::begin(drivers, callers)?;
    let shown = running.shown(program, readiness);
    let Running {
        layer,
        servers,
        listeners,
        registrars,
        files,
        ..
    } = running;
    let mut shutdown = pin!(shutdown.fuse());
    {
        let mut pages = pin!(show(pages, shown));
        tokio::select! {
            biased;
            Some(()) = shutdown.next() => {}
            never = accept(&servers, listeners) => match never {},
            never = register(registrars) => match never {},
            never = &mut pages => match never {},
            never = rest(layer.as_ref(), worked, give_back) => match never {},
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
            let calls = layer.map_or(0, |layer| layer.running().receiver_count());
            let seconds = drain.as_secs();
            tracing::warn!(calls, seconds, "some calls did not finish: shutting down anyway");
        }
    }
    drop(files);
    Ok(())
}

/// Returns a stream that yields on every SIGTERM and SIGINT from now on. The default action of both
/// signals is disabled for the whole process.
///
/// # Errors
/// Returns the kernel's error if the signals cannot be caught.
pub fn terminations() -> io::Result<impl Stream<Item = ()>> {
    let signals = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    Ok(stream::unfold(
        signals,
        async |(mut terminate, mut interrupt)| {
            tokio::select! {
                Some(()) = terminate.recv() => {}
                Some(()) = interrupt.recv() => {}
                else => return None,
            }
            Some(((), (terminate, interrupt)))
        },
    ))
}

/// The drivers of a running server, whose sockets are listening.
struct Running {
    /// The call layer of one driver, for the state that the layers of all drivers share. `None` if
    /// there is no driver.
    layer: Option<CallLayer>,
    servers: Vec<Server>,
    listeners: Vec<UnixListener>,
    files: Vec<SocketFile>,
    registrars: Vec<Registrar>,
    drivers: Vec<status::Driver>,
    facts: Vec<(String, Arc<dyn Facts>)>,
}

impl Running {
    fn begin(drivers: Vec<Driver>, callers: Callers) -> Result<Self, ServeError> {
        let mut running = Self {
            layer: None,
            servers: Vec::new(),
            listeners: Vec::new(),
            files: Vec::new(),
            registrars: Vec::new(),
            drivers: Vec::new(),
            facts: Vec::new(),
        };
        let mut registrations = Vec::new();
        for driver in drivers {
            let name = driver.name.as_str();
            let layer = match &running.layer {
                Some(first) => first.of(name),
                None => CallLayer::new(name).only_for(callers.clone()),
            };
            let (listener, file) = driver.socket.into_parts().map_err(ServeError::Socket)?;
            let routes = driver.services.into_routes();
            running
                .servers
                .push(Server::new(routes, &layer, CONNECTIONS_MAX));
            running.listeners.push(listener);
            running.files.push(file);
            registrations.push((name.to_owned(), driver.registration, layer.clone()));
            let facts = driver.facts.map(|facts| (name.to_owned(), facts));
            running.facts.extend(facts);
            running.layer = Some(layer);
        }
        // A client that connects from now on is served as soon as this thread waits for events.
        for (name, registration, layer) in registrations {
            let registrar = registration.map(|it| Registrar::open(it, &layer));
            let registrar = registrar.transpose().map_err(ServeError::Registration)?;
            let registered = registrar.as_ref().map(Registrar::state);
            running.drivers.push(status::Driver { name, registered });
            running.registrars.extend(registrar);
        }
        Ok(running)
    }

    /// Returns the content of the pages.
    fn shown(&self, program: &'static str, readiness: Readiness) -> PageContent {
        let facts = AllFacts::new(self.facts.clone());
        let refusals = self.layer.as_ref().map(CallLayer::refusals);
        let status = Status {
            program,
            since: Instant::now(),
            drivers: self.drivers.clone(),
            facts: facts.clone(),
            refusals: refusals.unwrap_or_default(),
        };
        PageContent {
            readiness,
            facts,
            status: Arc::new(move |state| status.page(state)),
            jobs: crate::work::lines,
        }
    }
}

async fn accept(servers: &[Server], listeners: Vec<UnixListener>) -> Infallible {
    let all = servers.iter().zip(listeners);
    let all = all.map(|(server, listener)| server.accept("csi", listener));
    future::join_all(all).await;
    // This line is only reached if there are no servers.
    std::future::pending().await
}

async fn show(pages: Option<Pages>, shown: PageContent) -> Infallible {
    match pages {
        Some(pages) => pages.serve(shown).await,
        None => std::future::pending().await,
    }
}

/// Moves pending measurements into their histograms, and returns free memory to the kernel, some
/// seconds after a call has ended. The function does not wait until no call is running, since this
/// may never happen under a steady load. No timer is set while there are no calls.
async fn rest(layer: Option<&CallLayer>, worked: Option<&Notify>, give_back: fn()) -> Infallible {
    let Some(layer) = layer else {
        return std::future::pending().await;
    };
    loop {
        tokio::select! {
            () = layer.ended().notified() => {}
            () = notified(worked) => {}
        }
        tokio::time::sleep(REST_AFTER).await;
        metrics::tidy();
        give_back();
    }
}

async fn notified(worked: Option<&Notify>) {
    match worked {
        Some(worked) => worked.notified().await,
        None => future::pending().await,
    }
}

async fn register(registrars: Vec<Registrar>) -> Infallible {
    future::join_all(registrars.into_iter().map(Registrar::run)).await;
    // This line is only reached if there are no registrars.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Poll};
    use tonic::body::Body;
    use tower::{Layer as _, Service};

    #[derive(Clone)]
    struct Answering;

    impl Service<Request<()>> for Answering {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = future::Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            future::ready(Ok(Response::new(Body::empty())))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_after_calls_and_other_work_and_not_without_them() {
        static RESTS: AtomicU32 = AtomicU32::new(0);
        static WORKED: Notify = Notify::const_new();
        let layer = CallLayer::new("d");
        let _resting = tokio::spawn({
            let layer = layer.clone();
            let give_back = || {
                RESTS.fetch_add(1, Ordering::Relaxed);
            };
            async move { rest(Some(&layer), Some(&WORKED), give_back).await }
        });
        let mut service = layer.layer(Answering);
        let mut seen = Vec::new();
        for (calls, works) in [(0, 0), (3, 0), (0, 0), (1, 0), (0, 1), (0, 0)] {
            for _ in 0..calls {
                let Ok(_answer) = service.call(Request::new(())).await;
            }
            for _ in 0..works {
                WORKED.notify_one();
            }
            tokio::time::sleep(REST_AFTER * 3).await;
            seen.push(RESTS.load(Ordering::Relaxed));
        }
        // If further calls end during the wait, memory is returned again after these calls.
        assert!(seen[0] == 0 && (1..=2).contains(&seen[1]), "{seen:?}");
        let after = |rests| seen[1] + rests;
        assert_eq!(seen[2..], [after(0), after(1), after(2), after(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_after_a_call_whose_caller_disconnects() {
        let layer = CallLayer::new("d");
        let call = layer.layer(Answering).call(Request::new(()));
        drop(call);
        layer.ended().notified().await;
    }
}
