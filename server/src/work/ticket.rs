//! What a job holds while it runs: the right to wait, and thereby to be given up while it has begun
//! nothing; and a window through which others see what it is at.

use crate::call::Failure;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Shows what a job is doing to whoever asks while it runs.
pub trait Watch: Send {
    /// The work at hand, as in "it has been in `unmount` for 40 s"; none = between two works.
    fn doing(&self) -> Option<&'static str>;
}

/// The job, as its own work has it. Clones are of the same job.
#[derive(Clone)]
pub struct Ticket(Arc<Shared>);

struct Shared {
    step: Mutex<Step>,
    given_up: Notify,
    window: Mutex<Option<Box<dyn Watch>>>,
}

#[derive(Debug)]
enum Step {
    /// Something is being done: it goes on to its end.
    Working,
    /// It waits for something with this name.
    Waiting(&'static str),
    /// It was given up while it waited, and why.
    GivenUp(Failure),
}

impl Ticket {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared {
            step: Mutex::new(Step::Working),
            given_up: Notify::new(),
            window: Mutex::new(None),
        }))
    }

    /// Waits for `event`, which people know by this `name`, and may be given up meanwhile: only
    /// where nothing was begun that the job would leave behind.
    ///
    /// # Errors
    /// Why the job was given up; should `event` have come all the same, it is dropped.
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
            (Step::GivenUp(why), _) => Err(why.clone()),
            (_, Some(came)) => {
                *step = Step::Working;
                Ok(came)
            }
            (_, None) => Err(Failure::bug("a job was woken that nobody had given up")),
        }
    }

    /// From now on others see through this one what the job is doing.
    pub fn watched_by(&self, window: impl Watch + 'static) {
        *lock(&self.0.window) = Some(Box::new(window));
    }

    /// Gives the job up if it only waits; `false` if it works. `why` is told what for.
    pub(super) fn give_up(&self, why: impl FnOnce(&str) -> Failure) -> bool {
        let mut step = self.step();
        let Step::Waiting(name) = *step else {
            return false;
        };
        *step = Step::GivenUp(why(name));
        self.0.given_up.notify_one();
        true
    }

    /// Whether both are of the same job.
    pub(super) fn is(&self, other: &Ticket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn doing(&self) -> Option<&'static str> {
        lock(&self.0.window).as_ref()?.doing()
    }

    /// What the job waits for, if it does.
    pub(super) fn awaited(&self) -> Option<&'static str> {
        match *self.step() {
            Step::Waiting(name) => Some(name),
            Step::Working | Step::GivenUp(_) => None,
        }
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        lock(&self.0.step)
    }
}

/// Both are whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("step", &*self.step())
            .field("doing", &self.doing())
            .finish_non_exhaustive()
    }
}
