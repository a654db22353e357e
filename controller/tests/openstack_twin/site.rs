//! Starts a real belay-controller for the twin, calls it through its socket, and kills it.

use crate::twin::PASSWORD;
use belay_bed::programs::{Running, server};
use belay_bed::{requests, scrape};
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::controller_client::ControllerClient;
use csi::volume_capability::access_mode::Mode;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tonic::Status;
use tonic::transport::Channel;

pub(crate) type Client = ControllerClient<Channel>;

const GIB: i64 = 1 << 30;
/// The key of the format marks.
pub(crate) const KEY: &str = "canary-0123456789abcdef0123456789";

/// The directory with a controller's socket, credentials and log, which outlives the process.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    pages: SocketAddr,
    pub(crate) log_level: &'static str,
    pub(crate) has_topology: bool,
    /// Additional flags.
    pub(crate) flags: Vec<String>,
}

impl Site {
    /// Creates a site for the cloud with this URL; `more` contains further lines of its
    /// `cloud.conf`.
    pub(crate) fn new(url: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("keys"), KEY).unwrap();
        let pages = scrape::free_port().unwrap();
        let log_level = "info";
        let site = Self {
            dir,
            pages,
            log_level,
            has_topology: false,
            flags: Vec::new(),
        };
        site.configure(url, more);
        site
    }

    /// Replaces `cloud.conf` atomically, as the kubelet replaces a Secret.
    pub(crate) fn configure(&self, url: &str, more: &str) {
        self.configure_with(url, PASSWORD, more);
    }

    /// Replaces `cloud.conf` in one step, with that password.
    pub(crate) fn configure_with(&self, url: &str, password: &str, more: &str) {
        let conf = format!(
            "[Global]\nauth-url={url}/identity\nusername=csi\npassword={password}\n\
             tenant-name=k8s\ndomain-name=Default\nregion=one\n{more}\n"
        );
        self.replace(&conf);
    }

    /// Replaces all of `cloud.conf` atomically.
    pub(crate) fn replace(&self, conf: &str) {
        let new = self.dir.path().join("new.conf");
        fs::write(&new, conf).unwrap();
        fs::rename(new, self.dir.path().join("cloud.conf")).unwrap();
    }

    /// Starts the controller built by cargo, and waits until it serves.
    pub(crate) fn start(&self) -> Running {
        self.start_program(Path::new(env!("CARGO_BIN_EXE_belay-controller")))
    }

    /// Starts this controller, and waits until it serves.
    pub(crate) fn start_program(&self, program: &Path) -> Running {
        self.try_start(program).unwrap()
    }

    /// Starts the controller built by cargo, which may exit at once.
    pub(crate) fn started(&self) -> std::io::Result<Running> {
        self.try_start(Path::new(env!("CARGO_BIN_EXE_belay-controller")))
    }

    fn try_start(&self, program: &Path) -> std::io::Result<Running> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let socket = self.dir.path().join("csi.sock");
        let mut command = server(&[], program, &socket);
        command
            .args(["--backend=openstack", "--cluster=twin", "--log-level"])
            .args([self.log_level, "--cloud-config"])
            .arg(self.dir.path().join("cloud.conf"))
            .arg("--mark-key-file")
            .arg(self.keys())
            .arg(format!("--http-endpoint={}", self.pages))
            .args(&self.flags)
            .stderr(log);
        if self.has_topology {
            command.arg("--with-topology");
        }
        Running::serving(&mut command, &socket)
    }

    /// Returns all log lines of its controllers.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Returns the file with the keys of the format marks.
    pub(crate) fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    pub(crate) fn metrics(&self) -> String {
        scrape::get(self.pages, "/metrics").unwrap().1
    }

    pub(crate) fn readyz(&self) -> (u16, String) {
        scrape::get(self.pages, "/readyz").unwrap()
    }

    /// Returns the number of calls that have begun without a response yet.
    pub(crate) fn jobs(&self) -> usize {
        let page = self.metrics();
        let samples = page.lines().filter_map(scrape::sample);
        let running: f64 = samples
            .filter(|(name, ..)| *name == "belay_jobs_running")
            .map(|(.., value)| value)
            .sum();
        format!("{running}").parse().unwrap()
    }

    /// Connects to the controller.
    ///
    /// # Errors
    /// Fails if no controller serves.
    pub(crate) async fn try_client(&self) -> Result<Client, Status> {
        let channel = dial(&self.dir.path().join("csi.sock")).await;
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
}

/// Returns the ID of a server.
pub(crate) fn nth_server(n: usize) -> String {
    format!("5e000000-0000-4000-8000-{n:012}")
}

pub(crate) fn block() -> csi::VolumeCapability {
    requests::capability("block", Mode::SingleNodeWriter)
}

/// Returns a request for a raw block volume of 1 GiB.
pub(crate) fn create(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(GIB, GIB),
        ..requests::create(name, block(), None)
    }
}

/// Creates a volume, or finds it; returns its ID.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn created(client: &mut Client, name: &str) -> Result<String, Status> {
    let answer = client.create_volume(create(name)).await?;
    Ok(answer.into_inner().volume.unwrap().volume_id)
}

/// Attaches a volume.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn attached(client: &mut Client, id: &str, node: &str) -> Result<(), Status> {
    let request = requests::attach(id, node, block());
    client.controller_publish_volume(request).await.map(drop)
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

/// Creates a snapshot, or finds it; returns its ID.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn cut(client: &mut Client, name: &str, of: &str) -> Result<String, Status> {
    let answer = client.create_snapshot(requests::cut(name, of)).await?;
    let snapshot = answer.into_inner().snapshot.unwrap();
    assert!(snapshot.ready_to_use && snapshot.source_volume_id == of);
    Ok(snapshot.snapshot_id)
}

/// Creates a volume from a snapshot, or finds it; returns its ID.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn restored(
    client: &mut Client,
    name: &str,
    snapshot: &str,
) -> Result<String, Status> {
    let source = Some(requests::of_snapshot(snapshot));
    let request = csi::CreateVolumeRequest {
        capacity_range: requests::range(GIB, GIB),
        ..requests::create(name, block(), source)
    };
    let volume = client.create_volume(request).await?.into_inner().volume;
    let volume = volume.unwrap();
    assert!(volume.content_source.is_some());
    Ok(volume.volume_id)
}

/// Deletes a snapshot.
///
/// # Errors
/// Returns the error of the call.
pub(crate) async fn discarded(client: &mut Client, id: &str) -> Result<(), Status> {
    let request = requests::discard(id);
    client.delete_snapshot(request).await.map(drop)
}
