//! The syntax of csi-driver-nfs for a directory of a server, in a StorageClass and in a volume
//! context. The case of the keys is ignored. Makes no calls.

use belay_server::request::Context;
use std::net::Ipv6Addr;

/// The permission bits of chmod(2).
const MODE_MAX: u32 = 0o7777;
/// The maximum length of a directory's name, in bytes (NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;
/// The maximum number of names in a path.
const DEPTH_MAX: usize = 64;
/// The maximum length of the source of a mount, in bytes: the limit of fsconfig(2) for strings.
pub const SOURCE_BYTES_MAX: usize = 255;

/// The templates that a `subDir` may contain, each with the key of the parameter that replaces it.
const TEMPLATES: [(&str, &str); 3] = [
    ("${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name"),
    (
        "${pvc.metadata.namespace}",
        "csi.storage.k8s.io/pvc/namespace",
    ),
    ("${pv.metadata.name}", "csi.storage.k8s.io/pv/name"),
];

/// Returns the value of a key, whose case is ignored; `None` if the key is missing.
///
/// # Errors
/// Returns a message if two spellings of the key have different values.
pub fn value<'a>(context: &'a Context, key: &str) -> Result<Option<&'a str>, &'static str> {
    let mut found = context
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(key));
    let first = found.next().map(|(_, value)| value);
    match found.all(|(_, value)| Some(value) == first) {
        true => Ok(first),
        false => Err("is given twice, in different spellings and with different values"),
    }
}

/// Replaces the templates in a `subDir`. Calls `name` with a template and the key of its value;
/// `name` returns the value. Returns `None` if the `subDir` contains an unknown template.
///
/// # Errors
/// Returns the errors of `name`.
pub fn filled<'a, E>(
    below: &str,
    name: impl Fn(&'static str, &'static str) -> Result<&'a str, E>,
) -> Result<Option<String>, E> {
    let mut filled = below.to_owned();
    for (template, key) in TEMPLATES {
        if filled.contains(template) {
            filled = filled.replace(template, name(template, key)?);
        }
    }
    Ok((!filled.contains("${")).then_some(filled))
}

/// Whether the text is a host name or an IPv4 address, without the characters that separate the
/// parts of a source or an ID.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    !text.is_empty() && text.chars().all(is_allowed) && !text.starts_with('-')
}

/// Returns an address without its brackets, or the text itself if the text has no brackets.
#[must_use]
pub fn without_brackets(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// Returns a host's name or address, without slashes at its ends.
///
/// # Errors
/// Returns a message if the text is neither a name nor an address.
pub fn server(text: &str) -> Result<&str, String> {
    let server = text.trim_matches('/');
    let is_address = without_brackets(server).parse::<Ipv6Addr>().is_ok();
    match is_address || is_host_name(server) {
        true => Ok(server),
        false => Err("is no host name and no IP address".to_owned()),
    }
}

/// Returns a share without slashes at its ends.
///
/// # Errors
/// Returns a message that names the part that is not allowed.
pub fn share(path: &str) -> Result<String, String> {
    names(path).map(|names| names.join("/"))
}

/// Splits a path into its components; slashes at its ends are ignored. Refuses `..`, which the
/// kernel would resolve in the source of a mount. Like csi-driver-nfs, also refuses `..` between
/// backslashes.
///
/// # Errors
/// Returns a message that names the part that is not allowed.
pub fn names(path: &str) -> Result<Vec<String>, String> {
    if path.chars().any(char::is_control) {
        return Err("has a control character".to_owned());
    }
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<_> = path.split('/').collect();
    let is_bad = |part: &&&str| ["", ".", ".."].contains(*part);
    let leads_up = |part: &&&str| part.split('\\').any(|part| part == "..");
    if let Some(part) = parts.iter().find(|part| is_bad(part) || leads_up(part)) {
        return Err(format!("has the part {part:?}"));
    }
    if let Some(part) = parts.iter().find(|part| part.len() > NAME_BYTES_MAX) {
        let bytes = part.len();
        return Err(format!(
            "has a part of {bytes} bytes; at most {NAME_BYTES_MAX} are possible"
        ));
    }
    if parts.len() > DEPTH_MAX {
        return Err(format!("has more than {DEPTH_MAX} parts"));
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}

/// Returns the source of a mount, in the syntax of mount.nfs.
#[must_use]
pub fn source(server: &str, path: &str) -> String {
    let bare = without_brackets(server);
    match bare.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{bare}]:/{path}"),
        Err(_) => format!("{bare}:/{path}"),
    }
}

/// Returns the error message for a source that is too long for the kernel.
#[must_use]
pub fn too_long(source: &str) -> String {
    let bytes = source.len();
    format!("{source:?} has {bytes} bytes, and the kernel mounts at most {SOURCE_BYTES_MAX}")
}

/// Parses the octal mode of a directory.
///
/// # Errors
/// Returns a message if the text is not a mode.
pub fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= MODE_MAX && !text.starts_with('+') => Ok(mode),
        _ => Err(format!(
            "{text:?} is not an octal mode from 0 to 7777, such as 0755"
        )),
    }
}
