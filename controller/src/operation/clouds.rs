//! The clouds of a controller. If the secrets of a call select the cloud, their key `cloud`
//! contains its name, as in cinder-csi-plugin. The ID of a volume does not identify the cloud, so a
//! volume that does not exist in one cloud may exist in a different cloud. Therefore a missing
//! volume counts as deleted or detached only if all clouds report that the volume does not exist.

use super::engine::Engine;
use crate::backend::{Answer, Backend, Backends, Named, Page, Volume};
use belay_server::call::{Failure, Kind};
use belay_server::request::{Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The key of the secrets whose value is the name of the cloud. If the key is missing or its value
/// is empty, the call is for the cloud without a name.
const KEY: &str = "cloud";
/// The request field that names the cloud, as shown in errors.
const FIELD: &str = "secrets[cloud]";

/// Separates the page marker from the name of the cloud in the tokens of lists over several clouds.
const SEPARATOR: char = ':';

/// A cloud, with its backend and the engine that waits for changes in the backend.
#[derive(Clone)]
pub(super) struct Cloud {
    name: String,
    /// The name of the cloud in errors and log lines; `None` if there is only one cloud.
    label: Option<String>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) engine: Arc<Engine>,
}

impl Cloud {
    fn new(name: String, label: Option<String>, backend: Arc<dyn Backend>) -> Self {
        Self {
            name,
            label,
            engine: Arc::new(Engine::new(Arc::clone(&backend))),
            backend,
        }
    }

    /// Returns the name of the cloud for log lines; `None` if there is only one cloud.
    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Adds the name of the cloud to the failure if there are several clouds.
    pub(super) fn failed(&self, failure: Failure) -> Failure {
        match &self.label {
            Some(label) => Failure {
                message: format!("{label}: {}", failure.message),
                ..failure
            },
            None => failure,
        }
    }
}

/// All clouds of the controller.
pub(super) struct Clouds {
    pub(super) first: Cloud,
    /// The clouds after `first`, in the order of their names.
    others: Vec<Cloud>,
    /// The names of all clouds, for error messages; empty if the secrets of a call do not select
    /// the cloud.
    labels: Vec<String>,
}

impl Clouds {
    pub(super) fn new(backends: Backends) -> Self {
        match backends {
            Backends::One(backend) => Self {
                first: Cloud::new(String::new(), None, backend),
                others: Vec::new(),
                labels: Vec::new(),
            },
            Backends::Named { first, others } => {
                let is_one = others.is_empty();
                let labels = std::iter::once(&first).chain(&others);
                let labels = labels.map(|named| named.label.clone()).collect();
                let cloud = |named: Named| {
                    let label = (!is_one).then_some(named.label);
                    Cloud::new(named.name, label, named.backend)
                };
                Self {
                    first: cloud(first),
                    others: others.into_iter().map(cloud).collect(),
                    labels,
                }
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Cloud> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the cloud that the secrets name. Errors do not quote the value, since the Secret may
    /// have been written for another purpose.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the key, if this controller does not have the cloud.
    pub(super) fn chosen(&self, secrets: &Secrets) -> Result<&Cloud, Failure> {
        if self.labels.is_empty() {
            return Ok(&self.first);
        }
        let name = secrets.get(KEY).unwrap_or_default();
        self.all().find(|it| it.name == name).ok_or_else(|| {
            let why = match name {
                "" => "is missing, and this controller uses no cloud without a name",
                _ => "names a cloud that this controller does not use",
            };
            let known = self.labels.join(", ");
            Failure::invalid(
                FIELD,
                format_args!(
                    "{why}; it uses {known}: correct the Secret that the class or the \
                     PersistentVolume names, or add the cloud by --cloud-name"
                ),
            )
        })
    }

    /// Fails if the volume, which does not exist in this cloud, may exist in a different cloud. A
    /// call must make this check before it reports success because the volume does not exist.
    pub(super) async fn no_volume_elsewhere(
        &self,
        here: &Cloud,
        id: &VolumeId,
    ) -> Result<(), Failure> {
        let seek = |cloud: Cloud| {
            let id = id.clone();
            async move { cloud.backend.get(id, Secrets::default()).await }
        };
        let what = format!("volume {id}");
        self.nowhere_else(here, &what, seek).await
    }

    /// Fails if the volume does not exist in this cloud, but may exist in a different cloud.
    pub(super) async fn check_missing(
        &self,
        here: &Cloud,
        id: &VolumeId,
        secrets: &Secrets,
    ) -> Result<(), Failure> {
        if self.others.is_empty() {
            return Ok(());
        }
        match here.backend.get(id.clone(), secrets.clone()).await? {
            Some(_) => Ok(()),
            None => self.no_volume_elsewhere(here, id).await,
        }
    }

    /// Fails if the snapshot, which does not exist in this cloud, may exist in a different cloud.
    pub(super) async fn no_snapshot_elsewhere(
        &self,
        here: &Cloud,
        id: &SnapshotId,
    ) -> Result<(), Failure> {
        let seek = |cloud: Cloud| {
            let id = id.clone();
            async move {
                match cloud.backend.snapshots() {
                    Some(snapshots) => snapshots.snapshot(id, Secrets::default()).await,
                    None => Ok(None),
                }
            }
        };
        let what = format!("snapshot {id}");
        self.nowhere_else(here, &what, seek).await
    }

    /// Fails if an object that does not exist in this cloud exists in a different cloud, or may
    /// exist in a cloud that does not respond.
    async fn nowhere_else<T, F>(
        &self,
        here: &Cloud,
        what: &str,
        seek: impl Fn(Cloud) -> F,
    ) -> Result<(), Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<Option<T>, Failure>> + Send + 'static,
    {
        let others = self.all().filter(|it| it.name != here.name);
        let (found, failed) = sought(others, seek).await;
        if let Some((cloud, _)) = found {
            let label = cloud.label.unwrap_or_default();
            let why =
                format_args!("{what} is in another cloud, that of {label}: correct the Secret");
            return Err(Failure::invalid(FIELD, why));
        }
        match failed {
            Some(failure) => {
                let why = format!("{what} may be in another cloud: {failure}");
                Err(Failure::new(failure.kind, why))
            }
            None => Ok(()),
        }
    }

    /// Returns the volume from any cloud that has it, for calls that have no secrets. Returns
    /// `None` only if all clouds have reported that the volume does not exist.
    pub(super) fn get_anywhere(&self, id: VolumeId) -> Answer<'_, Option<Volume>> {
        if self.labels.is_empty() {
            return self.first.backend.get(id, Secrets::default());
        }
        Box::pin(async move {
            let seek = |cloud: Cloud| {
                let id = id.clone();
                async move { cloud.backend.get(id, Secrets::default()).await }
            };
            match sought(self.all(), seek).await {
                (Some((_, volume)), _) => Ok(Some(volume)),
                (None, Some(failure)) => Err(failure),
                (None, None) => Ok(None),
            }
        })
    }

    /// Returns a page of the volumes of all clouds, one cloud after the other, for calls without
    /// secrets.
    pub(super) fn list_all(&self, after: Option<String>, limit: usize) -> Answer<'_, Page> {
        match self.others.is_empty() {
            true => self.first.backend.list(after, limit, Secrets::default()),
            false => Box::pin(self.page(after, limit)),
        }
    }

    async fn page(&self, after: Option<String>, limit: usize) -> Result<Page, Failure> {
        let unknown = |token: &str| {
            let message = format!("starting_token {token:?}: not from a list of these clouds");
            Failure::new(Kind::BadToken, message)
        };
        let mut clouds = self.all().peekable();
        let mut marker = None;
        if let Some(token) = after {
            let split = token.split_once(SEPARATOR);
            let (first, name) = split.ok_or_else(|| unknown(&token))?;
            while clouds.next_if(|it| it.name != name).is_some() {}
            clouds.peek().ok_or_else(|| unknown(&token))?;
            marker = Some(first.to_owned()).filter(|it| !it.is_empty());
        }
        while let Some(cloud) = clouds.next() {
            let page = cloud.backend.list(marker.take(), limit, Secrets::default());
            let page = page.await.map_err(|failure| cloud.failed(failure))?;
            let next = match (page.next, clouds.peek()) {
                (Some(marker), _) => Some(format!("{marker}{SEPARATOR}{}", cloud.name)),
                (None, Some(next)) => Some(format!("{SEPARATOR}{}", next.name)),
                (None, None) => None,
            };
            if !page.volumes.is_empty() || next.is_none() {
                let volumes = page.volumes;
                return Ok(Page { volumes, next });
            }
        }
        Ok(Page::default())
    }

    /// Returns the number of clouds.
    pub(super) fn count(&self) -> usize {
        self.all().count()
    }

    /// Returns the cloud with this number, counted from 0.
    pub(super) fn nth(&self, number: usize) -> Result<&Cloud, Failure> {
        let cloud = self.all().nth(number);
        cloud.ok_or_else(|| Failure::bug("a cloud that does not exist"))
    }

    /// Calls [`Backend::inspect`] for the cloud with this number, counted from 0.
    pub(super) async fn inspect(&self, number: usize) -> Result<(), Failure> {
        let cloud = self.nth(number)?;
        let inspected = cloud.backend.inspect().await;
        inspected.map_err(|failure| cloud.failed(failure))
    }
}

/// Queries these clouds concurrently. Returns the first object found, with its cloud, and the last
/// failure of a cloud.
async fn sought<'a, T, F>(
    clouds: impl Iterator<Item = &'a Cloud>,
    seek: impl Fn(Cloud) -> F,
) -> (Option<(Cloud, T)>, Option<Failure>)
where
    T: Send + 'static,
    F: Future<Output = Result<Option<T>, Failure>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for cloud in clouds {
        let (cloud, sought) = (cloud.clone(), seek(cloud.clone()));
        asked.spawn(async move {
            let found = sought.await;
            found
                .map(|found| found.map(|found| (cloud.clone(), found)))
                .map_err(|failure| cloud.failed(failure).nothing_happened())
        });
    }
    let mut failed = None;
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(Some(found))) => return (Some(found), failed),
            Ok(Ok(None)) => {}
            Ok(Err(failure)) => failed = Some(failure),
            Err(error) => failed = Some(Failure::bug(format!("asking all clouds: {error}"))),
        }
    }
    (None, failed)
}
