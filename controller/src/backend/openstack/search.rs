//! Searches by name. Those that begin while another one runs are answered together, from one list
//! of all volumes, if that is short; so a hundred volumes at once need few searches.

use super::client::Client;
use super::wire::CinderVolume;
use crate::backend::cloud::rounds::{Caller, Reads, Rounds, answer_all};
use belay_server::lock::Lock;
use belay_server::request::Name;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Entries of a list that cost no more than one search: both are one request, and Cinder spends
/// milliseconds on each entry.
const ENTRIES_FOR_A_SEARCH: usize = 32;
/// Most entries of a page; the default of `osapi_max_limit`.
const ENTRIES_MAX: usize = 1000;
/// How long it is remembered that there are more volumes than that.
const LENGTH_AGE_MAX: Duration = Duration::from_secs(300);

/// The searches of an account.
pub(super) type Searches = Rounds<Search>;

/// Searches for the volumes of a name.
pub(super) struct Search {
    client: Arc<Client>,
    /// There are more volumes than that, and when that was learnt.
    longer_than: Lock<Option<(usize, Instant)>>,
}

impl Reads for Search {
    type Of = Name;
    type Found = Vec<CinderVolume>;

    async fn serve(self: Arc<Self>, mut callers: Vec<Caller<Self>>) {
        let limit = (callers.len() * ENTRIES_FOR_A_SEARCH).min(ENTRIES_MAX);
        if callers.len() == 1
            && let Some(caller) = callers.pop()
        {
            return self.one(caller).await;
        }
        if self.is_longer_than(limit) {
            return self.each(callers);
        }
        match self.client.volumes(None, limit).await {
            Ok((_, Some(_))) => {
                *self.longer_than.lock() = Some((limit, Instant::now()));
                self.each(callers);
            }
            Ok((volumes, None)) => {
                for caller in callers {
                    let found = volumes.iter().filter(|volume| volume.is_named(&caller.of));
                    let found = found.cloned().collect();
                    caller.answer(Ok(found));
                }
            }
            Err(failure) => answer_all(callers, &Err(failure)),
        }
    }
}

impl Search {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let longer_than = Lock::default();
        Self {
            client,
            longer_than,
        }
    }

    /// A search for each. The next round does not wait for them.
    fn each(self: &Arc<Self>, callers: Vec<Caller<Self>>) {
        for caller in callers {
            tokio::spawn(Arc::clone(self).one(caller));
        }
    }

    async fn one(self: Arc<Self>, caller: Caller<Self>) {
        let found = self.client.named(&caller.of).await;
        caller.answer(found);
    }

    fn is_longer_than(&self, limit: usize) -> bool {
        let known = *self.longer_than.lock();
        known.is_some_and(|(least, learnt)| least >= limit && learnt.elapsed() < LENGTH_AGE_MAX)
    }
}
