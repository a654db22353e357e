//! Waits until the storage has completed its work on volumes or snapshots. One poller serves all
//! waiters for volumes, and a second poller serves all waiters for snapshots, so that one list
//! suffices for many waiters of one account. No other code polls volumes or snapshots.

use super::Outage;
use super::item::{Item, Store};
use crate::backend::Phase;
use belay_server::call::Failure;
use belay_server::lock::Lock;
use belay_server::request::Secrets;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until};

/// The maximum interval between two polls of an item.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Maximum number of concurrent reads of single items.
const GETS_MAX: usize = 8;
/// The number of entries in a page; the default of Cinder's `osapi_max_limit`.
const PAGE_ENTRIES: usize = 1000;
/// The time for which the number of pages of a list is kept for later decisions.
const PAGES_AGE_MAX: Duration = Duration::from_secs(300);
/// The minimum time between the starts of two lists, as a multiple of the response time, so that
/// slow storage gets fewer requests.
const LIST_REST: u32 = 4;

type Id<S> = <<S as Store>::Item as Item>::Id;

/// Polls the items of a store for the callers that wait for them.
pub(super) struct Poller<S: Store>(Arc<Shared<S>>);

struct Shared<S: Store> {
    store: S,
    /// The first interval between two polls of an item, and the minimum interval between two lists.
    interval: Duration,
    state: Lock<State<S>>,
    /// Notified when a waiter is added, since the new waiter may be due earlier than the other
    /// waiters.
    added: Notify,
    gets: Semaphore,
}

struct State<S: Store> {
    /// The accounts, identified by the secrets of the calls. One account may not be allowed to list
    /// the items of a different account.
    accounts: BTreeMap<Secrets, Account<S>>,
    /// Whether a task serves the waiters.
    runs: bool,
}

struct Account<S: Store> {
    waiters: Vec<Waiter<S>>,
    /// Minimum number of pages of a list of all items, and the time at which it was determined.
    pages: (usize, Instant),
    /// The earliest time of the next list.
    next_list: Instant,
    /// The response time of the first page of the last list.
    page_took: Duration,
}

struct Waiter<S: Store> {
    id: Id<S>,
    secrets: Secrets,
    since: Instant,
    /// The start of the last poll.
    polled: Instant,
    /// The time of the next poll.
    due: Instant,
    outage: Outage,
    last: LastSeen,
    answer: oneshot::Sender<Result<Option<S::Item>, Failure>>,
}

/// The state of a waiter's item when it was last read.
#[derive(Clone, Default)]
pub(super) struct LastSeen(Arc<Lock<Option<String>>>);

impl LastSeen {
    /// Returns the storage's name for the item's state; `None` if the item has not been read.
    pub(super) fn word(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn set(&self, phase: &Phase) {
        let word = match phase {
            Phase::Busy(word) => word.clone(),
            Phase::Deleting => "deleting".to_owned(),
            Phase::Ready | Phase::Failed(_) => return,
        };
        *self.0.lock() = Some(word);
    }
}

enum Round<S: Store> {
    List(Vec<Waiter<S>>),
    Gets(Vec<Waiter<S>>),
}

impl<S: Store> Poller<S> {
    pub(super) fn new(store: S) -> Self {
        let state = State {
            accounts: BTreeMap::new(),
            runs: false,
        };
        Self(Arc::new(Shared {
            interval: store.backend().traits().poll_interval,
            store,
            state: Lock::new(state),
            added: Notify::new(),
            gets: Semaphore::new(GETS_MAX),
        }))
    }

    pub(super) fn store(&self) -> &S {
        &self.0.store
    }

    /// Returns the item once it is ready or failed; `None` if it was deleted. The first poll
    /// follows after an interval. When a caller stops waiting, `last` contains the last known state
    /// of the item.
    ///
    /// # Errors
    /// Returns persistent errors of reading the item, with an unknown state.
    pub(super) async fn settled(
        &self,
        id: &Id<S>,
        secrets: &Secrets,
        last: &LastSeen,
    ) -> Result<Option<S::Item>, Failure> {
        let (answer, settled) = oneshot::channel();
        let now = Instant::now();
        self.0.add(Waiter {
            id: id.clone(),
            secrets: secrets.clone(),
            since: now,
            polled: now,
            due: now + self.0.interval,
            outage: Outage::default(),
            last: last.clone(),
            answer,
        });
        let ended = || Err(Failure::bug("the poller has ended").may_be_running());
        settled.await.unwrap_or_else(|_| ended())
    }
}

/// Whether the storage is changing the item.
pub(super) fn is_at_work(item: &impl Item) -> bool {
    matches!(item.phase(), Phase::Busy(_) | Phase::Deleting)
}

impl<S: Store> Shared<S> {
    fn add(self: &Arc<Self>, waiter: Waiter<S>) {
        let mut state = self.state.lock();
        state.account(&waiter.secrets).waiters.push(waiter);
        match std::mem::replace(&mut state.runs, true) {
            true => self.added.notify_one(),
            false => drop(tokio::spawn(Arc::clone(self).run())),
        }
    }

    /// Starts rounds of polls until no caller waits. The next round does not wait for the responses
    /// of the previous round.
    async fn run(self: Arc<Self>) {
        loop {
            let due = self.state.lock().due();
            let Some(due) = due else { return };
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.added.notified() => continue,
            }
            let rounds = self.state.lock().rounds(Instant::now(), self.interval);
            for (secrets, round) in rounds {
                match round {
                    Round::List(waiters) => {
                        tokio::spawn(Arc::clone(&self).by_list(secrets, waiters));
                    }
                    Round::Gets(waiters) => self.by_gets(waiters),
                }
            }
        }
    }

    fn by_gets(self: &Arc<Self>, waiters: Vec<Waiter<S>>) {
        for waiter in waiters {
            tokio::spawn(Arc::clone(self).by_get(waiter));
        }
    }

    async fn by_get(self: Arc<Self>, waiter: Waiter<S>) {
        // `acquire` cannot fail, since the semaphore is never closed.
        let _permit = self.gets.acquire().await;
        match self
            .store
            .get(waiter.id.clone(), waiter.secrets.clone())
            .await
        {
            Ok(item) => self.seen(waiter, item),
            Err(failure) => self.failed(waiter, failure),
        }
    }

    /// Responds to waiters from a list of all items, and reads fewer pages than there are waiters.
    /// Then reads the items that were not in the list individually, since a list cannot prove that
    /// an item does not exist. An item may be missed between two pages, and a list may omit
    /// volumes, such as the volumes of a different project.
    async fn by_list(self: Arc<Self>, secrets: Secrets, waiters: Vec<Waiter<S>>) {
        let pages_max = waiters.len() - 1;
        let mut waiting: BTreeMap<Id<S>, Vec<Waiter<S>>> = BTreeMap::new();
        for waiter in waiters {
            waiting.entry(waiter.id.clone()).or_default().push(waiter);
        }
        let (mut after, mut pages, begun) = (None, 0, Instant::now());
        loop {
            let page = self.store.list(after, PAGE_ENTRIES, secrets.clone());
            let (items, next) = match page.await {
                Ok(page) => page,
                Err(failure) => {
                    for waiter in waiting.into_values().flatten() {
                        self.failed(waiter, failure.clone());
                    }
                    return;
                }
            };
            pages += 1;
            if pages == 1 {
                self.state.lock().account(&secrets).page_took = begun.elapsed();
            }
            for item in items {
                let waiters = waiting.remove(item.id());
                for waiter in waiters.into_iter().flatten() {
                    self.seen(waiter, Some(item.clone()));
                }
            }
            after = next;
            let is_last = after.is_none();
            if is_last || waiting.is_empty() || pages == pages_max {
                let least = if is_last { pages } else { pages + 1 };
                self.state.lock().account(&secrets).pages = (least, Instant::now());
                return self.by_gets(waiting.into_values().flatten().collect());
            }
        }
    }

    fn seen(self: &Arc<Self>, mut waiter: Waiter<S>, item: Option<S::Item>) {
        match item {
            Some(item) if is_at_work(&item) => {
                waiter.outage.end();
                waiter.last.set(item.phase());
                self.again(waiter);
            }
            // The caller may have stopped waiting.
            item => drop(waiter.answer.send(Ok(item))),
        }
    }

    fn failed(self: &Arc<Self>, mut waiter: Waiter<S>, failure: Failure) {
        match waiter.outage.bear(failure) {
            Ok(()) => self.again(waiter),
            Err(failure) => drop(waiter.answer.send(Err(failure))),
        }
    }

    fn again(self: &Arc<Self>, mut waiter: Waiter<S>) {
        let interval = (waiter.since.elapsed() / 4).clamp(self.interval, INTERVAL_MAX);
        // Measure the interval from the start of one poll to the start of the next, so that a slow
        // response does not delay the next poll. After a slow response, pause for as long as the
        // response took, up to the interval, so that slow storage gets fewer requests.
        let rest = waiter.polled.elapsed().min(interval);
        waiter.due = (waiter.polled + interval).max(Instant::now() + rest);
        self.add(waiter);
    }
}

/// Records `now` as the start of the last poll of these waiters.
fn polled<S: Store>(waiters: impl Iterator<Item = Waiter<S>>, now: Instant) -> Vec<Waiter<S>> {
    let polled = now;
    waiters.map(|waiter| Waiter { polled, ..waiter }).collect()
}

impl<S: Store> State<S> {
    fn account(&mut self, secrets: &Secrets) -> &mut Account<S> {
        self.accounts.entry(secrets.clone()).or_default()
    }

    /// Returns the time of the next round; `None` if no caller waits, so that the task ends.
    fn due(&mut self) -> Option<Instant> {
        self.accounts.retain(|_, account| account.is_needed());
        let due = self.accounts.values().filter_map(Account::due).min();
        self.runs = due.is_some();
        due
    }

    /// Returns a round for each account with a waiter that is due.
    fn rounds(&mut self, now: Instant, interval: Duration) -> Vec<(Secrets, Round<S>)> {
        self.accounts
            .iter_mut()
            .filter_map(|(secrets, account)| Some((secrets.clone(), account.round(now, interval)?)))
            .collect()
    }
}

impl<S: Store> Default for Account<S> {
    fn default() -> Self {
        Self {
            waiters: Vec::new(),
            pages: (1, Instant::now()),
            next_list: Instant::now(),
            page_took: Duration::ZERO,
        }
    }
}

impl<S: Store> Account<S> {
    /// Drops the waiters whose callers have stopped waiting. Returns whether the account still has
    /// a waiter.
    fn is_needed(&mut self) -> bool {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        !self.waiters.is_empty() || self.pages.1.elapsed() < PAGES_AGE_MAX
    }

    /// Whether a list needs fewer requests than a read for each waiter.
    fn lists(&self) -> bool {
        self.waiters.len() > self.pages()
    }

    /// Returns the time of the next round; `None` if no caller waits.
    fn due(&self) -> Option<Instant> {
        let due = self.waiters.iter().map(|waiter| waiter.due).min()?;
        match self.lists() {
            true => Some(due.max(self.next_list)),
            false => Some(due),
        }
    }

    /// Returns the waiters to serve now: those that are due, or all of them if a list serves them.
    /// Returns `None` if no round is due.
    fn round(&mut self, now: Instant, interval: Duration) -> Option<Round<S>> {
        if self.due()? > now {
            return None;
        }
        if !self.lists() {
            let due = self.waiters.extract_if(.., |waiter| waiter.due <= now);
            return Some(Round::Gets(polled(due, now)));
        }
        let rest = self.page_took * LIST_REST;
        self.next_list = now + rest.clamp(interval, INTERVAL_MAX);
        Some(Round::List(polled(self.waiters.drain(..), now)))
    }

    fn pages(&self) -> usize {
        let (pages, learnt) = self.pages;
        match learnt.elapsed() < PAGES_AGE_MAX {
            true => pages,
            false => 1,
        }
    }
}
