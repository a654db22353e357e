//! The two real programs as child processes: started with the documented flags, awaited until
//! ready, watched, and stopped by SIGTERM. Does not know volumes.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use belay_bed::scrape;
use belay_proto::csi::v1::ProbeRequest;
use belay_proto::csi::v1::identity_client::IdentityClient;
use belay_proto::dial::dial;
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use crate::demo_dir::{BINARIES, CONTROLLER, DemoDir, NODE};
use crate::trouble::Trouble;

/// The id by which the controller knows the node.
pub(crate) const NODE_ID: &str = "demo-node";

/// How long a program may take until it answers.
const START_MAX: Duration = Duration::from_secs(10);
/// The first pause between two attempts to connect; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// How long a program may take to exit on SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(10);
/// How many lines of a log are shown if something fails.
const LOG_LINES_MAX: usize = 12;

/// Both programs, running.
pub(crate) struct Agents {
    bin_dir: PathBuf,
    demo_dir: DemoDir,
    pub(crate) controller: Agent,
    pub(crate) node: Agent,
}

/// One running program.
pub(crate) struct Agent {
    name: &'static str,
    child: Child,
    /// The address of its `/metrics`.
    pub(crate) http: SocketAddr,
}

impl Agents {
    /// Starts both and waits until they are ready.
    ///
    /// # Errors
    /// One of them cannot be started, exits, or is not ready in time.
    pub(crate) async fn start(bin_dir: &Path, demo_dir: &DemoDir) -> Result<Self, Trouble> {
        let state = demo_dir.controller_state();
        std::fs::create_dir_all(&state).map_err(|e| Trouble::own(state.display(), e))?;
        let state_dir: [&Path; 2] = [Path::new("--state-dir"), &state];
        let controller = Agent::start(CONTROLLER, bin_dir, demo_dir, &state_dir).await?;
        let node = start_node(bin_dir, demo_dir).await?;
        Ok(Self {
            bin_dir: bin_dir.to_owned(),
            demo_dir: demo_dir.clone(),
            controller,
            node,
        })
    }

    /// Kills the node agent by SIGKILL, without a chance to clean up.
    ///
    /// # Errors
    /// It exited before.
    pub(crate) async fn kill_node(&mut self) -> Result<(), Trouble> {
        let killed = self.node.child.kill().await;
        killed.map_err(|e| Trouble::own("kill belay-node", e))
    }

    /// Starts the node agent again, as its DaemonSet would.
    ///
    /// # Errors
    /// It is not ready in time.
    pub(crate) async fn start_node_again(&mut self) -> Result<(), Trouble> {
        self.node = start_node(&self.bin_dir, &self.demo_dir).await?;
        Ok(())
    }

    /// Waits until one of them exits, which is an error, and reports how.
    pub(crate) async fn ended(&mut self) -> Trouble {
        tokio::select! {
            trouble = self.controller.ended() => trouble,
            trouble = self.node.ended() => trouble,
        }
    }

    /// Stops both and waits for their exit.
    ///
    /// # Errors
    /// One of them does not exit in time, or fails.
    pub(crate) async fn stop(&mut self) -> Result<(), Trouble> {
        self.node.stop().await?;
        self.controller.stop().await
    }

    /// The last lines of both logs, for a failure report.
    pub(crate) fn log_tails(demo_dir: &DemoDir) -> String {
        BINARIES
            .iter()
            .map(|name| {
                let log = std::fs::read_to_string(demo_dir.log(name)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n  ");
                format!("last lines of {name}'s log:\n  {last}\n")
            })
            .collect()
    }
}

async fn start_node(bin_dir: &Path, demo_dir: &DemoDir) -> Result<Agent, Trouble> {
    let volumes = demo_dir.volumes();
    let loop_dir: [&Path; 2] = [Path::new("--loop-dir"), &volumes];
    Agent::start(NODE, bin_dir, demo_dir, &loop_dir).await
}

impl Agent {
    async fn start(
        name: &'static str,
        bin_dir: &Path,
        demo_dir: &DemoDir,
        directory: &[&Path; 2],
    ) -> Result<Self, Trouble> {
        let log = demo_dir.log(name);
        // Appended to, since the node agent is started more than once.
        let opened = File::options().append(true).create(true).open(&log);
        let out = opened.map_err(|e| Trouble::own(log.display(), e))?;
        let http = scrape::free_port()?;
        let binary = bin_dir.join(name);
        let child = Command::new(&binary)
            .arg("--endpoint")
            .arg(demo_dir.socket(name))
            .args(["--node-id", NODE_ID, "--http-endpoint", &http.to_string()])
            .args(directory)
            // Only the flags count: no BELAY_* or CSI_ENDPOINT from the caller.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Trouble::own(binary.display(), e))?;
        let mut agent = Self { name, child, http };
        agent.wait_until_ready(&demo_dir.socket(name)).await?;
        Ok(agent)
    }

    async fn wait_until_ready(&mut self, socket: &Path) -> Result<(), Trouble> {
        let answers = async {
            let mut pause = FIRST_PAUSE;
            while !is_ready(socket).await {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        };
        let limited = tokio::time::timeout(START_MAX, answers);
        let name = self.name;
        tokio::select! {
            ready = limited => ready.map_err(|_elapsed| {
                let seconds = START_MAX.as_secs();
                Trouble::Ended(format!("{name} was not ready within {seconds} s"))
            }),
            trouble = self.ended() => Err(trouble),
        }
    }

    async fn ended(&mut self) -> Trouble {
        match self.child.wait().await {
            Ok(status) => Trouble::Ended(format!("{} exited: {status}", self.name)),
            Err(error) => Trouble::own(self.name, error),
        }
    }

    async fn stop(&mut self) -> Result<(), Trouble> {
        let status = self
            .terminate()
            .await
            .map_err(|e| Trouble::own(self.name, e))?;
        if status.success() {
            return Ok(());
        }
        Err(Trouble::Ended(format!(
            "{} failed on SIGTERM: {status}",
            self.name
        )))
    }

    async fn terminate(&mut self) -> io::Result<ExitStatus> {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            rustix::process::kill_process(pid, Signal::TERM)?;
        }
        let late = |_elapsed| io::Error::other("does not exit on SIGTERM");
        tokio::time::timeout(STOP_MAX, self.child.wait())
            .await
            .map_err(late)?
    }

    /// Its process id in the demo's namespace; `None` once it has exited.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }
}

/// Whether the driver answers that it is ready. The specification: absent means ready.
async fn is_ready(socket: &Path) -> bool {
    let Ok(channel) = dial(socket).await else {
        return false;
    };
    let probe = IdentityClient::new(channel).probe(ProbeRequest {}).await;
    probe.is_ok_and(|answer| answer.into_inner().ready.unwrap_or(true))
}
