//! Finds the volume or snapshot with a name in storage that accepts several objects with one name.
//! Several controllers, or lost responses, may have created more than one object with the name. ADR
//! 12 proves that the algorithm is correct.
//!
//! A call returns an item (a volume or snapshot) only if the item is claimed, that is, marked in
//! the storage. A call claims an item only if the item is ready and the call has found no claimed
//! item. Two calls can claim different items if both search before either claims. Therefore no call
//! returns an item until all claims that began after an early search must be visible, or until no
//! other item can be claimed. After that, all controllers see the same claims, and return the
//! claimed item with the lowest ID.

use super::Outage;
use super::item::{Contested, Item, NameRequest, Store};
use super::poller::{Poller, is_at_work};
use super::view::View;
use super::{at_rest, delete, end_of_patience, settled_by};
use belay_server::call::{Certainty, Failure, Kind};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// A call may claim an item (mark it in the storage) only within this time after the start of a
/// search that found no claim.
const CLAIM_WITHIN: Duration = Duration::from_secs(10);

/// The time after a search without claims until every claim that follows this search is visible, or
/// has failed. The request that claims an item has a deadline of 10 s; the rest of this time is for
/// delays in the storage.
const CLAIMS_SETTLE: Duration = Duration::from_secs(30);

/// Maximum duration of the search for an item whose create request got no response.
const DOUBT_MAX: Duration = Duration::from_secs(60);

/// The pause between two searches.
const INTERVAL: Duration = Duration::from_secs(1);

type Id<S> = <<S as Store>::Item as Item>::Id;

/// A call that searches for the item with a name.
pub(super) struct Contest<'a, S: Store, C> {
    poller: &'a Poller<S>,
    contested: C,
    bid: NameRequest<'a>,
    /// The item that this call created.
    own: Option<S::Item>,
    /// The failure after which it is unknown whether this call created an item, and the time of
    /// this failure.
    doubt: Option<(Instant, Failure)>,
    /// The time at which this call first saw a claim.
    claim_seen: Option<Instant>,
    outage: Outage,
    /// The sequence of failed requests to claim an item. A successful search does not end this
    /// outage.
    outage_of_claims: Outage,
}

impl<'a, S, C> Contest<'a, S, C>
where
    S: Store,
    C: Contested<Item = S::Item>,
{
    pub(super) fn new(poller: &'a Poller<S>, contested: C, bid: NameRequest<'a>) -> Self {
        Self {
            poller,
            contested,
            bid,
            own: None,
            doubt: None,
            claim_seen: None,
            outage: Outage::default(),
            outage_of_claims: Outage::default(),
        }
    }

    /// Returns the item with the name, ready or failed. `make` creates the item; it runs at most
    /// once, after a search that found no item.
    ///
    /// # Errors
    /// Returns the reason why the new item failed, as rolled back. Returns errors of `make`
    /// unchanged if nothing was created, and all other errors with an unknown state.
    pub(super) async fn run(
        mut self,
        make: impl Future<Output = Result<S::Item, Failure>>,
    ) -> Result<S::Item, Failure> {
        let mut make = Some(make);
        loop {
            let Some(view) = self.search().await? else {
                continue;
            };
            if let Some(leader) = view.leader() {
                let decided = *self.claim_seen.get_or_insert_with(Instant::now) + CLAIMS_SETTLE;
                if view.asked >= decided || !view.has_rival(leader.id()) {
                    view.report_surplus(self.bid.name, leader.id());
                    return self.answer(leader.clone()).await;
                }
                sleep_until(decided).await;
            } else if let Some(item) = view.claimable() {
                self.claim(&view, item.id()).await?;
            } else if let Some(item) = view.pending() {
                self.settled(item.id()).await?;
            } else if let Some(failed) = view.failed_unmarked() {
                return self.answer(failed.clone()).await;
            } else if view.failed(self.bid.attempt).next().is_some() {
                return Err(self.clear(&view).await?);
            } else if let Some(make) = make.take() {
                self.create(make).await?;
            } else {
                self.doubt_ends()?;
                sleep(INTERVAL).await;
            }
        }
    }

    /// Searches for the items with the name; returns `None` if the search failed and must be
    /// repeated.
    async fn search(&mut self) -> Result<Option<View<S::Item>>, Failure> {
        let view = match View::take(&self.contested, self.bid).await {
            Ok(view) => view,
            // This call has changed nothing yet, so the caller can repeat the call.
            Err(failure) if self.is_new() => return Err(failure),
            Err(failure) => {
                self.outage.bear(failure)?;
                sleep(INTERVAL).await;
                return Ok(None);
            }
        };
        self.outage.end();
        if self.doubt.is_some()
            && let Some(own) = view.created_by(self.bid.attempt)
        {
            self.doubt = None;
            self.own = Some(own.clone());
        }
        if view.leader().is_none() {
            self.claim_seen = None;
        }
        Ok(Some(view))
    }

    async fn settled(&self, id: &Id<S>) -> Result<Option<S::Item>, Failure> {
        settled_by(self.poller, end_of_patience(), id, self.bid.secrets).await
    }

    /// Whether this call has neither created an item nor found a claimed item.
    fn is_new(&self) -> bool {
        self.own.is_none() && self.doubt.is_none() && self.claim_seen.is_none()
    }

    async fn claim(&mut self, view: &View<S::Item>, id: &Id<S>) -> Result<(), Failure> {
        if view.asked.elapsed() >= CLAIM_WITHIN {
            return Ok(());
        }
        let claim = self.contested.claim(id.clone(), self.bid.secrets.clone());
        match claim.await {
            Ok(()) => {
                self.outage_of_claims.end();
                return Ok(());
            }
            Err(failure) if failure.kind == Kind::NotFound => {}
            Err(failure) => self.outage_of_claims.bear(failure)?,
        }
        sleep(INTERVAL).await;
        Ok(())
    }

    async fn create(
        &mut self,
        make: impl Future<Output = Result<S::Item, Failure>>,
    ) -> Result<(), Failure> {
        match make.await {
            Ok(own) => {
                let is_at_work = is_at_work(&own);
                let id = own.id().clone();
                self.own = Some(own);
                if is_at_work {
                    self.settled(&id).await?;
                }
                Ok(())
            }
            Err(failure) if failure.certainty == Certainty::MayBeRunning => {
                self.doubt = Some((Instant::now(), failure));
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns an error unless the item that this call may have created can still appear. This
    /// function is called if a search finds no item although this call has tried to create an item.
    fn doubt_ends(&self) -> Result<(), Failure> {
        match &self.doubt {
            Some((since, _)) if since.elapsed() < DOUBT_MAX => Ok(()),
            Some((_, failure)) => Err(failure.clone()),
            None => {
                let (name, what) = (self.bid.name.as_str(), S::Item::WHAT);
                let message = format!("name {name:?}: the new {what} is gone; repeat the call");
                Err(Failure::busy(message).may_be_running())
            }
        }
    }

    async fn answer(self, leader: S::Item) -> Result<S::Item, Failure> {
        let mut leader = at_rest(self.poller, leader, self.bid.secrets).await?;
        match self.own.as_ref() {
            Some(own) if own.id() == leader.id() => leader.complete(own),
            Some(own) => self.withdraw(own).await,
            None => {}
        }
        Ok(leader)
    }

    /// Deletes an item that this call created but does not return. No other call returns the
    /// deleted item, because a different claimed item has a lower ID.
    async fn withdraw(&self, own: &S::Item) {
        let withdrawn = async {
            let is_gone = is_at_work(own) && self.settled(own.id()).await?.is_none();
            if is_gone {
                Ok(())
            } else {
                delete(self.poller, own.id(), self.bid).await
            }
        };
        if let Err(failure) = withdrawn.await {
            tracing::warn!(
                name = self.bid.name.as_str(),
                surplus = %own.id(),
                %failure,
                "a surplus {} of that name may remain",
                S::Item::WHAT
            );
        }
    }

    /// Deletes the failed items that this process created; returns the reason why the first of them
    /// failed.
    async fn clear(&self, view: &View<S::Item>) -> Result<Failure, Failure> {
        let mut first = None;
        for (id, why) in view.failed(self.bid.attempt) {
            delete(self.poller, id, self.bid).await?;
            first.get_or_insert_with(|| why.clone().rolled_back());
        }
        first.ok_or_else(|| Failure::bug("no failed item"))
    }
}
