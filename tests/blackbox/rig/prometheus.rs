//! A real Prometheus that scrapes the agents, and promtool, which queries it and checks pages.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use belay_bed::patience::until;
use belay_bed::programs::{Running, program};
use belay_bed::scrape;

use super::test_dir::TestDir;

/// The scrape interval, which is short so that two values of a counter are soon available.
const SCRAPE_INTERVAL: &str = "200ms";
/// Maximum number of starts: another process may take the free port before Prometheus does.
const STARTS_MAX: usize = 5;

/// A Prometheus, killed when this is dropped.
pub(crate) struct Prometheus {
    child: Running,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these jobs, and returns once it is ready.
    pub(crate) fn start(test_dir: &TestDir, jobs: &[(&str, SocketAddr)]) -> Self {
        let directory = test_dir.directory("prometheus");
        let config = directory.join("prometheus.yml");
        let mut text = format!("global:\n  scrape_interval: {SCRAPE_INTERVAL}\nscrape_configs:\n");
        for (job, target) in jobs {
            text += &format!("- job_name: {job}\n  static_configs: [targets: ['{target}']]\n");
        }
        fs::write(&config, text).expect("write");
        for _ in 0..STARTS_MAX {
            if let Some(prometheus) = Self::try_start(&directory, &config) {
                return prometheus;
            }
        }
        let log = fs::read_to_string(directory.join("prometheus.log")).unwrap_or_default();
        panic!("prometheus does not start:\n{log}");
    }

    fn try_start(directory: &Path, config: &Path) -> Option<Self> {
        // Prometheus does not report its port, so the port is configured.
        let address = free_port();
        let log = File::create(directory.join("prometheus.log")).expect("a log");
        let flag = |name: &str, value: &dyn std::fmt::Display| format!("--{name}={value}");
        let mut program = program(["prometheus"]);
        program
            .arg(flag("config.file", &config.display()))
            .arg(flag("storage.tsdb.path", &directory.join("data").display()))
            .arg(flag("web.listen-address", &address))
            .stdout(Stdio::null())
            .stderr(log);
        let child = Running::start(&mut program).expect("setpriv of util-linux");
        let mut prometheus = Prometheus { child, address };
        let mut is_ready = false;
        until("prometheus is ready, or has ended", || {
            is_ready = get(address, "/-/ready").is_some();
            is_ready || prometheus.child.try_wait().expect("wait").is_some()
        });
        is_ready.then_some(prometheus)
    }

    /// Returns the current result of a query, one line per series: labels, an arrow and a value.
    #[track_caller]
    pub(crate) fn query(&self, query: &str) -> Vec<String> {
        let server = format!("http://{}", self.address);
        let output = promtool(&["query", "instant", &server, query], "");
        // An empty result is an empty line.
        let samples = output.lines().filter(|line| line.contains(" => "));
        samples.map(str::to_owned).collect()
    }
}

/// Fails if promtool reports anything about a page.
#[track_caller]
pub(crate) fn lint(page: &str) {
    let said = promtool(&["check", "metrics"], page);
    assert_eq!(said, "", "promtool check metrics:\n{page}");
}

/// Runs promtool to its end. Returns its output.
#[track_caller]
fn promtool(args: &[&str], input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run promtool: {error}; `make setup` gets it"));
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input.as_bytes()).expect("write");
    drop(stdin);
    let output = child.wait_with_output().expect("wait");
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).expect("UTF-8"));
    let said = said.concat();
    assert!(output.status.success(), "promtool {args:?}: {said}");
    said
}

/// Returns a free port of this machine.
pub(crate) fn free_port() -> SocketAddr {
    scrape::free_port().expect("a free port")
}

/// Returns the body of a page, if it exists.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<String> {
    let (status, body) = scrape::get(address, path).ok()?;
    (status == 200).then_some(body)
}
