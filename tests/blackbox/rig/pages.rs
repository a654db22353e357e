//! The HTTP pages of an agent, read with a plain request per page.

use std::net::{SocketAddr, TcpStream};

use belay_bed::patience::until;
use belay_bed::scrape::get;

use super::process::Process;

/// The pages of an agent that was started with `--http-endpoint 127.0.0.1:0`.
pub(crate) struct Pages(SocketAddr);

impl Pages {
    /// Reads the address of the pages from the agent's log.
    pub(crate) fn of(agent: &Process) -> Self {
        let mut address = None;
        until("the pages are served", || {
            let words = agent.last_words();
            let mut lines = words.lines().rev();
            let shown = lines.find(|line| line.contains("serving /metrics"));
            let found = shown.and_then(|line| line.split_once("address="));
            address = found.map(|(_, address)| address.parse().expect("an address"));
            // The line may come from a previous agent, whose log the new agent continues.
            address.is_some_and(|address: SocketAddr| TcpStream::connect(address).is_ok())
        });
        Pages(address.expect("it was shown"))
    }

    /// Returns the address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0
    }

    /// Returns status and body of /healthz.
    pub(crate) fn health(&self) -> (u16, String) {
        self.reported("/healthz")
    }

    /// Returns status and body of /livez.
    pub(crate) fn life(&self) -> (u16, String) {
        self.reported("/livez")
    }

    fn reported(&self, path: &str) -> (u16, String) {
        get(self.0, path).expect("an answer")
    }

    /// Returns the value of the metric that starts with this text.
    pub(crate) fn metric(&self, begin: &str) -> Option<String> {
        let (_, page) = self.reported("/metrics");
        let line = page.lines().find(|line| line.starts_with(begin))?;
        line.rsplit(' ').next().map(str::to_owned)
    }
}
