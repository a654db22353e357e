//! Starts a real belay-controller in a separate directory, calls it through its socket, and kills
//! it.

use belay_bed::programs::{Running, server};
use belay_bed::requests;
pub(crate) use belay_bed::requests::{capability as mount, cut as snapshot, range};
use belay_bed::scrape;
use belay_contract::drivers::local::{IS_NEW, NEW};
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::controller_client::ControllerClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_content_source::Type as Source;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The node of the controller.
pub(crate) const NODE: &str = "node-1";
/// The number of bytes of a MiB, signed as sizes in the protocol.
pub(crate) const MIB: i64 = 1 << 20;
/// Flags that make space irrelevant.
pub(crate) const ROOMY: [&str; 2] = ["--overcommit", "1000"];

const BINARY: &str = env!("CARGO_BIN_EXE_belay-controller");

/// The message that the controller logs once it serves.
const SERVING: &str = "serving";

pub(crate) type Client = ControllerClient<Channel>;

/// The directory of one test; removed at its end.
pub(crate) struct Bed {
    dir: tempfile::TempDir,
    flags: Vec<String>,
}

impl Bed {
    /// Creates a bed for a controller with these flags, in addition to the required ones.
    pub(crate) fn new(flags: &[&str]) -> Self {
        Self::of(tempfile::tempdir().unwrap(), flags)
    }

    /// Adds a flag for later starts.
    pub(crate) fn add_flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Creates a bed in this directory, which belongs to the test.
    pub(crate) fn beneath(dir: &Path, flags: &[&str]) -> Self {
        Self::of(tempfile::tempdir_in(dir).unwrap(), flags)
    }

    fn of(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        Self { dir, flags }
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn snapshots_dir(&self) -> PathBuf {
        self.state_dir().join("snapshots")
    }

    pub(crate) fn volumes_dir(&self) -> PathBuf {
        self.state_dir().join("volumes")
    }

    /// Whether the node may format the volume, by the attribute of its file.
    pub(crate) fn is_new(&self, id: &str) -> bool {
        let mut value = [0; 8];
        match rustix::fs::getxattr(self.volumes_dir().join(id), NEW, &mut value) {
            Ok(length) => value[..length] == *IS_NEW,
            Err(errno) => {
                assert_eq!(errno, rustix::io::Errno::NODATA);
                false
            }
        }
    }

    /// Marks the volume as used, as its node does before the first mount.
    pub(crate) fn begin_use(&self, id: &str) {
        rustix::fs::removexattr(self.volumes_dir().join(id), NEW).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    /// Starts the controller, and waits until it serves.
    pub(crate) fn start(&self) -> Controller {
        let controller = self.launch();
        assert!(controller.serves(), "the controller did not come up");
        controller
    }

    /// Starts the controller, waits until it has exited with an error, and returns its log.
    pub(crate) fn refused(&self) -> String {
        let mut controller = self.launch();
        assert!(!controller.serves(), "the controller came up");
        assert!(!controller.child.wait().unwrap().success());
        controller.starting.join("\n")
    }

    fn launch(&self) -> Controller {
        // Writing beyond the limit must cause an error, as on a full disk, instead of a signal.
        let shell = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
        let mut program = server(&shell, Path::new(BINARY), &self.socket());
        program
            .arg("--state-dir")
            .arg(self.state_dir())
            .args(["--node-id", NODE])
            .args(&self.flags)
            .stderr(Stdio::piped());
        let mut child = Running::start(&mut program).unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut starting: Vec<String> = Vec::new();
        while !starting.last().is_some_and(|line| line.contains(SERVING))
            && let Some(line) = log.next()
        {
            starting.push(line.unwrap());
        }
        // Continue to read, since the controller would block on a full pipe.
        std::thread::spawn(move || log.for_each(drop));
        Controller { child, starting }
    }

    pub(crate) async fn client(&self) -> Client {
        ControllerClient::new(self.channel().await)
    }

    pub(crate) async fn channel(&self) -> Channel {
        dial(&self.socket()).await.unwrap()
    }
}

/// The running process, which is killed with its test.
pub(crate) struct Controller {
    child: Running,
    /// The log until the controller served.
    pub(crate) starting: Vec<String>,
}

impl Controller {
    fn serves(&self) -> bool {
        let last = self.starting.last();
        last.is_some_and(|line| line.contains(SERVING))
    }

    /// Limits the size of its files to this number of bytes, or sets it to `unlimited`.
    pub(crate) fn limit_files(&self, bytes: &str) {
        self.limit(&format!("--fsize={bytes}:"));
    }

    /// Leaves this number of free descriptors to the process, or restores its limit of 1024.
    pub(crate) fn limit_descriptors(&self, spare: Option<usize>) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        let mut numbers: Vec<usize> = open
            .unwrap()
            .map(|entry| {
                entry
                    .unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        numbers.sort_unstable();
        // The limit applies to the numbers, and gaps are used first.
        let mut free = (0..).filter(|number| numbers.binary_search(number).is_err());
        let limit = spare.map_or(1024, |spare| free.nth(spare).unwrap());
        self.limit(&format!("--nofile={limit}:"));
    }

    fn limit(&self, what: &str) {
        let mut prlimit = Command::new("prlimit");
        prlimit.args([&format!("--pid={}", self.child.id()), what]);
        assert!(prlimit.status().unwrap().success());
    }

    /// Returns the value with this name in proc_pid_status(5).
    pub(crate) fn status(&self, name: &str) -> u64 {
        scrape::status(self.child.id(), name).unwrap()
    }

    /// Sends SIGKILL, and waits until the process has exited.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the capability for raw block, and one pod on one node.
pub(crate) fn block() -> csi::VolumeCapability {
    mount("block", Mode::SingleNodeWriter)
}

/// Returns a request for a raw block volume of exactly this size.
pub(crate) fn create(name: &str, bytes: i64) -> csi::CreateVolumeRequest {
    filled(name, bytes, None)
}

/// Returns a request for a raw block volume from a snapshot.
pub(crate) fn restore(name: &str, bytes: i64, snapshot_id: &str) -> csi::CreateVolumeRequest {
    filled(name, bytes, Some(requests::of_snapshot(snapshot_id)))
}

/// Returns a request for a raw block volume from another volume.
pub(crate) fn clone(name: &str, bytes: i64, volume_id: &str) -> csi::CreateVolumeRequest {
    filled(name, bytes, Some(requests::of_volume(volume_id)))
}

fn filled(name: &str, bytes: i64, source: Option<Source>) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: range(bytes, bytes),
        ..requests::create(name, block(), source)
    }
}

/// Creates or finds the snapshot.
pub(crate) async fn cut(client: &mut Client, request: csi::CreateSnapshotRequest) -> csi::Snapshot {
    let answer = client.create_snapshot(request).await.unwrap();
    answer.into_inner().snapshot.unwrap()
}

/// Creates or finds the snapshot, and waits until it is ready.
pub(crate) async fn ready(
    client: &mut Client,
    request: csi::CreateSnapshotRequest,
) -> csi::Snapshot {
    loop {
        let snapshot = cut(client, request.clone()).await;
        if snapshot.ready_to_use {
            return snapshot;
        }
    }
}

/// Creates or finds the volume.
pub(crate) async fn created(client: &mut Client, request: csi::CreateVolumeRequest) -> csi::Volume {
    client
        .create_volume(request)
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap()
}

/// Starts a controller with the raw volume `pvc-1` of this size; returns the ID of the volume, too.
pub(crate) async fn one_volume(bytes: i64) -> (Bed, Controller, Client, String) {
    let bed = Bed::new(&ROOMY);
    let controller = bed.start();
    let mut client = bed.client().await;
    let volume = created(&mut client, create("pvc-1", bytes)).await;
    (bed, controller, client, volume.volume_id)
}

/// Checks the code, and that the message contains all the names.
pub(crate) fn assert_refused(status: &Status, code: Code, names: &[&str]) {
    assert_eq!(status.code(), code, "{status}");
    for name in names {
        assert!(status.message().contains(name), "{name} not in {status}");
    }
}

/// Returns the topology of a node.
pub(crate) fn place(node: &str) -> csi::Topology {
    let key = "topology.local.csi.belay.dev/node".to_owned();
    csi::Topology {
        segments: HashMap::from([(key, node.to_owned())]),
    }
}

/// Returns a requirement of one of these nodes, which prefers another one.
pub(crate) fn requisite(nodes: &[&str]) -> Option<csi::TopologyRequirement> {
    Some(csi::TopologyRequirement {
        requisite: nodes.iter().map(|node| place(node)).collect(),
        preferred: vec![place("elsewhere")],
    })
}
