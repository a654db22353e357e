//! The program belayctl. The demo also uses this crate's formatting of sizes.

mod call;
mod cli;
mod command;
mod context;
mod drivers;
mod failure;
mod flags;
mod hidden;
mod machine;
mod objects;
mod render;
mod report;
mod secrets;
pub mod size;
mod target;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::{Failure, USAGE};

/// Runs the program with the arguments of the process, and returns the exit code.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match start(cli) {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("belayctl: {failure}");
            failure.exit_code()
        }
    }
}

/// Runs the command on a single thread, since the program waits for one response at a time.
fn start(cli: Cli) -> Result<ExitCode, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(cli.run())
}

/// Prints clap's text. Help and version succeed; all other errors are bad usage.
fn explain(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() {
        ExitCode::from(USAGE)
    } else {
        ExitCode::SUCCESS
    };
    match error.print() {
        Ok(()) => code,
        Err(_closed) => ExitCode::from(USAGE),
    }
}
