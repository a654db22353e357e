//! The flags that all Belay servers have, and the exit of a process with invalid flags.

use crate::log::{self, LogFormat, LogLevel};
use clap::Parser;
use clap::builder::BoolishValueParser;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;

/// The exit code for bad usage (EX_USAGE of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// The flags that every process has once, regardless of the number of drivers that it serves.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// Address of the status page, /metrics, /readyz and /livez, e.g. localhost:9808; off if absent
    #[arg(
        long,
        env = "BELAY_HTTP_ENDPOINT",
        value_name = "HOST:PORT",
        value_parser = http_endpoint
    )]
    pub http_endpoint: Option<SocketAddr>,

    /// Optional gRPC services.
    #[command(flatten)]
    pub grpc: GrpcArgs,

    /// Log level, on stderr
    #[arg(
        long,
        env = "BELAY_LOG_LEVEL",
        value_name = "LEVEL",
        value_enum,
        default_value = "info"
    )]
    pub log_level: LogLevel,

    /// Format of the log
    #[arg(
        long,
        env = "BELAY_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// Parses an address such as `127.0.0.1:9808`, `[::1]:9808` or `localhost:9808`. If a host name has
/// several addresses, returns the first IPv4 address, or else the first address. Clients that use
/// the host name try all its addresses, so they find the returned address.
///
/// # Errors
/// Returns a message that explains why the text is not an address.
fn http_endpoint(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let expected = "expected HOST:PORT, such as localhost:9808, 127.0.0.1:9808 or [::1]:9808";
    let (host, port) = text.rsplit_once(':').ok_or(expected)?;
    let port: u16 = port
        .parse()
        .map_err(|_| format!("{port:?} is not a port (0 to 65535); {expected}"))?;
    if host.is_empty() || host.contains(':') {
        return Err(expected.to_owned());
    }
    // `localhost` also works if there is no /etc/hosts (RFC 6761, section 6.3).
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let found = (host, port).to_socket_addrs();
    let found: Vec<_> = found
        .map_err(|error| format!("{host:?} has no address: {error}"))?
        .collect();
    let first = found.iter().find(|it| it.is_ipv4()).or(found.first());
    first
        .copied()
        .ok_or_else(|| format!("{host:?} has no address"))
}

/// Services of the CSI socket for tools that do not know CSI, such as grpcurl.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct GrpcArgs {
    /// Enable gRPC reflection on the CSI socket
    #[arg(long, env = "BELAY_GRPC_REFLECTION", value_parser = BoolishValueParser::new())]
    pub grpc_reflection: bool,

    /// Enable the gRPC health service on the CSI socket
    #[arg(long, env = "BELAY_GRPC_HEALTH", value_parser = BoolishValueParser::new())]
    pub grpc_health: bool,
}

/// Parses the flags of this process. On failure, prints the reason.
///
/// # Errors
/// Returns the exit code of the process, as [`ended`] does.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    parse_from(std::env::args_os()).map_err(|error| ended(&error))
}

/// Prints the help, or the error in the flags. Returns the code to exit with: 0 after `--help`,
/// otherwise [`EXIT_USAGE`].
#[must_use]
pub fn ended(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        log::write(&error.render().to_string());
        return ExitCode::from(EXIT_USAGE);
    }
    // stdout may be closed, e.g. by `head` in a pipe. There is no way to report the error, so
    // ignore it.
    drop(error.print());
    ExitCode::SUCCESS
}

/// Parses the settings from these arguments, which begin with the program's name, and from the
/// environment. An empty setting, which a template may produce, is treated as missing.
///
/// # Errors
/// Returns clap's error if a setting is invalid or help was requested.
pub fn parse_from<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<A, clap::Error> {
    parse_where(arguments, |_| true)
}

/// Parses the settings of a command if it is the first argument after the program's name; returns
/// `None` otherwise.
///
/// # Errors
/// Returns the exit code of the process if a setting is invalid or help was requested.
pub fn parse_command<A: Parser>(
    command: &str,
    arguments: impl IntoIterator<Item = OsString>,
) -> Option<Result<A, ExitCode>> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next()?;
    if arguments.next().as_deref() != Some(OsStr::new(command)) {
        return None;
    }
    let parsed = parse_from(std::iter::once(program).chain(arguments));
    Some(parsed.map_err(|error| ended(&error)))
}

/// Parses settings like [`parse_from`], but reads only the environment variables for which `speaks`
/// returns true.
///
/// # Errors
/// Returns clap's error if a setting is invalid or help was requested.
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

/// Removes flags with an empty value: `--flag=` and `--flag ""`.
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
        #[arg(long, value_name = "NAME", default_value = "unnamed")]
        name: String,

        #[command(flatten)]
        process: ProcessArgs,
    }

    #[test]
    fn an_endpoint_for_pages_has_an_address_or_a_name_and_a_port() {
        for (text, address) in [
            ("127.0.0.1:9808", "127.0.0.1:9808"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:9808", "[::1]:9808"),
            ("localhost:9808", "127.0.0.1:9808"),
            ("LocalHost:1", "127.0.0.1:1"),
        ] {
            assert_eq!(http_endpoint(text), Ok(address.parse().unwrap()), "{text}");
        }
        for (text, why) in [
            ("9808", "expected HOST:PORT"),
            (":9808", "expected HOST:PORT"),
            ("::1:9808", "expected HOST:PORT"),
            ("localhost", "expected HOST:PORT"),
            ("localhost:", "\"\" is not a port"),
            ("localhost:99999", "\"99999\" is not a port"),
            // Names under `.invalid` never exist (RFC 6761, section 6.4).
            ("belay.invalid:9808", "\"belay.invalid\" has no address"),
        ] {
            let error = http_endpoint(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_flag_without_a_value_is_not_there() {
        let parsed = |more: &[&str]| {
            let args = ["belay"].iter().chain(more).map(OsString::from);
            parse_from::<Args>(args).map_err(|error| error.to_string())
        };
        let args = parsed(&["--http-endpoint=", "--name", "", "--log-level="]).unwrap();
        assert_eq!(args.process.http_endpoint, None);
        assert_eq!(args.name, "unnamed");
        assert_eq!(args.process.log_level, LogLevel::Info);
        // An empty argument is removed only if it is the value of the preceding flag.
        let error = parsed(&["--log-level=info", ""]).unwrap_err();
        assert!(error.contains("unexpected argument"), "{error}");
    }
}
