//! The program belay-node: parses the flags, starts the log, and runs the agent.

use std::process::ExitCode;

use belay_node_agent::Config;

fn main() -> ExitCode {
    // A helper process makes only one system call, so it does not parse flags or start the log.
    if let Some(code) = belay_node_agent::help() {
        return code;
    }
    let config = match Config::parse() {
        Ok(config) => config,
        Err(code) => return code,
    };
    let _log = match belay_server::log::init(config.process.log_level, config.process.log_format) {
        Ok(log) => log,
        Err(error) => {
            belay_server::log::write(&format!("belay-node: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    match belay_node_agent::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
