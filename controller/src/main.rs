//! belay-controller: runs the controller or the store of a node, creates a key, or serves a
//! single call as a worker process, as its arguments select.

use belay_controller::config::Config;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = belay_controller::backend::nfs::worker::run() {
        return code;
    }
    if let Some(code) = belay_controller::create_key::run(std::env::args_os()) {
        return code;
    }
    if let Some(code) = belay_controller::store::run(std::env::args_os()) {
        return code;
    }
    let config = match Config::parse() {
        Ok(config) => config,
        Err(code) => return code,
    };
    let _log = match belay_server::log::init(
        config.common.process.log_level,
        config.common.process.log_format,
    ) {
        Ok(log) => log,
        Err(error) => {
            belay_server::log::write(&format!("belay-controller: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    match belay_controller::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error
                .source()
                .map(|cause| format!(": {cause}"))
                .unwrap_or_default();
            tracing::error!("{error}{cause}");
            ExitCode::FAILURE
        }
    }
}
