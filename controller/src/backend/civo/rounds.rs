//! Reads of a list that calls share. Calls that begin while a list is read share the next one, also
//! its failure, so a hundred calls at once need few lists.

use super::client::Client;
use belay_server::call::Failure;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a list delays the next one. A slow answer is then waited for by its own callers only.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// A list of the API.
pub(super) trait List: Clone + Send + Sync + 'static {
    /// Reads it.
    fn read(client: &Client) -> impl Future<Output = Result<Self, Failure>> + Send;
}

/// The reads of a list.
pub(super) struct Rounds<L>(Arc<Shared<L>>);

struct Shared<L> {
    client: Arc<Client>,
    state: Mutex<State<L>>,
}

struct State<L> {
    waiting: Vec<oneshot::Sender<Result<L, Failure>>>,
    /// Whether a task serves them.
    runs: bool,
}

impl<L: List> Rounds<L> {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let state = Mutex::new(State {
            waiting: Vec::new(),
            runs: false,
        });
        Self(Arc::new(Shared { client, state }))
    }

    /// The list. The request begins after this call does.
    pub(super) async fn next(&self) -> Result<L, Failure> {
        let (answer, listed) = oneshot::channel();
        {
            let mut state = self.0.state();
            state.waiting.push(answer);
            if !state.runs {
                state.runs = true;
                tokio::spawn(Arc::clone(&self.0).run());
            }
        }
        let lost = |_| Err(Failure::bug("a list ended without an answer"));
        listed.await.unwrap_or_else(lost)
    }
}

impl<L: List> Shared<L> {
    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rounds, until no call waits.
    async fn run(self: Arc<Self>) {
        loop {
            let Some(callers) = self.state().callers() else {
                return;
            };
            let round = tokio::spawn(Arc::clone(&self).round(callers));
            // What a round failed with, its callers know.
            drop(timeout(ROUND_MAX, round).await);
        }
    }

    async fn round(self: Arc<Self>, callers: Vec<oneshot::Sender<Result<L, Failure>>>) {
        let listed = L::read(&self.client).await;
        for caller in callers {
            // It may have stopped waiting.
            drop(caller.send(listed.clone()));
        }
    }
}

impl<L> State<L> {
    /// The callers of the next round; none if the task ends.
    fn callers(&mut self) -> Option<Vec<oneshot::Sender<Result<L, Failure>>>> {
        self.waiting.retain(|caller| !caller.is_closed());
        self.runs = !self.waiting.is_empty();
        self.runs.then(|| std::mem::take(&mut self.waiting))
    }
}
