//! Starts a real belay-controller for the twin, calls it through its socket, and kills it.

use belay_bed::patience::PATIENCE;
use belay_bed::programs::{Running, server};
use belay_bed::{requests, scrape};
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use belay_twins::Server;
pub(crate) use belay_twins::civo::REGION;
use belay_twins::civo::{CLUSTER, Civo, KEY};
use csi::controller_client::ControllerClient;
use csi::identity_client::IdentityClient;
use csi::volume_capability::access_mode::Mode;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tonic::Status;
use tonic::transport::Channel;

pub(crate) type Client = ControllerClient<Channel>;
pub(crate) type Cloud = Server<Civo>;

pub(crate) const GIB: i64 = 1 << 30;
/// The duration of a change in tests that depend on it: several requests, and kills, fall in
/// between.
pub(crate) const CHANGE: Duration = Duration::from_millis(300);

/// Starts a twin with three instances whose changes take this time.
pub(crate) fn cloud(delay: Duration) -> Cloud {
    Server::start(Civo::new(delay, 3)).unwrap()
}

/// Returns the ID of an instance, from 1.
pub(crate) fn instance(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// Waits until the cloud has received such a call.
pub(crate) async fn asked(cloud: &Cloud, kind: &str) {
    let called = async {
        while cloud.count(kind) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let called = tokio::time::timeout(PATIENCE, called).await;
    assert!(called.is_ok(), "timed out after {PATIENCE:?}: {kind}");
}

/// The directory with a controller's socket, credentials and log, which outlives the process.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    url: String,
    /// Additional flags.
    pub(crate) flags: Vec<&'static str>,
}

impl Site {
    /// Creates a site for this cloud. The credentials are files of the Secret of civo-csi.
    pub(crate) fn new(cloud: &Cloud) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let access = dir.path().join("access");
        fs::create_dir(&access).unwrap();
        let url = cloud.url();
        for (file, value) in [
            ("api-key", KEY),
            ("api-url", &url),
            ("region", REGION),
            ("cluster-id", CLUSTER),
            ("namespace", "twin"),
        ] {
            fs::write(access.join(file), format!("{value}\n")).unwrap();
        }
        let flags = Vec::new();
        Self { dir, url, flags }
    }

    /// Returns the file with the key.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.path().join("access/api-key")
    }

    fn command(&self) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_belay-controller"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let mut command = server(&[], program, &self.socket());
        command.arg("--backend=civo").args(&self.flags).stderr(log);
        command
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    /// Starts the controller built by cargo, and waits until it serves.
    pub(crate) fn start(&self) -> Running {
        let access = self.dir.path().join("access");
        let mut command = self.command();
        command.arg(format!("--civo-access={}", access.display()));
        Running::serving(&mut command, &self.socket()).unwrap()
    }

    /// Starts the controller with the variables of civo-csi, and without files.
    pub(crate) fn start_by_variables(&self, key: &str) -> std::io::Result<Running> {
        let mut command = self.command();
        command
            .env("CIVO_API_KEY", format!(" {key}\n"))
            .env("CIVO_API_URL", &self.url)
            .env("CIVO_REGION", format!("{REGION} "))
            .env("CIVO_CLUSTER_ID", CLUSTER);
        Running::serving(&mut command, &self.socket())
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
        let channel = dial(&self.socket()).await;
        let down = |error: belay_proto::dial::DialError| Status::unavailable(error.to_string());
        Ok(ControllerClient::new(channel.map_err(down)?))
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

    /// Waits until the controller is ready: its login is not counted among later requests.
    pub(crate) async fn ready(&self) {
        let mut identity = self.identity().await;
        loop {
            let probed = identity.probe(csi::ProbeRequest {}).await.unwrap();
            if probed.into_inner().ready == Some(true) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(dial(&self.socket()).await.unwrap())
    }
}

/// Returns a URL on which no server listens.
pub(crate) fn nowhere() -> String {
    format!("http://{}", scrape::free_port().unwrap())
}

/// Returns the capability for one pod and a filesystem.
pub(crate) fn files() -> csi::VolumeCapability {
    requests::capability("ext4", Mode::SingleNodeWriter)
}

/// Returns the capability for one pod and a raw device.
pub(crate) fn block() -> csi::VolumeCapability {
    requests::capability("block", Mode::SingleNodeWriter)
}

/// Returns a request for a filesystem of 1 GiB.
pub(crate) fn create(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(GIB, 0),
        ..requests::create(name, files(), None)
    }
}

/// Creates a volume, or finds it; returns it.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn made(
    client: &mut Client,
    request: csi::CreateVolumeRequest,
) -> Result<csi::Volume, Status> {
    let answer = client.create_volume(request).await?;
    Ok(answer.into_inner().volume.unwrap())
}

/// Creates a volume, or finds it; returns its ID.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn created(client: &mut Client, name: &str) -> Result<String, Status> {
    Ok(made(client, create(name)).await?.volume_id)
}

/// Attaches a volume, and returns the publish context.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn attached(
    client: &mut Client,
    id: &str,
    node: &str,
) -> Result<std::collections::HashMap<String, String>, Status> {
    let request = requests::attach(id, node, files());
    let answer = client.controller_publish_volume(request).await?;
    Ok(answer.into_inner().publish_context)
}

/// Detaches a volume.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn detached(client: &mut Client, id: &str, node: &str) -> Result<(), Status> {
    let request = requests::detach(id, node);
    client.controller_unpublish_volume(request).await.map(drop)
}

/// Deletes a volume.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn deleted(client: &mut Client, id: &str) -> Result<(), Status> {
    client.delete_volume(requests::delete(id)).await.map(drop)
}

/// Expands a volume, and returns its size.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn grown(client: &mut Client, id: &str, bytes: i64) -> Result<i64, Status> {
    let answer = client
        .controller_expand_volume(requests::grow(id, bytes))
        .await?;
    Ok(answer.into_inner().capacity_bytes)
}
