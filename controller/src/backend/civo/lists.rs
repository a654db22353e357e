//! The list of all volumes, since Civo has no search for volumes.

use super::client::Client;
use super::wire::CivoVolume;
use crate::backend::cloud::rounds::{Caller, Reads, Rounds, answer_all};
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The time for which the later pages of a list are taken from the list of its first page.
const PAGES_AGE_MAX: Duration = Duration::from_secs(30);

/// Volumes, sorted by ID.
type Volumes = Arc<Vec<CivoVolume>>;

/// Reads the list.
struct All(Arc<Client>);

impl All {
    async fn read(&self) -> Result<Volumes, Failure> {
        let mut list = self.0.volumes().await?;
        list.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        list.dedup_by(|a, b| a.id == b.id);
        Ok(Volumes::new(list))
    }
}

impl Reads for All {
    type Of = ();
    type Found = Volumes;

    async fn serve(self: Arc<Self>, callers: Vec<Caller<Self>>) {
        answer_all(callers, &self.read().await);
    }
}

/// The lists of an account in a region.
pub(super) struct Lists {
    rounds: Rounds<All>,
    /// A list of which not all pages have been read, and the time at which it was read.
    paged: Lock<Option<(Instant, Volumes)>>,
}

impl Lists {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self {
            rounds: Rounds::new(All(client)),
            paged: Lock::default(),
        }
    }

    /// Returns all volumes. The request begins after this call.
    pub(super) async fn all(&self) -> Result<Volumes, Failure> {
        self.rounds.next(()).await
    }

    /// Returns at most `limit` volumes after an ID, and whether there are more.
    pub(super) async fn page(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<CivoVolume>, bool), Failure> {
        let recent = match after {
            Some(_) => self.recent(),
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
        match (has_more, after) {
            (true, None) => *self.paged.lock() = Some((Instant::now(), Arc::clone(&list))),
            (true, Some(_)) => {}
            (false, _) => *self.paged.lock() = None,
        }
        Ok((page, has_more))
    }

    fn recent(&self) -> Option<Volumes> {
        let mut paged = self.paged.lock();
        paged.take_if(|(read, _)| read.elapsed() >= PAGES_AGE_MAX);
        paged.as_ref().map(|(_, list)| Arc::clone(list))
    }
}
