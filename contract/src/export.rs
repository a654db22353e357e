//! How csi-driver-nfs describes a directory of a server, in a class and in a volume context. The
//! case of the keys does not count. Makes no calls.

use belay_server::request::Context;

/// The permission bits of chmod(2).
const MODE_MAX: u32 = 0o7777;

/// The names that a subDir may contain, and the keys with their values.
const TEMPLATES: [(&str, &str); 3] = [
    ("${pvc.metadata.name}", "csi.storage.k8s.io/pvc/name"),
    (
        "${pvc.metadata.namespace}",
        "csi.storage.k8s.io/pvc/namespace",
    ),
    ("${pv.metadata.name}", "csi.storage.k8s.io/pv/name"),
];

/// The value of a key in any case.
///
/// # Errors
/// Why it has none: two spellings have different values.
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

/// The subDir with names instead of its templates; `name` gets a template and the key of its value.
/// `None` if it contains any other template.
///
/// # Errors
/// Those of `name`.
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

/// A name or an IPv4 address, without anything that a source or an ID separates it by.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    !text.is_empty() && text.chars().all(is_allowed) && !text.starts_with('-')
}

/// The address in brackets, or the text itself.
#[must_use]
pub fn without_brackets(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// The octal mode of a directory.
///
/// # Errors
/// Why the text is none.
pub fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= MODE_MAX && !text.starts_with('+') => Ok(mode),
        _ => Err(format!("{text:?} is not an octal mode of at most 7777")),
    }
}
