//! Searches by name. Searches for volumes by name. Searches that begin while an earlier search is
//! running are combined: if the list of all volumes is short, one request for that list serves all
//! waiting searches. A hundred concurrent searches therefore need few requests.

use super::client::Client;
use super::wire::CinderVolume;
use crate::backend::cloud::rounds::{Caller, Reads, Rounds, answer_all};
use belay_server::lock::Lock;
use belay_server::request::Name;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Number of list entries that Cinder returns in the time of one search. A list and a search are
/// one request each, and Cinder needs milliseconds for each entry.
const ENTRIES_FOR_A_SEARCH: usize = 32;
/// Maximum number of entries of a page; the default of `osapi_max_limit`.
const ENTRIES_MAX: usize = 1000;
/// Time for which the minimum length of the list of all volumes is remembered.
const LENGTH_AGE_MAX: Duration = Duration::from_secs(300);

/// The searches of an account.
pub(super) type Searches = Rounds<Search>;

/// Searches for the volumes with a name.
pub(super) struct Search {
    client: Arc<Client>,
    /// A number of volumes which the list of all volumes exceeded, and the time of that list
    /// request.
    longer_than: Lock<Option<(usize, Instant)>>,
}

impl Reads for Search {
    type Of = Name;
    type Output = Vec<CinderVolume>;

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

    /// Starts a search for each caller. The next round does not wait for these searches.
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
