//! Restricts the users that may call. The user of the client's process (SO_PEERCRED, unix(7)) is
//! checked once per connection. The mode of the socket file already excludes other users; this
//! check also works if an operator has widened the mode, or if a process may ignore it
//! (`CAP_DAC_OVERRIDE`).

use std::io;
use std::sync::Arc;
use tokio::net::unix::UCred;
use tonic::Status;

/// The users whose processes may call.
#[derive(Clone, Debug, Default)]
pub enum Callers {
    /// All processes that may open the socket.
    #[default]
    Any,
    /// Processes of users with one of these IDs, as this process sees them: the users of another
    /// user namespace have the overflow ID (user_namespaces(7)), usually 65534.
    Users(Arc<[u32]>),
}

impl Callers {
    /// Allows root, the user of this process, and the users with these IDs.
    #[must_use]
    pub fn root_and(more: &[u32]) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self::Users([0, own].iter().chain(more).copied().collect())
    }

    /// Returns the reason why the process at the other end of a connection may not call, or `None`
    /// if it may call.
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

/// Marks the requests of a process that may not call; contains the reason. The marked requests
/// reach no service, but are logged and counted like other calls.
#[derive(Clone, Debug)]
pub(crate) struct ForbiddenCaller(Arc<str>);

impl ForbiddenCaller {
    /// Returns the status with which all calls of the process fail.
    pub(super) fn status(&self) -> Status {
        Status::permission_denied(&*self.0)
    }
}
