//! Tests of process-wide properties: umask, signals, log and environment. Each test runs its own
//! program again as a child process, in which only this test runs.

#![expect(clippy::unwrap_used, reason = "the set-up of a child must not fail")]

use belay_server::config::{ProcessArgs, parse_from};
use belay_server::endpoint::Endpoint;
use belay_server::log::{self, LogFormat, LogLevel};
use belay_server::transport::Socket;
use clap::Parser;
use futures_util::StreamExt as _;
use rustix::fs::Mode;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt as _;
use std::pin::pin;
use std::process::{Command, Output};

/// Marks the child process.
const CHILD: &str = "BELAY_TEST_CHILD";

/// Runs `part` in a child process, and returns its output; returns `None` in the child process
/// itself.
fn in_a_child(test: &str, part: impl FnOnce(), environment: &[(&str, &str)]) -> Option<Output> {
    if std::env::var_os(CHILD).is_some() {
        part();
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    child.envs(environment.iter().copied());
    let output = child.output().unwrap();
    // A run that finds no matching test would also succeed.
    let passed = String::from_utf8_lossy(&output.stdout).contains(" 1 passed");
    assert!(output.status.success() && passed, "{output:?}");
    Some(output)
}

#[test]
fn only_the_owner_reaches_the_socket_even_without_a_umask() {
    let part = || {
        let directory = tempfile::TempDir::new().unwrap();
        for (umask, file) in [(0, "open.sock"), (0o022, "usual.sock")] {
            rustix::process::umask(Mode::from_raw_mode(umask));
            let path = directory.path().join(file);
            let socket = Socket::bind(&Endpoint { path }).unwrap();
            let found = std::fs::symlink_metadata(socket.path()).unwrap();
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "umask {umask:o}");
        }
    };
    in_a_child(
        "only_the_owner_reaches_the_socket_even_without_a_umask",
        part,
        &[],
    );
}

#[test]
fn every_term_and_interrupt_is_reported_and_ends_nothing_by_itself() {
    let part = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut terminations = pin!(belay_server::serve::terminations().unwrap());
            for signal in [Signal::TERM, Signal::INT, Signal::TERM] {
                rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
                assert_eq!(terminations.next().await, Some(()));
            }
        });
    };
    in_a_child(
        "every_term_and_interrupt_is_reported_and_ends_nothing_by_itself",
        part,
        &[],
    );
}

#[test]
fn the_log_has_one_line_an_event_also_for_a_panic_and_is_silent_about_others() {
    let part = || {
        log::init(LogLevel::Info, LogFormat::Text).unwrap();
        tracing::info!(target: "belay_test", volume = "a\nb", "first");
        tracing::debug!(target: "belay_test", "hidden");
        tracing::info!(target: "h2::frame", "hidden");
        let panicked = std::panic::catch_unwind(|| panic!("several\nlines"));
        assert!(panicked.is_err());
        assert!(log::init(LogLevel::Info, LogFormat::Text).is_err());
    };
    let test = "the_log_has_one_line_an_event_also_for_a_panic_and_is_silent_about_others";
    let Some(output) = in_a_child(test, part, &[]) else {
        return;
    };
    let log = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = log.lines().collect();
    let [event, panic] = lines.as_slice() else {
        panic!("{log}")
    };
    assert!(event.ends_with(r#" INFO first volume="a\nb""#), "{event}");
    assert!(
        panic.contains(r" ERROR panic: several\nlines place="),
        "{panic}"
    );
    assert!(panic.contains("process.rs:"), "{panic}");
}

#[test]
fn the_log_in_json_has_one_object_a_line() {
    let part = || {
        log::init(LogLevel::Info, LogFormat::Json).unwrap();
        tracing::info!(target: "belay_test", volume = "a\n\"b", bytes = 7, "first");
        let panicked = std::panic::catch_unwind(|| panic!("several\nlines"));
        assert!(panicked.is_err());
    };
    let Some(output) = in_a_child("the_log_in_json_has_one_object_a_line", part, &[]) else {
        return;
    };
    let log = String::from_utf8(output.stderr).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    let [event, panic] = lines.as_slice() else {
        panic!("{log}")
    };
    for (key, value) in [
        ("level", "INFO".into()),
        ("message", "first".into()),
        ("volume", "a\n\"b".into()),
        ("bytes", serde_json::Value::from(7)),
    ] {
        assert_eq!(event[key], value, "{log}");
    }
    let time = event["timestamp"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    assert_eq!(panic["level"], "ERROR");
    assert_eq!(panic["message"], "panic: several\nlines");
}

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    endpoint: Endpoint,

    #[arg(long, env = "BELAY_TEST_NUMBER", default_value_t = 0)]
    number: u32,

    #[command(flatten)]
    process: ProcessArgs,
}

#[test]
fn settings_come_from_the_environment_and_a_flag_wins() {
    let part = || {
        let args = Args::try_parse_from(["belay", "--number", "8"]).unwrap();
        assert_eq!(args.endpoint.to_string(), "unix:///run/csi.sock");
        assert_eq!(args.number, 8);
        assert!(args.process.grpc.grpc_reflection);
        assert_eq!(args.process.log_level, LogLevel::Warn);
    };
    let environment = [
        ("CSI_ENDPOINT", "unix://run/csi.sock"),
        ("BELAY_TEST_NUMBER", "7"),
        ("BELAY_GRPC_REFLECTION", "true"),
        ("BELAY_LOG_LEVEL", "warn"),
    ];
    in_a_child(
        "settings_come_from_the_environment_and_a_flag_wins",
        part,
        &environment,
    );
}

#[test]
fn a_setting_that_is_empty_in_the_environment_is_not_set() {
    let part = || {
        let args = ["belay", "--endpoint", "/run/csi.sock"];
        let args: Args = parse_from(args.map(Into::into)).unwrap();
        assert!(!args.process.grpc.grpc_reflection);
        assert_eq!(args.process.http_endpoint, None);
        assert_eq!(args.number, 0);
        assert_eq!(args.process.log_level, LogLevel::Info);
        let error = parse_from::<Args>(["belay".into()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("--endpoint <SOCKET>"), "{error}");
    };
    let environment = [
        ("CSI_ENDPOINT", ""),
        ("BELAY_GRPC_REFLECTION", ""),
        ("BELAY_HTTP_ENDPOINT", ""),
        ("BELAY_TEST_NUMBER", ""),
        ("BELAY_LOG_LEVEL", ""),
    ];
    in_a_child(
        "a_setting_that_is_empty_in_the_environment_is_not_set",
        part,
        &environment,
    );
}
