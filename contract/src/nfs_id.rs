//! The ID of an NFS volume, as csi-driver-nfs writes it: `server#share#directory#name#policy`.
//! Makes no calls.

use crate::export;

/// What is between the parts.
pub const SEPARATOR: char = '#';
/// The most parts that an ID has.
const PARTS_MAX: usize = 5;
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
