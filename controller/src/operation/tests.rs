//! What the operations ask of a backend, whichever it is.

use super::{Operations, Rules};
use crate::backend::{
    Answer, AttachOrder, Attachment, Backend, Health, Order, Page, Sizes, Snapshot, SnapshotOrder,
    SnapshotPage, Snapshots, UnwellPage, Volume,
};
use belay_server::health::Complaints;
use belay_server::request::{
    ListSnapshots, ListVolumeHealth, ListVolumes, Name, NodeId, Secrets, SnapshotId, VolumeId,
};
use std::sync::{Arc, Mutex};

/// Where a page is to begin, and how many entries it may have.
type Asked = (Option<String>, usize);

/// A backend that can list nothing, and notes what is asked for.
#[derive(Default)]
struct Listing(Arc<Mutex<Vec<Asked>>>);

impl Listing {
    fn note<T: Default + Send + 'static>(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Answer<'_, T> {
        self.0.lock().unwrap().push((after, limit));
        Box::pin(async { Ok(T::default()) })
    }
}

impl Backend for Listing {
    fn sizes(&self) -> Sizes {
        unreachable!()
    }

    fn parameters(&self) -> &'static [&'static str] {
        unreachable!()
    }

    fn create(&self, _: Order) -> Answer<'_, Volume> {
        unreachable!()
    }

    fn delete(&self, _: VolumeId) -> Answer<'_, ()> {
        unreachable!()
    }

    fn find(&self, _: Name) -> Answer<'_, Option<Volume>> {
        unreachable!()
    }

    fn get(&self, _: VolumeId) -> Answer<'_, Option<Volume>> {
        unreachable!()
    }

    fn list(&self, after: Option<String>, limit: usize) -> Answer<'_, Page> {
        self.note(after, limit)
    }

    fn attach(&self, _: AttachOrder) -> Answer<'_, Attachment> {
        unreachable!()
    }

    fn detach(&self, _: VolumeId, _: NodeId) -> Answer<'_, ()> {
        unreachable!()
    }

    fn resize(&self, _: VolumeId, _: u64) -> Answer<'_, u64> {
        unreachable!()
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }
}

impl Snapshots for Listing {
    fn cut(&self, _: SnapshotOrder) -> Answer<'_, Snapshot> {
        unreachable!()
    }

    fn discard(&self, _: SnapshotId) -> Answer<'_, ()> {
        unreachable!()
    }

    fn snapshot(&self, _: SnapshotId) -> Answer<'_, Option<Snapshot>> {
        unreachable!()
    }

    fn list_snapshots(
        &self,
        _: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
    ) -> Answer<'_, SnapshotPage> {
        self.note(after, limit)
    }

    fn restore(&self, _: Order, _: SnapshotId) -> Answer<'_, Volume> {
        unreachable!()
    }
}

impl Health for Listing {
    fn health(&self, _: VolumeId) -> Answer<'_, Option<Complaints>> {
        unreachable!()
    }

    fn conditions(&self, _: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Complaints>> {
        unreachable!()
    }

    fn list_unwell(&self, after: Option<String>, limit: usize) -> Answer<'_, UnwellPage> {
        self.note(after, limit)
    }
}

#[tokio::test]
async fn a_page_has_as_many_entries_as_asked_for_and_never_more_than_a_message_holds() {
    let backend = Listing::default();
    let asked = Arc::clone(&backend.0);
    let operations = Operations::new(Arc::new(backend), Rules::default());
    for (max_entries, limit) in [
        (None, 4096),
        (Some(1), 1),
        (Some(4095), 4095),
        (Some(4096), 4096),
        (Some(4097), 4096),
        (Some(2_147_483_647), 4096),
    ] {
        let token = Some("token".to_owned());
        let volumes = ListVolumes {
            max_entries,
            starting_token: token.clone(),
        };
        operations.list(volumes).await.unwrap();
        let snapshots = ListSnapshots {
            max_entries,
            starting_token: token.clone(),
            source: None,
            id: None,
        };
        operations.list_snapshots(snapshots).await.unwrap();
        let unwell = ListVolumeHealth {
            max_entries,
            starting_token: token.clone(),
            secrets: Secrets::default(),
        };
        operations.list_health(unwell).await.unwrap();
        let pages = std::mem::take(&mut *asked.lock().unwrap());
        assert_eq!(pages, vec![(token, limit); 3], "{max_entries:?}");
    }
}
