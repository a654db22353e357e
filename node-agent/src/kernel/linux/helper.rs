//! Starts a helper process: this program again, with one call to make. Its standard input is a
//! socket, through which it gets the call and returns the answer, with the descriptor of a mount.
//!
//! The process is never waited for by a thread: the runtime watches the socket and the process.
//! docs/adr/0031 has the reasons.

mod child;

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use belay_server::call::{Failure, Kind};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType,
};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use tokio::io::unix::AsyncFd;

use super::files::MountId;
use super::{Linux, files, mount, mountinfo, statmount};
use crate::kernel::{
    Answered, Error, Helper, MountSource, RemoteCall, Remotes, Result, decode_answer, encode_call,
};

pub(crate) use child::serve;

/// The argument that makes this program a helper process. It is none of the flags.
const ARGUMENT: &str = "--helper-process";
/// This program, also if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// The longest answer, in bytes: twice the longest message.
const ANSWER_BYTES_MAX: usize = 8192;

/// Whether the arguments of this process make it a helper process, see [`crate::help`].
#[must_use]
pub fn is_helper() -> bool {
    std::env::args_os().nth(1).as_deref() == Some(OsStr::new(ARGUMENT))
}

/// A running helper process.
#[derive(Debug)]
pub(crate) struct Running {
    /// Until it is closed.
    socket: Option<AsyncFd<OwnedFd>>,
    process: Process,
}

/// A child, which is killed and reaped if an error or the end of the runtime leaves it behind.
#[derive(Debug)]
struct Process(AsyncFd<OwnedFd>);

fn start(call: &RemoteCall) -> rustix::io::Result<Running> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let mut command = Command::new(PROGRAM);
    command
        .arg(ARGUMENT)
        .env_clear()
        .process_group(0)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().map_err(errno_of)?;
    entrust(child, ours, call, |pid| {
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
    })
}

/// Sends the call to the child, once the child can be killed and reaped without waiting for it.
fn entrust(
    mut child: Child,
    ours: OwnedFd,
    call: &RemoteCall,
    open: impl FnOnce(Pid) -> rustix::io::Result<OwnedFd>,
) -> rustix::io::Result<Running> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let entrusted = || {
        // Not reaped yet, so the number cannot have been reused.
        let process = watched(open(pid.ok_or(Errno::SRCH)?)?)?;
        let socket = watched(ours)?;
        // It fits into the socket, which is empty.
        rustix::net::send(socket.get_ref(), &encode_call(call), SendFlags::NOSIGNAL)?;
        Ok((process, socket))
    };
    match entrusted() {
        Ok((process, socket)) => Ok(Running {
            process: Process(process),
            socket: Some(socket),
        }),
        Err(errno) => {
            // Without a call, it waits for no server. Both fail only if it was reaped.
            child.kill().ok();
            child.wait().ok();
            Err(errno)
        }
    }
}

/// Call it in the runtime.
fn watched(fd: OwnedFd) -> rustix::io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its replacement is unsafe because of types that may return another descriptor \
                  later; an OwnedFd does not"
    )]
    AsyncFd::new(fd).map_err(errno_of)
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Helper<OwnedFd> for Running {
    async fn answer(&mut self) -> Answered<OwnedFd> {
        let Some(socket) = &self.socket else {
            return Err(broken(&"its connection is closed"));
        };
        loop {
            let mut ready = match socket.readable().await {
                Ok(ready) => ready,
                Err(error) => return Err(broken(&error)),
            };
            match ready.try_io(|socket| Ok(receive(socket.get_ref())?)) {
                Ok(Ok(Some(answered))) => return answered,
                Ok(Ok(None)) => return Err(broken(&"it has ended without an answer")),
                Ok(Err(error)) => return Err(broken(&error)),
                Err(_would_block) => {}
            }
        }
    }

    fn close(&mut self) {
        self.socket = None;
    }

    fn kill(&self) {
        self.process.kill();
    }

    async fn exited(&mut self) {
        // An error of the runtime, which is being shut down: the drop kills the process.
        drop(self.process.0.readable().await);
        self.process.reap();
    }
}

/// The answer, if there is one; EAGAIN before it comes.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<Answered<OwnedFd>>> {
    let mut bytes = [0; ANSWER_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let into = &mut [io::IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, into, &mut beside, flags)?;
    let mut mount = None;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            mount = fds.last();
        }
    }
    Ok(decode_answer(&bytes[..received.bytes], mount))
}

fn broken(why: &dyn std::fmt::Display) -> Failure {
    let message = format!("the helper process that asked the server has failed: {why}");
    Failure::new(Kind::System, message)
}

impl Process {
    fn kill(&self) {
        // It may have exited.
        rustix::process::pidfd_send_signal(self.0.get_ref(), Signal::KILL).ok();
    }

    /// Without waiting: what has not exited is reaped by process 1, after this one has exited.
    fn reap(&self) {
        let id = WaitId::PidFd(self.0.get_ref().as_fd());
        rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.reap();
    }
}

impl Remotes for Linux {
    type Helper = Running;

    fn start_helper(&self, call: &RemoteCall) -> Result<Running> {
        start(call).map_err(|errno| Error::new("exec", "of a helper process", errno))
    }

    fn addresses(&self, host: &str) -> std::result::Result<Vec<IpAddr>, String> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let found = (host, 0).to_socket_addrs();
        let found = found.map_err(|error| format!("host {host}: {error}"))?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.map(|address| address.ip()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match addresses.is_empty() {
            true => Err(format!("host {host}: it has no address")),
            false => Ok(addresses),
        }
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

    #[tokio::test]
    async fn a_child_that_cannot_be_watched_is_reaped_and_gets_no_call() {
        let flags = SocketFlags::CLOEXEC;
        let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = rustix::net::socketpair(unix, packets, flags, None).unwrap();
        let seen = theirs.try_clone().unwrap();
        // It never reads.
        let mut command = Command::new("/bin/sleep");
        command.arg("600").stdin(Stdio::from(theirs));
        let child = command.spawn().unwrap();
        let process = format!("/proc/{}", child.id());
        let call = RemoteCall::Usage("/nothing".into());
        let failed = entrust(child, ours, &call, |_| Err(Errno::MFILE));
        assert_eq!(failed.err(), Some(Errno::MFILE));
        assert!(
            !Path::new(&process).exists(),
            "running, or dead and not reaped"
        );
        // Waits: what another test forks has copies of our end until it executes its program.
        let received = rustix::net::recv(&seen, &mut [0; 64][..], RecvFlags::empty());
        assert_eq!(received.map(|(bytes, _)| bytes), Ok(0), "it has a call");
    }

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
