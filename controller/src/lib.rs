//! The controller half of the driver: creates, attaches, expands and deletes volumes through a
//! backend. Opens no device, and mounts nothing outside of the workers of `nfs`. Dependencies point
//! from `rpc` to `operation` to `backend`, never in the other direction.

pub mod backend;
pub mod config;
pub mod create_key;
mod heap;
pub mod http;
pub mod mark_keys;
pub mod operation;
pub mod rpc;

use backend::{local, registry};
use belay_server::call::{Callers, Kind};
use belay_server::identity::Identity;
use belay_server::readiness::{Readiness, State};
use belay_server::serve::{Driver, ServeConfig, listen, serve, terminations};
use belay_server::services::Services;
use belay_server::transport::Socket;
use belay_server::{memory, metrics};
use config::Config;
use operation::Operations;
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Deadline for running calls at shutdown; less than the 30 s after which Kubernetes kills the
/// process.
const DRAIN: Duration = Duration::from_secs(20);

/// The number of attempts to inspect the cloud until it responds, and the pause between two
/// attempts.
const INSPECTIONS_MAX: usize = 30;
const INSPECTION_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of the runtime's threads, which only dispatch calls. Each uses memory, so their
/// number does not grow with the machine's cores.
const WORKERS_MAX: usize = 4;

/// Opens the backend, which recovers from an earlier crash, and serves until a signal arrives.
///
/// # Errors
/// Returns the reason why the controller cannot start or serve.
pub fn run(config: &Config) -> Result<(), Box<dyn Error>> {
    heap::begin();
    let (driver, process) = (&config.common.driver, &config.common.process);
    config.refuse_socket_in_state_dir()?;
    metrics::begin(process, [&driver.driver_name], env!("CARGO_PKG_VERSION"))?;
    let readiness = Readiness::new(State::Ready);
    let opened = registry::open(config.choice()?, readiness.clone())?;
    let operations = Arc::new(Operations::on(opened.backends, config.rules()?));
    let identity = Identity::new(
        driver.driver_name.clone(),
        env!("CARGO_PKG_VERSION"),
        driver.plugin_capabilities(),
        readiness.clone(),
    );
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
            readiness,
            callers: Callers::Any,
            rest: heap::rest,
            worked: None,
        };
        // Free the memory that the start has used.
        memory::give_back();
        tracing::info!(endpoint = %driver.endpoint, "serving");
        tokio::spawn(inspected(operations));
        let driver = Driver {
            name: driver.driver_name.clone(),
            socket,
            services,
            registration: None,
            facts: opened.facts,
        };
        Ok(serve(serving, vec![driver], shutdown).await?)
    });
    // Drop calls that exceed the deadline: the backend survives a crash at any instant.
    runtime.shutdown_background();
    served
}

/// Inspects the clouds once. If a cloud does not respond, inspects all of them again, for a while.
async fn inspected(operations: Arc<Operations>) {
    let mut last = None;
    for _ in 0..INSPECTIONS_MAX {
        let Err(failure) = operations.inspect().await else {
            return;
        };
        let is_down = matches!(failure.kind, Kind::Unreachable | Kind::Timeout | Kind::Busy);
        last = Some(failure);
        if !is_down {
            break;
        }
        tokio::time::sleep(INSPECTION_PAUSE).await;
    }
    if let Some(failure) = last {
        tracing::warn!(%failure, "the cloud was not inspected at the start");
    }
}
