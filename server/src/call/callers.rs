//! Restricts which users may call the server. The user of the client's process (SO_PEERCRED,
//! unix(7)) is checked once per connection. The mode of the socket file already excludes other
//! users. This check also protects the server if an operator has widened the mode, or if a process
//! may ignore the mode (`CAP_DAC_OVERRIDE`).

use std::io;
use std::sync::Arc;
use tokio::net::unix::UCred;
use tonic::Status;

/// The users whose processes may call the server.
#[derive(Clone, Debug, Default)]
pub enum Callers {
    /// All processes that may open the socket.
    #[default]
    Any,
    /// Processes of users with one of these IDs in the user namespace of this process. Users of a
    /// different user namespace have the overflow ID (user_namespaces(7)), usually 65534.
    Users(Arc<[u32]>),
}

impl Callers {
    /// Allows root, the user of this process, and the users with these IDs.
    #[must_use]
    pub fn root_and(more: &[u32]) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self::Users([0, own].iter().chain(more).copied().collect())
    }

    /// Returns the reason why the process at the other end of a connection may not call the server,
    /// or `None` if the process may call it.
    pub(crate) fn stranger(
        &self,
        peer: impl FnOnce() -> io::Result<UCred>,
    ) -> Option<ForbiddenCaller> {
        let Self::Users(users) = self else {
            return None;
        };
        let who = match peer() {
            Ok(peer) if users.contains(&peer.uid()) => return None,
            Ok(peer) => {
                let pid = peer.pid().unwrap_or_default();
                format!("process {pid} of user {}", peer.uid())
            }
            Err(error) => format!("a process whose user is unknown (SO_PEERCRED: {error})"),
        };
        let why = format!("{who} may not call; only root may, and the users of --allow-uid");
        Some(ForbiddenCaller(why.into()))
    }
}

/// The mark on requests of a process that may not call the server; contains the reason. A marked
/// request reaches no service, but is logged and counted like other calls.
#[derive(Clone, Debug)]
pub(crate) struct ForbiddenCaller(Arc<str>);

impl ForbiddenCaller {
    /// Returns the status with which all calls of a refused process fail.
    pub(super) fn status(&self) -> Status {
        Status::permission_denied(&*self.0)
    }
}
