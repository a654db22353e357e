//! The ID of an NFS volume, as csi-driver-nfs writes it: `server#share#directory#name#policy`.
//! Makes no calls.

use crate::export;

/// What is between the parts.
pub const SEPARATOR: char = '#';
/// The most parts that an ID has.
const PARTS_MAX: usize = 5;
/// The longest suffix of an archive, `.tar.gz`.
const SUFFIX_BYTES: usize = 7;
/// Belay's own directory in a share, which is no volume.
pub const OWN: &str = ".belay";
/// What a deletion can do.
pub const POLICIES: [&str; 3] = ["delete", "retain", "archive"];

/// A volume, as its ID describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Host name or address, without slashes at its ends.
    pub server: &'a str,
    /// The exported directory, without slashes at its ends; empty for the root.
    pub share: String,
    /// The names in the path of the directory below the share, of which there is at least one.
    pub dir: Vec<String>,
    /// The name in the request that created the volume, where it is not the directory's.
    pub name: Option<&'a str>,
    /// What a deletion does, one of [`POLICIES`], if the ID says so.
    pub policy: Option<&'static str>,
}

/// An ID that Belay does not read, and that csi-driver-nfs may have given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Which part is not read.
    pub part: &'static str,
    /// Why.
    pub why: String,
}

/// The volume of that ID; none if no driver can ever have given it out.
///
/// # Errors
/// The part that Belay does not read: there may be a directory.
pub fn read(id: &str) -> Result<Option<Parts<'_>>, Unread> {
    let parts: Vec<_> = id.split(SEPARATOR).collect();
    let (server, share, dir, more) = match parts[..] {
        [server, share, dir, ref more @ ..] => (server, share, dir, more),
        // Its answer to others, too, is that the volume does not exist.
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
    // Its parts are no path, but csi-driver-nfs has it in the names of files.
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

/// A snapshot, as its ID describes it: `server#share#name#name#volume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotParts<'a> {
    /// As that of [`Parts`].
    pub server: &'a str,
    /// As that of [`Parts`].
    pub share: String,
    /// The name in the request that created it, which is that of its directory, too.
    pub name: &'a str,
    /// The name of its volume, which is that of its archive, too.
    pub volume: &'a str,
}

/// The snapshot of that ID; none if no driver can ever have given it out.
///
/// # Errors
/// The part that Belay does not read: there may be an archive.
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

/// The name of a snapshot, which is that of a directory.
///
/// # Errors
/// Why it is none.
pub fn snapshot_name(name: &str) -> Result<&str, String> {
    single(name)?;
    match name == OWN {
        true => Err(format!("is {OWN}, which has Belay's own files")),
        false => Ok(name),
    }
}

/// The name of a volume, which is that of its archives.
///
/// # Errors
/// Why it is none.
pub fn archive_name(name: &str) -> Result<&str, String> {
    single(name)?;
    let (bytes, most) = (name.len(), export::NAME_BYTES_MAX - SUFFIX_BYTES);
    match bytes > most {
        true => Err(format!("has {bytes} bytes; at most {most} are possible")),
        false => Ok(name),
    }
}

/// One name of a path, without what separates the parts of an ID.
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

/// The names in the path of a directory below a share; slashes at its ends do not count. Empty if
/// it names the share itself.
///
/// # Errors
/// Which part is not allowed.
pub fn directory(path: &str) -> Result<Vec<String>, String> {
    let names = export::names(path)?;
    match names.first() {
        Some(first) if first == OWN => {
            Err(format!("begins with {OWN}, which has Belay's own files"))
        }
        _ => Ok(names),
    }
}

/// One of [`POLICIES`], in any case.
///
/// # Errors
/// That it is none.
pub fn policy(text: &str) -> Result<&'static str, String> {
    let mut all = POLICIES.into_iter();
    let found = all.find(|policy| policy.eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("{text:?} is not one of {}", POLICIES.join(", ")))
}

/// The parts of an ID of csi-driver-nfs before 4.0: `server/share/directory`.
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
