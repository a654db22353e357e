//! A complete server with scripted services, on a socket in its own directory. The test reads the
//! server's log line by line.

use belay_proto::csi::v1 as csi;
use belay_server::call::{Callers, Failure, Rpc, answer};
use belay_server::endpoint::Endpoint;
use belay_server::identity::{Identity, PluginCapability};
use belay_server::readiness::{Readiness, State};
use belay_server::serve::{Driver, ServeConfig, ServeError, listen, serve};
use belay_server::services::Services;
use belay_server::transport::Socket;
use csi::node_client::NodeClient;
use csi::node_server::Node;
use http::uri::PathAndQuery;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// The maximum drain time, so long that it is reached only in tests with a paused clock.
pub(crate) const DRAIN: Duration = Duration::from_secs(3600);

/// The driver's name.
pub(crate) const NAME: &str = "test.csi.belay.dev";

/// A running server. The server's log belongs to the thread of the test, and ends when this value
/// is dropped.
pub(crate) struct Bed {
    directory: TempDir,
    pub(crate) readiness: Readiness,
    pub(crate) gate: Arc<Gate>,
    pub(crate) server: JoinHandle<Result<(), ServeError>>,
    asks: mpsc::UnboundedSender<()>,
    lines: mpsc::UnboundedReceiver<String>,
    _log: DefaultGuard,
}

/// Blocks a call until the test opens the gate.
#[derive(Default)]
pub(crate) struct Gate {
    entered: Notify,
    open: Notify,
}

impl Gate {
    pub(crate) async fn entered(&self) {
        self.entered.notified().await;
    }

    pub(crate) fn open(&self) {
        self.open.notify_one();
    }
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(Level::INFO, None)
    }

    pub(crate) fn with(level: Level, http: Option<SocketAddr>) -> Self {
        Self::start(level, http, Callers::Any)
    }

    /// Starts a server that accepts only these callers.
    pub(crate) fn only_for(callers: Callers) -> Self {
        Self::start(Level::INFO, None, callers)
    }

    fn start(level: Level, http: Option<SocketAddr>, callers: Callers) -> Self {
        let (log, lines) = log(level);
        let directory = TempDir::new().unwrap();
        let endpoint = Endpoint {
            path: directory.path().join("csi.sock"),
        };
        let readiness = Readiness::new(State::Ready);
        let gate = Arc::<Gate>::default();
        let identity = Identity::new(
            NAME.parse().unwrap(),
            "1.2.3",
            vec![
                PluginCapability::Controller,
                PluginCapability::OnlineExpansion,
            ],
            readiness.clone(),
        );
        let node = TestNode {
            gate: Arc::clone(&gate),
        };
        let services = Services::new(identity).with_node(Arc::new(node));
        let (asks, mut asked) = mpsc::unbounded_channel();
        let shutdown = futures_util::stream::poll_fn(move |context| asked.poll_recv(context));
        let driver = Driver {
            name: NAME.parse().unwrap(),
            socket: Socket::bind(&endpoint).unwrap(),
            services,
            registration: None,
            facts: None,
        };
        let whole = readiness.clone();
        let server = tokio::spawn(async move {
            let config = ServeConfig {
                program: "belay-test 1.2.3",
                pages: listen(http).await?,
                drain: DRAIN,
                readiness: whole,
                callers,
                rest: || {},
                worked: None,
            };
            serve(config, vec![driver], shutdown).await
        });
        Self {
            directory,
            readiness,
            gate,
            server,
            asks,
            lines,
            _log: log,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    /// Opens a new connection, as the kubelet does for every call.
    pub(crate) async fn connect(&self) -> Channel {
        let uri = format!("unix:{}", self.path().display());
        tonic::transport::Endpoint::from_shared(uri)
            .unwrap()
            .connect()
            .await
            .unwrap()
    }

    /// Returns a client of the node service, on a new connection.
    pub(crate) async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.connect().await)
    }

    /// Sends a message to a path, which need not match the type of the message.
    pub(crate) async fn send<M>(&self, path: &'static str, message: M) -> Result<(), Status>
    where
        M: prost::Message + 'static,
    {
        let mut client = tonic::client::Grpc::new(self.connect().await);
        client.ready().await.unwrap();
        let codec = ProstCodec::<M, csi::ProbeResponse>::default();
        let path = PathAndQuery::from_static(path);
        let answer = client.unary(Request::new(message), path, codec).await;
        answer.map(drop)
    }

    /// Shuts the server down.
    pub(crate) fn end(&self) {
        self.asks.send(()).unwrap();
    }

    /// Waits for the next line of the log, and returns it.
    pub(crate) async fn line(&mut self) -> String {
        self.lines.recv().await.unwrap()
    }

    /// All lines so far.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.try_recv().ok()).collect()
    }
}

/// Sends every log line, without its time, to the test.
struct Lines(mpsc::UnboundedSender<String>);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8(line.to_vec()).map_err(io::Error::other)?;
        // Ignore the error, since the receiver is dropped at the end of the test.
        drop(self.0.send(text));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log(level: Level) -> (DefaultGuard, mpsc::UnboundedReceiver<String>) {
    let (sender, lines) = mpsc::unbounded_channel();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(move || Lines(sender.clone()))
        .without_time()
        .finish();
    (tracing::subscriber::set_default(subscriber), lines)
}

struct TestNode {
    gate: Arc<Gate>,
}

#[tonic::async_trait]
impl Node for TestNode {
    /// Performs the action that the volume ID names.
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        answer(Rpc::NodeStageVolume, request, async |request| {
            match request.volume_id.as_str() {
                "held" => {
                    self.gate.entered.notify_one();
                    self.gate.open.notified().await;
                }
                "panics" => panic!("as scripted"),
                "foreign" => return Err(Failure::precondition("/dev/x: has a GPT at byte 512")),
                _ => {}
            }
            Ok(csi::NodeStageVolumeResponse {})
        })
        .await
    }

    /// All servers of a process share the metrics, so this call is made by no other test.
    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        answer(
            Rpc::NodeUnstageVolume,
            request,
            async |request| match request.volume_id.as_str() {
                "used" => Err(Failure::precondition("/dev/x: is still open")),
                _ => Ok(csi::NodeUnstageVolumeResponse {}),
            },
        )
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        answer(Rpc::NodeGetVolumeStats, request, async |request| {
            assert_ne!(request.volume_id, "panics");
            Ok(csi::NodeGetVolumeStatsResponse::default())
        })
        .await
    }
}

pub(crate) fn stage(volume_id: &str) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: volume_id.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn stats(volume_id: &str) -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        ..Default::default()
    }
}
