//! The volumes of one name as one search found them, classified by their marks.

use super::poller::is_at_work;
use crate::backend::{Attempt, Backend, Mark, Order, Phase, Volume};
use belay_server::call::Failure;
use belay_server::request::{Name, VolumeId};
use tokio::time::Instant;

/// The result of a search.
pub(super) struct View {
    /// When the search started.
    pub(super) asked: Instant,
    /// By id.
    volumes: Vec<Volume>,
}

impl View {
    /// # Errors
    /// Those of the backend; until a search answers, a volume of the name may exist.
    pub(super) async fn take(backend: &dyn Backend, order: &Order) -> Result<Self, Failure> {
        let asked = Instant::now();
        let found = backend
            .find(order.name.clone(), order.secrets.clone())
            .await;
        let mut volumes = found.map_err(Failure::may_be_running)?;
        volumes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(Self { asked, volumes })
    }

    /// The volume of the name: the claimed one with the lowest ID.
    pub(super) fn leader(&self) -> Option<&Volume> {
        self.with(|volume| volume.mark == Mark::Claimed).next()
    }

    /// The volume to claim where none is claimed. One without marks comes first: another program
    /// may have returned it.
    pub(super) fn claimable(&self) -> Option<&Volume> {
        self.claimables()
            .min_by_key(|volume| (volume.mark != Mark::None, &volume.id))
    }

    /// Whether another volume can be claimed.
    pub(super) fn has_rival(&self, leader: &VolumeId) -> bool {
        self.claimables().any(|volume| volume.id != *leader)
    }

    /// A volume that the storage is changing and that may become claimable.
    pub(super) fn pending(&self) -> Option<&Volume> {
        self.with(|volume| match (&volume.mark, &volume.phase) {
            (Mark::None, _) => is_at_work(volume),
            (Mark::Open(_), phase) => is_at_work(volume) && *phase != Phase::Deleting,
            (Mark::Claimed | Mark::Copied, _) => false,
        })
        .next()
    }

    /// A failed volume that another program may have returned.
    pub(super) fn failed_unmarked(&self) -> Option<&Volume> {
        let is_failed = |volume: &Volume| matches!(volume.phase, Phase::Failed(_));
        self.with(move |volume| volume.mark == Mark::None && is_failed(volume))
            .next()
    }

    /// The only volume of that attempt; none if there are several, since one may be a copy.
    pub(super) fn created_by(&self, attempt: &Attempt) -> Option<&Volume> {
        let mut own = self.with(|volume| volume.mark == Mark::Open(attempt.clone()));
        let only = own.next()?;
        own.next().is_none().then_some(only)
    }

    /// Failed volumes of all attempts of that process, and why they failed. None was ever returned:
    /// only a claimed volume is.
    pub(super) fn failed(&self, attempt: &Attempt) -> impl Iterator<Item = (&VolumeId, &Failure)> {
        self.volumes.iter().filter_map(|volume| match volume {
            Volume {
                id,
                mark: Mark::Open(other),
                phase: Phase::Failed(why),
                ..
            } if other.is_of_the_process_of(attempt) => Some((id, why)),
            _ => None,
        })
    }

    /// Logs volumes that are not used because another one of that name is.
    pub(super) fn report_surplus(&self, name: &Name, used: &VolumeId) {
        let surplus = self.with(|volume| volume.id != *used);
        let surplus: Vec<_> = surplus.map(|volume| volume.id.as_str()).collect();
        if !surplus.is_empty() {
            tracing::warn!(
                name = name.as_str(),
                used = used.as_str(),
                ?surplus,
                "several volumes have the same name; an operator may delete the surplus ones"
            );
        }
    }

    fn with(&self, is_meant: impl Fn(&Volume) -> bool) -> impl Iterator<Item = &Volume> {
        self.volumes.iter().filter(move |volume| is_meant(volume))
    }

    fn claimables(&self) -> impl Iterator<Item = &Volume> {
        self.with(|volume| {
            matches!(volume.mark, Mark::None | Mark::Open(_)) && volume.phase == Phase::Ready
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: &str, mark: Mark, phase: Phase) -> Volume {
        Volume {
            id: VolumeId::new(id).unwrap(),
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
        }
    }

    fn view(volumes: Vec<Volume>) -> View {
        let asked = Instant::now();
        View { asked, volumes }
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
        assert_eq!(id(view(seen.volumes[..3].to_vec()).leader()), None);
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
        seen.volumes.pop();
        assert_eq!(id(seen.claimable()), Some("5"));
        assert!(seen.has_rival(&VolumeId::new("5").unwrap()));
        seen.volumes.pop();
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
        seen.volumes.push(volume("2", open(), Phase::Ready));
        assert_eq!(id(seen.created_by(&attempt)), None, "one may be a copy");
    }
}
