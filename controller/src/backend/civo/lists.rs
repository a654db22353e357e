//! The list of all volumes, which Civo has no search for. Calls that begin while a list is read
//! share the next one, so a hundred volumes at once need few lists.

use super::client::Client;
use super::wire::CivoVolume;
use belay_server::call::Failure;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// How long a list delays the next one. A slow answer is then waited for by its own callers only.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// How long the pages after the first one come from its list.
const PAGES_AGE_MAX: Duration = Duration::from_secs(30);

/// Sorted by ID.
type List = Arc<Vec<CivoVolume>>;
type Listed = Result<List, Failure>;

/// The lists of an account in a region.
pub(super) struct Lists(Arc<Shared>);

struct Shared {
    client: Arc<Client>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<oneshot::Sender<Listed>>,
    /// Whether a task serves them.
    runs: bool,
    /// A list of which not all pages have been read, and when it was.
    paged: Option<(Instant, List)>,
}

impl Lists {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shared { client, state }))
    }

    /// All volumes. The request begins after this call does.
    pub(super) async fn all(&self) -> Listed {
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

    /// At most `limit` volumes after that ID, and whether there are more.
    pub(super) async fn page(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<CivoVolume>, bool), Failure> {
        let recent = match after {
            Some(_) => self.0.state().recent(),
            None => None,
        };
        let list = match recent {
            Some(list) => list,
            None => self.all().await?,
        };
        let begin = after.map_or(0, |after| {
            list.partition_point(|volume| volume.id.as_str() <= after)
        });
        let rest = &list[begin..];
        let page = rest.iter().take(limit).cloned().collect();
        let has_more = rest.len() > limit;
        let mut state = self.0.state();
        match (has_more, after) {
            (true, None) => state.paged = Some((Instant::now(), Arc::clone(&list))),
            (true, Some(_)) => {}
            (false, _) => state.paged = None,
        }
        Ok((page, has_more))
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

    async fn round(self: Arc<Self>, callers: Vec<oneshot::Sender<Listed>>) {
        let listed = self.client.volumes().await.map(|mut list| {
            list.sort_unstable_by(|a, b| a.id.cmp(&b.id));
            list.dedup_by(|a, b| a.id == b.id);
            Arc::new(list)
        });
        for caller in callers {
            // It may have stopped waiting.
            drop(caller.send(listed.clone()));
        }
    }
}

impl State {
    /// The callers of the next round; none if the task ends.
    fn callers(&mut self) -> Option<Vec<oneshot::Sender<Listed>>> {
        self.waiting.retain(|caller| !caller.is_closed());
        self.runs = !self.waiting.is_empty();
        self.runs.then(|| std::mem::take(&mut self.waiting))
    }

    fn recent(&mut self) -> Option<List> {
        self.paged
            .take_if(|(read, _)| read.elapsed() >= PAGES_AGE_MAX);
        self.paged.as_ref().map(|(_, list)| Arc::clone(list))
    }
}
