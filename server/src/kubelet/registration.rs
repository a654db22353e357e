//! How a driver makes itself known to the kubelet: a socket in the kubelet's plugin folder, which
//! stands for as long as the driver is served and is made again when it is lost or the kubelet
//! refuses. Knows nothing of what a driver does.
//!
//! What the kubelet does on its side was read in Kubernetes 1.35, `pkg/kubelet/pluginmanager` and
//! `pkg/volume/csi`.

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

/// The kind of plugin (`CSIPlugin` in the kubelet's `pluginregistration` package).
const PLUGIN_TYPE: &str = "CSIPlugin";

/// Not the version of CSI that is spoken: the kubelet takes any 1.x, and of two drivers with one
/// name the higher. What node-driver-registrar says for all drivers, so that to and from a driver
/// that it registers the way is equally open.
const SUPPORTED_VERSION: &str = "1.0.0";

/// Largest request, in bytes. An error of the kubelet may quote several others.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// As much of the kubelet's error is kept, in bytes.
const ERROR_BYTES_MAX: usize = 2048;

/// Connections at a time: the kubelet has one. Of more, one that is idle is closed.
const CONNECTIONS_MAX: usize = 8;

/// Between the first two tries of a driver that the kubelet does not take, and at most. The kubelet
/// itself waits up to two minutes.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// 1 for a driver that the kubelet has taken, else 0.
const REGISTERED: &str = "belay_kubelet_registered";

/// A driver that shall be made known.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The kubelet's plugin folder, as this process sees it.
    pub folder: PathBuf,
    /// The driver.
    pub driver: DriverName,
    /// Its CSI socket, as the kubelet sees it.
    pub endpoint: Endpoint,
    /// The driver's own part of readiness: nobody is offered a driver that still starts. The
    /// registration becomes one more part, which is not ready until the kubelet has the driver.
    pub readiness: Readiness,
}

/// A driver on its way to the kubelet, for as long as this lives.
pub(crate) struct Registrar {
    /// The socket in the plugin folder.
    endpoint: Endpoint,
    server: Server,
    standing: Arc<Standing>,
    driver: Readiness,
    /// None while the driver starts.
    open: Option<Open>,
}

/// A socket that stands in the folder.
struct Open {
    listener: UnixListener,
    file: SocketFile,
    /// None if it cannot be watched.
    watch: Option<Watch>,
}

impl Registrar {
    /// Makes the socket, unless the driver still starts. From now on the kubelet may come, so the
    /// driver must be served by now.
    ///
    /// # Errors
    /// Those of [`Socket::bind`].
    pub(crate) fn open(registration: Registration, layer: &CallLayer) -> io::Result<Self> {
        let driver = registration.driver;
        let folder = std::path::absolute(registration.folder)?;
        let endpoint = Endpoint {
            path: folder.join(format!("{driver}-reg.sock")),
        };
        metrics::describe_gauge!(REGISTERED, "Whether the kubelet has taken the driver.");
        let gauge = metrics::gauge!(REGISTERED, "driver" => driver.to_string());
        let standing = Arc::new(Standing {
            readiness: registration.readiness.part(waiting(&driver)),
            driver,
            gauge,
            verdict: Sender::new(Verdict::Awaited),
        });
        let service = Service {
            endpoint: registration.endpoint,
            standing: Arc::clone(&standing),
        };
        let service = RegistrationServer::new(service);
        let service = service.max_decoding_message_size(REQUEST_BYTES_MAX);
        let driver = registration.readiness;
        let open = match driver.is_starting() {
            false => Some(open(&endpoint, Socket::bind, &standing)?),
            true => {
                standing.gauge.set(0.0);
                None
            }
        };
        Ok(Self {
            server: Server::new(Routes::new(service), layer, CONNECTIONS_MAX),
            endpoint,
            standing,
            driver,
            open,
        })
    }

    /// Serves, and makes the socket again whenever that is needed. Dropped, it is removed.
    pub(crate) async fn run(self) -> Infallible {
        let Self {
            endpoint,
            server,
            standing,
            driver,
            open: first,
        } = self;
        let mut pauses = Pauses::default();
        match first {
            Some(first) => stand(&server, &standing, first, &mut pauses).await,
            None => driver.started().await,
        }
        loop {
            // Begun before the try, so that nothing is missed that happens after it.
            let watch = Watch::new(&endpoint.path).ok();
            match open(&endpoint, Socket::bind_at_once, &standing) {
                Ok(socket) => {
                    drop(watch);
                    stand(&server, &standing, socket, &mut pauses).await;
                }
                Err(error) => {
                    standing.failed(&error);
                    tokio::select! {
                        () = changed(&watch) => {}
                        () = tokio::time::sleep(pauses.next()) => {}
                    }
                }
            }
        }
    }
}

/// Makes the socket by `bind`, and watches it.
fn open(
    endpoint: &Endpoint,
    bind: impl FnOnce(&Endpoint) -> io::Result<Socket>,
    standing: &Standing,
) -> io::Result<Open> {
    let (listener, file) = bind(endpoint)?.into_parts()?;
    standing.awaited();
    let watch = Watch::new(&endpoint.path);
    let socket = endpoint.path.display();
    let watch = watch.inspect_err(|error| {
        let driver = standing.driver.as_str();
        tracing::warn!(
            driver,
            "{socket}: cannot be watched ({error}), and is not made again if it is removed: the \
             kubelet would lose the driver; raise fs.inotify.max_user_instances"
        );
    });
    tracing::info!(driver = standing.driver.as_str(), %socket, "waiting for the kubelet");
    Ok(Open {
        listener,
        file,
        watch: watch.ok(),
    })
}

/// Serves on this socket until it should be made again.
async fn stand(server: &Server, standing: &Standing, socket: Open, pauses: &mut Pauses) {
    let Open {
        listener,
        file,
        watch,
    } = socket;
    tokio::select! {
        never = server.accept("registration", listener) => match never {},
        () = lost(&file, &watch) => {
            let was_registered = standing.lost();
            // Else somebody may be at it who does so again and again.
            if !was_registered {
                tokio::time::sleep(pauses.next()).await;
            }
        }
        () = refused(standing.verdict.subscribe(), pauses) => {}
    }
    drop(file);
}

/// Returns when the socket does not stand any more.
async fn lost(file: &SocketFile, watch: &Option<Watch>) {
    // The first look is for what happened before it was watched.
    while file.stands() {
        changed(watch).await;
    }
}

/// Returns when something may have happened; never, if nobody watches.
async fn changed(watch: &Option<Watch>) {
    if let Some(watch) = watch {
        match watch.changed().await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "the registration socket is not watched any more"),
        }
    }
    std::future::pending().await
}

/// Returns when the kubelet has refused the driver and has not asked again for a while.
///
/// After some refusals it does so by itself, but not where the driver failed in NodeGetInfo or
/// could not be entered at the API server: then it asks only for a new socket.
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
            // Nobody can tell any more, which cannot be while this is served.
            std::future::pending().await
        }
    }
}

/// The time between tries: each is twice as long as the last one.
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

/// What the kubelet has said of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing yet.
    Awaited,
    /// It has taken it.
    Registered,
    /// It has not.
    Refused,
    /// It cannot come, for there is no socket, and why.
    Unreachable(String),
}

fn waiting(driver: &DriverName) -> State {
    State::Starting(format!("the kubelet has not registered {driver} yet"))
}

/// How a driver stands with the kubelet, and all who are told.
struct Standing {
    driver: DriverName,
    gauge: Gauge,
    readiness: Readiness,
    verdict: Sender<Verdict>,
}

impl Standing {
    /// The kubelet may come. What it found wrong the last time is told until it is right.
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
            "the kubelet refuses the driver; it is offered again"
        );
        self.gauge.set(0.0);
        let why = format!("the kubelet refuses {driver}: {error}");
        self.readiness.set(State::Unhealthy(why));
        self.verdict.send_replace(Verdict::Refused);
    }

    /// The socket is gone. Whether the driver was registered until then.
    fn lost(&self) -> bool {
        let driver = self.driver.as_str();
        tracing::warn!(
            driver,
            "somebody removed the registration socket; it is made again"
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

/// What the kubelet calls.
struct Service {
    endpoint: Endpoint,
    standing: Arc<Standing>,
}

#[tonic::async_trait]
impl Calls for Service {
    async fn get_info(
        &self,
        _: Request<wire::InfoRequest>,
    ) -> Result<Response<wire::PluginInfo>, Status> {
        Ok(Response::new(wire::PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.standing.driver.to_string(),
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
            self.standing.registered();
        } else {
            self.standing.refused(&status.error);
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

    /// A driver that registers itself, without its service.
    struct Bed {
        folder: TempDir,
        readiness: Readiness,
        standing: Arc<Standing>,
        running: JoinHandle<Infallible>,
    }

    impl Bed {
        fn new() -> Self {
            let folder = TempDir::new().unwrap();
            let readiness = Readiness::new(State::Ready);
            let registration = Registration {
                folder: folder.path().to_owned(),
                driver: NAME.parse().unwrap(),
                endpoint: "/var/lib/kubelet/plugins/test/csi.sock".parse().unwrap(),
                readiness: readiness.clone(),
            };
            let registrar = Registrar::open(registration, &CallLayer::new()).unwrap();
            Self {
                folder,
                readiness,
                standing: Arc::clone(&registrar.standing),
                running: tokio::spawn(registrar.run()),
            }
        }

        fn socket(&self) -> PathBuf {
            self.folder.path().join(format!("{NAME}-reg.sock"))
        }

        /// The next thing that is known of the driver, and after how many seconds.
        async fn next(&self) -> (Verdict, u64) {
            let begun = Instant::now();
            let mut verdicts = self.standing.verdict.subscribe();
            verdicts.changed().await.unwrap();
            let now = verdicts.borrow().clone();
            (now, begun.elapsed().as_secs())
        }
    }

    fn unhealthy(why: &str) -> State {
        State::Unhealthy(why.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_driver_is_offered_again_ever_later_and_tells_why_until_it_is_taken() {
        let bed = Bed::new();
        let refused = unhealthy("the kubelet refuses test.csi.belay.dev: no room");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            bed.standing.refused("no room");
            assert_eq!(bed.next().await, (Verdict::Awaited, seconds));
            assert_eq!(bed.readiness.state(), refused);
            UnixStream::connect(bed.socket()).unwrap();
        }
        bed.standing.registered();
        assert_eq!(bed.readiness.state(), State::Ready);
        tokio::task::yield_now().await;
        bed.standing.refused("no room");
        assert_eq!(bed.next().await, (Verdict::Awaited, 1));
        assert!(!bed.running.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_asks_again_by_itself_is_not_disturbed() {
        let bed = Bed::new();
        let before = std::fs::symlink_metadata(bed.socket()).unwrap().ino();
        bed.standing.refused("not yet");
        tokio::time::sleep(FIRST_PAUSE / 2).await;
        bed.standing.registered();
        tokio::time::sleep(2 * LONGEST_PAUSE).await;
        let after = std::fs::symlink_metadata(bed.socket()).unwrap().ino();
        assert_eq!(after, before);
        assert_eq!(*bed.standing.verdict.borrow(), Verdict::Registered);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_removes_the_socket_again_and_again_finds_it_ever_later() {
        let bed = Bed::new();
        bed.standing.registered();
        for seconds in [0, 1, 2, 4] {
            tokio::task::yield_now().await;
            std::fs::remove_file(bed.socket()).unwrap();
            assert_eq!(bed.next().await, (Verdict::Awaited, seconds));
        }
    }

    #[tokio::test]
    async fn an_error_of_any_length_is_told_in_part() {
        let bed = Bed::new();
        bed.standing.refused(&"x".repeat(REQUEST_BYTES_MAX));
        let State::Unhealthy(why) = bed.readiness.state() else {
            panic!("{:?}", bed.readiness.state())
        };
        assert!(why.len() < ERROR_BYTES_MAX + 100, "{}", why.len());
    }

    #[tokio::test]
    async fn the_socket_goes_with_the_registrar() {
        let bed = Bed::new();
        assert!(bed.socket().exists());
        bed.running.abort();
        assert!(bed.running.await.unwrap_err().is_cancelled());
        assert!(!bed.folder.path().join(format!("{NAME}-reg.sock")).exists());
    }
}
