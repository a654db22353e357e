//! Clones: volumes that are created with the files of another volume on the same server.

use super::call::{Copying, Mount, Source, Work};
use super::id::Place;
use super::measured::{Verb, measured};
use super::path::source;
use super::{Answer, CREATE_MAX, Clones, Nfs, Order, Prepared, Volume};
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use std::sync::Arc;

impl Clones for Nfs {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        measured(Verb::Clone, async move {
            let prepared = self.prepared(&order)?;
            let copying = copying(&prepared, &from)?;
            self.filled(prepared, Work::Copy(copying)).await
        })
    }
}

impl Nfs {
    /// Creates a volume with the files of another volume or of a snapshot, in a worker process.
    pub(super) async fn filled(&self, prepared: Prepared, work: Work) -> Result<Volume, Failure> {
        let call = (prepared.mount.clone(), work);
        let begun = self.begun.volumes.recorder(&prepared.volume.at.name);
        let asked = self.processes.copy(call, CREATE_MAX, begun);
        prepared.answered(asked.await)
    }
}

impl Prepared {
    /// Returns the mount of the source's share, or `None` if the source is in the share of the new
    /// volume.
    ///
    /// # Errors
    /// Returns `Invalid`, with `rule` in the message, if the source is on another server.
    pub(super) fn other_share(
        &self,
        what: &str,
        (server, share): (&str, &str),
        rule: &str,
    ) -> Result<Option<Mount>, Failure> {
        let to = &self.place;
        if !server.eq_ignore_ascii_case(&to.server) {
            return Err(Failure::invalid(
                "volume_content_source",
                format_args!(
                    "{what}: is at {}, and the class creates volumes at {}; {rule}, which both \
                     name in the same way; choose a class with server {server}",
                    source(server, share),
                    source(&to.server, &to.share),
                ),
            ));
        }
        Ok(self.mount.elsewhere(share))
    }
}

/// Returns the instructions for a worker process to copy the volume `from`.
fn copying(prepared: &Prepared, from: &VolumeId) -> Result<Copying, Failure> {
    let what = format!("volume {from}");
    let missing = || Failure::not_found(format!("{what}: does not exist"));
    let place = Place::of(from)?.ok_or_else(missing)?;
    let rule = "volumes are copied only on one server";
    let share = prepared.other_share(&what, (&place.server, &place.share), rule)?;
    let dir = &prepared.volume.at.dir;
    if share.is_none() && dir.above().any(|above| above == place.dir) {
        return Err(Failure::invalid(
            "volume_content_source",
            format_args!(
                "{what}: its directory {} contains that of the new volume, {dir}; choose a \
                 class with another subDir",
                place.dir
            ),
        ));
    }
    Ok(Copying {
        volume: prepared.volume.clone(),
        from: Source {
            at: place.owned(prepared.volume.at.adopts),
            id: from.as_str().to_owned(),
            share,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::nfs;
    use super::*;
    use belay_server::call::Kind;
    use belay_server::request::{Context, MountFlags, Name, Secrets};

    fn order(server: &str) -> Order {
        let parameters = [("server", server), ("share", "/a")];
        let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Order {
            name: Name::new("pvc-2").unwrap(),
            attempt: crate::backend::Attempt::new(1, 1),
            bytes: 7,
            usage: crate::backend::Usage::Filesystem(String::new()),
            mount_flags: MountFlags::default(),
            parameters: Context::new("parameters", parameters).unwrap(),
            shared: false,
            topology: None,
            secrets: Secrets::default(),
        }
    }

    fn copying_of(server: &str, from: &str) -> Result<Copying, Failure> {
        let prepared = nfs().prepared(&order(server)).unwrap();
        copying(&prepared, &VolumeId::new(from).unwrap())
    }

    #[test]
    fn a_volume_is_copied_from_any_share_of_its_server() {
        let same = copying_of("filer", "Filer#a#ns/x#pvc-1#").unwrap();
        assert!(same.from.share.is_none());
        assert_eq!(same.from.at.dir.to_string(), "ns/x");
        assert_eq!(same.from.at.name, "pvc-1");
        assert_eq!(same.from.id, "Filer#a#ns/x#pvc-1#");
        assert_eq!(same.volume.at.dir.to_string(), "pvc-2");
        let other = copying_of("filer", "filer#b#pvc-1##").unwrap();
        let share = other.from.share.unwrap();
        assert_eq!(
            (share.server.as_str(), share.share.as_str()),
            ("filer", "b")
        );
    }

    #[test]
    fn a_volume_is_not_copied_into_itself() {
        let parameters = [
            ("server", "filer"),
            ("share", "/a"),
            ("subDir", "ns/x/y/new"),
        ];
        let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let order = Order {
            parameters: Context::new("parameters", parameters).unwrap(),
            ..order("filer")
        };
        let prepared = nfs().prepared(&order).unwrap();
        let from = |id: &str| copying(&prepared, &VolumeId::new(id).unwrap());
        let refused = from("filer#a#ns/x#pvc-1#").unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid);
        assert!(refused.message.contains("ns/x contains"), "{refused}");
        for beside in ["filer#a#ns/x/y/news#pvc-1#", "filer#b#ns/x#pvc-1#"] {
            from(beside).unwrap();
        }
    }

    #[test]
    fn a_volume_of_another_server_is_refused_by_the_field() {
        let refused = copying_of("filer", "other#a#pvc-1##").unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid);
        let start = "volume_content_source: volume other#a#pvc-1##: is at other:/a, ";
        assert!(refused.message.starts_with(start), "{refused}");
        let unknown = copying_of("filer", "x").unwrap_err();
        assert_eq!(unknown.kind, Kind::NotFound);
    }
}
