//! The controller half of the driver: creates, attaches, expands and deletes volumes through a
//! backend. The controller opens no device, and only the worker processes of the backend `nfs`
//! mount filesystems. Dependencies point from `rpc` to `operation` to `backend`, never in the other
//! direction.

pub mod backend;
pub mod config;
pub mod create_key;
mod heap;
pub mod http;
pub mod kubernetes;
pub mod mark_keys;
pub mod operation;
pub mod rpc;
pub mod store;

use backend::{local, registry};
use belay_server::call::{Callers, Failure, Kind};
use belay_server::identity::Identity;
use belay_server::lock::Lock;
use belay_server::readiness::{Readiness, State};
use belay_server::serve::{Driver, ServeConfig, listen, serve, terminations, word};
use belay_server::services::Services;
use belay_server::transport::Socket;
use belay_server::{memory, metrics};
use config::Config;
use operation::{Operations, Survey};
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Deadline for running calls at shutdown, which is shorter than the 30 s after which Kubernetes
/// kills the process.
const DRAIN: Duration = Duration::from_secs(20);

/// The first and the maximum pause before the next attempt to log in to a cloud that has not
/// accepted a login. Each pause is twice as long as the previous pause.
const LOGIN_PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// The minimum pause after the cloud has refused the credentials.
const LOGIN_PAUSE_REFUSED: Duration = Duration::from_secs(15);

/// Maximum number of the runtime's threads, which only dispatch calls. Each thread uses memory, so
/// the number of threads does not grow with the machine's cores.
const WORKERS_MAX: usize = 4;

/// Opens the backend, which recovers from an earlier crash, and serves until a signal arrives.
///
/// # Errors
/// Returns the reason why the controller cannot start or serve.
pub fn run(config: &Config) -> Result<(), Box<dyn Error>> {
    heap::begin();
    for variable in config.ignored_variables() {
        tracing::info!("{variable}: ignored: it is for a different backend");
    }
    let (driver, process) = (&config.common.driver, &config.common.process);
    config.refuse_socket_in_state_dir()?;
    metrics::begin(process, [&driver.driver_name], env!("CARGO_PKG_VERSION"))?;
    let choice = config.choice()?;
    let has_account = choice.has_account();
    let readiness = Readiness::new(match has_account {
        true => State::Starting("the cloud has not accepted the credentials yet".to_owned()),
        false => State::Ready,
    });
    let opened = registry::open(choice, readiness.clone())?;
    let operations = Arc::new(Operations::on(opened.backends, config.rules()?));
    let survey = || Arc::new(Survey::new(Arc::clone(&operations)));
    let survey = (has_account && operations.knows_health()).then(survey);
    let identity = Identity::new(
        driver.driver_name.clone(),
        env!("CARGO_PKG_VERSION"),
        driver.plugin_capabilities(),
        readiness.clone(),
    )
    .of_service("controller");
    let services = Services::new(identity)
        .with_controller(rpc::Service::new(Arc::clone(&operations)))
        .with_grpc(&process.grpc, &readiness);

    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(WORKERS_MAX))
        .max_blocking_threads(local::THREADS_MAX)
        .thread_keep_alive(heap::KEEP_ALIVE)
        .on_thread_park(heap::park)
        .enable_all()
        .build()?;
    let served = runtime.block_on(async {
        let shutdown = terminations()?;
        let pages = listen(process.http_endpoint).await?;
        let socket = Socket::bind(&driver.endpoint)?;
        if let Some(group) = config.endpoint_group {
            socket.share_with(group)?;
        }
        let serving = ServeConfig {
            program: concat!("belay-controller ", env!("CARGO_PKG_VERSION")),
            pages,
            drain: DRAIN,
            readiness: readiness.clone(),
            callers: Callers::Any,
            rest: heap::rest,
            worked: None,
        };
        // Free the memory that was needed only during the start.
        memory::give_back();
        tracing::info!(endpoint = %driver.endpoint, "{}", word(&readiness));
        if has_account {
            log_in(&operations, &readiness, survey.as_ref());
        }
        let driver = Driver {
            name: driver.driver_name.clone(),
            socket,
            services,
            registration: None,
            facts: opened.facts.or(survey.map(|survey| survey as Arc<_>)),
        };
        Ok(serve(serving, vec![driver], shutdown).await?)
    });
    // Drop calls that have exceeded the deadline. Dropping calls is safe, since the backend
    // recovers from a crash at any instant.
    runtime.shutdown_background();
    served
}

/// Logs in to each cloud, and retries until the cloud has accepted the credentials. The driver is
/// ready as soon as one cloud has accepted the credentials, because an outage of one cloud must not
/// affect the volumes in the other clouds. Then begins the survey of the cloud's volumes.
fn log_in(operations: &Arc<Operations>, readiness: &Readiness, survey: Option<&Arc<Survey>>) {
    let is_ready = Arc::new(Lock::new(false));
    for cloud in 0..operations.cloud_count() {
        let (operations, readiness) = (Arc::clone(operations), readiness.clone());
        let (is_ready, survey) = (Arc::clone(&is_ready), survey.cloned());
        let report = move |failure: Option<&Failure>| {
            let mut is_ready = is_ready.lock();
            *is_ready |= failure.is_none();
            match failure {
                Some(failure) if !*is_ready => readiness.set(State::Starting(failure.to_string())),
                _ => readiness.set(State::Ready),
            }
        };
        tokio::spawn(async move {
            let [mut pause, pause_max] = LOGIN_PAUSES;
            let mut logged = String::new();
            while let Err(failure) = operations.inspect(cloud).await {
                report(Some(&failure));
                let why = failure.to_string();
                if logged != why {
                    tracing::warn!("a cloud cannot be used, and is tried again: {why}");
                    logged = why;
                }
                // A service may lock an account after a number of wrong passwords.
                if failure.kind == Kind::Unauthenticated {
                    pause = pause.max(LOGIN_PAUSE_REFUSED);
                }
                tokio::time::sleep(pause).await;
                pause = pause_max.min(pause * 2);
            }
            report(None);
            tracing::info!("a cloud has accepted the credentials: serving");
            if let Some(survey) = survey {
                survey.watch(cloud).await;
            }
        });
    }
}
