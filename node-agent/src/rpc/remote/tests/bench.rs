//! A test environment with an agent on a simulated machine, an NFS server, and the calls of a
//! kubelet.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use belay_contract::drivers::NFS;
use belay_proto::csi::v1 as csi;
use csi::node_server::Node as _;
use csi::volume_capability::{self, access_mode::Mode};
use tokio::runtime::Runtime;
use tonic::{Request, Status};

use crate::filesystem::remote::serve;
use crate::kernel::fake::{Fake, Machine, Server};
use crate::operation::KubeletDir;
use crate::operation::remote::RemoteNode;
use crate::rpc::{NodeIdentity, RemoteService};
use crate::work::Servers;

/// The address of the server.
pub(super) const SERVER: &str = "10.0.0.5";

/// A volume, which is a directory on the NFS server.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) context: HashMap<String, String>,
    pub(super) mode: Mode,
    pub(super) flags: Vec<String>,
    pub(super) read_only: bool,
}

impl Volume {
    pub(super) fn new(directory: &str) -> Self {
        let entries = [
            ("server", SERVER),
            ("share", "/exports"),
            ("subDir", directory),
        ];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        Volume {
            // Use an ID that is longer than the CSI specification allows, because csi-driver-nfs
            // has such IDs.
            id: format!("{SERVER}#exports#{directory}#{}#", "x".repeat(200)),
            context: entries.map(owned).into(),
            mode: Mode::MultiNodeMultiWriter,
            flags: Vec::new(),
            read_only: false,
        }
    }

    pub(super) fn with(mut self, key: &str, value: &str) -> Self {
        self.context.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(super) fn flagged(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }
}

/// Returns a machine with a server that exports `/exports/a`, `/exports/b` and `/exports/c`.
pub(super) fn machine() -> Machine {
    let machine = Machine::new();
    let directories = [
        "exports",
        "exports/a",
        "exports/a/below",
        "exports/b",
        "exports/c",
    ];
    let directories = directories.map(|it| (it.to_owned(), 0o755)).into();
    let versions = vec!["3", "4.0", "4.1", "4.2"];
    machine.serve_nfs(
        SERVER,
        Server {
            versions,
            directories,
        },
    );
    machine.let_helpers(serve);
    machine.make_dir(Path::new("/pods"));
    machine
}

/// Returns the target path of a pod.
pub(super) fn target(pod: u32) -> String {
    format!("/pods/{pod}")
}

/// Ends all hung system calls when dropped. Otherwise, a test with a failed assertion would wait
/// indefinitely for the hung threads.
struct Release(Machine);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.let_helpers_die_hard(false);
        self.0.let_servers_hang(false);
    }
}

/// An agent whose clock is paused.
pub(super) struct Agent {
    /// This field is dropped before `runtime`, which waits for its threads when it is dropped.
    _release: Release,
    pub(super) runtime: Runtime,
    machine: Machine,
    pub(super) service: Arc<RemoteService<Fake>>,
}

impl Agent {
    /// Starts an agent on the machine. On the thread of the test, the agent's system calls must not
    /// block.
    pub(super) fn new(machine: &Machine) -> Self {
        Agent::lacking(machine, None)
    }

    /// Starts an agent. If `lacking` is set, the agent cannot serve calls for this reason.
    pub(super) fn lacking(machine: &Machine, lacking: Option<String>) -> Self {
        Agent::with(machine, None, lacking)
    }

    /// Starts an agent with this directory as the kubelet's directory.
    pub(super) fn of_kubelet(machine: &Machine, directory: &str) -> Self {
        let opened = KubeletDir::open(&machine.process(), Path::new(directory));
        Agent::with(machine, Some(opened.unwrap()), None)
    }

    fn with(machine: &Machine, kubelet: Option<KubeletDir>, lacking: Option<String>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let node = RemoteNode::new(machine.process(), kubelet.map(Arc::new), Arc::default());
        let identity = NodeIdentity {
            id: "n1".to_owned(),
            volumes_max: 0,
            topology: None,
        };
        let service = RemoteService::new(node, &Servers::new(), &NFS, identity, lacking);
        machine.never_wait_here(true);
        Agent {
            _release: Release(machine.clone()),
            runtime,
            machine: machine.clone(),
            service: Arc::new(service),
        }
    }

    /// Kills the agent. The helper processes exit together with the agent.
    pub(super) fn kill(self) {
        self.machine.kill_all();
        drop(self.service);
        self.runtime.shutdown_background();
        while self.machine.helpers_running() > 0 {
            std::thread::yield_now();
        }
    }

    /// Waits until all helper processes have exited.
    pub(super) fn settle(&self) {
        while self.machine.helpers_running() > 0 {
            self.runtime.block_on(tokio::task::yield_now());
        }
    }

    fn settled<T>(&self, call: impl Future<Output = T>) -> T {
        let answer = self.runtime.block_on(call);
        self.settle();
        answer
    }

    pub(super) fn publish(&self, volume: &Volume, pod: u32) -> Result<(), Status> {
        self.settled(publish(&self.service, volume, pod))
    }

    pub(super) fn unpublish(&self, volume: &Volume, pod: u32) -> Result<(), Status> {
        self.settled(unpublish(&self.service, volume, pod))
    }

    pub(super) fn stats(
        &self,
        volume: &Volume,
        pod: u32,
    ) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        self.settled(stats(&self.service, volume, pod))
    }
}

pub(super) async fn publish(
    service: &RemoteService<Fake>,
    volume: &Volume,
    pod: u32,
) -> Result<(), Status> {
    publish_to(service, volume, target(pod)).await
}

async fn publish_to(
    service: &RemoteService<Fake>,
    volume: &Volume,
    target_path: String,
) -> Result<(), Status> {
    let mount = volume_capability::MountVolume {
        mount_flags: volume.flags.clone(),
        ..Default::default()
    };
    let request = csi::NodePublishVolumeRequest {
        volume_id: volume.id.clone(),
        target_path,
        volume_capability: Some(csi::VolumeCapability {
            access_mode: Some(volume_capability::AccessMode {
                mode: volume.mode.into(),
            }),
            access_type: Some(volume_capability::AccessType::Mount(mount)),
        }),
        readonly: volume.read_only,
        volume_context: volume.context.clone(),
        ..Default::default()
    };
    service
        .node_publish_volume(Request::new(request))
        .await
        .map(drop)
}

pub(super) async fn unpublish(
    service: &RemoteService<Fake>,
    volume: &Volume,
    pod: u32,
) -> Result<(), Status> {
    let request = csi::NodeUnpublishVolumeRequest {
        volume_id: volume.id.clone(),
        target_path: target(pod),
    };
    service
        .node_unpublish_volume(Request::new(request))
        .await
        .map(drop)
}

pub(super) async fn stats(
    service: &RemoteService<Fake>,
    volume: &Volume,
    pod: u32,
) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: volume.id.clone(),
        volume_path: target(pod),
        ..Default::default()
    };
    let answer = service.node_get_volume_stats(Request::new(request)).await;
    answer.map(tonic::Response::into_inner)
}

/// Publishes the volume at a path that is not a pod's target path.
pub(super) fn publish_at(agent: &Agent, volume: &Volume, path: &str) -> Result<(), Status> {
    agent.settled(publish_to(&agent.service, volume, path.to_owned()))
}

/// Unpublishes the volume from a path that is not a pod's target path.
pub(super) fn unpublish_at(agent: &Agent, volume: &Volume, path: &str) -> Result<(), Status> {
    let request = csi::NodeUnpublishVolumeRequest {
        volume_id: volume.id.clone(),
        target_path: path.to_owned(),
    };
    let answer = agent.service.node_unpublish_volume(Request::new(request));
    agent.runtime.block_on(answer).map(drop)
}
