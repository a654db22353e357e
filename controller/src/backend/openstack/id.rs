//! The IDs of volumes, snapshots and servers: UUIDs, which Cinder and Nova write in lower case and
//! with dashes. The services look up IDs as text in their database. Some databases ignore case,
//! such as MariaDB with the collation of most clouds; they also find an ID that is spelled
//! differently. Belay's marks and locks, and the serial numbers of disks, do not match a different
//! spelling.

use crate::backend::cloud::ids::{self, is_uuid};
use belay_server::call::{Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};

/// Whether the ID is spelled as Cinder and Nova spell it.
pub(super) fn is_own(id: &str) -> bool {
    is_uuid(id) && !id.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Returns the ID of a volume in a response.
///
/// # Errors
/// Returns the errors of [`ids::volume`].
pub(super) fn volume(text: &str) -> Result<VolumeId, Failure> {
    ids::volume(text, is_own)
}

/// Returns the ID of a snapshot or a backup in a response.
///
/// # Errors
/// Returns the errors of [`ids::snapshot`].
pub(super) fn snapshot(text: &str) -> Result<SnapshotId, Failure> {
    ids::snapshot(text, is_own)
}

/// Returns true if no object can have the ID, even if the database ignores trailing blanks and
/// treats some letters as equal.
fn is_nothing(id: &str) -> bool {
    id.is_ascii() && !is_uuid(id.trim_end())
}

/// Returns the path of an object of a kind, such as `/volumes/ID` for `volume`. Returns `None` if
/// no object can have the ID. If no object can have the ID, no request may be sent, since a proxy
/// might resolve `..` in the path.
///
/// # Errors
/// Returns `Invalid` if the ID may match an object, but is not spelled as in OpenStack: a UUID in
/// lower case, with dashes.
pub(super) fn path(what: &str, id: &str) -> Result<Option<String>, Failure> {
    match (is_own(id), is_nothing(id)) {
        (true, _) => Ok(Some(format!("/{what}s/{id}"))),
        (false, true) => Ok(None),
        (false, false) => Err(Failure::new(
            Kind::Invalid,
            format!(
                "{what} {id}: may be the ID of one, but is not spelled as OpenStack does: use a \
                 UUID in lower case, with dashes and without blanks"
            ),
        )),
    }
}

/// Returns the path of an object like [`path`], and fails if no object can have the ID.
///
/// # Errors
/// Returns the errors of [`path`], and `NotFound` instead of `None`.
pub(super) fn path_of(what: &str, id: &str) -> Result<String, Failure> {
    let found = path(what, id)?;
    found.ok_or_else(|| Failure::not_found(format!("{what} {id}: not found: its ID is no UUID")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7f8b1c2d-1111-4222-8333-44445555aaff";

    #[test]
    fn an_id_has_a_path_only_if_it_is_spelled_as_the_services_do() {
        assert_eq!(path("volume", ID), Ok(Some(format!("/volumes/{ID}"))));
        let plain = ID.replace('-', "");
        for nothing in [
            "none",
            "",
            &plain,
            &plain.to_uppercase(),
            &format!("{{{ID}}}"),
            &format!("urn:uuid:{ID}"),
            &format!(" {ID}"),
            &ID[1..],
            &format!("{ID}0"),
            &ID.replace('f', "g"),
            &ID.replace('-', "_"),
            "../../../../../../../../../snapshots",
            &format!("{ID}/../{ID}"),
        ] {
            assert_eq!(path("volume", nothing), Ok(None), "{nothing}");
            let refused = path_of("volume", nothing).unwrap_err();
            assert_eq!(refused.kind, Kind::NotFound);
        }
    }

    #[test]
    fn an_id_that_a_database_may_take_for_another_is_neither_used_nor_missing() {
        for similar in [
            ID.to_uppercase(),
            ID.replace('a', "A"),
            format!("{ID} "),
            ID.replacen('a', "\u{e1}", 1),
            ID.replacen('1', "\u{ff11}", 1),
        ] {
            let refused = path("snapshot", &similar).unwrap_err();
            assert_eq!(refused.kind, Kind::Invalid);
            let begins = format!("snapshot {similar}: ");
            assert!(refused.message.starts_with(&begins), "{refused}");
        }
    }
}
