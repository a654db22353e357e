//! A simulated machine: the mounts, loop devices, file contents and descriptors, as far as the
//! agent relies on them. Tests can make any call fail, or crash the process after any call. The
//! machine's state survives the process, as on a real machine. Knows nothing of volumes.
//!
//! Tests that run on both kernels compare each call with the real kernel.

mod answers;
mod btrfs;
mod clean;
mod cryptsetup;
mod disks;
mod ext4;
mod files;
mod filesystems;
mod fsck;
mod kept;
mod leftovers;
mod loops;
mod mappers;
pub(crate) mod meanwhile;
pub(crate) mod mkfs;
mod mounts;
mod on_disk;
mod outside;
mod picture;
mod power;
mod processes;
mod servers;
mod sparse;
mod state;
mod superblock;
mod trouble;
mod verbs;
mod xfs;

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use belay_server::lock::Lock;
use rustix::io::Errno;
use tokio::sync::watch;

use super::{Error, Result};
use answers::{CACHED, failure, may_wait};
pub(crate) use btrfs::Features;
pub(crate) use disks::Plug;
pub(crate) use fsck::Damage;
pub(crate) use picture::{Holds, Picture};
pub(crate) use power::Survives;
pub(crate) use servers::Server;
use state::State;
pub(crate) use trouble::{Confusion, Trouble};

/// The simulated machine, which outlives the processes that run on it.
#[derive(Clone)]
pub(crate) struct Machine {
    state: Arc<Lock<State>>,
    /// Notified when a call begins to hang, and when it may continue.
    turn: Arc<Condvar>,
    /// The number of calls that have begun to hang so far.
    hung: watch::Sender<u64>,
}

/// A process on the machine, and its view of the kernel.
pub(crate) struct Fake {
    machine: Machine,
    process: u64,
}

/// A descriptor, closed on drop.
pub(crate) struct Fd {
    machine: Machine,
    id: u64,
}

/// A fault, which is injected once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call with this number, counted from 1, fails and does nothing.
    Fail(usize, &'static str),
    /// The call with this number and all later calls fail, so the rollback fails as well.
    FailFrom(usize, &'static str),
    /// The call with this number is done, and then the process is killed.
    Die(usize),
    /// The first call with this name is done, and then the process is killed.
    DieAfter(&'static str),
    /// The call with this number is done, and then the machine loses its power.
    PowerOff(usize, Survives),
    /// The call with this number waits for [`Machine::let_go`], as if its disk were hung.
    Hang(usize),
    /// The first call that may wait for a disk, from this number on, waits for [`Machine::let_go`].
    HangWaiting(usize),
    /// The call with this number hangs as in [`Fault::Hang`], and then fails.
    HangAndFail(usize, &'static str),
}

/// The panic payload that unwinds a thread whose process was killed.
pub(crate) struct Died;

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The call's name in the manual.
    pub(crate) name: &'static str,
    /// The object of the call, such as a path.
    pub(crate) object: String,
}

impl Machine {
    /// Returns a machine with `/`, `/dev` and no loop device.
    pub(crate) fn new() -> Machine {
        Machine {
            state: Arc::new(Lock::new(State::new())),
            turn: Arc::default(),
            hung: watch::Sender::new(0),
        }
    }

    /// Starts a new process.
    pub(crate) fn process(&self) -> Fake {
        let process = self.state.lock().number();
        Fake {
            machine: self.clone(),
            process,
        }
    }

    /// Starts counting calls, and injects this fault.
    pub(crate) fn begin(&self, fault: Option<Fault>) {
        let mut state = self.state.lock();
        state.calls.clear();
        state.fault = fault;
    }

    /// Returns the calls since [`Machine::begin`], and ends the injection of faults.
    pub(crate) fn end(&self) -> Vec<Call> {
        let mut state = self.state.lock();
        state.fault = None;
        std::mem::take(&mut state.calls)
    }

    /// Waits until a call hangs.
    pub(crate) fn wait_for_hang(&self) {
        let mut state = self.state.lock();
        while state.hung.is_empty() {
            state = self.wait(state);
        }
    }

    /// Lets all hung calls continue.
    pub(crate) fn let_go(&self) {
        self.state.lock().hung.clear();
        self.turn.notify_all();
    }

    /// Returns a receiver that changes whenever a call begins to hang.
    pub(crate) fn hangs(&self) -> watch::Receiver<u64> {
        self.hung.subscribe()
    }

    /// Returns the call that began to hang last.
    pub(crate) fn hung_last(&self) -> u64 {
        *self.state.lock().hung.last().unwrap()
    }

    /// Lets this call continue.
    pub(crate) fn let_go_of(&self, call: u64) {
        self.state.lock().hung.remove(&call);
        self.turn.notify_all();
    }

    /// Sets whether a call of this thread that may wait for a disk is a violation.
    pub(crate) fn never_wait_here(&self, never: bool) {
        self.state.lock().never_waits = never.then(|| std::thread::current().id());
    }

    /// Sets the wall clock, in seconds since 1970.
    pub(crate) fn set_clock(&self, realtime: u64) {
        self.state.lock().realtime = realtime;
    }

    /// Stops propagating mounts out of this namespace, which belongs to process 1, or to a
    /// container.
    pub(crate) fn keep_mounts_here(&self, is_beside_first_process: bool) {
        let mut state = self.state.lock();
        state.is_beside_first_process = is_beside_first_process;
        let host = state.mounts.values_mut().next();
        host.unwrap().group = None;
    }

    /// Kills all processes. Each thread of these processes ends at its next call, or during its
    /// hung call.
    pub(crate) fn kill_all(&self) {
        let mut state = self.state.lock();
        state.dead_up_to = state.number();
        let is_dead = |description: &state::Description| description.owner.is_some();
        for description in state.open.values_mut().filter(|d| is_dead(d)) {
            description.owner = None;
        }
        state.clean();
        drop(state);
        self.turn.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.turn
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the violations of the simulation's rules, regardless of the calls' results.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }
}

impl Fake {
    /// Performs one call, unless the fault makes it fail; unwinds after the call at which the
    /// process is killed. `answers` lists the errnos that are results of this call rather than
    /// failures.
    fn call<T>(
        &self,
        name: &'static str,
        object: impl Into<String>,
        answers: &[Errno],
        act: impl FnOnce(&mut State) -> std::result::Result<T, Errno>,
    ) -> Result<T> {
        let mut state = self.machine.state.lock();
        self.live(&state);
        let object = object.into();
        let is_silent = name != CACHED && state.is_silent(Path::new(&object));
        let may_wait = may_wait(name, &object) || is_silent;
        if may_wait && state.never_waits == Some(std::thread::current().id()) {
            let broken = format!("{name} of {object} was made where no call may wait");
            state.violations.push(broken);
        }
        let number = state.calls.len() + 1;
        state.before_call(number);
        state.calls.push(Call {
            name,
            object: object.clone(),
        });
        let refused = |errno| Err(Error::new(name, object, errno));
        match state.fault {
            Some(Fault::Fail(at, errno)) if at == number => {
                state.fault = None;
                if let Some(errno) = failure(errno, answers) {
                    return refused(errno);
                }
            }
            Some(Fault::FailFrom(at, errno)) if at <= number => {
                if let Some(errno) = failure(errno, answers) {
                    return refused(errno);
                }
            }
            Some(Fault::Hang(at)) if at == number => state = self.hang(state),
            Some(Fault::HangAndFail(at, errno)) if at == number => {
                drop(self.hang(state));
                return refused(failure(errno, &[]).unwrap());
            }
            Some(Fault::HangWaiting(at)) if at <= number && may_wait => {
                state = self.hang(state);
            }
            _ => {}
        }
        if state.servers.hang && may_wait {
            state = self.hang(state);
        }
        let is_last = match state.fault {
            Some(Fault::Die(at)) => at == number,
            Some(Fault::DieAfter(call)) => call == name,
            Some(Fault::PowerOff(at, _)) => at == number,
            _ => false,
        };
        if is_last {
            let fault = state.fault.take();
            drop(act(&mut state));
            match fault {
                Some(Fault::PowerOff(_, survives)) => state.power_off(survives),
                _ => self.kill(&mut state),
            }
            drop(state);
            self.machine.turn.notify_all();
            resume_unwind(Box::new(Died));
        }
        act(&mut state).or_else(refused)
    }

    fn hang<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.fault = None;
        let call = state.number();
        state.hung.insert(call);
        self.machine.turn.notify_all();
        self.machine.hung.send_modify(|count| *count += 1);
        while state.hung.contains(&call) && !self.is_dead(&state) {
            state = self.machine.wait(state);
        }
        state.hung.remove(&call);
        self.live(&state);
        state
    }

    /// Unwinds the thread if its process was killed.
    fn live(&self, state: &State) {
        if self.is_dead(state) {
            resume_unwind(Box::new(Died));
        }
    }

    fn is_dead(&self, state: &State) -> bool {
        state.dead_up_to >= self.process || state.servers.killed.contains(&self.process)
    }

    /// Makes a call that opens a new descriptor for this process.
    fn open_by(
        &self,
        name: &'static str,
        object: impl Into<String>,
        answers: &[Errno],
        act: impl FnOnce(&mut State) -> std::result::Result<state::Object, Errno>,
    ) -> Result<Fd> {
        let object = object.into();
        let described = object.clone();
        let id = self.call(name, object, answers, |state| {
            let object = act(state)?;
            Ok(state.describe(self.process, object, described))
        })?;
        Ok(Fd {
            machine: self.machine.clone(),
            id,
        })
    }

    fn kill(&self, state: &mut State) {
        for description in state.open.values_mut() {
            if description.owner == Some(self.process) {
                description.owner = None;
            }
        }
        state.clean();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill(&mut self.machine.state.lock());
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let mut state = self.machine.state.lock();
        if let Some(description) = state.open.get_mut(&self.id) {
            description.owner = None;
            state.clean();
        }
    }
}
