//! The volumes or snapshots with one name that one search has found, classified by their marks in
//! the storage.

use super::item::{Contested, Item, NameRequest};
use super::poller::is_at_work;
use crate::backend::{Attempt, Mark, Phase};
use belay_server::call::Failure;
use belay_server::request::Name;
use tokio::time::Instant;

/// The result of one search for the items with a name.
pub(super) struct View<I> {
    /// The start of the search.
    pub(super) asked: Instant,
    /// The items, ordered by ID.
    items: Vec<I>,
}

impl<I: Item> View<I> {
    /// Searches for the items.
    ///
    /// # Errors
    /// Returns the errors of the backend. Until a search succeeds, an item with the name may exist.
    pub(super) async fn take(
        contested: &impl Contested<Item = I>,
        bid: NameRequest<'_>,
    ) -> Result<Self, Failure> {
        let asked = Instant::now();
        let found = contested.find(bid.name.clone(), bid.secrets.clone()).await;
        let mut items = found.map_err(Failure::may_be_running)?;
        items.sort_by(|a, b| a.id().cmp(b.id()));
        Ok(Self { asked, items })
    }

    /// Returns the item to which the name refers: the claimed item with the lowest ID.
    pub(super) fn leader(&self) -> Option<&I> {
        self.with(|item| *item.mark() == Mark::Claimed).next()
    }

    /// Returns the item to claim if no item is claimed. An unmarked item takes precedence, since a
    /// different program may already have returned the item to a caller.
    pub(super) fn claimable(&self) -> Option<&I> {
        self.claimables()
            .min_by_key(|item| (*item.mark() != Mark::None, item.id()))
    }

    /// Whether any further item can be claimed.
    pub(super) fn has_rival(&self, leader: &I::Id) -> bool {
        self.claimables().any(|item| item.id() != leader)
    }

    /// Returns an item that the storage is changing and that may become claimable.
    pub(super) fn pending(&self) -> Option<&I> {
        self.with(|item| match (item.mark(), item.phase()) {
            (Mark::None, _) => is_at_work(item),
            (Mark::Open(_), phase) => is_at_work(item) && *phase != Phase::Deleting,
            (Mark::Claimed | Mark::Copied, _) => false,
        })
        .next()
    }

    /// Returns a failed item without a mark. A different program may have returned this item to a
    /// caller.
    pub(super) fn failed_unmarked(&self) -> Option<&I> {
        let is_failed = |item: &I| matches!(item.phase(), Phase::Failed(_));
        self.with(move |item| *item.mark() == Mark::None && is_failed(item))
            .next()
    }

    /// Returns the only item whose mark identifies this attempt to create an item. Returns `None`
    /// if no item has the mark, or if several items have it, since one of them may be a copy.
    pub(super) fn created_by(&self, attempt: &Attempt) -> Option<&I> {
        let mut own = self.with(|item| *item.mark() == Mark::Open(attempt.clone()));
        let only = own.next()?;
        own.next().is_none().then_some(only)
    }

    /// Returns the failed items that the process of `attempt` created in any attempt, each with its
    /// failure. These items were never returned to a caller, since only claimed items are returned.
    pub(super) fn failed(&self, attempt: &Attempt) -> impl Iterator<Item = (&I::Id, &Failure)> {
        self.items
            .iter()
            .filter_map(|item| match (item.mark(), item.phase()) {
                (Mark::Open(other), Phase::Failed(why)) if other.is_of_the_process_of(attempt) => {
                    Some((item.id(), why))
                }
                _ => None,
            })
    }

    /// Logs the items that are not used because a different item with the same name is used.
    pub(super) fn report_surplus(&self, name: &Name, used: &I::Id) {
        let surplus = self.with(|item| item.id() != used);
        let surplus: Vec<_> = surplus.map(|item| item.id().to_string()).collect();
        if !surplus.is_empty() {
            tracing::warn!(
                name = name.as_str(),
                %used,
                ?surplus,
                "several {}s have the same name; an operator may delete the surplus ones",
                I::WHAT
            );
        }
    }

    fn with(&self, is_meant: impl Fn(&I) -> bool) -> impl Iterator<Item = &I> {
        self.items.iter().filter(move |item| is_meant(item))
    }

    fn claimables(&self) -> impl Iterator<Item = &I> {
        self.with(|item| {
            matches!(item.mark(), Mark::None | Mark::Open(_)) && *item.phase() == Phase::Ready
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Volume;
    use belay_server::request::VolumeId;

    fn volume(id: &str, mark: Mark, phase: Phase) -> Volume {
        Volume {
            id: VolumeId::new(id).unwrap(),
            name: None,
            phase,
            mark,
            bytes: 1,
            usage: None,
            context: None,
            nodes: Vec::new(),
            source: None,
            place: None,
            content: None,
            attached_at: None,
            shares: false,
            parameters: Vec::new(),
        }
    }

    fn view(items: Vec<Volume>) -> View<Volume> {
        let asked = Instant::now();
        View { asked, items }
    }

    fn open() -> Mark {
        Mark::Open(Attempt::new(1, 1))
    }

    fn failed() -> Phase {
        Phase::Failed(Failure::quota("no room"))
    }

    fn id(volume: Option<&Volume>) -> Option<&str> {
        volume.map(|volume| volume.id.as_str())
    }

    #[test]
    fn only_a_claim_makes_a_leader_and_the_lowest_of_them_whatever_its_phase() {
        let seen = view(vec![
            volume("1", open(), Phase::Ready),
            volume("2", Mark::Copied, Phase::Ready),
            volume("3", Mark::None, Phase::Ready),
            volume("4", Mark::Claimed, failed()),
            volume("5", Mark::Claimed, Phase::Ready),
        ]);
        assert_eq!(id(seen.leader()), Some("4"));
        assert!(seen.has_rival(&VolumeId::new("4").unwrap()));
        assert_eq!(id(view(seen.items[..3].to_vec()).leader()), None);
    }

    #[test]
    fn a_ready_volume_is_claimed_first_of_all_one_without_marks() {
        let mut seen = view(vec![
            volume("1", Mark::Copied, Phase::Ready),
            volume("2", open(), Phase::Busy("creating".to_owned())),
            volume("3", open(), failed()),
            volume("4", open(), Phase::Deleting),
            volume("5", open(), Phase::Ready),
            volume("6", open(), Phase::Ready),
            volume("7", Mark::None, Phase::Ready),
        ]);
        assert_eq!(id(seen.claimable()), Some("7"));
        seen.items.pop();
        assert_eq!(id(seen.claimable()), Some("5"));
        assert!(seen.has_rival(&VolumeId::new("5").unwrap()));
        seen.items.pop();
        assert!(!seen.has_rival(&VolumeId::new("5").unwrap()));
        assert_eq!(id(seen.pending()), Some("2"));
    }

    #[test]
    fn a_failed_volume_is_of_this_process_by_its_attempt_and_of_another_program_without_marks() {
        let other = Mark::Open(Attempt::new(2, 1));
        let seen = view(vec![
            volume("1", Mark::None, failed()),
            volume("2", open(), failed()),
            volume("3", other, failed()),
            volume("4", Mark::Claimed, failed()),
        ]);
        let failed: Vec<_> = seen
            .failed(&Attempt::new(1, 7))
            .map(|(id, _)| id.as_str())
            .collect();
        assert_eq!(failed, ["2"]);
        assert_eq!(id(seen.failed_unmarked()), Some("1"));
    }

    #[test]
    fn an_attempt_has_created_a_volume_if_no_other_has_its_mark() {
        let attempt = Attempt::new(1, 1);
        let mut seen = view(vec![volume("1", open(), Phase::Ready)]);
        assert_eq!(id(seen.created_by(&attempt)), Some("1"));
        assert_eq!(id(seen.created_by(&Attempt::new(1, 2))), None);
        seen.items.push(volume("2", open(), Phase::Ready));
        assert_eq!(id(seen.created_by(&attempt)), None, "one may be a copy");
    }
}
