//! The agent's lifecycle: checks that it can work here, then serves until SIGTERM.

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use belay_proto::csi::v1::node_server::Node;
use belay_server::call::Callers;
use belay_server::facts::Facts;
use belay_server::identity::Identity;
use belay_server::kubelet::Registration;
use belay_server::readiness::{Readiness, State};
use belay_server::request::NodeId;
use belay_server::serve::{self, ServeConfig, serve};
use belay_server::services::Services;
use belay_server::signal;
use belay_server::transport::Socket;
use belay_server::{memory, metrics};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::arrivals;
use crate::config::{Config, Driver, Sandbox};
use crate::filesystem::remote;
use crate::identify;
use crate::kernel::linux::{Linux, helper, privileges, sandbox};
use crate::operation::{self, KubeletDir};
use crate::rpc::{self, NodeService, RemoteService};
use crate::start::{Machine, Source, Start};
use crate::work::{self, Pool, Servers, THREADS_MAX};

/// How long an idle thread of the pool stays: for the rest of a burst of pods, and no longer.
const THREAD_IDLE: Duration = Duration::from_secs(5);
/// How long the start waits for a disk; a driver whose disk takes longer comes up later.
const FIRST_TRY: Duration = Duration::from_secs(2);
/// How long running operations may take after SIGTERM; the kubelet retries the others.
const DRAIN: Duration = Duration::from_secs(20);
/// Gauge: whether the sandbox is on.
const SANDBOX: &str = "belay_sandbox";

/// Why the agent did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// If the machine lacks something that the agent needs, or a socket cannot be opened.
pub fn run(config: &Config) -> Result<(), StartError> {
    memory::share_one_heap();
    let names = config.drivers().map(|driver| &driver.common.driver_name);
    metrics::begin(&config.process, names, env!("CARGO_PKG_VERSION"))
        .map_err(|error| failed("--http-endpoint", &error))?;
    operation::announce();
    work::announce();
    rpc::announce();
    let kernel = Linux::detect().map_err(|error| failed("this kernel is too old", &error))?;
    let kubelet_dir = config.kubelet_dir.as_deref();
    let kubelet_dir = kubelet_dir.map(|folder| KubeletDir::open(&kernel, folder));
    let kubelet_dir = kubelet_dir
        .transpose()
        .map_err(|error| failed("--kubelet-dir", &error))?;
    let readiness = Readiness::new(readiness_in(kubelet_dir.as_ref()));
    let kernel = with_rings(config, kernel);
    let machine = Arc::new(Machine::new(config, kernel, kubelet_dir));
    let lacking = give_up_privileges()?;
    enter_sandbox(config.sandbox);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(config.drivers().count() * THREADS_MAX + arrivals::ASKED_MAX)
        .thread_keep_alive(THREAD_IDLE)
        .build()
        .map_err(|error| failed("starting the runtime", &error))?;
    let result = runtime.block_on(serve_drivers(config, &machine, readiness, lacking));
    // A thread that waits for a dead disk must not block the exit.
    runtime.shutdown_background();
    result
}

/// Makes the one call of a helper process, see [`crate::is_helper`].
#[must_use]
pub fn help() -> ExitCode {
    helper::serve(remote::serve)
}

/// Before the sandbox, and only if a driver's volumes are disks.
fn with_rings(config: &Config, kernel: Linux) -> Linux {
    if !config.drivers().any(Driver::has_disks) {
        return kernel;
    }
    kernel.clone().with_rings().unwrap_or_else(|error| {
        tracing::info!("the content of blank disks is read with one request at a time: {error}");
        kernel
    })
}

/// Called this late because a process with fewer capabilities than process 1 may not read its
/// namespace; but while there is only one thread. Returns why the agent cannot work with its
/// capabilities.
fn give_up_privileges() -> Result<Option<String>, StartError> {
    let missing = privileges::keep_needed();
    let missing = missing.map_err(|error| failed("dropping privileges", &error))?;
    let mut lacking = None;
    for missing in missing {
        if missing.is_vital {
            let why = format!(
                "{}: no call is served and no driver is registered; start belay-node as root with \
                 this capability (in Kubernetes: securityContext.privileged: true)",
                missing.why
            );
            tracing::error!("{why}");
            lacking = Some(why);
        } else {
            tracing::warn!("{}", missing.why);
        }
    }
    Ok(lacking)
}

/// While there is only one thread, like [`give_up_privileges`]. An agent whose kernel has no
/// filters serves without a sandbox: refusing would stop all pods of the node.
fn enter_sandbox(wanted: Sandbox) {
    ::metrics::describe_gauge!(SANDBOX, "Whether the sandbox is on.");
    let gauge = ::metrics::gauge!(SANDBOX);
    let refused = match wanted {
        Sandbox::On => sandbox::enter().err().map(|error| error.to_string()),
        Sandbox::Off => Some("--sandbox is off".to_owned()),
    };
    gauge.set(if refused.is_none() { 1.0 } else { 0.0 });
    if let Some(why) = refused {
        tracing::warn!("no sandbox, all system calls are allowed: {why}");
    }
}

/// Whether the kubelet sees mounts in its directory. Only a restart of the agent can change that.
fn readiness_in(kubelet_dir: Option<&KubeletDir>) -> State {
    match kubelet_dir.and_then(KubeletDir::hidden) {
        None => State::Ready,
        Some(why) => {
            tracing::error!("{why}");
            State::Unhealthy(why.to_owned())
        }
    }
}

async fn serve_drivers(
    config: &Config,
    machine: &Arc<Machine>,
    readiness: Readiness,
    lacking: Option<String>,
) -> Result<(), StartError> {
    // Before any driver comes up: the agent exits if the address cannot be used.
    let pages = serve::listen(config.process.http_endpoint).await;
    let pages = pages.map_err(|error| failed("--http-endpoint", &error))?;
    let local = || config.drivers().filter(|driver| !driver.is_remote());
    let pools: Arc<[_]> = local().map(|_| Pool::new()).collect();
    let servers = Servers::new();
    let (measured, asked) = (Arc::clone(&pools), Arc::clone(&servers));
    metrics::when_asked(move || {
        work::measure(&measured);
        asked.measure();
    });
    if config.drivers().any(Driver::has_disks) {
        drop(tokio::spawn(machine.keep_disks()));
    }
    let (mut services, mut first_tries) = (Vec::new(), Vec::new());
    for (driver, pool) in local().zip(pools.iter()) {
        let source = Source::of(driver);
        let unknown = machine.identification(driver);
        let opening = || match &unknown {
            Some(unknown) => unknown.opening(),
            None => source.opening(&driver.common.driver_name),
        };
        let why = lacking.clone().unwrap_or_else(opening);
        let profile = driver.common.kind.profile();
        let service = Arc::new(NodeService::new(&why, Arc::clone(pool), profile));
        if let Some(identity) = identify::by_flags(driver) {
            service.identify(identity);
        }
        let own = readiness.part(State::Starting(why));
        if lacking.is_some() {
            services.push((driver, service, own));
            continue;
        }
        let start = Start::new(
            machine,
            driver,
            source,
            &service,
            own.clone(),
            readiness.own(),
        );
        let (first, tried) = oneshot::channel();
        tokio::spawn(start.run(first, unknown));
        first_tries.push(tried);
        services.push((driver, service, own));
    }
    let remote = remote_services(config, machine, &readiness, &servers, lacking.as_ref());
    tried(first_tries).await?;
    // Before a socket exists: a process that waits for it may end this one at once.
    let shutdown = signal::terminations().map_err(|error| failed("signals", &error))?;
    let drivers = services
        .into_iter()
        .map(|(driver, service, own)| served(config, driver, service, &own));
    let remote = remote
        .into_iter()
        .map(|(driver, service, own)| served(config, driver, service, &own));
    let drivers = drivers.chain(remote).collect::<Result<Vec<_>, _>>()?;
    let config = ServeConfig {
        program: concat!("belay-node ", env!("CARGO_PKG_VERSION")),
        pages,
        drain: DRAIN,
        readiness,
        callers: Callers::root_and(&config.allow_uid),
        rest: memory::rest,
        worked: Some(&work::WORKED),
    };
    // No call needs what only the start needed.
    memory::give_back();
    serve(config, drivers, shutdown)
        .await
        .map_err(|error| failed("serving", &error))
}

/// A driver with its service, and its part of the readiness.
type Serving<'a, S> = (&'a Driver, Arc<S>, Readiness);

/// The drivers whose volumes are directories of a server. They open nothing, so they are up.
fn remote_services<'a>(
    config: &'a Config,
    machine: &Machine,
    readiness: &Readiness,
    servers: &Arc<Servers>,
    lacking: Option<&String>,
) -> Vec<Serving<'a, RemoteService<Linux>>> {
    let drivers = config.drivers().filter(|driver| driver.is_remote());
    let services = drivers.filter_map(|driver| {
        let (node, profile) = (machine.remote_node(), driver.common.kind.profile());
        // The flags have the ID of the node, since no cloud has it.
        let identity = identify::by_flags(driver)?;
        let own = readiness.part(match lacking {
            Some(why) => State::Starting(why.clone()),
            None => readiness.own(),
        });
        let service = RemoteService::new(node, servers, profile, identity, lacking.cloned());
        Some((driver, Arc::new(service), own))
    });
    services.collect()
}

/// Waits for the first attempt of each driver, so that no call fails shortly before its driver
/// comes up; but not for a hung disk.
async fn tried(first_tries: Vec<oneshot::Receiver<Result<(), String>>>) -> Result<(), StartError> {
    let end = Instant::now() + FIRST_TRY;
    for tried in first_tries {
        if let Ok(Ok(Err(why))) = tokio::time::timeout_at(end, tried).await {
            return Err(StartError(why));
        }
    }
    Ok(())
}

/// The driver's services on its socket.
fn served<S: Node + Facts>(
    config: &Config,
    driver: &Driver,
    service: Arc<S>,
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
    let node = config.node_name(driver).map(NodeId::as_str);
    let node_id = common.node.id.as_ref().map(NodeId::as_str);
    tracing::info!(driver = name, %endpoint, node, node_id, "serving");
    let facts: Arc<dyn Facts> = Arc::clone(&service) as Arc<_>;
    Ok(serve::Driver {
        name: common.driver_name.clone(),
        socket,
        services: Services::new(identity)
            .with_node(service)
            .with_grpc(&config.process.grpc, readiness),
        registration: registration(config, driver, readiness),
        facts: Some(facts),
    })
}

fn registration(config: &Config, driver: &Driver, own: &Readiness) -> Option<Registration> {
    Some(Registration {
        directory: config.registration_dir.clone()?,
        driver: driver.common.driver_name.clone(),
        endpoint: driver.kubelet_registration_path.clone()?,
        readiness: own.clone(),
    })
}

fn failed(what: &str, why: &dyn Display) -> StartError {
    StartError(format!("{what}: {why}"))
}
