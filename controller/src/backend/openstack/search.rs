//! Searches by name. Those that begin while another one runs are answered together, from one list
//! of all volumes, if that is short; so a hundred volumes at once need few searches.

use super::client::Client;
use super::wire::CinderVolume;
use belay_server::call::Failure;
use belay_server::request::Name;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// Entries of a list that cost no more than one search: both are one request, and Cinder spends
/// milliseconds on each entry.
const ENTRIES_FOR_A_SEARCH: usize = 32;
/// Most entries of a page; the default of `osapi_max_limit`.
const ENTRIES_MAX: usize = 1000;
/// How long it is remembered that there are more volumes than that.
const LENGTH_AGE_MAX: Duration = Duration::from_secs(300);
/// How long a round delays the next one. A slow answer is then waited for by its own callers only.
const ROUND_MAX: Duration = Duration::from_secs(1);

type Found = Result<Vec<CinderVolume>, Failure>;

/// The searches of an account.
pub(super) struct Search(Arc<Shared>);

struct Shared {
    client: Arc<Client>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Caller>,
    /// Whether a task serves them.
    runs: bool,
    /// There are more volumes than that, and when that was learnt.
    longer_than: Option<(usize, Instant)>,
}

struct Caller {
    name: Name,
    answer: oneshot::Sender<Found>,
}

impl Search {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shared { client, state }))
    }

    /// The volumes of that name. The request begins after this call does.
    pub(super) async fn named(&self, name: Name) -> Found {
        let (answer, found) = oneshot::channel();
        {
            let mut state = self.0.state();
            state.waiting.push(Caller { name, answer });
            if !state.runs {
                state.runs = true;
                tokio::spawn(Arc::clone(&self.0).run());
            }
        }
        let lost = |_| Err(Failure::bug("a search ended without an answer"));
        found.await.unwrap_or_else(lost)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
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

    async fn round(self: Arc<Self>, mut callers: Vec<Caller>) {
        let limit = (callers.len() * ENTRIES_FOR_A_SEARCH).min(ENTRIES_MAX);
        if callers.len() == 1
            && let Some(caller) = callers.pop()
        {
            return self.one(caller).await;
        }
        if self.state().is_longer_than(limit) {
            return self.each(callers);
        }
        match self.client.volumes(None, limit).await {
            Ok((_, Some(_))) => {
                self.state().longer_than = Some((limit, Instant::now()));
                self.each(callers);
            }
            Ok((volumes, None)) => {
                for Caller { name, answer } in callers {
                    let found = volumes.iter().filter(|volume| volume.is_named(&name));
                    drop(answer.send(Ok(found.cloned().collect())));
                }
            }
            Err(failure) => {
                for caller in callers {
                    drop(caller.answer.send(Err(failure.clone())));
                }
            }
        }
    }

    /// A search for each. The next round does not wait for them.
    fn each(self: &Arc<Self>, callers: Vec<Caller>) {
        for caller in callers {
            tokio::spawn(Arc::clone(self).one(caller));
        }
    }

    async fn one(self: Arc<Self>, Caller { name, answer }: Caller) {
        // The caller may have stopped waiting.
        drop(answer.send(self.client.named(&name).await));
    }
}

impl State {
    /// The callers of the next round; none if the task ends.
    fn callers(&mut self) -> Option<Vec<Caller>> {
        self.waiting.retain(|caller| !caller.answer.is_closed());
        self.runs = !self.waiting.is_empty();
        self.runs.then(|| std::mem::take(&mut self.waiting))
    }

    fn is_longer_than(&self, limit: usize) -> bool {
        let known = self.longer_than;
        known.is_some_and(|(least, learnt)| least >= limit && learnt.elapsed() < LENGTH_AGE_MAX)
    }
}
