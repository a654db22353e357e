//! The helper process itself: drops the privileges that its call does not need, makes the call, and
//! returns the answer. It ends with the agent, at whatever it is doing.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;

use super::Linux;
use crate::kernel::linux::{privileges, sandbox};
use crate::kernel::{Answer, Answered, RemoteCall, decode_call, encode_answer};

/// The longest call, in bytes: a map of 4 KiB and flags of 4 KiB.
const CALL_BYTES_MAX: usize = 32 << 10;

/// Makes the one call of this process by `work`. Only for a process that [`super::is_helper`].
pub(crate) fn serve(work: impl FnOnce(&Linux, &RemoteCall) -> Answered<OwnedFd>) -> ExitCode {
    let socket = io::stdin();
    match serve_on(socket.as_fd(), work) {
        Ok(()) => ExitCode::SUCCESS,
        // The agent sees the end of the process.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve_on(
    socket: BorrowedFd<'_>,
    work: impl FnOnce(&Linux, &RemoteCall) -> Answered<OwnedFd>,
) -> rustix::io::Result<()> {
    end_with_agent(socket)?;
    let mut bytes = vec![0; CALL_BYTES_MAX];
    let (length, _) = retry_on_intr(|| rustix::net::recv(socket, &mut bytes, RecvFlags::empty()))?;
    let call = decode_call(&bytes[..length]).ok_or(Errno::INVAL)?;
    let mounts = !matches!(call, RemoteCall::Usage(_));
    privileges::keep_for_helper(mounts)?;
    sandbox::narrow()?;
    let answered = work(&Linux::for_helper(), &call);
    send(socket, &answered)?;
    // The mount is held until the agent has attached it, or does not want it.
    let mut end = [0; 1];
    retry_on_intr(|| rustix::net::recv(socket, &mut end[..], RecvFlags::empty()))?;
    Ok(())
}

/// SIGKILL when the agent's thread exits. ESRCH if it has exited already: then no signal comes.
fn end_with_agent(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut watched = [PollFd::new(&socket, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&Timespec::default()))?;
    match watched[0].revents().contains(PollFlags::HUP) {
        true => Err(Errno::SRCH),
        false => Ok(()),
    }
}

fn send(socket: BorrowedFd<'_>, answered: &Answered<OwnedFd>) -> rustix::io::Result<()> {
    let bytes = encode_answer(answered);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds;
    if let Ok(Answer::Mount(mount)) = answered {
        fds = [mount.as_fd()];
        if !beside.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
    }
    let bytes = [IoSlice::new(&bytes)];
    let send = || rustix::net::sendmsg(socket, &bytes, &mut beside, SendFlags::NOSIGNAL);
    retry_on_intr(send).map(drop)
}
