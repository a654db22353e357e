//! The allowed sizes of a volume, and the free space that the server reports for its share.

use super::call::{Done, Mount, Work};
use super::class::Class;
use super::measured::{Verb, measured};
use super::{
    Answer, Capacity, Expansion, LOOK_MAX, Nfs, Progress, Sizes, Volume, mixed_up, options, path,
    within,
};
use crate::backend::Planned;
use belay_server::call::Failure;
use belay_server::request::{Secrets, VolumeId};

/// Every size is allowed, since sizes are recorded but not enforced.
pub(super) const SIZES: Sizes = Sizes {
    step: 1,
    min: 1,
    max: i64::MAX.unsigned_abs(),
};

impl Expansion for Nfs {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        SIZES
    }

    /// Returns the requested size immediately, since Belay does not limit the size of a directory.
    fn resize(&self, _: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        measured(Verb::Resize, async move { Ok(Progress::Done(bytes)) })
    }
}

impl Capacity for Nfs {
    /// Returns the free space of the share, in bytes. The requested topology is ignored, since all
    /// nodes can reach the server.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        measured(Verb::Available, async move {
            match share(&planned)? {
                Some(share) => {
                    let options = self.config.mount_options.unless(share.options);
                    self.free(Mount { options, ..share }).await
                }
                None => Ok(0),
            }
        })
    }

    /// Returns `false`, since a directory can be created for any size.
    fn limits_sizes(&self) -> bool {
        false
    }
}

impl Nfs {
    async fn free(&self, share: Mount) -> Result<u64, Failure> {
        let asked = self.processes.ask(share.clone(), Work::Measure, LOOK_MAX);
        match asked.await.map_err(|failure| within(&share, failure))? {
            Done::Measured(bytes) => Ok(bytes),
            _ => Err(mixed_up()),
        }
    }
}

/// Returns the share of the storage class, or `None` if the parameters contain neither a server nor
/// a share, so that no volume can be created.
fn share(planned: &Planned) -> Result<Option<Mount>, Failure> {
    if Class::is_nowhere(&planned.parameters)? {
        return Ok(None);
    }
    let class = Class::of(&planned.parameters)?;
    let source = path::source(&class.server, &class.share);
    if source.len() > path::SOURCE_BYTES_MAX {
        return Err(Failure::invalid(
            "parameters",
            format_args!("share: {}", path::too_long(&source)),
        ));
    }
    let flags = planned.mount_flags.as_slice().iter().map(String::as_str);
    Ok(Some(Mount {
        server: class.server,
        share: class.share,
        options: options::parameters("volume_capabilities: mount_flags", flags)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::call::ExistingVolume;
    use super::super::tests::nfs;
    use super::super::volume;
    use super::*;
    use crate::backend::Backend as _;
    use belay_server::call::Kind;
    use belay_server::request::{Context, MountFlags};

    fn planned(parameters: &[(&str, &str)], flags: &[&str]) -> Planned {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Planned {
            parameters: Context::new("parameters", parameters.iter().map(owned)).unwrap(),
            mount_flags: MountFlags::new(flags),
            topology: None,
        }
    }

    #[tokio::test]
    async fn a_directory_has_any_size_and_grows_at_once() {
        let nfs = nfs();
        let parameters = nfs.sizes(&Context::default()).unwrap();
        assert_eq!((parameters.step, parameters.min), (1, 1));
        assert_eq!(parameters.max, i64::MAX.unsigned_abs());
        let expansion = nfs.expansion().unwrap();
        let id = VolumeId::new("filer#share#dir#pvc-1#").unwrap();
        let seen = ExistingVolume {
            bytes: 7,
            is_deleting: false,
            source: None,
        };
        let grown = expansion.grown_sizes(&volume(id.clone(), seen));
        assert_eq!((grown.step, grown.min, grown.max), (1, 1, parameters.max));
        let resized = expansion.resize(id, 9, Secrets::default()).await;
        assert_eq!(resized, Ok(Progress::Done(9)));
    }

    #[test]
    fn the_share_of_the_class_is_mounted_with_the_flags() {
        let class = [
            ("SERVER", "filer"),
            ("share", "/a/b/"),
            ("subDir", "${pvc.metadata.name}"),
            ("csi.storage.k8s.io/provisioner-secret-name", "x"),
        ];
        let share = share(&planned(&class, &["nfsvers=3,noatime"])).unwrap();
        let share = share.unwrap();
        assert_eq!((&*share.server, &*share.share), ("filer", "a/b"));
        let version = ("nfsvers".to_owned(), Some("3".to_owned()));
        assert_eq!(share.options, [version]);
    }

    #[tokio::test]
    async fn no_class_has_no_room_and_asks_no_server() {
        let nfs = nfs();
        for parameters in [&[][..], &[("server", ""), ("SHARE", "")]] {
            let room = nfs.available_bytes(planned(parameters, &[]));
            assert_eq!(room.await, Ok(0));
        }
        assert!(!nfs.limits_sizes());
    }

    #[test]
    fn a_class_that_creates_no_volume_is_refused_by_its_key() {
        let long = "d".repeat(253);
        for (parameters, flags, words) in [
            (&[("server", "filer")][..], &[][..], "share: is required"),
            (&[("share", "/a")], &[], "server: is required"),
            (&[("server", "a b"), ("share", "/a")], &[], "server: "),
            (&[("server", "s"), ("share", "/a/../b")], &[], "share: "),
            (&[("server", "s"), ("share", &long)], &[], "share: "),
            (
                &[("server", "s"), ("share", "/a"), ("onDelete", "keep")],
                &[],
                "onDelete: ",
            ),
            (
                &[("server", "s"), ("share", "/a")],
                &["addr=canary"],
                "mount_flags: ",
            ),
            (&[("server", "s"), ("Server", "t")], &[], "server: "),
        ] {
            let refused = share(&planned(parameters, flags)).unwrap_err();
            assert_eq!(refused.kind, Kind::Invalid);
            assert!(refused.message.contains(words), "{refused}");
        }
    }
}
