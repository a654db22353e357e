//! The verbs, each in the cloud of its secrets.

use super::Openstack;
use crate::backend::{
    Answer, AttachOrder, Attachment, Attachments, Backend, Capacity, Claims, Clones, Clouds,
    Expansion, Modification, Order, Page, Parameter, Planned, Progress, Sizes, Snapshot,
    SnapshotClaims, SnapshotOrder, SnapshotPage, Snapshots, Unmade, Volume,
};
use belay_server::call::Failure;
use belay_server::request::{Context, Name, NodeId, Secrets, SnapshotId, VolumeId};
use std::sync::Arc;

impl Backend for Openstack {
    fn parameters(&self) -> &'static [&'static str] {
        self.first.cloud.parameters()
    }

    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        self.first.cloud.sizes(parameters)
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.create(order))
    }

    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        let deleted = self.on(&secrets, |cloud| cloud.delete(id.clone(), secrets.clone()));
        Box::pin(async move {
            let progress = deleted.await?;
            if progress == Progress::Done(()) {
                self.no_volume_elsewhere(&id, &secrets).await?;
            }
            Ok(progress)
        })
    }

    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Volume>> {
        self.on(&secrets, |cloud| cloud.find(name, secrets.clone()))
    }

    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>> {
        self.on(&secrets, |cloud| cloud.get(id, secrets.clone()))
    }

    fn is_volume_id(&self, id: &VolumeId) -> bool {
        self.first.cloud.is_volume_id(id)
    }

    fn list(&self, after: Option<String>, limit: usize, secrets: Secrets) -> Answer<'_, Page> {
        self.on(&secrets, |cloud| cloud.list(after, limit, secrets.clone()))
    }

    fn why_unmade(
        &self,
        id: VolumeId,
        unmade: Unmade,
        secrets: Secrets,
    ) -> Answer<'_, Option<Failure>> {
        let why = self.on(&secrets, |cloud| {
            cloud.why_unmade(id, unmade, secrets.clone())
        });
        if self.is_one() {
            return why;
        }
        let named = self.chosen(&secrets).ok();
        Box::pin(async move {
            let cause = why.await?;
            Ok(cause.map(|cause| match named {
                Some(named) => named.failed(cause),
                None => cause,
            }))
        })
    }

    fn where_to_look(&self) -> Option<&'static str> {
        self.first.cloud.where_to_look()
    }

    fn inspect(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut last = Ok(());
            for named in self.all() {
                if let Err(failure) = named.cloud.inspect().await {
                    last = Err(named.failed(failure));
                }
            }
            last
        })
    }

    fn reaches_preferred(&self) -> bool {
        self.first.cloud.reaches_preferred()
    }

    fn elsewhere(&self, secrets: &Secrets) -> Option<String> {
        let named = self.chosen(secrets).ok()?;
        let why = named.cloud.elsewhere(secrets)?;
        Some(match self.is_one() {
            true => why,
            false => format!("{named}: {why}"),
        })
    }

    fn meets(&self, parameter: Parameter, secrets: Secrets) -> Answer<'_, bool> {
        self.on(&secrets, |cloud| cloud.meets(parameter, secrets.clone()))
    }

    fn claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }

    fn expansion(&self) -> Option<&dyn Expansion> {
        Some(self)
    }

    fn modification(&self) -> Option<&dyn Modification> {
        Some(self)
    }

    fn capacity(&self) -> Option<&dyn Capacity> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn clones(&self) -> Option<&dyn Clones> {
        Some(self)
    }

    fn clouds(&self) -> Option<&dyn Clouds> {
        Some(self)
    }
}

impl Capacity for Openstack {
    /// Of the cloud without a name: `GetCapacity` has no secrets.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        self.on(&Secrets::default(), |cloud| cloud.available_bytes(planned))
    }
}

impl Claims for Openstack {
    fn claim(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()> {
        self.on(&secrets, |cloud| cloud.claim(id, secrets.clone()))
    }
}

impl Attachments for Openstack {
    fn one_per_node(&self) -> bool {
        self.first.cloud.one_per_node()
    }

    fn records_terms(&self) -> bool {
        self.first.cloud.records_terms()
    }

    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.attach(order))
    }

    fn attached(&self, order: &AttachOrder, seen: &Volume) -> Option<Attachment> {
        let named = self.chosen(&order.secrets).ok()?;
        named.cloud.attached(order, seen)
    }

    fn detach(&self, id: VolumeId, node: NodeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        let detached = self.on(&secrets, |cloud| {
            cloud.detach(id.clone(), node, secrets.clone())
        });
        if self.is_one() {
            return detached;
        }
        Box::pin(async move {
            let progress = detached.await?;
            if progress == Progress::Done(()) && !self.has(&id, &secrets).await? {
                self.no_volume_elsewhere(&id, &secrets).await?;
            }
            Ok(progress)
        })
    }

    fn mark_used<'a>(&'a self, seen: &'a Volume, secrets: Secrets) -> Answer<'a, ()> {
        self.on(&secrets, |cloud| cloud.mark_used(seen, secrets.clone()))
    }
}

impl Expansion for Openstack {
    fn grown_sizes(&self, volume: &Volume) -> Sizes {
        self.first.cloud.grown_sizes(volume)
    }

    fn resize(&self, id: VolumeId, bytes: u64, secrets: Secrets) -> Answer<'_, Progress<u64>> {
        self.on(&secrets, |cloud| cloud.resize(id, bytes, secrets.clone()))
    }
}

impl Modification for Openstack {
    fn mutable_parameters(&self) -> &'static [&'static str] {
        self.first.cloud.mutable_parameters()
    }

    fn modify(
        &self,
        id: VolumeId,
        parameters: Context,
        secrets: Secrets,
    ) -> Answer<'_, Progress<()>> {
        self.on(&secrets, |cloud| {
            cloud.modify(id, parameters, secrets.clone())
        })
    }

    fn verify(&self, id: VolumeId, parameters: Context, secrets: Secrets) -> Answer<'_, ()> {
        self.on(&secrets, |cloud| {
            cloud.verify(id, parameters, secrets.clone())
        })
    }
}

impl Snapshots for Openstack {
    fn is_snapshot_id(&self, id: &SnapshotId) -> bool {
        self.first.cloud.is_snapshot_id(id)
    }

    fn snapshot_parameters(&self) -> &'static [&'static str] {
        self.first.cloud.snapshot_parameters()
    }

    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.cut(order))
    }

    fn basis(&self, order: SnapshotOrder) -> Answer<'_, Option<Snapshot>> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.basis(order))
    }

    fn drop_basis(&self, order: SnapshotOrder) -> Answer<'_, ()> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.drop_basis(order))
    }

    fn discard(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        let discarded = self.on(&secrets, |cloud| cloud.discard(id.clone(), secrets.clone()));
        Box::pin(async move {
            let progress = discarded.await?;
            if progress == Progress::Done(()) {
                self.no_snapshot_elsewhere(&id, &secrets).await?;
            }
            Ok(progress)
        })
    }

    fn snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>> {
        self.on(&secrets, |cloud| cloud.snapshot(id, secrets.clone()))
    }

    fn snapshot_claims(&self, order: &SnapshotOrder) -> Option<&dyn SnapshotClaims> {
        // Secrets of no cloud are refused before.
        let named = self.chosen(&order.secrets).unwrap_or(&self.first);
        named.cloud.snapshot_claims(order)
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        self.on(&secrets, |cloud| {
            cloud.list_snapshots(of, after, limit, secrets.clone())
        })
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.restore(order, from))
    }
}

impl Clones for Openstack {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        let secrets = order.secrets.clone();
        self.on(&secrets, |cloud| cloud.clone_volume(order, from))
    }
}
