//! belayctl, and the sizes of it that the demo prints.

mod call;
mod cli;
mod command;
mod context;
mod failure;
mod flags;
mod hidden;
mod machine;
mod render;
mod report;
mod secrets;
pub mod size;
mod target;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::{Failure, USAGE};

/// Arguments in, exit code out.
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

/// One thread is enough: the program waits for one response at a time.
fn start(cli: Cli) -> Result<ExitCode, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(cli.run())
}

/// Help and version succeed; all other clap errors are bad usage.
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
