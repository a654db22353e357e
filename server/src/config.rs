//! The settings that every server of ours has, and how bad ones end a process.

use crate::log::{self, LogLevel};
use clap::Parser;
use clap::builder::BoolishValueParser;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::process::ExitCode;

/// The exit code for bad usage (EX_USAGE of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// What every process has, however many drivers it serves.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// Where to show /metrics, /healthz and /livez, e.g. 127.0.0.1:9808; nowhere if absent
    #[arg(long, env = "BELAY_HTTP_ENDPOINT", value_name = "IP:PORT")]
    pub http_endpoint: Option<SocketAddr>,

    /// What tools of gRPC are offered.
    #[command(flatten)]
    pub grpc: GrpcArgs,

    /// How much to log, to stderr
    #[arg(
        long,
        env = "BELAY_LOG_LEVEL",
        value_name = "LEVEL",
        value_enum,
        default_value = "info"
    )]
    pub log_level: LogLevel,
}

/// What the CSI socket offers to tools that know no CSI, such as grpcurl.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct GrpcArgs {
    /// Let tools ask the CSI socket for its services and messages (gRPC reflection)
    #[arg(long, env = "BELAY_GRPC_REFLECTION", value_parser = BoolishValueParser::new())]
    pub grpc_reflection: bool,

    /// Serve gRPC's own health service on the CSI socket
    #[arg(long, env = "BELAY_GRPC_HEALTH", value_parser = BoolishValueParser::new())]
    pub grpc_health: bool,
}

/// The settings of this process, or the code with which it shall end, see [`ended`].
///
/// # Errors
/// The exit code.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    parse_from(std::env::args_os()).map_err(|error| ended(&error))
}

/// Tells what is wrong with the settings. The code with which the process shall end: 0 after
/// `--help`, else [`EXIT_USAGE`].
#[must_use]
pub fn ended(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        log::write(&error.render().to_string());
        return ExitCode::from(EXIT_USAGE);
    }
    // Help was asked for, and whoever asked has gone.
    drop(error.print());
    ExitCode::SUCCESS
}

/// The settings from these arguments, the program's name first, and from the environment. A setting
/// without a value, which is what a template makes of one that nobody filled in, is not set.
///
/// # Errors
/// What is wrong, or that help was asked for.
pub fn parse_from<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<A, clap::Error> {
    parse_where(arguments, |_| true)
}

/// The same, where of the environment only the variables count that `speaks` says yes to.
///
/// # Errors
/// What is wrong, or that help was asked for.
pub fn parse_where<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    speaks: impl Fn(&OsStr) -> bool,
) -> Result<A, clap::Error> {
    let mut command = A::command().mut_args(|setting| {
        let is_empty = |variable| std::env::var_os(variable).is_some_and(|value| value.is_empty());
        let counts = setting
            .get_env()
            .is_some_and(|it| speaks(it) && !is_empty(it));
        if counts { setting } else { setting.env(None) }
    });
    let mut matches = command.try_get_matches_from_mut(without_empty(arguments))?;
    A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Leaves out `--flag=` and `--flag ""`.
fn without_empty(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut kept: Vec<OsString> = Vec::new();
    for argument in arguments {
        let bytes = argument.as_encoded_bytes();
        if bytes.starts_with(b"--") && bytes.ends_with(b"=") {
            continue;
        }
        let waits_for_a_value = |last: &OsString| {
            let last = last.as_encoded_bytes();
            last.starts_with(b"--") && !last.contains(&b'=')
        };
        if bytes.is_empty() && kept.last().is_some_and(waits_for_a_value) {
            kept.pop();
            continue;
        }
        kept.push(argument);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        /// The name of something
        #[arg(long, value_name = "NAME", default_value = "nobody")]
        name: String,

        #[command(flatten)]
        process: ProcessArgs,
    }

    #[test]
    fn a_flag_without_a_value_is_not_there() {
        let parsed = |more: &[&str]| {
            let args = ["belay"].iter().chain(more).map(OsString::from);
            parse_from::<Args>(args).map_err(|error| error.to_string())
        };
        let args = parsed(&["--http-endpoint=", "--name", "", "--log-level="]).unwrap();
        assert_eq!(args.process.http_endpoint, None);
        assert_eq!(args.name, "nobody");
        assert_eq!(args.process.log_level, LogLevel::Info);
        // Only a flag that still waits for its value can lose it.
        let error = parsed(&["--log-level=info", ""]).unwrap_err();
        assert!(error.contains("unexpected argument"), "{error}");
    }
}
