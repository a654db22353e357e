//! Snapshots: tar archives in a share, with the IDs and parameters of csi-driver-nfs.

use super::call::{Archived, Done, Mount, NewSnapshot, Restoring, SnapshotSeen, Source, Work};
use super::id::Place;
use super::measured::{Verb, measured};
use super::path::{self, Dir};
use super::{
    Answer, CREATE_MAX, Config, DELETE_MAX, LOOK_MAX, Mark, Nfs, Order, Phase, Prepared, Progress,
    Snapshots, Volume, mixed_up, options,
};
use crate::backend::{Snapshot, SnapshotOrder, SnapshotPage};
use belay_contract::drivers::NFS_ID_BYTES_MAX;
use belay_contract::nfs_id::SEPARATOR;
use belay_contract::{export, nfs_id};
use belay_server::call::Failure;
use belay_server::request::{Context, Secrets, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FIELD: &str = "parameters";
const SERVER: &str = "server";
const SHARE: &str = "share";
const OPTIONS: &str = "mountOptions";

/// The location of a snapshot, as its ID describes it.
#[derive(Debug)]
struct Kept {
    server: String,
    share: String,
    archive: Archived,
}

impl Kept {
    /// Parses the ID of a snapshot. Returns `None` if no driver can have issued the ID.
    ///
    /// # Errors
    /// Returns `Precondition`, with the name of the invalid part, for an ID that Belay never
    /// issues, but that another driver may have issued.
    fn of(id: &SnapshotId) -> Result<Option<Self>, Failure> {
        let parts = nfs_id::read_snapshot(id.as_str());
        let parts = parts.map_err(|nfs_id::Unread { part, why }| {
            Failure::precondition(format!(
                "snapshot {id}: {part}: {why}; Belay gives out no such ID, and leaves what another \
                 driver has created as it is: remove the archive by hand, and then the finalizers \
                 of the VolumeSnapshotContent"
            ))
        })?;
        Ok(parts.map(|parts| Self {
            server: parts.server.to_owned(),
            share: parts.share,
            archive: Archived {
                dir: Dir::single(parts.name),
                source: parts.volume.to_owned(),
                id: id.as_str().to_owned(),
            },
        }))
    }

    fn mount(&self, options: Vec<options::Parameter>) -> Mount {
        Mount {
            server: self.server.clone(),
            share: self.share.clone(),
            options,
        }
    }
}

impl Nfs {
    async fn cut(&self, order: &SnapshotOrder) -> Result<Snapshot, Failure> {
        let (id, mount, new) = ordered(order, &self.config)?;
        let begun = self.begun.snapshots.recorder(order.name.as_str());
        let call = (mount, Work::Cut(new));
        let asked = self.processes.copy(call, CREATE_MAX, begun);
        match asked.await.map_err(|failure| about(&id, failure))? {
            Done::Snapshot(Some(seen)) => {
                // A volume ID in the archive takes precedence over the requested source: the
                // archive may be of another volume with the same name.
                let source = seen.volume.clone().map_or_else(
                    || Ok(order.source.clone()),
                    |id| VolumeId::at_most(NFS_ID_BYTES_MAX, id),
                )?;
                Ok(snapshot(id, source, &seen))
            }
            _ => Err(mixed_up()),
        }
    }

    async fn discard(&self, id: SnapshotId, secrets: &Secrets) -> Result<(), Failure> {
        let Some(kept) = Kept::of(&id)? else {
            tracing::warn!(%id, "the snapshot counts as deleted: no driver creates such an ID");
            return Ok(());
        };
        let mount = kept.mount(self.config.options(secrets)?);
        let work = Work::Discard(kept.archive);
        let asked = self.processes.ask(mount, work, DELETE_MAX);
        match asked.await.map_err(|failure| about(&id, failure))? {
            Done::Deleted(why) => {
                if let Some(why) = why {
                    tracing::warn!(%id, "the snapshot is deleted, but files remain: {why}");
                }
                Ok(())
            }
            _ => Err(mixed_up()),
        }
    }

    async fn find(&self, id: SnapshotId, secrets: &Secrets) -> Result<Option<Snapshot>, Failure> {
        let Some(kept) = Kept::of(&id)? else {
            return Ok(None);
        };
        // An archive of csi-driver-nfs contains only the name of its volume, not the ID.
        let name = [&*kept.server, &*kept.share, &*kept.archive.source, "", ""].join("#");
        let mount = kept.mount(self.config.options(secrets)?);
        let asked = self
            .processes
            .ask(mount, Work::Find(kept.archive), LOOK_MAX);
        match asked.await.map_err(|failure| about(&id, failure))? {
            Done::Snapshot(None) => Ok(None),
            Done::Snapshot(Some(seen)) => {
                let source = seen.volume.clone().unwrap_or(name);
                let source = VolumeId::at_most(NFS_ID_BYTES_MAX, source)?;
                Ok(Some(snapshot(id, source, &seen)))
            }
            _ => Err(mixed_up()),
        }
    }

    async fn restored(&self, order: &Order, from: &SnapshotId) -> Result<Volume, Failure> {
        let prepared = self.prepared(order)?;
        let restoring = restoring(&prepared, from)?;
        self.filled(prepared, Work::Restore(restoring)).await
    }
}

impl Snapshots for Nfs {
    fn snapshot_parameters(&self) -> &'static [&'static str] {
        &[SERVER, SHARE, OPTIONS]
    }

    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        measured(Verb::Cut, async move { self.cut(&order).await })
    }

    fn discard(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Discard, async move {
            self.discard(id, &secrets).await.map(Progress::Done)
        })
    }

    fn snapshot(&self, id: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>> {
        measured(Verb::Snapshot, async move { self.find(id, &secrets).await })
    }

    /// Returns `false`: the controller does not know the servers, and an archive of csi-driver-nfs
    /// does not contain the ID of its volume.
    fn lists_snapshots(&self) -> bool {
        false
    }

    fn list_snapshots(
        &self,
        _: Option<VolumeId>,
        _: Option<String>,
        _: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        Box::pin(async { Err(Failure::unsupported("snapshots are not listed")) })
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        measured(
            Verb::Restore,
            async move { self.restored(&order, &from).await },
        )
    }
}

/// Returns the ID of a new snapshot, the share of its archive, and the instructions for a worker
/// process.
fn ordered(
    order: &SnapshotOrder,
    config: &Config,
) -> Result<(SnapshotId, Mount, NewSnapshot), Failure> {
    let SnapshotOrder {
        source: from,
        parameters,
        ..
    } = order;
    let volume = Place::of(from)?;
    let volume = volume.ok_or_else(|| Failure::not_found(format!("volume {from}: not found")))?;
    let given = |key| -> Result<Option<&str>, Failure> {
        let value = export::value(parameters, key).map_err(|why| invalid(key, why))?;
        Ok(value.filter(|value| !value.is_empty()))
    };
    let server = match given(SERVER)? {
        None => &*volume.server,
        Some(server) => export::server(server).map_err(|why| invalid(SERVER, &why))?,
    };
    if !server.eq_ignore_ascii_case(&volume.server) {
        let why = format!(
            "must be {}, the server of volume {from}, in the same spelling: its snapshots are made \
             there",
            volume.server
        );
        return Err(invalid(SERVER, &why));
    }
    let share = match given(SHARE)? {
        None => volume.share.clone(),
        Some(share) => path::share(share).map_err(|why| invalid(SHARE, &why))?,
    };
    let name = order.name.as_str();
    let name = nfs_id::snapshot_name(name).map_err(|why| Failure::invalid("name", why))?;
    if Dir::single(name).archives().is_some() {
        let why = format!("{name:?} is called as the archive of a deleted volume");
        return Err(Failure::invalid("name", why));
    }
    let archive = archive_name(from, &volume)?;
    let id = [server, &*share, name, name, &*archive].join(&SEPARATOR.to_string());
    let mount = Mount {
        server: server.to_owned(),
        share,
        options: class_options(parameters, &order.secrets, config)?,
    };
    let source = path::source(server, &mount.share);
    if source.len() > path::SOURCE_BYTES_MAX {
        return Err(invalid(SHARE, &path::too_long(&source)));
    }
    let new = NewSnapshot {
        at: Archived {
            dir: Dir::single(name),
            source: archive,
            id: id.clone(),
        },
        from: Source {
            at: volume.owned(config.adopts),
            id: from.as_str().to_owned(),
            share: mount.elsewhere(&volume.share),
        },
    };
    Ok((SnapshotId::at_most(NFS_ID_BYTES_MAX, id)?, mount, new))
}

/// Returns the name, without suffix, of a volume's archives. Returns `Precondition` if the volume's
/// name cannot be a file name.
fn archive_name(id: &VolumeId, volume: &Place) -> Result<String, Failure> {
    let name = volume.name();
    match nfs_id::archive_name(&name) {
        Ok(_) => Ok(name),
        Err(why) => Err(Failure::precondition(format!(
            "volume {id}: its archive would have a name that {why}; copy its files into a volume \
             whose directory has no directory above it"
        ))),
    }
}

/// Returns the mount options of the snapshot class, or, if the class has no options, the mount
/// options of the secret or the configuration.
fn class_options(
    parameters: &Context,
    secrets: &Secrets,
    config: &Config,
) -> Result<Vec<options::Parameter>, Failure> {
    let given = export::value(parameters, OPTIONS).map_err(|why| invalid(OPTIONS, why))?;
    match given.filter(|given| !given.is_empty()) {
        Some(given) => options::parameters("parameters: mountOptions", [given]),
        None => config.options(secrets),
    }
}

/// Returns the instructions for a worker process to restore the snapshot `from`.
fn restoring(prepared: &Prepared, from: &SnapshotId) -> Result<Restoring, Failure> {
    let what = format!("snapshot {from}");
    let missing = || Failure::not_found(format!("{what}: does not exist"));
    let kept = Kept::of(from)?.ok_or_else(missing)?;
    let rule = "a snapshot is restored only on its server";
    let share = prepared.other_share(&what, (&kept.server, &kept.share), rule)?;
    Ok(Restoring {
        volume: prepared.volume.clone(),
        from: kept.archive,
        share,
    })
}

fn snapshot(id: SnapshotId, source: VolumeId, seen: &SnapshotSeen) -> Snapshot {
    let since = Duration::from_secs(u64::try_from(seen.created).unwrap_or_default());
    let is_empty = seen.bytes == 0;
    Snapshot {
        id,
        name: None,
        phase: Phase::Ready,
        mark: Mark::None,
        source,
        bytes: seen.bytes,
        created: UNIX_EPOCH
            .checked_add(since)
            .unwrap_or(SystemTime::UNIX_EPOCH),
        ready: true,
        damage: is_empty.then(|| "its archive is empty; delete the snapshot".to_owned()),
    }
}

fn about(id: &SnapshotId, failure: Failure) -> Failure {
    let start = format!("snapshot {id}: ");
    if failure.message.starts_with(&start) || failure.message.starts_with("name ") {
        return failure;
    }
    Failure {
        message: format!("{start}{}", failure.message),
        ..failure
    }
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::invalid(FIELD, format_args!("{key}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::nfs;
    use super::*;
    use crate::backend::Attempt;
    use belay_server::call::Kind;
    use belay_server::request::{MountFlags, Name};

    fn context(entries: &[(&str, &str)]) -> Context {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Context::new("parameters", entries.iter().map(owned)).unwrap()
    }

    fn ordered_of(
        volume: &str,
        name: &str,
        parameters: &[(&str, &str)],
    ) -> Result<(String, Mount, NewSnapshot), Failure> {
        let order = SnapshotOrder {
            name: Name::new(name).unwrap(),
            attempt: Attempt::new(1, 1),
            source: VolumeId::at_most(NFS_ID_BYTES_MAX, volume.to_owned()).unwrap(),
            parameters: context(parameters),
            secrets: Secrets::default(),
        };
        let (id, mount, new) = ordered(&order, &nfs().config)?;
        Ok((id.as_str().to_owned(), mount, new))
    }

    #[test]
    fn a_snapshot_has_the_id_of_csi_driver_nfs_and_is_in_the_share_of_its_class() {
        let (id, mount, new) = ordered_of("filer#a/b#pvc-1##", "snap-1", &[]).unwrap();
        assert_eq!(id, "filer#a/b#snap-1#snap-1#pvc-1");
        assert_eq!((&*mount.server, &*mount.share), ("filer", "a/b"));
        assert!(new.from.share.is_none() && mount.options.is_empty());
        assert_eq!(
            (new.at.dir.to_string(), &*new.at.source),
            ("snap-1".to_owned(), "pvc-1")
        );
        let class = [
            ("Share", "/c/"),
            ("SERVER", "Filer"),
            ("mountoptions", "hard,nfsvers=3"),
        ];
        let (id, mount, new) = ordered_of("filer#a#ns/x#pvc-1#", "snap-1", &class).unwrap();
        assert_eq!(id, "Filer#c#snap-1#snap-1#pvc-1");
        assert_eq!((&*mount.share, mount.options.len()), ("c", 2));
        let source = new.from.share.unwrap();
        assert_eq!((&*source.share, source.options.len()), ("a", 2));
        assert_eq!(new.from.at.dir.to_string(), "ns/x");
        let kept = Kept::of(&SnapshotId::new(id).unwrap()).unwrap().unwrap();
        assert_eq!(
            (kept.archive.dir, kept.archive.source),
            (new.at.dir, new.at.source)
        );
    }

    #[test]
    fn a_snapshot_that_could_not_be_made_is_refused_by_its_field() {
        let volume = "filer#a#pvc-1##";
        for (volume, name, parameters, kind, words) in [
            (volume, "a/b", &[][..], Kind::Invalid, "name: "),
            (volume, "a#b", &[], Kind::Invalid, "name: "),
            (volume, "..", &[], Kind::Invalid, "name: "),
            (volume, ".belay", &[], Kind::Invalid, "name: "),
            (
                volume,
                "archived-1",
                &[],
                Kind::Invalid,
                "name: \"archived-1\" is",
            ),
            (
                volume,
                "s",
                &[("server", "other")],
                Kind::Invalid,
                "parameters: server: ",
            ),
            (
                volume,
                "s",
                &[("server", "a b")],
                Kind::Invalid,
                "parameters: server: ",
            ),
            (
                volume,
                "s",
                &[("share", "a/../b")],
                Kind::Invalid,
                "parameters: share: ",
            ),
            (
                volume,
                "s",
                &[("mountOptions", "bind")],
                Kind::Invalid,
                "parameters: mountOptions: ",
            ),
            ("x", "s", &[], Kind::NotFound, "volume x: "),
            (
                "filer#a#ns/x##",
                "s",
                &[],
                Kind::Precondition,
                "volume filer#a#ns/x##: ",
            ),
            (
                "filer#a#..#n#",
                "s",
                &[],
                Kind::Precondition,
                "volume filer#a#..#n#: ",
            ),
        ] {
            let failure = ordered_of(volume, name, parameters).unwrap_err();
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.message.starts_with(words), "{failure}");
        }
    }

    #[test]
    fn a_snapshot_is_restored_to_any_share_of_its_server() {
        let order = Order {
            name: Name::new("pvc-2").unwrap(),
            attempt: Attempt::new(1, 1),
            bytes: 7,
            usage: crate::backend::Usage::Filesystem(String::new()),
            mount_flags: MountFlags::default(),
            parameters: context(&[("server", "filer"), ("share", "/a")]),
            shared: false,
            topology: None,
            secrets: Secrets::default(),
        };
        let prepared = nfs().prepared(&order).unwrap();
        let of = |id: &str| restoring(&prepared, &SnapshotId::new(id).unwrap());
        assert!(of("Filer#a#s#s#pvc-1").unwrap().share.is_none());
        assert_eq!(of("filer#b#s#s#pvc-1").unwrap().share.unwrap().share, "b");
        for (id, kind, words) in [
            (
                "other#a#s#s#pvc-1",
                Kind::Invalid,
                "volume_content_source: snapshot other",
            ),
            (
                "filer#a#s#t#pvc-1",
                Kind::NotFound,
                "snapshot filer#a#s#t#pvc-1: ",
            ),
            (
                "filer#a#..#..#pvc-1",
                Kind::Precondition,
                "snapshot filer#a#..#..#pvc-1: name: ",
            ),
        ] {
            let failure = of(id).unwrap_err();
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.message.starts_with(words), "{failure}");
        }
    }

    #[test]
    fn an_empty_archive_is_damaged() {
        let seen = |bytes| SnapshotSeen {
            bytes,
            created: -5,
            volume: None,
        };
        let id = || SnapshotId::new("filer#a#s#s#pvc-1").unwrap();
        let volume = || VolumeId::new("filer#a#pvc-1##").unwrap();
        let empty = snapshot(id(), volume(), &seen(0));
        assert!(empty.damage.is_some() && empty.ready);
        let other = snapshot(id(), volume(), &seen(9));
        assert_eq!(
            (other.damage, other.bytes, other.created),
            (None, 9, UNIX_EPOCH)
        );
    }

    #[tokio::test]
    async fn an_id_that_no_driver_gives_out_reaches_no_server() {
        let nfs = nfs();
        let id = || SnapshotId::new("x").unwrap();
        let deleted = Snapshots::discard(&nfs, id(), Secrets::default()).await;
        assert_eq!(deleted, Ok(Progress::Done(())));
        let found = nfs.snapshot(id(), Secrets::default()).await;
        assert!(found.unwrap().is_none());
        assert!(!nfs.lists_snapshots());
        let listed = nfs.list_snapshots(None, None, 1, Secrets::default()).await;
        assert_eq!(listed.unwrap_err().kind, Kind::Unsupported);
    }
}
