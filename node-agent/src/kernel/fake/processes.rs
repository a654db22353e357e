//! Simulated helper processes. Each helper process is a thread of the test, and a process of the
//! simulated machine. The test provides the function that a helper runs, because the simulated
//! kernel has no network protocols.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, PoisonError};

use belay_server::call::{Failure, Kind};
use belay_server::helper::Process;
use belay_server::lock::Lock;
use rustix::io::Errno;
use tokio::sync::watch;

use super::answers::{NONE, NOT_MOUNTED, named, text};
use super::state::Object;
use super::{Fake, Fd, Machine};
use crate::kernel::{
    Answer, Answered, Helper, MountAttrs, MountSource, RemoteCall, Remotes, Result,
};

/// A running helper process, which is a thread.
pub(crate) struct Running {
    machine: Machine,
    process: u64,
    answered: Arc<Lock<Option<Answered<Fd>>>>,
    progress: watch::Receiver<Progress>,
    closed: Arc<Closed>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Progress {
    Working,
    Answered,
    Exited,
}

/// Whether the agent has closed its connection to the helper.
#[derive(Default)]
struct Closed(Lock<bool>, Condvar);

impl Closed {
    fn set(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut closed = self.0.lock();
        while !*closed {
            closed = self.1.wait(closed).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Helper<Fd> for Running {
    async fn answer(&mut self) -> Answered<Fd> {
        drop(self.progress.wait_for(|it| *it >= Progress::Answered).await);
        let mut answered = self.answered.lock();
        let none = || Failure::new(Kind::System, "the helper process has failed");
        answered.take().unwrap_or_else(|| Err(none()))
    }
}

impl Process for Running {
    fn close(&mut self) {
        self.closed.set();
    }

    fn kill(&mut self) {
        let mut state = self.machine.lock();
        if !state.servers.die_hard {
            state.servers.killed.insert(self.process);
        }
        drop(state);
        self.machine.turn.notify_all();
        self.closed.set();
    }

    async fn exited(&mut self) {
        drop(self.progress.wait_for(|it| *it == Progress::Exited).await);
    }
}

impl Drop for Running {
    /// Kills the helper, as SIGKILL does when the agent exits.
    fn drop(&mut self) {
        self.kill();
    }
}

impl Remotes for Fake {
    type Helper = Running;

    fn start_helper(&self, call: &RemoteCall) -> Result<Running> {
        let work = self.call("exec", "helper", NONE, |state| {
            state.servers.started += 1;
            state.servers.work.ok_or(Errno::NOENT)
        })?;
        let helper = self.machine.process();
        self.machine.lock().servers.running += 1;
        let (process, agent) = (helper.process, self.process);
        let (progress, seen) = watch::channel(Progress::Working);
        let (answered, closed) = (Arc::<Lock<_>>::default(), Arc::<Closed>::default());
        let (answer, end, call) = (Arc::clone(&answered), Arc::clone(&closed), call.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "the time of a test stands still while a helper works"
        )]
        let thread = tokio::task::spawn_blocking(move || {
            let made = catch_unwind(AssertUnwindSafe(|| work(&helper, &call)));
            // The helper also keeps the mount open until the connection is closed.
            let mut held = None;
            let made = made.ok().map(|made| match made {
                Ok(Answer::Mount(mount)) => {
                    let passed = helper.machine.pass(&mount, agent);
                    held = Some(mount);
                    Ok(Answer::Mount(passed))
                }
                other => other,
            });
            let has_answered = made.is_some();
            *answer.lock() = made;
            progress.send_replace(Progress::Answered);
            if has_answered {
                end.wait();
            }
            // If the agent has not received the answer, closing the connection also closes the
            // descriptor in the answer.
            drop(answer.lock().take());
            drop(held);
            helper.machine.lock().servers.running -= 1;
            drop(helper);
            progress.send_replace(Progress::Exited);
        });
        drop(thread);
        Ok(Running {
            machine: self.machine.clone(),
            process,
            answered,
            progress: seen,
            closed,
        })
    }

    fn addresses(&self, host: &str) -> std::result::Result<Vec<IpAddr>, String> {
        let found = self.call("getaddrinfo", host, NONE, |state| match host.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => state.servers.names.get(host).cloned().ok_or(Errno::NOENT),
        });
        found.map_err(|error| error.to_string())
    }

    fn umount_lazily(&self, path: &Path) -> Result<()> {
        self.call("umount2 MNT_DETACH", text(path), NOT_MOUNTED, |state| {
            let location = state.walk(path)?;
            let mount = state.mounts.get_mut(&location.mount).ok_or(Errno::INVAL)?;
            if mount.root != location.ino {
                return Err(Errno::INVAL);
            }
            mount.on = None;
            state.clean();
            Ok(())
        })
    }

    fn mode(&self, fd: &Fd) -> Result<u32> {
        self.call("fstat", named(fd), NONE, |state| {
            let (address, directory) = state.served(fd.id)?;
            let server = state.servers.by_address.get(&address).ok_or(Errno::STALE)?;
            server
                .directories
                .get(&directory)
                .copied()
                .ok_or(Errno::STALE)
        })
    }

    fn chmod(&self, fd: &Fd, mode: u32) -> Result<()> {
        self.call("fchmod", named(fd), NONE, |state| {
            let (address, directory) = state.served(fd.id)?;
            let mount = state.object(fd.id)?.location()?.mount;
            if state.mounts[&mount].attrs.contains(MountAttrs::READ_ONLY) {
                return Err(Errno::ROFS);
            }
            let server = state
                .servers
                .by_address
                .get_mut(&address)
                .ok_or(Errno::STALE)?;
            *server.directories.get_mut(&directory).ok_or(Errno::STALE)? = mode;
            Ok(())
        })
    }

    fn mount_source(&self, path: &Path) -> Result<Option<MountSource>> {
        self.call("statmount", text(path), NOT_MOUNTED, |state| {
            let location = state.walk(path)?;
            let mount = &state.mounts[&location.mount];
            if mount.root != location.ino {
                return Ok(None);
            }
            let superblock = &state.superblocks[&mount.superblock];
            let source = superblock.served.as_ref().map(|served| {
                let shown = state.servers.shown.get(&served.source);
                shown.unwrap_or(&served.source).clone()
            });
            Ok(Some(MountSource {
                fs_type: superblock.fs_type.clone(),
                source: source.unwrap_or_else(|| "none".to_owned()).into(),
                attrs: mount.attrs,
                superblock_read_only: superblock.read_only,
            }))
        })
    }
}

impl Machine {
    /// Passes a descriptor to another process, as through a socket.
    fn pass(&self, fd: &Fd, to: u64) -> Fd {
        let mut state = self.lock();
        let found = &state.open[&fd.id];
        let location = found.object.location().unwrap();
        let path = found.path.clone();
        let id = state.describe(to, Object::Name(location), path);
        Fd {
            machine: self.clone(),
            id,
        }
    }
}
