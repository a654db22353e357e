//! Waits until the storage has completed its work on volumes or snapshots: one poller for all
//! waiters of a kind, so that one list can serve many of one account. No other code in the
//! controller waits for the storage.

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

/// Longest interval between two polls of an item.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Maximum number of concurrent reads of single items.
const GETS_MAX: usize = 8;
/// Entries of a page; the default of Cinder's `osapi_max_limit`.
const PAGE_ENTRIES: usize = 1000;
/// How long the number of pages is cached.
const PAGES_AGE_MAX: Duration = Duration::from_secs(300);
/// Between the begins of two lists, in times of the answer's time: a slow storage is asked less.
const LIST_REST: u32 = 4;

type Id<S> = <<S as Store>::Item as Item>::Id;

/// The poller of a store.
pub(super) struct Poller<S: Store>(Arc<Shared<S>>);

struct Shared<S: Store> {
    store: S,
    /// First interval between two polls of an item, and the shortest one between two lists.
    interval: Duration,
    state: Lock<State<S>>,
    /// A waiter may be due earlier than those before it.
    added: Notify,
    gets: Semaphore,
}

struct State<S: Store> {
    /// By the secrets of the calls: one account may not see the items of another.
    accounts: BTreeMap<Secrets, Account<S>>,
    /// Whether a task serves the waiters.
    runs: bool,
}

struct Account<S: Store> {
    waiters: Vec<Waiter<S>>,
    /// Minimum number of pages of a list of all items, and when it was counted.
    pages: (usize, Instant),
    /// The next list is not read earlier.
    next_list: Instant,
    /// How long the last first page took.
    page_took: Duration,
}

struct Waiter<S: Store> {
    id: Id<S>,
    secrets: Secrets,
    since: Instant,
    /// When the last poll began, and when the next one is due.
    polled: Instant,
    due: Instant,
    outage: Outage,
    last: LastSeen,
    answer: oneshot::Sender<Result<Option<S::Item>, Failure>>,
}

/// What the storage was doing when a waiter's item was last read.
#[derive(Clone, Default)]
pub(super) struct LastSeen(Arc<Lock<Option<String>>>);

impl LastSeen {
    /// In the storage's word; none if it has not been read.
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

    /// The item once it is ready or failed; none if it was deleted. The first poll follows after an
    /// interval. A caller may stop waiting, and has what was seen `last`.
    ///
    /// # Errors
    /// Those of reading the item, if they persist; with an unknown state.
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

/// Whether the storage is changing it.
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

    /// Runs rounds until there is no waiter. A round without a response does not delay the next.
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
        // The semaphore is never closed.
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

    /// Serves waiters from a list while it has fewer pages than there are waiters. Items that the
    /// list does not have are read one by one: no list says that an item is missing. Several pages
    /// are read one after another and may miss one, and a list may leave volumes out, such as those
    /// of another project.
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
        // From poll to poll, so that a caller waits no longer for a change that is complete. A slow
        // storage rests at least as long as it has worked.
        let rest = waiter.polled.elapsed().min(interval);
        waiter.due = (waiter.polled + interval).max(Instant::now() + rest);
        self.add(waiter);
    }
}

/// Their polls begin.
fn polled<S: Store>(waiters: impl Iterator<Item = Waiter<S>>, now: Instant) -> Vec<Waiter<S>> {
    let polled = now;
    waiters.map(|waiter| Waiter { polled, ..waiter }).collect()
}

impl<S: Store> State<S> {
    fn account(&mut self, secrets: &Secrets) -> &mut Account<S> {
        self.accounts.entry(secrets.clone()).or_default()
    }

    /// When the next round is; none if the task ends, because no caller waits.
    fn due(&mut self) -> Option<Instant> {
        self.accounts.retain(|_, account| account.is_needed());
        let due = self.accounts.values().filter_map(Account::due).min();
        self.runs = due.is_some();
        due
    }

    /// A round for each account with a waiter that is due.
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
    /// Drops the waiters whose callers have stopped waiting.
    fn is_needed(&mut self) -> bool {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        !self.waiters.is_empty() || self.pages.1.elapsed() < PAGES_AGE_MAX
    }

    /// Whether a list serves all waiters with fewer requests.
    fn lists(&self) -> bool {
        self.waiters.len() > self.pages()
    }

    /// When the next round is; none if no caller waits.
    fn due(&self) -> Option<Instant> {
        let due = self.waiters.iter().map(|waiter| waiter.due).min()?;
        match self.lists() {
            true => Some(due.max(self.next_list)),
            false => Some(due),
        }
    }

    /// The waiters to serve now: those whose turn it is, or all if that takes a list. None if it is
    /// too early.
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
