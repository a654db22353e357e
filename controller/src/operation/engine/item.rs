//! The objects that the engine finds, claims and waits for: volumes and snapshots. Volumes and
//! snapshots follow the same rules, so the rules are implemented once, with these traits.

use crate::backend::{
    Answer, Attempt, Backend, Claims, Mark, Order, Phase, Progress, Snapshot, SnapshotClaims,
    SnapshotOrder, Snapshots, Volume,
};
use belay_server::call::Failure;
use belay_server::request::{Name, Secrets, SnapshotId, VolumeId};
use std::fmt::Display;
use std::sync::Arc;

/// An object of the storage, with a name, and with an ID that the storage has assigned.
pub(in crate::operation) trait Item: Clone + Send + Sync + 'static {
    /// The type of the ID.
    type Id: Clone + Ord + Display + Send + Sync + 'static;

    /// The name of the type in messages, such as "volume".
    const WHAT: &'static str;

    fn id(&self) -> &Self::Id;

    /// Returns the name that the storage reports, if the storage reports a name.
    fn name(&self) -> Option<&str>;

    fn phase(&self) -> &Phase;

    fn mark(&self) -> &Mark;

    /// Adds properties from the response to the creation, which a later read may omit.
    fn complete(&mut self, _created: &Self) {}
}

macro_rules! item {
    ($Item:ident, $Id:ident, $what:literal $(, $complete:item)?) => {
        impl Item for $Item {
            type Id = $Id;
            const WHAT: &'static str = $what;

            fn id(&self) -> &$Id {
                &self.id
            }

            fn name(&self) -> Option<&str> {
                self.name.as_deref()
            }

            fn phase(&self) -> &Phase {
                &self.phase
            }

            fn mark(&self) -> &Mark {
                &self.mark
            }

            $($complete)?
        }
    };
}

item!(Snapshot, SnapshotId, "snapshot");
item!(
    Volume,
    VolumeId,
    "volume",
    fn complete(&mut self, created: &Self) {
        if self.context.is_none() {
            self.context.clone_from(&created.context);
        }
    }
);

/// A page of items, and the token of the next page.
pub(super) type Items<I> = (Vec<I>, Option<String>);

/// The items of one kind in a backend.
pub(super) trait Store: Clone + Send + Sync + 'static {
    type Item: Item;

    /// Returns the backend with these items.
    fn backend(&self) -> &dyn Backend;

    fn get(&self, id: <Self::Item as Item>::Id, secrets: Secrets)
    -> Answer<'_, Option<Self::Item>>;

    /// Lists the items as [`Backend::list`] does.
    fn list(
        &self,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, Items<Self::Item>>;

    fn delete(&self, id: <Self::Item as Item>::Id, secrets: Secrets) -> Answer<'_, Progress<()>>;
}

/// A store that accepts several items with one name.
pub(super) trait Contested: Send + Sync {
    type Item: Item;

    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Self::Item>>;

    fn claim(&self, id: <Self::Item as Item>::Id, secrets: Secrets) -> Answer<'_, ()>;
}

/// The request of a call for the item with a name.
#[derive(Clone, Copy)]
pub(super) struct NameRequest<'a> {
    pub(super) name: &'a Name,
    pub(super) attempt: &'a Attempt,
    pub(super) secrets: &'a Secrets,
}

impl<'a> From<&'a Order> for NameRequest<'a> {
    fn from(order: &'a Order) -> Self {
        Self {
            name: &order.name,
            attempt: &order.attempt,
            secrets: &order.secrets,
        }
    }
}

impl<'a> From<&'a SnapshotOrder> for NameRequest<'a> {
    fn from(order: &'a SnapshotOrder) -> Self {
        Self {
            name: &order.name,
            attempt: &order.attempt,
            secrets: &order.secrets,
        }
    }
}

/// The volumes of a backend, as a store.
#[derive(Clone)]
pub(super) struct VolumeStore(pub(super) Arc<dyn Backend>);

impl Store for VolumeStore {
    type Item = Volume;

    fn backend(&self) -> &dyn Backend {
        self.0.as_ref()
    }

    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>> {
        self.0.get(id, secrets)
    }

    fn list(
        &self,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, Items<Volume>> {
        let page = self.0.list(after, limit, secrets);
        Box::pin(async { page.await.map(|page| (page.volumes, page.next)) })
    }

    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        self.0.delete(id, secrets)
    }
}

/// The volumes of a backend that accepts several volumes with one name.
pub(super) struct ContestedVolumes<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) claims: &'a dyn Claims,
}

impl Contested for ContestedVolumes<'_> {
    type Item = Volume;

    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Volume>> {
        self.backend.find(name, secrets)
    }

    fn claim(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()> {
        self.claims.claim(id, secrets)
    }
}

/// The snapshots of a backend, as a store.
#[derive(Clone)]
pub(super) struct SnapshotStore(pub(super) Arc<dyn Backend>);

impl SnapshotStore {
    fn with<'a, T: 'a>(
        &'a self,
        ask: impl FnOnce(&'a dyn Snapshots) -> Answer<'a, T>,
    ) -> Answer<'a, T> {
        match self.0.snapshots() {
            Some(snapshots) => ask(snapshots),
            None => Box::pin(async { Err(Failure::unsupported("no snapshots")) }),
        }
    }
}

impl Store for SnapshotStore {
    type Item = Snapshot;

    fn backend(&self) -> &dyn Backend {
        self.0.as_ref()
    }

    fn get(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>> {
        self.with(|snapshots| snapshots.snapshot(id, secrets))
    }

    fn list(
        &self,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, Items<Snapshot>> {
        let page = self.with(|snapshots| snapshots.list_snapshots(None, after, limit, secrets));
        Box::pin(async { page.await.map(|page| (page.snapshots, page.next)) })
    }

    fn delete(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        self.with(|snapshots| snapshots.discard(id, secrets))
    }
}

impl Contested for &dyn SnapshotClaims {
    type Item = Snapshot;

    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Snapshot>> {
        self.find_snapshots(name, secrets)
    }

    fn claim(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, ()> {
        self.claim_snapshot(id, secrets)
    }
}
