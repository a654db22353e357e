//! belay-node: reads its flags and runs the agent.

use std::io::Write as _;
use std::process::ExitCode;

use belay_node_agent::Config;

/// Built with `no_thp`: without it the first touch of the heap costs 4 MiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = match Config::parse() {
        Ok(config) => config,
        Err(code) => return code,
    };
    if let Err(error) = belay_server::log::init(config.process.log_level) {
        drop(writeln!(std::io::stderr(), "belay-node: {error}"));
        return ExitCode::FAILURE;
    }
    match belay_node_agent::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
