//! What an agent shows for people and Prometheus, by one plain request a page.

use std::net::{SocketAddr, TcpStream};

use belay_bed::patience::until;
use belay_bed::scrape::get;

use super::process::Process;

/// The pages of an agent that was started with `--http-endpoint 127.0.0.1:0`.
pub(crate) struct Pages(SocketAddr);

impl Pages {
    /// Found by what the agent says of them in its log.
    pub(crate) fn of(agent: &Process) -> Self {
        let mut address = None;
        until("the pages are shown", || {
            let words = agent.last_words();
            let mut lines = words.lines().rev();
            let shown = lines.find(|line| line.contains("showing /metrics"));
            let found = shown.and_then(|line| line.split_once("address="));
            address = found.map(|(_, address)| address.parse().expect("an address"));
            // The line may be of an agent before this one, whose log it continues.
            address.is_some_and(|address: SocketAddr| TcpStream::connect(address).is_ok())
        });
        Pages(address.expect("it was shown"))
    }

    /// Where they are.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0
    }

    /// The status of /healthz, and what it says.
    pub(crate) fn health(&self) -> (u16, String) {
        self.told("/healthz")
    }

    /// The status of /livez, and what it says.
    pub(crate) fn life(&self) -> (u16, String) {
        self.told("/livez")
    }

    fn told(&self, path: &str) -> (u16, String) {
        get(self.0, path).expect("an answer")
    }

    /// The value of the metric that begins so.
    pub(crate) fn metric(&self, begin: &str) -> Option<String> {
        let (_, page) = self.told("/metrics");
        let line = page.lines().find(|line| line.starts_with(begin))?;
        line.rsplit(' ').next().map(str::to_owned)
    }
}
