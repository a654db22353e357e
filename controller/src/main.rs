//! belay-controller: reads its flags and runs the controller.

use belay_controller::config::Config;
use belay_server::config::EXIT_USAGE;
use std::process::ExitCode;

/// Built with `no_thp`: without it the first touch of the heap costs 4 MiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config: Config = match belay_server::config::parse() {
        Ok(config) => config,
        Err(code) => return code,
    };
    if belay_server::log::init(config.common.log_level).is_err() {
        return ExitCode::FAILURE;
    }
    let rules = match config.rules() {
        Ok(rules) => rules,
        Err(error) => {
            tracing::error!("--node-id: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match belay_controller::run(&config, rules) {
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
