//! The agent from start to end: prove that it can work here, then serve until told to stop.

use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belay_proto::endpoint::Endpoint;
use belay_server::identity::Identity;
use belay_server::metrics;
use belay_server::readiness::{Readiness, State};
use belay_server::registration::Registration;
use belay_server::serve::{self, ServeConfig, serve};
use belay_server::services::Services;
use belay_server::signal;
use belay_server::socket::Socket;

use crate::config::{Config, Driver};
use crate::device::LoopDir;
use crate::forgotten;
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
/// When the machine cannot do what the agent needs, or a socket cannot be had.
pub fn run(config: &Config) -> Result<(), StartError> {
    heap::give_back_at_once();
    let names = config.drivers().map(|driver| &driver.common.driver_name);
    metrics::begin(&config.process, names, env!("CARGO_PKG_VERSION"))
        .map_err(|error| failed("--http-endpoint", &error))?;
    operation::announce();
    let kernel = Linux::detect().map_err(|error| failed("this kernel is too old", &error))?;
    let kubelet_dir = config.kubelet_dir.as_deref();
    let kubelet_dir = kubelet_dir.map(|folder| KubeletDir::open(&kernel, folder));
    let kubelet_dir = kubelet_dir
        .transpose()
        .map_err(|error| failed("--kubelet-dir", &error))?;
    let readiness = Readiness::new(readiness_in(kubelet_dir.as_ref()));
    let nodes = nodes(config, &kernel, kubelet_dir)?;
    give_up_privileges()?;
    let alone = config
        .drivers()
        .zip(&nodes)
        .map(|(driver, node)| sweep(config, driver, node));
    let alone: Vec<bool> = alone.collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .thread_keep_alive(THREAD_IDLE)
        .build()
        .map_err(|error| failed("starting the runtime", &error))?;
    let result = runtime.block_on(serve_nodes(config, nodes.into_iter().zip(alone), readiness));
    // A thread that waits for a dead disk must not keep the process from ending.
    runtime.shutdown_background();
    result
}

/// One for each driver, in their order.
fn nodes(
    config: &Config,
    kernel: &Linux,
    mut kubelet_dir: Option<KubeletDir>,
) -> Result<Vec<Node<Linux>>, StartError> {
    let mut nodes: Vec<Node<Linux>> = Vec::new();
    let mut folders: Vec<(u64, u64)> = Vec::new();
    for driver in config.drivers() {
        let path = &driver.loop_dir;
        let no_folder = |why: &dyn Display| failed(&format!("--loop-dir {}", path.display()), why);
        // Without links, as the kernel will name the files in it.
        let real = path.canonicalize().map_err(|error| no_folder(&error))?;
        let folder = inode(&real).map_err(|error| no_folder(&error))?;
        // What one driver does not know of, it takes for left behind.
        if folders.contains(&folder) {
            let name = &driver.common.driver_name;
            let why = format!("another driver has it; give {name} one of its own");
            return Err(no_folder(&why));
        }
        folders.push(folder);
        let loop_dir = LoopDir::open(kernel, &real).map_err(|error| no_folder(&error))?;
        let index = MountIndex::scan(kernel);
        let index = index.map_err(|error| failed("reading the mounts", &error))?;
        nodes.push(match nodes.first() {
            None => Node::new(kernel.clone(), loop_dir, index, kubelet_dir.take()),
            Some(first) => first.beside(loop_dir, index),
        });
    }
    Ok(nodes)
}

/// Frees what a killed agent left bound, where nobody else can be at it. Whether that is known.
fn sweep(config: &Config, driver: &Driver, node: &Node<Linux>) -> bool {
    let folder = &driver.loop_dir;
    let mut sockets = config.drivers().map(|driver| &driver.common.endpoint);
    if sockets.any(|endpoint| is_folder_of(endpoint, folder)) {
        tracing::warn!(
            "--loop-dir {} is the folder of a socket, whose lock a start needs: what a killed \
             agent or kubelet left is not freed; give the volumes' files a folder of their own",
            folder.display()
        );
        return false;
    }
    node.sweep()
}

/// Whether the socket is in that folder.
fn is_folder_of(endpoint: &Endpoint, folder: &Path) -> bool {
    let Some(beside) = endpoint.path.parent() else {
        return false;
    };
    inode(folder).is_ok_and(|folder| inode(beside).is_ok_and(|beside| beside == folder))
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|found| (found.dev(), found.ino()))
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

/// Each node with whether no other agent serves its folder.
async fn serve_nodes(
    config: &Config,
    nodes: impl Iterator<Item = (Node<Linux>, bool)>,
    readiness: Readiness,
) -> Result<(), StartError> {
    let pool = Pool::new();
    let measured = Arc::clone(&pool);
    metrics::when_asked(move || measured.measure());
    let drivers = config
        .drivers()
        .zip(nodes)
        .map(|(driver, (node, is_alone))| {
            let service = NodeService::new(Arc::new(node), Arc::clone(&pool), identity(driver));
            let service = Arc::new(service);
            if config.kubelet_dir.is_some() && is_alone {
                let folder = driver.loop_dir.clone();
                tokio::spawn(forgotten::look_after(folder, Arc::clone(&service)));
            }
            served(config, driver, service, &readiness)
        });
    let drivers = drivers.collect::<Result<Vec<_>, _>>()?;
    let shutdown = signal::terminations().map_err(|error| failed("signals", &error))?;
    let config = ServeConfig {
        http: config.process.http_endpoint,
        drain: DRAIN,
        readiness,
    };
    serve(config, drivers, shutdown)
        .await
        .map_err(|error| failed("serving", &error))
}

/// The driver behind its socket.
fn served(
    config: &Config,
    driver: &Driver,
    service: Arc<NodeService<Linux>>,
    readiness: &Readiness,
) -> Result<serve::Driver, StartError> {
    let common = &driver.common;
    let identity = Identity::new(
        common.driver_name.clone(),
        env!("CARGO_PKG_VERSION"),
        common.plugin_capabilities(),
        readiness.clone(),
    );
    let socket = Socket::bind(&common.endpoint).map_err(|error| failed("--endpoint", &error))?;
    let (name, endpoint) = (common.driver_name.as_str(), socket.path().display());
    tracing::info!(driver = name, %endpoint, node = %common.node.id, "serving");
    Ok(serve::Driver {
        socket,
        services: Services::new(identity)
            .with_node(service)
            .with_grpc(&config.process.grpc, readiness),
        registration: registration(config, driver, readiness),
    })
}

fn registration(config: &Config, driver: &Driver, whole: &Readiness) -> Option<Registration> {
    Some(Registration {
        folder: config.registration_dir.clone()?,
        driver: driver.common.driver_name.clone(),
        endpoint: driver.kubelet_registration_path.clone()?,
        readiness: whole.clone(),
    })
}

fn identity(driver: &Driver) -> NodeIdentity {
    let common = &driver.common;
    let place = common.node.place.as_ref();
    NodeIdentity {
        id: common.node.id.to_string(),
        volumes_max: common.max_volumes,
        topology: place.map(|place| place.segments().into_iter().collect()),
    }
}

fn failed(what: &str, why: &dyn Display) -> StartError {
    StartError(format!("{what}: {why}"))
}
