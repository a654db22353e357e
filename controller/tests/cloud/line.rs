//! The connection of a controller to the simulated cloud, which is its backend.

use crate::cloud::{Cause, Cloud, Ended, GIB, State};
use crate::fate::Verb;
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, Transport};
use belay_controller::backend::{
    Answer, AttachOrder, Attachment, Attachments, Backend, Claims, Clones, DroppedChange,
    Expansion, Order, Page, Progress, Sizes, Snapshot, SnapshotClaims, SnapshotOrder, SnapshotPage,
    Snapshots, Traits, Volume,
};
use belay_server::call::Failure;
use belay_server::request::{ContentSource, Context, Name, NodeId, Secrets, SnapshotId, VolumeId};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use tokio::time::Instant;

/// The number of entries of a page.
pub(crate) const PAGE: usize = 40;

/// The backend over the simulated cloud.
pub(crate) struct Line {
    cloud: Arc<Cloud>,
    crashed: watch::Sender<bool>,
    has_snapshots: bool,
}

impl Line {
    pub(crate) fn new(cloud: &Arc<Cloud>) -> Arc<Self> {
        Arc::new(Self {
            cloud: Arc::clone(cloud),
            crashed: watch::Sender::new(false),
            has_snapshots: true,
        })
    }

    /// Connects to a cloud that can neither create snapshots nor copies.
    pub(crate) fn without_snapshots(cloud: &Arc<Cloud>) -> Arc<Self> {
        let line = Self::new(cloud);
        Arc::new(Self {
            has_snapshots: false,
            ..Arc::into_inner(line).unwrap()
        })
    }

    /// Waits until the controller crashes.
    pub(crate) async fn crashed(&self) {
        let mut crashed = self.crashed.subscribe();
        crashed.wait_for(|crashed| *crashed).await.unwrap();
    }

    async fn request<T: Send + 'static>(
        &self,
        verb: Verb,
        effect: impl FnMut(&mut State) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        // A crashed process sends nothing, and receives no response.
        if *self.crashed.borrow() {
            pending::<()>().await;
        }
        let ended = self.cloud.request(verb, effect).await;
        if matches!(ended, Ended::Dead) {
            self.crashed.send_replace(true);
        }
        match ended {
            Ended::Answer(answer) if !*self.crashed.borrow() => answer,
            _ => pending().await,
        }
    }

    /// Returns the time at which a change that starts now is complete.
    fn at(&self) -> Instant {
        Instant::now() + self.cloud.delay
    }

    async fn made(
        &self,
        order: Arc<Order>,
        source: Option<ContentSource>,
    ) -> Result<Volume, Failure> {
        assert!(!format!("{order:?}").contains("hunter2"));
        let fates = self.cloud.fates();
        // The changes of different volumes take different times.
        let (at, id) = (self.at() + fates.way(), fates.below(99_999));
        account(&order.secrets)?;
        let create = move |state: &mut State| Ok(state.create(&order, source.clone(), at, id));
        let export = [("export".to_owned(), "/a".to_owned())];
        Ok(Volume {
            context: Some(Context::new("volume_context", export).unwrap()),
            ..self.request(Verb::Create, create).await?
        })
    }

    async fn seen(&self, id: &VolumeId) -> Result<Option<Volume>, Failure> {
        self.cloud.looks.fetch_add(1, Ordering::Relaxed);
        let id = id.clone();
        self.request(Verb::Read, move |state| Ok(state.get(&id)))
            .await
    }
}

/// Returns the account of a call. Searches and lists do not require one.
fn account(secrets: &Secrets) -> Result<&str, Failure> {
    let unknown = || Failure::precondition("the cloud says 401");
    secrets.get("token").ok_or_else(unknown)
}

fn begun(is_work: bool) -> Progress<()> {
    match is_work {
        true => Progress::Begun,
        false => Progress::Done(()),
    }
}

impl Backend for Line {
    fn traits(&self) -> Traits {
        Traits {
            attaches_one_by_one: true,
            where_to_look: Some("its log says why"),
            ..Traits::default()
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["class"]
    }

    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        let min = match parameters.get("class") {
            None | Some("doomed") => GIB,
            Some("fast") => 4 * GIB,
            Some(other) => {
                let why = format!("{other:?} is no class of this cloud");
                return Err(Failure::invalid("parameters[class]", why));
            }
        };
        let (step, max) = (GIB, 1024 * GIB);
        Ok(Sizes { step, min, max })
    }

    fn claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        Box::pin(self.made(order, None))
    }

    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        let at = self.at();
        Box::pin(async move {
            account(&secrets)?;
            let delete = move |state: &mut State| state.delete(&id, at);
            self.request(Verb::Change, delete).await.map(begun)
        })
    }

    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        Box::pin(self.request(Verb::Read, move |state| Ok(state.named(&name))))
    }

    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>> {
        Box::pin(async move {
            account(&secrets)?;
            self.seen(&id).await
        })
    }

    fn is_volume_id(&self, id: &VolumeId) -> bool {
        id.as_str().starts_with("id-")
    }

    fn list(&self, after: Option<String>, limit: usize, secrets: Secrets) -> Answer<'_, Page> {
        self.cloud.pages.fetch_add(1, Ordering::Relaxed);
        let begin: usize = after.map_or(0, |after| after.parse().unwrap());
        Box::pin(self.request(Verb::Read, move |state| {
            let mut all = state.all(secrets.get("token"));
            let end = (begin + limit.min(PAGE)).min(all.len());
            let next = (end < all.len()).then(|| end.to_string());
            let volumes = all.drain(begin.min(end)..end).collect();
            Ok(Page { volumes, next })
        }))
    }

    fn why_dropped(
        &self,
        id: VolumeId,
        _: DroppedChange,
        _: Secrets,
    ) -> Answer<'_, Option<Failure>> {
        let cause = self.cloud.state().cause.clone();
        Box::pin(async move {
            match cause {
                Cause::Unknown => Ok(None),
                Cause::Known(failure) => Ok(Some(failure)),
                Cause::Refused => Err(Failure::not_found(format!("volume {id}: the cloud: 404"))),
                Cause::Silence => pending().await,
            }
        })
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }

    fn expansion(&self) -> Option<&dyn Expansion> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.has_snapshots.then_some(self)
    }

    fn clones(&self) -> Option<&dyn Clones> {
        self.has_snapshots.then_some(self)
    }
}

impl Claims for Line {
    fn claim(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()> {
        Box::pin(self.request(Verb::Claim, move |state| {
            account(&secrets)?;
            state.claim(&id)
        }))
    }
}

impl Attachments for Line {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        Box::pin(async move {
            account(&order.secrets)?;
            let volume = self.seen(&order.id).await?;
            let nodes = volume.map_or_else(Vec::new, |volume| volume.nodes);
            if nodes == [order.node.clone()] {
                return Ok(Progress::Done(Attachment {
                    spec: order.spec.clone(),
                    transport: Transport::Disk(DiskIdentity::Serial(
                        order.context.get("export").unwrap_or("none").to_owned(),
                    )),
                    bytes: GIB,
                    content: Content::New,
                    attached_at: None,
                    disk_name: None,
                }));
            }
            let (id, node, at) = (order.id.clone(), order.node.clone(), self.at());
            let is_dropped = self.cloud.fates().drops_an_attachment();
            let attach = move |state: &mut State| state.attach(&id, &node, at, is_dropped);
            self.request(Verb::Plug, attach).await?;
            Ok(Progress::Begun)
        })
    }

    fn detach(&self, id: VolumeId, node: NodeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        let at = self.at();
        Box::pin(async move {
            account(&secrets)?;
            let detach = move |state: &mut State| state.detach(&id, &node, at);
            self.request(Verb::Plug, detach).await.map(begun)
        })
    }
}

impl Expansion for Line {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        let (step, max) = (GIB, 1024 * GIB);
        let min = step;
        Sizes { step, min, max }
    }

    fn resize(&self, id: VolumeId, bytes: u64, secrets: Secrets) -> Answer<'_, Progress<u64>> {
        let at = self.at();
        Box::pin(async move {
            account(&secrets)?;
            let extend = move |state: &mut State| state.extend(&id, bytes, at);
            let is_work = self.request(Verb::Change, extend).await?;
            Ok(match is_work {
                true => Progress::Begun,
                false => Progress::Done(bytes),
            })
        })
    }
}

impl Snapshots for Line {
    fn snapshot_parameters(&self) -> &'static [&'static str] {
        &["class"]
    }

    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        assert!(!format!("{order:?}").contains("hunter2"));
        let fates = self.cloud.fates();
        let (at, id) = (self.at() + fates.way(), fates.below(99_999));
        Box::pin(async move {
            account(&order.secrets)?;
            let cut = move |state: &mut State| state.cut(&order, at, id);
            self.request(Verb::Create, cut).await
        })
    }

    fn discard(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        let at = self.at();
        Box::pin(async move {
            account(&secrets)?;
            let discard = move |state: &mut State| state.discard(&id, at);
            self.request(Verb::Change, discard).await.map(begun)
        })
    }

    fn snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        Box::pin(self.request(Verb::Read, move |state| Ok(state.snapshot(&id))))
    }

    fn is_snapshot_id(&self, id: &SnapshotId) -> bool {
        id.as_str().starts_with("snap-")
    }

    fn snapshot_claims(&self, _: &SnapshotOrder) -> Option<&dyn SnapshotClaims> {
        Some(self)
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        let begin: usize = after.map_or(0, |after| after.parse().unwrap());
        Box::pin(self.request(Verb::Read, move |state| {
            let mut all = state.snapshots();
            all.retain(|kept| of.as_ref().is_none_or(|of| kept.source == *of));
            let end = (begin + limit.min(PAGE)).min(all.len());
            let next = (end < all.len()).then(|| end.to_string());
            let snapshots = all.drain(begin.min(end)..end).collect();
            Ok(SnapshotPage { snapshots, next })
        }))
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        Box::pin(self.made(order, Some(ContentSource::Snapshot(from))))
    }
}

impl SnapshotClaims for Line {
    fn find_snapshots(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Snapshot>> {
        Box::pin(self.request(Verb::Read, move |state| Ok(state.snapshots_named(&name))))
    }

    fn claim_snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, ()> {
        Box::pin(self.request(Verb::Claim, move |state| {
            account(&secrets)?;
            state.claim_snapshot(&id)
        }))
    }
}

impl Clones for Line {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        Box::pin(self.made(order, Some(ContentSource::Volume(from))))
    }
}
