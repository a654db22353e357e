//! Starts a twin and real controllers for it, calls them through their sockets, and kills them.

use belay_bed::programs::{Running, server};
use belay_bed::{requests, scrape};
use belay_proto::csi::v1 as csi;
use belay_proto::dial::{DialError, dial};
use belay_twins::Server;
use belay_twins::digitalocean::{DigitalOcean, TOKEN};
use csi::controller_client::ControllerClient;
use csi::volume_capability::access_mode::Mode;
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub(crate) type Client = ControllerClient<Channel>;

pub(crate) const GIB: i64 = 1 << 30;
/// The droplets of the twin.
pub(crate) const DROPLETS: [u64; 8] = [101, 102, 103, 104, 105, 106, 107, 108];
pub(crate) const NODE: &str = "101";
pub(crate) const OTHER: &str = "102";

/// The kinds of calls that tests count and disturb.
pub(crate) const ACCOUNT: &str = "GET /v2/account";
pub(crate) const ATTACH: &str = "POST /v2/volumes/ID/actions attach";
pub(crate) const DETACH: &str = "POST /v2/volumes/ID/actions detach";
pub(crate) const ACTIONS: &str = "GET /v2/volumes/ID/actions";
pub(crate) const RESIZE: &str = "POST /v2/volumes/ID/actions resize";
pub(crate) const CREATE: &str = "POST /v2/volumes";
pub(crate) const CUT: &str = "POST /v2/volumes/ID/snapshots";
pub(crate) const TAG: &str = "POST /v2/tags/ID/resources";

/// A twin whose actions take a moment, and the directory of a controller.
pub(crate) struct Site {
    pub(crate) cloud: std::sync::Arc<Server<DigitalOcean>>,
    dir: tempfile::TempDir,
    more: Vec<String>,
}

/// The duration of an action, less than the controller's first pause.
pub(crate) const DELAY: Duration = Duration::from_millis(300);

impl Site {
    pub(crate) fn new() -> Self {
        let cloud = DigitalOcean::new(&["nyc1", "fra1"], &DROPLETS);
        cloud.settings().delay = DELAY;
        Self::on(std::sync::Arc::new(Server::start(cloud).unwrap()))
    }

    /// Creates a site for another controller of the same cloud.
    pub(crate) fn on(cloud: std::sync::Arc<Server<DigitalOcean>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), format!("{TOKEN}\n")).unwrap();
        fs::write(dir.path().join("keys"), "canary-0123456789abcdef0123456789").unwrap();
        let more = Vec::new();
        Self { cloud, dir, more }
    }

    /// Adds flags.
    pub(crate) fn with(mut self, flags: &[&str]) -> Self {
        self.more
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    pub(crate) fn twin(&self) -> &DigitalOcean {
        self.cloud.service()
    }

    pub(crate) fn token(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    /// Starts the controller, and waits until it serves.
    pub(crate) fn start(&self) -> Running {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let (dir, socket) = (self.dir.path(), self.socket());
        let program = Path::new(env!("CARGO_BIN_EXE_belay-controller"));
        let mut command = server(&[], program, &socket);
        let file = |flag: &str, name: &str| format!("--{flag}={}", dir.join(name).display());
        command
            .args(["--backend=digitalocean", "--cluster=twin", "--region=nyc1"])
            .arg(file("token-file", "token"))
            .arg(file("mark-key-file", "keys"))
            .arg(format!("--api-url={}", self.cloud.url()))
            .arg(format!("--http-endpoint={}", scrape::free_port().unwrap()))
            .args(&self.more)
            .stderr(log);
        Running::serving(&mut command, &socket).unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    /// Starts the controller, and waits until it has queried its team.
    pub(crate) fn start_and_ask(&self) -> Running {
        self.cloud.forget();
        let running = self.start();
        assert!(self.cloud.wait_for(1, Duration::from_secs(60)));
        running
    }

    /// Returns all log lines of its controllers.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Connects to the controller.
    ///
    /// # Errors
    /// Fails if no controller serves.
    pub(crate) async fn try_client(&self) -> Result<Client, Status> {
        let down = |error: DialError| Status::unavailable(error.to_string());
        Ok(ControllerClient::new(
            dial(&self.socket()).await.map_err(down)?,
        ))
    }

    pub(crate) async fn client(&self) -> Client {
        // The server closes a connection that is silent for three seconds, and the thread may need
        // that time to start other controllers.
        for _ in 0..9 {
            if let Ok(client) = self.try_client().await {
                return client;
            }
        }
        self.try_client().await.unwrap()
    }
}

/// Returns the capability for one pod.
pub(crate) fn block() -> csi::VolumeCapability {
    requests::capability("block", Mode::SingleNodeWriter)
}

/// Returns a request for a volume of this size.
pub(crate) fn sized(name: &str, bytes: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(bytes, 0),
        ..requests::create(name, block(), None)
    }
}

/// Creates a volume of 1 GiB, or finds it.
pub(crate) async fn create(client: &mut Client, name: &str) -> Result<csi::Volume, Status> {
    let answer = client.create_volume(sized(name, GIB)).await?;
    Ok(answer.into_inner().volume.unwrap())
}

/// Creates a volume, or finds it; returns its ID.
pub(crate) async fn created(client: &mut Client, name: &str) -> Result<String, Status> {
    Ok(create(client, name).await?.volume_id)
}

/// Attaches a volume; returns the publish context.
pub(crate) async fn attached(
    client: &mut Client,
    id: &str,
    node: &str,
) -> Result<HashMap<String, String>, Status> {
    let request = requests::attach(id, node, block());
    let answer = client.controller_publish_volume(request).await?;
    Ok(answer.into_inner().publish_context)
}

pub(crate) async fn detached(client: &mut Client, id: &str, node: &str) -> Result<(), Status> {
    let request = requests::detach(id, node);
    client.controller_unpublish_volume(request).await.map(drop)
}

pub(crate) async fn deleted(client: &mut Client, id: &str) -> Result<(), Status> {
    client.delete_volume(requests::delete(id)).await.map(drop)
}

pub(crate) async fn cut(
    client: &mut Client,
    name: &str,
    id: &str,
) -> Result<csi::Snapshot, Status> {
    let answer = client.create_snapshot(requests::cut(name, id)).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

/// Checks that a call has failed with this code, and with these words in its message.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, words: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(words), "{status}");
}
