//! A real belay-controller on the bed: started, called through its socket, killed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use belay_bed::programs::{Running, binary, server};
use belay_bed::{requests, scrape};
use belay_openstack::{Bed, Cloud};
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::controller_client::ControllerClient;
use csi::volume_capability::access_mode::Mode;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub(crate) type Client = ControllerClient<Channel>;

/// Bytes of the smallest volume.
pub(crate) const GIB: i64 = 1 << 30;

/// Directory of a controller's socket, credentials and log. It outlives the process.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    pages: SocketAddr,
    pub(crate) has_topology: bool,
    /// The value of `--cloud-name`.
    pub(crate) clouds: Option<&'static str>,
}

impl Site {
    /// With these credentials in its `cloud.conf`.
    pub(crate) fn new(conf: &str) -> Self {
        let site = Self {
            dir: tempfile::tempdir().unwrap(),
            pages: scrape::free_port().unwrap(),
            has_topology: false,
            clouds: None,
        };
        site.configure(conf);
        site
    }

    /// With the user's password, and a controller.
    pub(crate) fn started(bed: &Bed) -> (Self, Running) {
        let site = Self::new(&by_password(bed));
        let controller = site.start();
        (site, controller)
    }

    /// Replaces `cloud.conf` in one step, as the kubelet replaces a Secret.
    pub(crate) fn configure(&self, conf: &str) {
        let new = self.dir.path().join("new.conf");
        fs::write(&new, conf).unwrap();
        fs::rename(new, self.dir.path().join("cloud.conf")).unwrap();
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    /// All that its controllers have logged, at debug level.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) fn metrics(&self) -> String {
        scrape::get(self.pages, "/metrics").unwrap().1
    }

    /// Starts the controller, and waits until it serves.
    pub(crate) fn start(&self) -> Running {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let (socket, binary) = (self.socket(), binary("belay-controller").unwrap());
        let mut command = server(&[], &binary, &socket);
        command
            .args(["--backend=openstack", "--log-level=debug", "--cluster=bed"])
            .arg("--cloud-config")
            .arg(self.dir.path().join("cloud.conf"))
            .arg(format!("--http-endpoint={}", self.pages))
            .stderr(log);
        if self.has_topology {
            command.arg("--with-topology");
        }
        if let Some(names) = self.clouds {
            command.args(["--cloud-name", names]);
        }
        let running = Running::serving(&mut command, &socket);
        running.unwrap_or_else(|error| panic!("the controller: {error}\n{}", self.log()))
    }

    /// # Errors
    /// No controller serves.
    pub(crate) async fn try_client(&self) -> Result<Client, Status> {
        let channel = dial(&self.socket()).await;
        let down = |error: belay_proto::dial::DialError| Status::unavailable(error.to_string());
        Ok(ControllerClient::new(channel.map_err(down)?))
    }

    pub(crate) async fn client(&self) -> Client {
        self.try_client().await.unwrap()
    }
}

/// The bed, and its cloud as the user sees it.
pub(crate) fn opened() -> (Bed, Cloud) {
    let bed = Bed::open();
    let cloud = Cloud::by_password(&bed);
    (bed, cloud)
}

/// `cloud.conf` with the user's password.
pub(crate) fn by_password(bed: &Bed) -> String {
    let text = |pointer| bed.text(pointer);
    format!(
        "[Global]\nauth-url = {}\nusername = {}\npassword = \"{}\"\ntenant-name = {}\n\
         domain-name = {}\nregion = {}\n",
        text("/auth_url"),
        text("/username"),
        text("/password"),
        text("/project"),
        text("/domain"),
        text("/region"),
    )
}

/// `cloud.conf` with an application credential.
pub(crate) fn by_credential(bed: &Bed, id: &str, secret: &str) -> String {
    let url = bed.text("/auth_url");
    format!(
        "[Global]\nauth-url = {url}\napplication-credential-id = {id}\n\
         application-credential-secret = {secret}\n"
    )
}

/// `cloud.conf` with a trust.
pub(crate) fn by_trust(bed: &Bed, trust: &str) -> String {
    let text = |pointer| bed.text(pointer);
    format!(
        "[Global]\nauth-url = {}\nusername = {}\npassword = \"{}\"\ntrust-id = {trust}\n\
         user-domain-name = {}\n",
        text("/auth_url"),
        text("/username"),
        text("/password"),
        text("/domain"),
    )
}

/// Waits for the result of a loop.
///
/// # Panics
/// It has not happened after two minutes.
pub(crate) async fn in_time<T>(what: &str, wait: impl Future<Output = T>) -> T {
    let ended = timeout(Duration::from_secs(120), wait).await;
    ended.unwrap_or_else(|_| panic!("{what}: not after two minutes"))
}

/// For one pod.
pub(crate) fn block() -> csi::VolumeCapability {
    requests::capability("block", Mode::SingleNodeWriter)
}

/// A raw block volume of exactly so many GiB, in the first zone.
pub(crate) fn create(name: &str, gib: i64) -> csi::CreateVolumeRequest {
    let parameters = [("type", "file-a"), ("availability", "az-a")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    csi::CreateVolumeRequest {
        capacity_range: requests::range(gib * GIB, gib * GIB),
        parameters: HashMap::from(parameters),
        ..requests::create(name, block(), None)
    }
}

/// The volume, which is created or found.
pub(crate) async fn created(client: &mut Client, name: &str) -> csi::Volume {
    let answer = client.create_volume(create(name, 1)).await;
    answer.unwrap().into_inner().volume.unwrap()
}

/// The context of the attachment.
pub(crate) async fn attached(client: &mut Client, id: &str, node: &str) -> HashMap<String, String> {
    let request = requests::attach(id, node, block());
    let answer = client.controller_publish_volume(request).await;
    answer.unwrap().into_inner().publish_context
}

pub(crate) async fn detached(client: &mut Client, id: &str, node: &str) {
    let request = requests::detach(id, node);
    client.controller_unpublish_volume(request).await.unwrap();
}

pub(crate) async fn deleted(client: &mut Client, id: &str) {
    client.delete_volume(requests::delete(id)).await.unwrap();
}

/// A refusal with that code, whose message has the name.
#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    answer: Result<T, Status>,
    code: Code,
    name: &str,
) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(name), "{name} not in {status}");
}

/// A name that no other test and no earlier run has.
pub(crate) fn unique(name: &str) -> String {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    format!("{name}-{:x}", clock.unwrap().as_nanos())
}

/// A tool, which must succeed; what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (said, errors) = (output.stdout, output.stderr);
    let text = [said, errors].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?}: {}", text.concat());
    text.concat()
}
