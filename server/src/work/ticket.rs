//! A ticket is a job's handle on itself. The job waits for events through the handle, and can be
//! cancelled while it waits. The handle also gives reports access to the job's current work.

use crate::call::Failure;
use crate::lock::Lock;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use tokio::sync::Notify;

/// Gives reports access to the current work of a running job.
pub trait Watch: Send {
    /// Returns the current work, or `None` between two steps.
    fn doing(&self) -> Option<Doing>;

    /// Asks the work to end with an error before it changes anything. Returns `false` if the work
    /// cannot end early.
    fn give_up(&self) -> bool {
        false
    }
}

/// The current work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doing {
    /// The name of the step, as in "now in `unmount`".
    pub step: &'static str,
    /// The amount of work, if known. While the completed part grows, the work is not hung.
    pub amount: Option<Amount>,
}

/// An amount of work, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The completed part, in bytes.
    pub done: u64,
    /// The total amount.
    pub total: u64,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.step)?;
        let Some(Amount { done, total }) = self.amount else {
            return Ok(());
        };
        let (shift, unit) = match total >> 30 {
            0..10 => (20, "MiB"),
            _ => (30, "GiB"),
        };
        write!(f, " ({} of {} {unit})", done >> shift, total >> shift)
    }
}

/// A job's handle on itself. Clones of a ticket belong to the same job.
#[derive(Clone)]
pub struct Ticket(Arc<Shared>);

struct Shared {
    step: Lock<Step>,
    given_up: Notify,
    window: Lock<Option<Box<dyn Watch>>>,
}

#[derive(Debug)]
enum Step {
    /// The job is working, and will run to its end.
    Working,
    /// The job is waiting for the event with this name.
    Waiting(&'static str),
    /// The job was cancelled while it was waiting. Contains the reason.
    Cancelled(Failure),
}

impl Ticket {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared {
            step: Lock::new(Step::Working),
            given_up: Notify::new(),
            window: Lock::new(None),
        }))
    }

    /// Waits for `event`, which messages call `name`. The job may be cancelled while it waits. A
    /// job must therefore call this function only before it has made lasting changes.
    ///
    /// # Errors
    /// Returns the reason if the job was cancelled. If the job is cancelled and `event` happens at
    /// the same time, the result of `event` is dropped.
    pub async fn wait<T>(
        &self,
        name: &'static str,
        event: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        *self.step() = Step::Waiting(name);
        let mut event = pin!(event);
        let came = tokio::select! {
            biased;
            came = &mut event => Some(came),
            () = self.0.given_up.notified() => None,
        };
        let mut step = self.step();
        match (&*step, came) {
            (Step::Cancelled(why), _) => Err(why.clone()),
            (_, Some(came)) => {
                *step = Step::Working;
                Ok(came)
            }
            (_, None) => Err(Failure::bug("a job was woken that was not cancelled")),
        }
    }

    /// Sets the `window` from which messages and reports read the current work of the job.
    pub fn watched_by(&self, window: impl Watch + 'static) {
        *self.0.window.lock() = Some(Box::new(window));
    }

    /// Cancels the job if it is only waiting; returns `false` if the job is working. `why` creates
    /// the reason from the name of the event.
    pub(super) fn cancel(&self, why: impl FnOnce(&str) -> Failure) -> bool {
        let mut step = self.step();
        let Step::Waiting(name) = *step else {
            return false;
        };
        *step = Step::Cancelled(why(name));
        self.0.given_up.notify_one();
        true
    }

    /// Whether both tickets belong to the same job.
    pub(super) fn is(&self, other: &Ticket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn doing(&self) -> Option<Doing> {
        self.0.window.lock().as_ref()?.doing()
    }

    pub(super) fn amount(&self) -> Option<Amount> {
        self.doing()?.amount
    }

    /// Asks the work to end with an error before it changes anything; returns `false` if the work
    /// cannot end early.
    pub(super) fn give_up(&self) -> bool {
        let window = self.0.window.lock();
        window.as_ref().is_some_and(|window| window.give_up())
    }

    /// Returns the name of the event for which the job is waiting, if any.
    pub(super) fn awaited(&self) -> Option<&'static str> {
        match *self.step() {
            Step::Waiting(name) => Some(name),
            Step::Working | Step::Cancelled(_) => None,
        }
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.0.step.lock()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("step", &*self.step())
            .field("doing", &self.doing())
            .finish_non_exhaustive()
    }
}
