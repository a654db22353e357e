//! The agent from start to end: prove that it can work here, then serve until told to stop.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belay_proto::endpoint::Endpoint;
use belay_server::config::CommonArgs;
use belay_server::identity::Identity;
use belay_server::metrics;
use belay_server::readiness::{Readiness, State};
use belay_server::registration::Registration;
use belay_server::serve::{ServeConfig, serve};
use belay_server::services::Services;
use belay_server::signal;
use belay_server::socket::Socket;

use crate::config::Config;
use crate::device::LoopDir;
use crate::kernel::linux::{Linux, heap, privileges};
use crate::operation::{self, KubeletDir, MountIndex, Node};
use crate::pool::{Pool, THREADS_MAX};
use crate::rpc::{NodeIdentity, NodeService};

/// How long an idle thread of the pool stays: for the rest of a burst of pods, and no longer.
const THREAD_IDLE: Duration = Duration::from_secs(10);
/// Running operations may end within this after SIGTERM; the kubelet repeats what does not.
const DRAIN: Duration = Duration::from_secs(20);

/// Why the agent did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// When the machine cannot do what the agent needs, or the socket cannot be had.
pub fn run(config: &Config) -> Result<(), StartError> {
    heap::give_back_at_once();
    metrics::begin(&config.common, env!("CARGO_PKG_VERSION"))
        .map_err(|error| failed("--http-endpoint", &error))?;
    operation::announce();
    let kernel = Linux::detect().map_err(|error| failed("this kernel is too old", &error))?;
    // Without links, as the kernel will name the files in it.
    let loop_dir = config
        .loop_dir
        .canonicalize()
        .map_err(|error| failed("--loop-dir", &error))?;
    let loop_dir =
        LoopDir::open(&kernel, &loop_dir).map_err(|error| failed("--loop-dir", &error))?;
    let index = MountIndex::scan(&kernel).map_err(|error| failed("reading the mounts", &error))?;
    let kubelet_dir = config.kubelet_dir.as_deref();
    let kubelet_dir = kubelet_dir.map(|folder| KubeletDir::open(&kernel, folder));
    let kubelet_dir = kubelet_dir
        .transpose()
        .map_err(|error| failed("--kubelet-dir", &error))?;
    let readiness = Readiness::new(readiness_in(kubelet_dir.as_ref()));
    give_up_privileges()?;
    let node = Node::new(kernel, loop_dir, index, kubelet_dir);
    if is_folder_of(&config.common.endpoint, &config.loop_dir) {
        tracing::warn!(
            "--loop-dir is the folder of the socket, whose lock a start needs: what a killed agent \
             left bound is not freed; give the volumes' files a folder of their own"
        );
    } else {
        node.sweep();
    }
    let node = Arc::new(node);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .thread_keep_alive(THREAD_IDLE)
        .build()
        .map_err(|error| failed("starting the runtime", &error))?;
    let result = runtime.block_on(serve_node(config, node, readiness));
    // A thread that waits for a dead disk must not keep the process from ending.
    runtime.shutdown_background();
    result
}

/// Whether the socket is in that folder.
fn is_folder_of(endpoint: &Endpoint, folder: &Path) -> bool {
    let Some(beside) = endpoint.path.parent() else {
        return false;
    };
    let inode = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    inode(folder).is_some_and(|folder| inode(beside) == Some(folder))
}

/// Only so late, because who has less than process 1 may not ask for its namespace; but while there
/// is one thread alone.
fn give_up_privileges() -> Result<(), StartError> {
    let missing = privileges::keep_needed();
    let missing = missing.map_err(|error| failed("giving up privileges", &error))?;
    for missing in missing {
        tracing::warn!("{missing}");
    }
    Ok(())
}

/// Whether the kubelet sees what is mounted in its folder. Nothing that happens later changes that,
/// short of a new start.
fn readiness_in(kubelet_dir: Option<&KubeletDir>) -> State {
    match kubelet_dir.and_then(KubeletDir::hidden) {
        None => State::Ready,
        Some(why) => {
            tracing::error!("{why}");
            State::Unhealthy(why.to_owned())
        }
    }
}

async fn serve_node(
    config: &Config,
    node: Arc<Node<Linux>>,
    readiness: Readiness,
) -> Result<(), StartError> {
    let common = &config.common;
    let identity = Identity::new(
        common.driver_name.clone(),
        env!("CARGO_PKG_VERSION"),
        common.plugin_capabilities(),
        readiness.clone(),
    );
    let pool = Pool::new();
    let measured = Arc::clone(&pool);
    metrics::when_asked(move || measured.measure());
    let service = NodeService::new(node, pool, node_identity(common));
    let services = Services::new(identity)
        .with_node(service)
        .with_grpc(&common.grpc, &readiness);
    let socket = Socket::bind(&common.endpoint).map_err(|error| failed("--endpoint", &error))?;
    let shutdown = signal::terminations().map_err(|error| failed("signals", &error))?;
    tracing::info!(endpoint = %socket.path().display(), node = %common.node.id, "serving");
    let config = ServeConfig {
        socket,
        http: common.http_endpoint,
        drain: DRAIN,
        registrations: registration(config, &readiness).into_iter().collect(),
        readiness,
    };
    serve(config, services, shutdown)
        .await
        .map_err(|error| failed("serving", &error))
}

fn registration(config: &Config, readiness: &Readiness) -> Option<Registration> {
    Some(Registration {
        folder: config.registration_dir.clone()?,
        driver: config.common.driver_name.clone(),
        endpoint: config.kubelet_registration_path.clone()?,
        readiness: readiness.clone(),
    })
}

fn node_identity(common: &CommonArgs) -> NodeIdentity {
    let place = common.node.place.as_ref();
    NodeIdentity {
        id: common.node.id.to_string(),
        volumes_max: common.max_volumes,
        topology: place.map(|place| place.segments().into_iter().collect()),
    }
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> StartError {
    StartError(format!("{what}: {why}"))
}
