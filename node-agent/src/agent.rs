//! The agent's lifecycle: checks the kernel, the privileges and the kubelet's directory, then
//! serves calls until SIGTERM.

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

/// Maximum idle time of a thread of the pool, longer than the pauses between calls while many pods
/// start.
const THREAD_IDLE: Duration = Duration::from_secs(5);
/// Maximum time that the agent waits at startup for the first start attempt of its drivers. A
/// driver whose disk responds later becomes ready later.
const FIRST_TRY: Duration = Duration::from_secs(2);
/// Maximum time that the agent waits for running operations after SIGTERM. The kubelet retries the
/// operations that have not finished by then.
const DRAIN: Duration = Duration::from_secs(20);
/// Gauge: 1 if the seccomp sandbox is active, 0 if it is not.
const SANDBOX: &str = "belay_sandbox";

/// The reason why the agent did not start, or why it stopped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the node does not meet the agent's requirements, or if a socket or the
/// address of the status pages cannot be opened.
pub fn run(config: &Config) -> Result<(), StartError> {
    memory::share_one_heap();
    for variable in config.ignored_variables() {
        tracing::warn!("{variable}: ignored: no driver of this node agent has the setting");
    }
    let names = config.drivers().map(|driver| &driver.common.driver_name);
    metrics::begin(&config.process, names, env!("CARGO_PKG_VERSION"))
        .map_err(|error| failed("--http-endpoint", &error))?;
    operation::announce();
    work::announce();
    rpc::announce();
    let kernel = Linux::detect().map_err(|error| failed("this kernel is too old", &error))?;
    let kubelet_dir = config.kubelet_dir.as_deref();
    let kubelet_dir = kubelet_dir.map(|folder| KubeletDir::open(&kernel, folder));
    let kubelet_dir = kubelet_dir.transpose().map_err(|error| {
        let cure = "name the root directory of a kubelet (its --root-dir)";
        StartError(format!("--kubelet-dir: {error}; {cure}"))
    })?;
    let readiness = Readiness::new(readiness_in(kubelet_dir.as_ref()));
    let kernel = with_rings(config, kernel);
    let machine = Arc::new(Machine::new(config, kernel, kubelet_dir));
    let lacking = give_up_privileges()?;
    enter_sandbox(config.sandbox);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(config.drivers().count() * THREADS_MAX + arrivals::THREADS_MAX)
        .thread_keep_alive(THREAD_IDLE)
        .build()
        .map_err(|error| failed("starting the runtime", &error))?;
    let result = runtime.block_on(serve_drivers(config, &machine, readiness, lacking));
    // The process must exit even if a thread is still waiting for a disk that does not respond.
    runtime.shutdown_background();
    result
}

/// If the command line says that this process is a helper process, makes one system call and
/// returns the exit code. Otherwise, returns `None`.
#[must_use]
pub fn help() -> Option<ExitCode> {
    helper::serve(remote::serve)
}

/// Adds io_uring rings for reading disks to `kernel` if the volumes of any driver are disks. Call
/// it before the sandbox is entered, because the sandbox forbids creating rings.
fn with_rings(config: &Config, kernel: Linux) -> Linux {
    if !config.drivers().any(Driver::has_disks) {
        return kernel;
    }
    kernel.clone().with_rings().unwrap_or_else(|error| {
        tracing::info!("the content of blank disks is read with one request at a time: {error}");
        kernel
    })
}

/// Drops the capabilities that the agent does not need. If a required capability is missing,
/// returns the reason why the agent cannot serve calls.
///
/// Call it while the process has only one thread, because each thread has separate capabilities.
/// Call it after the mount namespace of process 1 was read, because the kernel denies this to a
/// process with fewer capabilities than process 1.
fn give_up_privileges() -> Result<Option<String>, StartError> {
    privileges::forbid_core_files().map_err(|error| failed("forbidding core files", &error))?;
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

/// Enters the seccomp sandbox unless `--sandbox` is off. Call it while the process has only one
/// thread. If the kernel does not support seccomp filters, the agent runs without a sandbox,
/// because otherwise no pod with a volume could start on the node.
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

/// Returns the agent's readiness: `Unhealthy` if the kubelet does not see mounts in its directory.
/// This readiness can change only after a restart of the agent.
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
    // Listen before any driver starts, because the agent must exit if the address cannot be used.
    let pages = serve::listen(config.process.http_endpoint).await;
    let pages = pages.map_err(|error| failed("--http-endpoint", &error))?;
    let local = || config.drivers().filter(|driver| !driver.is_remote());
    let pools: Arc<[_]> = local().map(|_| Pool::new()).collect();
    let servers = Servers::new();
    let measured = Arc::clone(&pools);
    metrics::when_asked(move || work::measure(&measured));
    if config.drivers().any(Driver::has_disks) {
        drop(tokio::spawn(machine.keep_disks()));
    }
    let (mut services, mut first_tries) = (Vec::new(), Vec::new());
    for (driver, pool) in local().zip(pools.iter()) {
        let sources = Source::of(driver);
        let mut unknown = machine.identification(driver);
        let opening = || match &unknown {
            Some(unknown) => unknown.opening(),
            None => {
                let each = sources
                    .iter()
                    .map(|it| it.opening(&driver.common.driver_name));
                each.collect::<Vec<_>>().join("; ")
            }
        };
        let why = lacking.clone().unwrap_or_else(opening);
        let profile = driver.common.kind.profile();
        let service = Arc::new(NodeService::new(&why, Arc::clone(pool), profile));
        if let Some(identity) = identify::by_flags(driver) {
            service.identify(identity);
        }
        let own = readiness.part(State::Starting(why));
        for source in sources.into_iter().filter(|_| lacking.is_none()) {
            let start = Start::new(
                machine,
                driver,
                source,
                &service,
                own.clone(),
                readiness.own(),
            );
            let (first, tried) = oneshot::channel();
            tokio::spawn(start.run(first, unknown.take()));
            first_tries.push(tried);
        }
        services.push((driver, service, own));
    }
    let remote = remote_services(config, machine, &readiness, &servers, lacking.as_ref());
    tried(first_tries).await?;
    // Register the signal handlers before a socket exists: a process that waits for the socket may
    // send SIGTERM as soon as the socket appears.
    let shutdown = serve::terminations().map_err(|error| failed("signals", &error))?;
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
    // Return memory that was needed only at startup to the kernel.
    memory::give_back();
    serve(config, drivers, shutdown)
        .await
        .map_err(|error| failed("serving", &error))
}

/// A driver, the driver's service, and the driver's part of the agent's readiness.
type Serving<'a, S> = (&'a Driver, Arc<S>, Readiness);

/// Returns the services of the drivers whose volumes are directories of a server. Such a driver
/// does not open a directory or disks, so it is ready immediately.
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
        // A driver of this kind does not read cloud metadata, so its flags always contain the ID.
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

/// Waits until each driver has made its first attempt to start, but at most [`FIRST_TRY`]. Without
/// this wait, calls that arrive shortly before their driver is ready would fail.
///
/// # Errors
/// Returns the reason if the configuration prevents a driver from starting.
async fn tried(first_tries: Vec<oneshot::Receiver<Result<(), String>>>) -> Result<(), StartError> {
    let end = Instant::now() + FIRST_TRY;
    for tried in first_tries {
        if let Ok(Ok(Err(why))) = tokio::time::timeout_at(end, tried).await {
            return Err(StartError(why));
        }
    }
    Ok(())
}

/// Creates the driver's socket and the gRPC services on this socket.
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
    )
    .of_service("node");
    let socket = Socket::bind(&common.endpoint).map_err(|error| failed("--endpoint", &error))?;
    let (name, endpoint) = (common.driver_name.as_str(), socket.path().display());
    let node = config.node_name(driver).map(NodeId::as_str);
    let node_id = common.node.id.as_ref().map(NodeId::as_str);
    let state = serve::word(readiness);
    tracing::info!(driver = name, %endpoint, node, node_id, "{state}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fake::Machine as FakeMachine;
    use belay_contract::drivers::LOCAL;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::path::Path;

    fn config(more: &[&str]) -> Config {
        let own = ["belay-node", "--node-id=n1"];
        Config::of_words(own.iter().chain(more))
    }

    const LOOPS: [&str; 2] = ["--endpoint=/csi/csi.sock", "--loop-dir=/volumes"];

    #[test]
    fn an_error_of_the_start_names_its_flag() {
        let error = failed("--endpoint", &"no such directory");
        assert_eq!(error.to_string(), "--endpoint: no such directory");
    }

    #[test]
    fn an_agent_whose_mounts_the_kubelet_does_not_see_is_unhealthy() {
        assert_eq!(readiness_in(None), State::Ready);
        let machine = FakeMachine::new();
        let kernel = machine.process();
        let open = || KubeletDir::open(&kernel, Path::new("/")).unwrap();
        machine.keep_mounts_here(true);
        let hidden = open();
        let why = hidden.hidden().unwrap().to_owned();
        assert_eq!(readiness_in(Some(&hidden)), State::Unhealthy(why));
    }

    #[test]
    fn rings_are_made_only_for_disks() {
        let kernel = Linux::for_helper();
        let has_rings = |kernel: &Linux| !format!("{kernel:?}").contains("Rings(0)");
        assert!(!has_rings(&with_rings(&config(&LOOPS), kernel.clone())));
        let disks = ["--driver-kind=openstack", "--endpoint=/csi/csi.sock"];
        // Some machines forbid io_uring.
        let can_have = kernel.clone().with_rings().is_ok();
        assert_eq!(has_rings(&with_rings(&config(&disks), kernel)), can_have);
    }

    #[test]
    fn each_metric_of_the_agent_has_its_help_on_the_page() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _guard = ::metrics::set_default_local_recorder(&recorder);
        operation::announce();
        work::announce();
        rpc::announce();
        let _servers = Servers::new();
        for name in [
            "belay_formats_total",
            "belay_format_refusals_total",
            "belay_filesystem_checks_total",
            "belay_grow_refusals_total",
            "belay_passphrase_replacements_total",
            "belay_openers_unchecked_total",
            "belay_unflushed_unpublishes_total",
            "belay_helper_kills_total",
        ] {
            ::metrics::counter!(name).increment(1);
        }
        for name in [
            "belay_pool_threads",
            "belay_pool_waiting",
            "belay_helper_processes",
            "belay_helper_waiting",
        ] {
            ::metrics::gauge!(name).set(1.0);
        }
        ::metrics::histogram!("belay_operation_phase_duration_seconds").record(1.0);
        let page = recorder.handle().render();
        let lines = |begin: &str| page.lines().filter(|line| line.starts_with(begin)).count();
        assert_eq!(lines("# TYPE "), 13, "{page}");
        assert_eq!(lines("# HELP "), 13, "{page}");
    }

    #[test]
    fn a_sandbox_that_is_off_shows_on_the_page() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _guard = ::metrics::set_default_local_recorder(&recorder);
        enter_sandbox(Sandbox::Off);
        let page = recorder.handle().render();
        assert!(page.contains("\nbelay_sandbox 0\n"), "{page}");
        assert!(page.contains("# HELP belay_sandbox Whether"), "{page}");
    }

    #[test]
    fn a_driver_is_registered_if_there_is_a_directory_for_that() {
        let readiness = Readiness::new(State::Ready);
        let of = |config: &Config| {
            let driver = config.drivers().next().unwrap().clone();
            registration(config, &driver, &readiness)
        };
        assert!(of(&config(&LOOPS)).is_none());
        let flags = [
            "--registration-dir=/registry",
            "--kubelet-registration-path=/plugins/csi.sock",
        ];
        let found = of(&config(&[&LOOPS[..], &flags].concat())).unwrap();
        assert_eq!(found.directory, Path::new("/registry"));
        assert_eq!(found.endpoint.path, Path::new("/plugins/csi.sock"));
        assert_eq!(found.driver.as_str(), LOCAL.name);
    }

    #[tokio::test(start_paused = true)]
    async fn the_start_waits_for_each_driver_and_not_for_a_hung_disk() {
        let tries = || -> (Vec<_>, Vec<_>) { (0..3).map(|_| oneshot::channel()).unzip() };
        let (mut senders, receivers) = tries();
        // The disk of the last driver hangs.
        let hung = senders.pop();
        for sender in senders {
            sender.send(Ok(())).unwrap();
        }
        let begun = Instant::now();
        tried(receivers).await.unwrap();
        assert!((FIRST_TRY..2 * FIRST_TRY).contains(&begun.elapsed()));
        drop(hung);

        let (mut senders, receivers) = tries();
        let refused = senders.remove(1);
        refused
            .send(Err("another driver has it".to_owned()))
            .unwrap();
        let error = tried(receivers).await.unwrap_err();
        assert_eq!(error.to_string(), "another driver has it");
    }

    #[tokio::test]
    async fn the_drivers_of_a_server_are_up_unless_a_capability_is_missing() {
        let config = config(
            &[
                &LOOPS[..],
                &[
                    "--next-driver",
                    "--driver-kind=nfs",
                    "--endpoint=/csi/nfs.sock",
                ],
                &["--node-id=n1"],
            ]
            .concat(),
        );
        let machine = Machine::new(&config, Linux::for_helper(), None);
        let servers = Servers::new();
        let lacking = "no capability".to_owned();
        for (lacking, state) in [
            (None, State::Ready),
            (Some(&lacking), State::Starting(lacking.clone())),
        ] {
            let readiness = Readiness::new(State::Ready);
            let found = remote_services(&config, &machine, &readiness, &servers, lacking);
            let [(driver, _, own)] = &found[..] else {
                panic!("{} drivers", found.len());
            };
            assert!(driver.is_remote());
            assert_eq!(own.own(), state);
            assert_eq!(readiness.state(), state);
        }
    }

    #[tokio::test]
    async fn a_driver_has_its_socket_and_its_facts() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = format!("--endpoint={}", dir.path().join("csi.sock").display());
        let config = config(&[&endpoint, "--loop-dir=/volumes"]);
        let driver = config.drivers().next().unwrap();
        let profile = driver.common.kind.profile();
        let service = Arc::new(NodeService::<Linux>::new("why", Pool::new(), profile));
        let readiness = Readiness::new(State::Ready);
        let found = served(&config, driver, Arc::clone(&service), &readiness).unwrap();
        assert_eq!(found.name, driver.common.driver_name);
        assert_eq!(found.socket.path(), dir.path().join("csi.sock"));
        assert!(found.facts.is_some() && found.registration.is_none());
        let mut nowhere = driver.clone();
        nowhere.common.endpoint.path = dir.path().join("absent/csi.sock");
        let refused = served(&config, &nowhere, service, &readiness);
        let error = refused.err().unwrap();
        assert!(error.to_string().starts_with("--endpoint: "), "{error}");
    }
}
