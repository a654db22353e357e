//! Which cloud a call is for: the key `cloud` of its secrets names it, as in cinder-csi-plugin. The
//! ID of a volume says nothing about it, and a volume that one cloud does not have may be in
//! another: no change is reported as done because a volume is missing, unless all clouds say so.

mod verbs;

use super::{Cloud, Config};
use crate::backend::measured;
use crate::backend::{Answer, Backend as _, Clouds, Page, Volume};
use crate::http;
use belay_server::call::{Failure, Kind};
use belay_server::request::{Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The key. Without it, or empty, the call is for the section `[Global]` without a name.
const KEY: &str = "cloud";
/// The field of requests.
const FIELD: &str = "secrets[cloud]";

/// Between the marker of a page and the name of its cloud, in tokens of lists of several clouds.
const SEPARATOR: char = ':';

/// See the module of the backend.
pub struct Openstack {
    pub(super) first: Named,
    /// In the order of their names, which `first` is part of.
    others: Vec<Named>,
}

#[derive(Clone)]
pub(super) struct Named {
    name: String,
    pub(super) cloud: Arc<Cloud>,
}

impl Openstack {
    /// Reads `cloud.conf`; logs in with the first call. Blocks.
    ///
    /// # Errors
    /// `Precondition` for the file, and for those of the authorities.
    pub fn open(config: Config) -> Result<Self, Failure> {
        http::describe();
        measured::describe();
        let mut names = config.clouds.clone();
        names.sort();
        names.dedup();
        let is_one = names.len() < 2;
        let open = |name: String| {
            let label = (!is_one).then(|| section(&name));
            let cloud = Cloud::open(&config, &name, label).map(Arc::new)?;
            Ok::<_, Failure>(Named { name, cloud })
        };
        let mut names = names.into_iter();
        let first = open(names.next().unwrap_or_default())?;
        let others = names.map(open).collect::<Result<_, _>>()?;
        if let Some(warning) = first.cloud.other_limit(config.volumes_max) {
            tracing::warn!("{warning}");
        }
        Ok(Self { first, others })
    }

    fn all(&self) -> impl Iterator<Item = &Named> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn is_one(&self) -> bool {
        self.others.is_empty()
    }

    /// The cloud that the secrets name. The value is not quoted: a Secret of another purpose may
    /// have the key.
    fn chosen(&self, secrets: &Secrets) -> Result<&Named, Failure> {
        let key = secrets.get(KEY);
        let name = key.unwrap_or_default();
        let found = self.all().find(|it| it.name == name);
        found.ok_or_else(|| {
            let why = match name {
                "" => "is missing, and this controller does not use [Global]",
                _ => "names a cloud that this controller does not use",
            };
            let known: Vec<_> = self.all().map(Named::to_string).collect();
            Failure::invalid(
                FIELD,
                format_args!(
                    "{why}; it uses {}: correct the Secret that the class or the PersistentVolume \
                     names, or add the cloud by --cloud-name",
                    known.join(", ")
                ),
            )
        })
    }

    /// The answer of the cloud that the secrets name.
    fn on<'a, T: 'a>(
        &'a self,
        secrets: &Secrets,
        ask: impl FnOnce(&'a Cloud) -> Answer<'a, T>,
    ) -> Answer<'a, T> {
        match self.chosen(secrets) {
            Ok(named) if self.is_one() => ask(&named.cloud),
            Ok(named) => {
                let answer = ask(&named.cloud);
                Box::pin(async { answer.await.map_err(|failure| named.failed(failure)) })
            }
            Err(refused) => Box::pin(async { Err(refused) }),
        }
    }

    /// Fails if what is missing in the cloud of the secrets is in another one, or may be, because a
    /// cloud does not answer.
    async fn nowhere_else<T, F>(
        &self,
        what: &str,
        secrets: &Secrets,
        seek: impl Fn(Arc<Cloud>) -> F,
    ) -> Result<(), Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<Option<T>, Failure>> + Send + 'static,
    {
        let chosen = &self.chosen(secrets)?.name;
        let others = self.all().filter(|it| it.name != *chosen);
        let (found, failed) = sought(others, seek).await;
        if let Some((named, _)) = found {
            let why =
                format_args!("{what} is in another cloud, that of {named}: correct the Secret");
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

    async fn no_volume_elsewhere(&self, id: &VolumeId, secrets: &Secrets) -> Result<(), Failure> {
        let seek = |cloud: Arc<Cloud>| {
            let id = id.clone();
            async move { cloud.client.volume(&id).await }
        };
        self.nowhere_else(&format!("volume {id}"), secrets, seek)
            .await
    }

    async fn no_snapshot_elsewhere(
        &self,
        id: &SnapshotId,
        secrets: &Secrets,
    ) -> Result<(), Failure> {
        let seek = |cloud: Arc<Cloud>| {
            let id = id.clone();
            async move { cloud.kept(&id).await }
        };
        self.nowhere_else(&format!("snapshot {id}"), secrets, seek)
            .await
    }

    /// Whether the cloud of the secrets has the volume.
    async fn has(&self, id: &VolumeId, secrets: &Secrets) -> Result<bool, Failure> {
        let named = self.chosen(secrets)?;
        let volume = named.cloud.client.volume(id).await;
        let volume = volume.map_err(|failure| named.failed(failure))?;
        Ok(volume.is_some())
    }

    /// A page of all clouds, one after the other.
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
        while let Some(named) = clouds.next() {
            let page = named.cloud.list(marker.take(), limit, Secrets::default());
            let page = page.await.map_err(|failure| named.failed(failure))?;
            let next = match (page.next, clouds.peek()) {
                (Some(marker), _) => Some(format!("{marker}{SEPARATOR}{}", named.name)),
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
}

/// The section of that cloud.
fn section(name: &str) -> String {
    match name {
        "" => "[Global]".to_owned(),
        name => format!("[Global {name:?}]"),
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&section(&self.name))
    }
}

impl Named {
    /// The failure, with the name of its cloud.
    fn failed(&self, failure: Failure) -> Failure {
        let message = format!("{self}: {}", failure.message);
        Failure { message, ..failure }
    }
}

/// The first of these clouds that has it, all asked at the same time; and why one does not say.
async fn sought<'a, T, F>(
    clouds: impl Iterator<Item = &'a Named>,
    seek: impl Fn(Arc<Cloud>) -> F,
) -> (Option<(Named, T)>, Option<Failure>)
where
    T: Send + 'static,
    F: Future<Output = Result<Option<T>, Failure>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for named in clouds {
        let (named, sought) = (named.clone(), seek(Arc::clone(&named.cloud)));
        asked.spawn(async move {
            let found = sought.await;
            found
                .map(|found| found.map(|found| (named.clone(), found)))
                .map_err(|failure| named.failed(failure).nothing_happened())
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

impl Clouds for Openstack {
    fn check(&self, secrets: &Secrets) -> Result<Option<String>, Failure> {
        let named = self.chosen(secrets)?;
        Ok((!self.is_one()).then(|| named.to_string()))
    }

    fn get_anywhere(&self, id: VolumeId) -> Answer<'_, Option<Volume>> {
        Box::pin(async move {
            let seek = |cloud: Arc<Cloud>| {
                let id = id.clone();
                async move { cloud.get(id, Secrets::default()).await }
            };
            match sought(self.all(), seek).await {
                (Some((_, volume)), _) => Ok(Some(volume)),
                (None, Some(failure)) => Err(failure),
                (None, None) => Ok(None),
            }
        })
    }

    fn list_all(&self, after: Option<String>, limit: usize) -> Answer<'_, Page> {
        if self.is_one() {
            return self.first.cloud.list(after, limit, Secrets::default());
        }
        Box::pin(self.page(after, limit))
    }

    fn check_missing(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()> {
        Box::pin(async move { self.no_volume_elsewhere(&id, &secrets).await })
    }
}
