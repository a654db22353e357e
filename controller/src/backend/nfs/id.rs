//! Volume IDs: `server#share#directory#name#policy`, as in csi-driver-nfs. Makes no system calls.

use super::path::Dir;
use belay_contract::drivers::NFS_ID_BYTES_MAX;
use belay_contract::nfs_id::{self, SEPARATOR, Unread};
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use std::fmt;
use std::str::FromStr;

/// The policy for the deletion of a volume. Variants are in ascending order of the data that they
/// keep.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum OnDelete {
    /// Removes the volume's directory.
    #[default]
    Delete,
    /// Renames the volume's directory: the prefix `archived-` is added to its path.
    Archive,
    /// Keeps the volume's directory unchanged.
    Retain,
}

impl FromStr for OnDelete {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match nfs_id::policy(text)? {
            "delete" => Ok(Self::Delete),
            "retain" => Ok(Self::Retain),
            "archive" => Ok(Self::Archive),
            // Reject a policy that `nfs_id` accepts but this type does not have, so that an unknown
            // policy never deletes data.
            other => Err(format!("{other:?} is not supported")),
        }
    }
}

impl fmt::Display for OnDelete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delete => "delete",
            Self::Retain => "retain",
            Self::Archive => "archive",
        })
    }
}

/// The location of a volume, as its ID describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Host name or address of the server, in the spelling of the storage class.
    pub(super) server: String,
    /// The exported directory, without leading and trailing slashes; empty for the root directory.
    pub(super) share: String,
    /// The directory of the volume, below the share.
    pub(super) dir: Dir,
    /// The name in the request that created the volume. `None` if the directory has the same name
    /// as the volume.
    pub(super) name: Option<String>,
    /// The deletion policy in the ID. `None` if the ID contains no policy.
    pub(super) on_delete: Option<OnDelete>,
}

impl Place {
    /// Returns the name in the request that created the volume.
    pub(super) fn name(&self) -> String {
        let own = || self.dir.to_string();
        self.name.clone().unwrap_or_else(own)
    }

    /// Returns the volume ID. `policy` is the deletion policy as the storage class spells it; empty
    /// for `delete`.
    ///
    /// # Errors
    /// Returns `Invalid` if the ID would be too long, or if a part contains the separator.
    pub(super) fn id(&self, policy: &str) -> Result<VolumeId, Failure> {
        let name = self.name.as_deref().unwrap_or_default();
        let dir = self.dir.to_string();
        let parts = [&self.server, &self.share, &dir, name, policy];
        if let Some(part) = parts.iter().find(|part| part.contains(SEPARATOR)) {
            let why = format!("{part:?}: {SEPARATOR:?} separates the parts of a volume's ID");
            return Err(Failure::invalid("parameters", why));
        }
        let id = parts.join("#");
        if id.len() > NFS_ID_BYTES_MAX {
            let why = format!(
                "server, share, subDir and the volume's name have {} bytes in total; at most \
                 {NFS_ID_BYTES_MAX} are possible",
                id.len()
            );
            return Err(Failure::invalid("parameters", why));
        }
        VolumeId::at_most(NFS_ID_BYTES_MAX, id)
    }

    /// Parses a volume ID. Returns `None` if no driver can have issued the ID.
    ///
    /// # Errors
    /// Returns `Precondition`, with the name of the invalid part, for an ID that Belay never
    /// issues, but that csi-driver-nfs may have issued: the directory of the volume may exist.
    pub(super) fn of(id: &VolumeId) -> Result<Option<Self>, Failure> {
        let parts = nfs_id::read(id.as_str()).map_err(|unread| refused(id, &unread))?;
        let Some(parts) = parts else { return Ok(None) };
        let mixed_up = |why: String| Failure::bug(format!("volume {id}: {why}"));
        let on_delete = parts.policy.map(str::parse).transpose();
        let dir = Dir::of(parts.dir).ok_or_else(|| mixed_up("no directory".to_owned()))?;
        Ok(Some(Self {
            server: parts.server.to_owned(),
            share: parts.share,
            dir,
            name: parts.name.map(str::to_owned),
            on_delete: on_delete.map_err(mixed_up)?,
        }))
    }
}

fn refused(id: &VolumeId, unread: &Unread) -> Failure {
    let Unread { part, why } = unread;
    Failure::precondition(format!(
        "volume {id}: {part}: {why}; Belay gives out no such ID, and leaves what another driver \
         has created as it is: remove the directory by hand, and then the finalizers of the \
         PersistentVolume"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    fn of(id: &str) -> Result<Option<Place>, Failure> {
        Place::of(&VolumeId::at_most(NFS_ID_BYTES_MAX, id.to_owned()).unwrap())
    }

    fn read(id: &str) -> Option<Place> {
        of(id).unwrap()
    }

    fn place(server: &str, share: &str, dir: &str, name: Option<&str>) -> Place {
        Place {
            server: server.to_owned(),
            share: share.to_owned(),
            dir: Dir::read(dir).unwrap().unwrap(),
            name: name.map(str::to_owned),
            on_delete: None,
        }
    }

    #[test]
    fn ids_are_those_of_csi_driver_nfs() {
        let plain = place("10.0.0.5", "exports/k8s", "pvc-1", None);
        let named = place("10.0.0.5", "exports/k8s", "ns1/data", Some("pvc-4bcb"));
        let root = place("fd00::1", "", "pvc-1", None);
        for (written, policy, id) in [
            (&plain, "", "10.0.0.5#exports/k8s#pvc-1##"),
            (
                &named,
                "archive",
                "10.0.0.5#exports/k8s#ns1/data#pvc-4bcb#archive",
            ),
            (&named, "", "10.0.0.5#exports/k8s#ns1/data#pvc-4bcb#"),
            (&root, "Retain", "fd00::1##pvc-1##Retain"),
        ] {
            assert_eq!(written.id(policy).unwrap().as_str(), id);
            let on_delete = (!policy.is_empty()).then(|| policy.parse().unwrap());
            let expected = Place {
                on_delete,
                ..written.clone()
            };
            assert_eq!(read(id), Some(expected), "{id}");
        }
    }

    #[test]
    fn older_ids_are_read_too() {
        let plain = place("s", "a/b", "pvc-1", None);
        for id in [
            "s#a/b#pvc-1",
            "s#a/b#pvc-1#",
            "s#a/b#pvc-1##",
            "s/a/b/pvc-1",
            "s#/a/b/#/pvc-1/",
        ] {
            assert_eq!(read(id), Some(plain.clone()), "{id}");
        }
        assert_eq!(read("s//pvc-1"), Some(place("s", "", "pvc-1", None)));
    }

    #[test]
    fn a_volume_whose_id_is_longer_than_the_specification_allows_exists() {
        let dir = "d".repeat(200);
        let id = format!("server#share#{dir}#pvc-1#");
        assert_eq!(read(&id).unwrap().dir.to_string(), dir);
    }

    #[test]
    fn an_id_that_no_driver_gives_out_is_that_of_no_volume() {
        for id in ["x", "s/", "/s/a", "s/a", "s#a", "#", "pvc-1"] {
            assert_eq!(read(id), None, "{id}");
        }
    }

    /// Each ID is ambiguous, or refers to the share itself, to a directory outside of the share, or
    /// to Belay's own files. Since csi-driver-nfs may have issued the ID, the directory may exist.
    #[test]
    fn an_id_that_is_not_read_is_refused_by_the_part_that_is_not() {
        let long = format!("s#{}#d##", "n".repeat(254));
        for (part, ids) in [
            (
                "subDir",
                &[
                    "s#a#",
                    "s#a##pvc-1#",
                    "s#a#/#pvc-1#",
                    "s#a#.#n#",
                    "s#a#..#n#",
                    "s#a#../b#n#",
                    "s#a#b/..#n#",
                    "s#a#b/../..#n#",
                    "s#a#b//c#n#",
                    "s#a#b/./c#n#",
                    "s#a#b\\..\\c#n#",
                    "s#a#..\\b#n#",
                    "s#a#.belay#n#",
                    "s#a#.belay/claims#n#",
                    "s#a#.belay/trash/x#n#",
                    "s/a/..",
                    "s/a/.",
                    "s/a/.belay",
                    "s#a###",
                ][..],
            ),
            (
                "share",
                &[
                    "s#..#b#n#",
                    "s#a/..#b#n#",
                    "s#a/../b#c#n#",
                    "s#./a#b#n#",
                    "s/../b",
                    "s/../../etc",
                    "s//../b",
                ],
            ),
            ("name", &["s#a#b#..#", "s#a#b#../c#", "s#a#b#c\\..#"]),
            ("onDelete", &["s#a#b#n#keep"]),
            (
                "name, onDelete",
                &["s#a#b#n#delete#x", "s#a#b#n##", "s/a#b/c"],
            ),
            (
                "server",
                &[
                    "#a#b#n#",
                    "s:/x#a#b#n#",
                    "s t#a#b#n#",
                    "-s#a#b#n#",
                    "s,addr=1.1.1.1#a#b#n#",
                    "[s#a#b#n#",
                ],
            ),
            ("server and share", &[&long]),
        ] {
            for id in ids {
                let refused = of(id).unwrap_err();
                assert_eq!(refused.kind, Kind::Precondition, "{id}");
                let named = refused.message.contains(&format!("{part}: "));
                assert!(named, "{id}: {refused}");
            }
        }
    }

    /// An ID with hostile parts is refused, or refers to a directory below the share.
    #[test]
    fn no_part_of_an_id_leads_elsewhere() {
        const PARTS: [&str; 20] = [
            "..",
            ".",
            "",
            " ",
            "...",
            "..\\",
            "\\..",
            "a\\..\\b",
            "..\\..",
            "~",
            "$(id)",
            "%2e%2e",
            "%2f",
            "..;",
            ".. ",
            " ..",
            "\u{2025}",
            "\u{ff0e}\u{ff0e}",
            ".belay",
            "-rf",
        ];
        let mut count = 0;
        for part in PARTS {
            for path in [
                part.to_owned(),
                format!("a/{part}"),
                format!("{part}/a"),
                format!("a/{part}/b"),
            ] {
                for id in [
                    format!("s#{path}#d#n#"),
                    format!("s#a#{path}#n#"),
                    format!("s#a#d#{path}#"),
                    format!("s/{path}/d"),
                    format!("s/a/{path}"),
                ] {
                    count += 1;
                    let Ok(Some(place)) = of(&id) else { continue };
                    let share = place.share.split('/').filter(|_| !place.share.is_empty());
                    let names = place.dir.names().iter().map(String::as_str);
                    for name in names.clone().chain(share) {
                        assert!(!["", ".", ".."].contains(&name), "{id}: {place:?}");
                    }
                    assert_ne!(names.clone().next(), Some(".belay"), "{id}");
                    assert_ne!(names.count(), 0, "{id}");
                }
            }
        }
        assert_eq!(count, 400);
    }

    #[test]
    fn an_id_that_would_be_read_otherwise_or_is_too_long_is_not_given_out() {
        let long = "d/".repeat(600);
        for (share, dir, name, why) in [
            ("a", "b#c", None, "separates"),
            ("a#b", "c", None, "separates"),
            ("a", "b", Some("n#retain"), "separates"),
            ("a", long.as_str(), Some("n"), "at most 1024"),
        ] {
            let place = Place {
                dir: Dir::unchecked(dir),
                ..place("s", share, "x", name)
            };
            let refused = place.id("").unwrap_err();
            assert!(refused.message.contains(why), "{refused}");
        }
    }
}
