//! The helper processes of the agent. Each helper process makes one call and returns the result,
//! including the descriptor of a mount. docs/adr/0031 has the reasons.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use belay_contract::nfs_mount;
use belay_server::call::Failure;
use belay_server::helper::{self, Child, Parent};
use rustix::io::Errno;

use super::files::MountId;
use super::{Linux, files, mount, mountinfo, privileges, sandbox, statmount};
use crate::kernel::{Answer, Answered, Error, Helper, MountSource, RemoteCall, Remotes, Result};

/// The argument that makes this program a helper process. `--help` does not list the argument.
const ARGUMENT: &str = "--helper-process";

/// If the arguments of this process make it a helper process, runs `work` for the call that the
/// agent sends. Otherwise returns `None`.
pub(crate) fn serve(
    work: impl FnOnce(&Linux, &RemoteCall) -> Answered<OwnedFd>,
) -> Option<ExitCode> {
    helper::serve(ARGUMENT, |parent| answer(parent, work))
}

fn answer(
    parent: &Parent,
    work: impl FnOnce(&Linux, &RemoteCall) -> Answered<OwnedFd>,
) -> io::Result<()> {
    let call = parent.receive()?;
    let mounts = !matches!(call, RemoteCall::Usage(_));
    privileges::keep_for_helper(mounts)?;
    sandbox::narrow()?;
    let (answer, mount): (Answered<()>, _) = match work(&Linux::for_helper(), &call) {
        Ok(Answer::Mount(mount)) => (Ok(Answer::Mount(())), Some(mount)),
        Ok(Answer::Unmounted) => (Ok(Answer::Unmounted), None),
        Ok(Answer::Usage(usage)) => (Ok(Answer::Usage(usage)), None),
        Err(failure) => (Err(failure), None),
    };
    let passed = mount.as_ref().map(OwnedFd::as_fd);
    parent.send(&answer, passed)?;
    // Hold the mount until the agent has attached the mount, or does not need it.
    parent.closed()
}

impl Helper<OwnedFd> for Child {
    async fn answer(&mut self) -> Answered<OwnedFd> {
        let (answer, mount): (Answered<()>, _) = self.receive().await?;
        Ok(match answer? {
            Answer::Mount(()) => {
                let none = || Failure::bug("a helper process has returned no mount");
                Answer::Mount(mount.ok_or_else(none)?)
            }
            Answer::Unmounted => Answer::Unmounted,
            Answer::Usage(usage) => Answer::Usage(usage),
        })
    }
}

impl Remotes for Linux {
    type Helper = Child;

    fn start_helper(&self, call: &RemoteCall) -> Result<Child> {
        Child::start("helper", helper::program(ARGUMENT), call).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new("exec", "of a helper process", errno)
        })
    }

    fn addresses(&self, host: &str) -> std::result::Result<Vec<IpAddr>, String> {
        nfs_mount::addresses(host).map_err(|error| format!("host {host}: {error}"))
    }

    fn umount_lazily(&self, path: &Path) -> Result<()> {
        mount::umount_lazily(path)
    }

    fn mode(&self, fd: &OwnedFd) -> Result<u32> {
        files::mode(fd)
    }

    fn chmod(&self, fd: &OwnedFd, mode: u32) -> Result<()> {
        files::chmod(fd, mode)
    }

    fn mount_source(&self, path: &Path) -> Result<Option<MountSource>> {
        if self.has_statmount {
            let failed = |errno| Error::at("statmount", path, errno);
            let shown = match files::mount_id(path, true)? {
                Some(MountId::Unique(id)) => statmount::source_of(id).map_err(failed)?,
                Some(MountId::Listed(_)) => None,
                None => return Ok(None),
            };
            if shown.is_some() {
                return Ok(shown);
            }
        }
        mountinfo::source(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_an_address_is_reported_in_the_words_of_the_resolver() {
        let unknown = Linux::for_helper().addresses("no-such-host.invalid");
        let message = unknown.unwrap_err();
        assert!(
            message.starts_with("host no-such-host.invalid: "),
            "{message}"
        );
        assert!(!message.contains("network)"), "{message}");
    }
}
