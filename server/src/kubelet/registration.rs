//! Registers a driver with the kubelet through a socket in the kubelet's plugin directory. The
//! socket exists for as long as the driver is served, and is recreated if it is lost or if the
//! kubelet refuses the driver. This module does not depend on the driver's services.
//!
//! The comments describe Kubernetes 1.35, `pkg/kubelet/pluginmanager` and `pkg/volume/csi`.

use super::watch::Watch;
use crate::call::{CallLayer, start_of};
use crate::endpoint::Endpoint;
use crate::identity::DriverName;
use crate::readiness::{Readiness, State};
use crate::transport::{Server, Socket, SocketFile};
use belay_proto::pluginregistration as wire;
use metrics::Gauge;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch::{Receiver, Sender};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use wire::registration_server::{Registration as Calls, RegistrationServer};

/// The type of plugin (`CSIPlugin` in the kubelet's `pluginregistration` package).
const PLUGIN_TYPE: &str = "CSIPlugin";

/// The version of the plugin, not of CSI. The kubelet accepts any 1.x. If two drivers have the same
/// name, the kubelet prefers the higher version. node-driver-registrar reports the same version for
/// all drivers, so that a migration works in both directions.
const SUPPORTED_VERSION: &str = "1.0.0";

/// Maximum size of a request, in bytes. An error from the kubelet may quote several other errors.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Maximum length of a kept error from the kubelet, in bytes.
const ERROR_BYTES_MAX: usize = 2048;

/// Maximum number of connections; beyond that, an idle connection is closed. The kubelet opens one.
const CONNECTIONS_MAX: usize = 8;

/// First and longest pause between attempts to register a driver that the kubelet refuses. The
/// kubelet itself waits up to two minutes.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Gauge: 1 for a driver that the kubelet has registered, else 0.
const REGISTERED: &str = "belay_kubelet_registered";

/// A driver to register.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The path of the kubelet's plugin directory in this process.
    pub directory: PathBuf,
    /// The driver.
    pub driver: DriverName,
    /// The driver's CSI socket, with its path on the host, where the kubelet runs.
    pub endpoint: Endpoint,
    /// The driver's own readiness. A driver that is still starting is not registered. The
    /// registration adds a part, which is not ready until the kubelet has registered the driver.
    pub readiness: Readiness,
}

/// Keeps a driver registered until this value is dropped.
pub(crate) struct Registrar {
    /// The socket in the plugin directory.
    endpoint: Endpoint,
    server: Server,
    state: Arc<RegistrationState>,
    driver: Readiness,
    /// The first socket. `None` while the driver is starting.
    open: Option<OpenSocket>,
}

/// A socket in the plugin directory.
struct OpenSocket {
    listener: UnixListener,
    file: SocketFile,
    /// The watch on the socket file. `None` if the file cannot be watched.
    watch: Option<Watch>,
}

impl Registrar {
    /// Creates the socket, unless the driver is still starting. The driver must already be served,
    /// since the kubelet may connect at once.
    ///
    /// # Errors
    /// Returns the error of [`Socket::bind`] if the socket cannot be created.
    pub(crate) fn open(registration: Registration, layer: &CallLayer) -> io::Result<Self> {
        let driver = registration.driver;
        let directory = std::path::absolute(registration.directory)?;
        let endpoint = Endpoint {
            path: directory.join(format!("{driver}-reg.sock")),
        };
        metrics::describe_gauge!(REGISTERED, "Whether the kubelet has registered the driver.");
        let gauge = metrics::gauge!(REGISTERED, "driver" => driver.to_string());
        let state = Arc::new(RegistrationState {
            readiness: registration.readiness.part(waiting(&driver)),
            driver,
            gauge,
            verdict: Sender::new(Verdict::Awaited),
        });
        let service = Service {
            endpoint: registration.endpoint,
            state: Arc::clone(&state),
        };
        let service = RegistrationServer::new(service);
        let service = service.max_decoding_message_size(REQUEST_BYTES_MAX);
        let driver = registration.readiness;
        let open = match driver.is_starting() {
            false => Some(open(&endpoint, Socket::bind, &state)?),
            true => {
                state.gauge.set(0.0);
                None
            }
        };
        Ok(Self {
            server: Server::new(Routes::new(service), layer, CONNECTIONS_MAX),
            endpoint,
            state,
            driver,
            open,
        })
    }

    /// Returns a view of the registration, which is updated for as long as the registrar runs.
    pub(crate) fn state(&self) -> RegistrationView {
        RegistrationView(self.state.verdict.subscribe())
    }

    /// Serves calls, and recreates the socket if it is lost. Dropping the future removes the
    /// socket.
    pub(crate) async fn run(self) -> Infallible {
        let Self {
            endpoint,
            server,
            state,
            driver,
            open: first,
        } = self;
        let mut pauses = Pauses::default();
        match first {
            Some(first) => serve_until_lost(&server, &state, first, &mut pauses).await,
            None => driver.started().await,
        }
        loop {
            // Start the watch before the attempt to open the socket, so that no event is missed.
            let watch = Watch::new(&endpoint.path).ok();
            match open(&endpoint, Socket::bind_at_once, &state) {
                Ok(socket) => {
                    drop(watch);
                    serve_until_lost(&server, &state, socket, &mut pauses).await;
                }
                Err(error) => {
                    state.failed(&error);
                    tokio::select! {
                        () = changed(&watch) => {}
                        () = tokio::time::sleep(pauses.next()) => {}
                    }
                }
            }
        }
    }
}

/// A view of the state of a driver's registration with the kubelet.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationView(Receiver<Verdict>);

impl RegistrationView {
    /// Whether the kubelet has registered the driver.
    pub(crate) fn is(&self) -> bool {
        *self.0.borrow() == Verdict::Registered
    }
}

/// Creates the socket with `bind`, and watches it.
fn open(
    endpoint: &Endpoint,
    bind: impl FnOnce(&Endpoint) -> io::Result<Socket>,
    state: &RegistrationState,
) -> io::Result<OpenSocket> {
    let (listener, file) = bind(endpoint)?.into_parts()?;
    state.awaited();
    let watch = Watch::new(&endpoint.path);
    let socket = endpoint.path.display();
    let watch = watch.inspect_err(|error| {
        let driver = state.driver.as_str();
        tracing::warn!(
            driver,
            "{socket}: cannot be watched ({error}): if it is removed, the kubelet loses the \
             driver; raise fs.inotify.max_user_instances"
        );
    });
    tracing::info!(driver = state.driver.as_str(), %socket, "waiting for the kubelet");
    Ok(OpenSocket {
        listener,
        file,
        watch: watch.ok(),
    })
}

/// Serves on this socket until it must be recreated.
async fn serve_until_lost(
    server: &Server,
    state: &RegistrationState,
    socket: OpenSocket,
    pauses: &mut Pauses,
) {
    let OpenSocket {
        listener,
        file,
        watch,
    } = socket;
    tokio::select! {
        never = server.accept("registration", listener) => match never {},
        () = lost(&file, &watch) => {
            let was_registered = state.lost();
            // Prevents a busy loop if another process keeps removing the socket.
            if !was_registered {
                tokio::time::sleep(pauses.next()).await;
            }
        }
        () = refused(state.verdict.subscribe(), pauses) => {}
    }
    drop(file);
}

/// Waits until the socket file is removed or replaced.
async fn lost(file: &SocketFile, watch: &Option<Watch>) {
    // The first check detects a change that happened before the watch started.
    while file.stands() {
        changed(watch).await;
    }
}

/// Waits until the watch reports an event; waits forever if no watch exists or the watch fails.
async fn changed(watch: &Option<Watch>) {
    if let Some(watch) = watch {
        match watch.changed().await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "the registration socket is no longer watched"),
        }
    }
    std::future::pending().await
}

/// Waits until the kubelet has refused the driver and has not retried for a while.
///
/// The kubelet retries after some refusals. But after a failed NodeGetInfo call or CSINode update,
/// it reacts only to a new socket.
async fn refused(mut verdict: Receiver<Verdict>, pauses: &mut Pauses) {
    loop {
        let now = verdict.borrow_and_update().clone();
        match now {
            Verdict::Refused => tokio::select! {
                () = tokio::time::sleep(pauses.next()) => return,
                Ok(()) = verdict.changed() => continue,
            },
            Verdict::Registered => pauses.reset(),
            Verdict::Awaited | Verdict::Unreachable(_) => {}
        }
        if verdict.changed().await.is_err() {
            // The sender was dropped, which cannot happen while the service runs.
            std::future::pending().await
        }
    }
}

/// The pauses between attempts. Each pause is twice the previous pause, up to [`LONGEST_PAUSE`].
#[derive(Debug, Default)]
struct Pauses(Duration);

impl Pauses {
    fn next(&mut self) -> Duration {
        self.0 = (2 * self.0).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.0
    }

    fn reset(&mut self) {
        self.0 = Duration::ZERO;
    }
}

/// The state of a driver's registration with the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// The kubelet has not replied yet.
    Awaited,
    /// The kubelet has registered the driver.
    Registered,
    /// The kubelet has refused the driver.
    Refused,
    /// The kubelet cannot connect, since the socket could not be created. Contains the reason.
    Unreachable(String),
}

fn waiting(driver: &DriverName) -> State {
    State::Starting(format!("the kubelet has not registered {driver} yet"))
}

/// The registration state of a driver, with the gauge and the readiness that report it.
struct RegistrationState {
    driver: DriverName,
    gauge: Gauge,
    readiness: Readiness,
    verdict: Sender<Verdict>,
}

impl RegistrationState {
    /// Records the wait for the kubelet. A refusal is reported until a later attempt succeeds.
    fn awaited(&self) {
        let last = self.verdict.send_replace(Verdict::Awaited);
        if matches!(last, Verdict::Registered | Verdict::Unreachable(_)) {
            self.readiness.set(waiting(&self.driver));
        }
        self.gauge.set(0.0);
    }

    fn registered(&self) {
        tracing::info!(
            driver = self.driver.as_str(),
            "the kubelet has registered the driver"
        );
        self.gauge.set(1.0);
        self.readiness.set(State::Ready);
        self.verdict.send_replace(Verdict::Registered);
    }

    fn refused(&self, error: &str) {
        let error = start_of(error, ERROR_BYTES_MAX);
        let driver = self.driver.as_str();
        tracing::error!(
            driver,
            error,
            "the kubelet refuses the driver; registration will be retried"
        );
        self.gauge.set(0.0);
        let why = format!("the kubelet refuses {driver}: {error}");
        self.readiness.set(State::Unhealthy(why));
        self.verdict.send_replace(Verdict::Refused);
    }

    /// Records that the socket was removed. Returns whether the driver was registered before.
    fn lost(&self) -> bool {
        let driver = self.driver.as_str();
        tracing::warn!(
            driver,
            "the registration socket was removed; creating it again"
        );
        *self.verdict.borrow() == Verdict::Registered
    }

    fn failed(&self, error: &io::Error) {
        let error = error.to_string();
        let verdict = Verdict::Unreachable(error.clone());
        if self.verdict.send_replace(verdict.clone()) != verdict {
            let driver = self.driver.as_str();
            tracing::error!(driver, "the kubelet cannot reach the driver: {error}");
        }
        self.gauge.set(0.0);
        self.readiness.set(State::Unhealthy(error));
    }
}

/// The service that the kubelet calls.
struct Service {
    endpoint: Endpoint,
    state: Arc<RegistrationState>,
}

#[tonic::async_trait]
impl Calls for Service {
    async fn get_info(
        &self,
        _: Request<wire::InfoRequest>,
    ) -> Result<Response<wire::PluginInfo>, Status> {
        Ok(Response::new(wire::PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.state.driver.to_string(),
            endpoint: self.endpoint.path.display().to_string(),
            supported_versions: vec![SUPPORTED_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            self.state.registered();
        } else {
            self.state.refused(&status.error);
        }
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    const NAME: &str = "test.csi.belay.dev";

    /// A driver that registers itself, but does not serve CSI calls.
    struct Bed {
        directory: TempDir,
        readiness: Readiness,
        state: Arc<RegistrationState>,
        running: JoinHandle<Infallible>,
    }

    impl Bed {
        fn new() -> Self {
            let directory = TempDir::new().unwrap();
            let readiness = Readiness::new(State::Ready);
            let registration = Registration {
                directory: directory.path().to_owned(),
                driver: NAME.parse().unwrap(),
                endpoint: "/var/lib/kubelet/plugins/test/csi.sock".parse().unwrap(),
                readiness: readiness.clone(),
            };
            let registrar = Registrar::open(registration, &CallLayer::new(NAME)).unwrap();
            Self {
                directory,
                readiness,
                state: Arc::clone(&registrar.state),
                running: tokio::spawn(registrar.run()),
            }
        }

        fn socket(&self) -> PathBuf {
            self.directory.path().join(format!("{NAME}-reg.sock"))
        }

        /// Waits for the next state of the driver. Returns the state, and the number of seconds
        /// until the state changed.
        async fn next(&self) -> (Verdict, u64) {
            let begun = Instant::now();
            let mut verdicts = self.state.verdict.subscribe();
            verdicts.changed().await.unwrap();
            let now = verdicts.borrow().clone();
            (now, begun.elapsed().as_secs())
        }
    }

    fn unhealthy(why: &str) -> State {
        State::Unhealthy(why.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_driver_is_offered_again_ever_later_and_reports_why_until_it_is_registered() {
        let bed = Bed::new();
        let refused = unhealthy("the kubelet refuses test.csi.belay.dev: no room");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            bed.state.refused("no room");
            assert_eq!(bed.next().await, (Verdict::Awaited, seconds));
            assert_eq!(bed.readiness.state(), refused);
            UnixStream::connect(bed.socket()).unwrap();
        }
        bed.state.registered();
        assert_eq!(bed.readiness.state(), State::Ready);
        tokio::task::yield_now().await;
        bed.state.refused("no room");
        assert_eq!(bed.next().await, (Verdict::Awaited, 1));
        assert!(!bed.running.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_retries_by_itself_is_not_disturbed() {
        let bed = Bed::new();
        let before = std::fs::symlink_metadata(bed.socket()).unwrap().ino();
        bed.state.refused("not yet");
        tokio::time::sleep(FIRST_PAUSE / 2).await;
        bed.state.registered();
        tokio::time::sleep(2 * LONGEST_PAUSE).await;
        let after = std::fs::symlink_metadata(bed.socket()).unwrap().ino();
        assert_eq!(after, before);
        assert_eq!(*bed.state.verdict.borrow(), Verdict::Registered);
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_removed_again_and_again_is_recreated_ever_later() {
        let bed = Bed::new();
        bed.state.registered();
        for seconds in [0, 1, 2, 4] {
            tokio::task::yield_now().await;
            std::fs::remove_file(bed.socket()).unwrap();
            assert_eq!(bed.next().await, (Verdict::Awaited, seconds));
        }
    }

    #[tokio::test]
    async fn a_long_error_is_reported_in_part() {
        let bed = Bed::new();
        bed.state.refused(&"x".repeat(REQUEST_BYTES_MAX));
        let State::Unhealthy(why) = bed.readiness.state() else {
            panic!("{:?}", bed.readiness.state())
        };
        assert!(why.len() < ERROR_BYTES_MAX + 100, "{}", why.len());
    }

    #[tokio::test]
    async fn the_socket_is_removed_with_the_registrar() {
        let bed = Bed::new();
        assert!(bed.socket().exists());
        bed.running.abort();
        assert!(bed.running.await.unwrap_err().is_cancelled());
        assert!(
            !bed.directory
                .path()
                .join(format!("{NAME}-reg.sock"))
                .exists()
        );
    }
}
