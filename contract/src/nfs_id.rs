//! The IDs of NFS volumes and snapshots in the format of csi-driver-nfs:
//! `server#share#directory#name#policy` for a volume. Makes no calls.

use crate::export;

/// Separates the parts of an ID.
pub const SEPARATOR: char = '#';
/// The maximum number of parts of an ID.
const PARTS_MAX: usize = 5;
/// The length of the longest suffix of an archive, `.tar.gz`.
const SUFFIX_BYTES: usize = 7;
/// The name of the directory that Belay creates in a share for its own files. The directory is not
/// a volume.
pub const OWN: &str = ".belay";
/// The possible actions when a volume is deleted (`onDelete` of csi-driver-nfs).
pub const POLICIES: [&str; 3] = ["delete", "retain", "archive"];

/// The parts of a volume ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The host name or address, without slashes at its ends.
    pub server: &'a str,
    /// The path of the exported directory, without slashes at its ends; empty for the root.
    pub share: String,
    /// The components of the directory's path below the share; at least one.
    pub dir: Vec<String>,
    /// The name in the request that created the volume; `None` if the name is the same as the
    /// directory's name.
    pub name: Option<&'a str>,
    /// The action when the volume is deleted, one of [`POLICIES`]; `None` if the ID does not
    /// contain one.
    pub policy: Option<&'static str>,
}

/// An ID that csi-driver-nfs may have created but Belay cannot parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The part that cannot be parsed.
    pub part: &'static str,
    /// The reason, a lowercase fragment.
    pub why: String,
}

/// Parses the ID of a volume. Returns `None` if no driver can have created the ID.
///
/// # Errors
/// Returns the part that Belay cannot parse; a volume with this ID may exist.
pub fn read(id: &str) -> Result<Option<Parts<'_>>, Unread> {
    let parts: Vec<_> = id.split(SEPARATOR).collect();
    let (server, share, dir, more) = match parts[..] {
        [server, share, dir, ref more @ ..] => (server, share, dir, more),
        // If an ID has a different format, csi-driver-nfs also responds that the volume does not
        // exist.
        _ => match old_parts(id) {
            Some((server, share, dir)) => (server, share, dir, &[][..]),
            None => return Ok(None),
        },
    };
    let unread = |part| move |why| Unread { part, why };
    if parts.len() > PARTS_MAX || parts.len() == 2 {
        let why = format!("{SEPARATOR:?} is in one of its parts, so it is not known which");
        return Err(unread("server, share, subDir, name, onDelete")(why));
    }
    let given = |at: usize| more.get(at).copied().filter(|part| !part.is_empty());
    let server = export::server(server).map_err(unread("server"))?;
    let share = export::share(share).map_err(unread("share"))?;
    let dir = directory(dir).map_err(unread("subDir"))?;
    if dir.is_empty() {
        return Err(unread("subDir")("names the share itself".to_owned()));
    }
    let name = given(0);
    // The name of a volume is not a path, but csi-driver-nfs uses the name in the names of files.
    if name.is_some_and(|name| name.split(['/', '\\']).any(|part| part == "..")) {
        return Err(unread("name")("has the part \"..\"".to_owned()));
    }
    let policy = given(1).map(policy).transpose();
    let policy = policy.map_err(unread("onDelete"))?;
    let source = export::source(server, &share);
    if source.len() > export::SOURCE_BYTES_MAX {
        return Err(unread("server and share")(export::too_long(&source)));
    }
    Ok(Some(Parts {
        server,
        share,
        dir,
        name,
        policy,
    }))
}

/// The parts of a snapshot ID: `server#share#name#name#volume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotParts<'a> {
    /// The host name or address, without slashes at its ends.
    pub server: &'a str,
    /// The path of the exported directory, without slashes at its ends; empty for the root.
    pub share: String,
    /// The name in the request that created the snapshot, which is also the name of the snapshot's
    /// directory.
    pub name: &'a str,
    /// The name of the snapshot's volume, which is also the name of the snapshot's archive.
    pub volume: &'a str,
}

/// Parses the ID of a snapshot. Returns `None` if no driver can have created the ID.
///
/// # Errors
/// Returns the part that Belay cannot parse; a snapshot with this ID may exist.
pub fn read_snapshot(id: &str) -> Result<Option<SnapshotParts<'_>>, Unread> {
    let parts: Vec<_> = id.split(SEPARATOR).collect();
    let [server, share, name, again, volume] = parts[..] else {
        return Ok(None);
    };
    if name != again {
        return Ok(None);
    }
    let unread = |part| move |why| Unread { part, why };
    let server = export::server(server).map_err(unread("server"))?;
    let share = export::share(share).map_err(unread("share"))?;
    let source = export::source(server, &share);
    if source.len() > export::SOURCE_BYTES_MAX {
        return Err(unread("server and share")(export::too_long(&source)));
    }
    Ok(Some(SnapshotParts {
        server,
        share,
        name: snapshot_name(name).map_err(unread("name"))?,
        volume: archive_name(volume).map_err(unread("volume"))?,
    }))
}

/// Checks the name of a snapshot, which is also the name of its directory.
///
/// # Errors
/// Returns a message if the name cannot be used.
pub fn snapshot_name(name: &str) -> Result<&str, String> {
    single(name)?;
    match name == OWN {
        true => Err(format!("is {OWN}, which has Belay's own files")),
        false => Ok(name),
    }
}

/// Checks the name of a volume, which the names of its archives contain.
///
/// # Errors
/// Returns a message if the name cannot be used.
pub fn archive_name(name: &str) -> Result<&str, String> {
    single(name)?;
    let (bytes, most) = (name.len(), export::NAME_BYTES_MAX - SUFFIX_BYTES);
    match bytes > most {
        true => Err(format!("has {bytes} bytes; at most {most} are possible")),
        false => Ok(name),
    }
}

/// Checks that a text is a single path component without [`SEPARATOR`].
fn single(name: &str) -> Result<(), String> {
    let names = export::names(name)?;
    let is_one = matches!(&names[..], [one] if one == name);
    match is_one && !name.contains(SEPARATOR) {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is not one name without '/' and {SEPARATOR:?}"
        )),
    }
}

/// Splits the path of a directory below a share into its components; slashes at its ends are
/// ignored. The result is empty if the path is the share itself.
///
/// # Errors
/// Returns a message that names the part that is not allowed.
pub fn directory(path: &str) -> Result<Vec<String>, String> {
    let names = export::names(path)?;
    match names.first() {
        Some(first) if first == OWN => {
            Err(format!("begins with {OWN}, which has Belay's own files"))
        }
        _ => Ok(names),
    }
}

/// Parses one of [`POLICIES`], in any case.
///
/// # Errors
/// Returns a message if the text is not a policy.
pub fn policy(text: &str) -> Result<&'static str, String> {
    let mut all = POLICIES.into_iter();
    let found = all.find(|policy| policy.eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("{text:?} is not one of {}", POLICIES.join(", ")))
}

/// Splits an ID of csi-driver-nfs before 4.0: `server/share/directory`.
fn old_parts(id: &str) -> Option<(&str, &str, &str)> {
    let (server, rest) = id.split_once('/')?;
    let (share, dir) = rest.rsplit_once('/')?;
    (!server.is_empty() && !dir.is_empty()).then_some((server, share, dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_the_id_of_csi_driver_nfs() {
        let id = "10.0.0.5#exports/k8s#snapshot-1#snapshot-1#pvc-1";
        let expected = SnapshotParts {
            server: "10.0.0.5",
            share: "exports/k8s".to_owned(),
            name: "snapshot-1",
            volume: "pvc-1",
        };
        assert_eq!(read_snapshot(id), Ok(Some(expected)));
        let root = read_snapshot("fd00::1##s#s#pvc-1").unwrap().unwrap();
        assert_eq!((root.server, &*root.share), ("fd00::1", ""));
    }

    #[test]
    fn an_id_of_a_snapshot_that_no_driver_gives_out_is_that_of_none() {
        for id in ["", "x", "s#a#n#n", "s#a#n#n#v#x", "s#a#n#m#v"] {
            assert_eq!(read_snapshot(id), Ok(None), "{id}");
        }
    }

    #[test]
    fn an_id_of_a_snapshot_that_leads_elsewhere_is_refused_by_its_part() {
        for (part, id) in [
            ("server", "s,x#a#n#n#v"),
            ("server", "#a#n#n#v"),
            ("share", "s#../a#n#n#v"),
            ("name", "s#a#..#..#v"),
            ("name", "s#a#.#.#v"),
            ("name", "s#a###v"),
            ("name", "s#a#x/n#x/n#v"),
            ("name", "s#a#/n#/n#v"),
            ("name", "s#a#.belay#.belay#v"),
            ("volume", "s#a#n#n#"),
            ("volume", "s#a#n#n#../v"),
            ("volume", "s#a#n#n#x/v"),
            ("volume", "s#a#n#n#v/"),
            ("volume", "s#a#n#n#..\\v"),
        ] {
            assert_eq!(read_snapshot(id).unwrap_err().part, part, "{id}");
        }
        let long = |bytes| format!("s#a#n#n#{}", "v".repeat(bytes));
        assert!(read_snapshot(&long(248)).is_ok());
        assert_eq!(read_snapshot(&long(249)).unwrap_err().part, "volume");
    }
}
