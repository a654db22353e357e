//! A real belay-controller for the twin: started, called through its socket, killed.

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
/// How long a change takes where that matters: some requests fit in, and so do kills.
pub(crate) const CHANGE: Duration = Duration::from_millis(300);

/// A twin whose changes take so long, with three instances.
pub(crate) fn cloud(delay: Duration) -> Cloud {
    Server::start(Civo::new(delay, 3)).unwrap()
}

/// The ID of an instance, from 1.
pub(crate) fn instance(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// Waits until there was such a call.
pub(crate) async fn asked(cloud: &Cloud, kind: &str) {
    let called = async {
        while cloud.count(kind) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let called = tokio::time::timeout(PATIENCE, called).await;
    assert!(called.is_ok(), "timed out after {PATIENCE:?}: {kind}");
}

/// Where a controller keeps socket, credentials and log. It outlives the process.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    url: String,
    /// More flags.
    pub(crate) flags: Vec<&'static str>,
}

impl Site {
    /// For that cloud. The credentials are the files of the Secret of civo-csi.
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

    /// The file of the key.
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

    /// Starts the controller that cargo has built, and waits until it serves.
    pub(crate) fn start(&self) -> Running {
        let access = self.dir.path().join("access");
        let mut command = self.command();
        command.arg(format!("--civo-access={}", access.display()));
        Running::serving(&mut command, &self.socket()).unwrap()
    }

    /// Starts it with the variables of civo-csi, and without files.
    pub(crate) fn start_by_variables(&self, key: &str) -> std::io::Result<Running> {
        let mut command = self.command();
        command
            .env("CIVO_API_KEY", format!(" {key}\n"))
            .env("CIVO_API_URL", &self.url)
            .env("CIVO_REGION", format!("{REGION} "))
            .env("CIVO_CLUSTER_ID", CLUSTER);
        Running::serving(&mut command, &self.socket())
    }

    /// All that its controllers have logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// # Errors
    /// No controller serves.
    pub(crate) async fn try_client(&self) -> Result<Client, Status> {
        let channel = dial(&self.socket()).await;
        let down = |error: belay_proto::dial::DialError| Status::unavailable(error.to_string());
        Ok(ControllerClient::new(channel.map_err(down)?))
    }

    pub(crate) async fn client(&self) -> Client {
        // The server closes a connection that says nothing for three seconds, and the thread may
        // be starting other controllers for as long.
        for _ in 0..9 {
            if let Ok(client) = self.try_client().await {
                return client;
            }
        }
        self.try_client().await.unwrap()
    }

    pub(crate) async fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(dial(&self.socket()).await.unwrap())
    }
}

/// A port at which nothing answers.
pub(crate) fn nowhere() -> String {
    format!("http://{}", scrape::free_port().unwrap())
}

/// For one pod, as a filesystem.
pub(crate) fn files() -> csi::VolumeCapability {
    requests::capability("ext4", Mode::SingleNodeWriter)
}

/// For one pod, as a raw device.
pub(crate) fn block() -> csi::VolumeCapability {
    requests::capability("block", Mode::SingleNodeWriter)
}

/// A filesystem of 1 GiB.
pub(crate) fn create(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(GIB, 0),
        ..requests::create(name, files(), None)
    }
}

/// The volume, which is created or found.
///
/// # Errors
/// Those of the call.
pub(crate) async fn made(
    client: &mut Client,
    request: csi::CreateVolumeRequest,
) -> Result<csi::Volume, Status> {
    let answer = client.create_volume(request).await?;
    Ok(answer.into_inner().volume.unwrap())
}

/// The ID of the volume, which is created or found.
///
/// # Errors
/// Those of the call.
pub(crate) async fn created(client: &mut Client, name: &str) -> Result<String, Status> {
    Ok(made(client, create(name)).await?.volume_id)
}

/// The publish context.
///
/// # Errors
/// Those of the call.
pub(crate) async fn attached(
    client: &mut Client,
    id: &str,
    node: &str,
) -> Result<std::collections::HashMap<String, String>, Status> {
    let request = requests::attach(id, node, files());
    let answer = client.controller_publish_volume(request).await?;
    Ok(answer.into_inner().publish_context)
}

/// # Errors
/// Those of the call.
pub(crate) async fn detached(client: &mut Client, id: &str, node: &str) -> Result<(), Status> {
    let request = requests::detach(id, node);
    client.controller_unpublish_volume(request).await.map(drop)
}

/// # Errors
/// Those of the call.
pub(crate) async fn deleted(client: &mut Client, id: &str) -> Result<(), Status> {
    client.delete_volume(requests::delete(id)).await.map(drop)
}

/// # Errors
/// Those of the call.
pub(crate) async fn grown(client: &mut Client, id: &str, bytes: i64) -> Result<i64, Status> {
    let answer = client
        .controller_expand_volume(requests::grow(id, bytes))
        .await?;
    Ok(answer.into_inner().capacity_bytes)
}
