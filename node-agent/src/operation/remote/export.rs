//! Parses the volume context of a volume that is a server's directory. The keys are the keys of
//! csi-driver-nfs, and are not case-sensitive. Makes no system call.

use std::net::Ipv6Addr;

use belay_contract::export::{self, is_host_name, without_brackets};
use belay_server::call::Failure;
use belay_server::request::Context;

const FIELD: &str = "volume_context";

/// Maximum length of a string value of fsconfig(2), in bytes.
const SOURCE_BYTES_MAX: usize = 255;
/// A directory of a server that is a volume.
pub(super) struct Export {
    /// The name or address of the host, in lower case and without brackets.
    pub(super) server: String,
    /// The source of the mount, `SERVER:/SHARE/DIRECTORY`, with brackets around an IPv6 address.
    pub(super) source: String,
    /// Mount options in addition to the mount flags in the volume capability.
    pub(super) options: Option<String>,
    /// The mode to set on the volume's root directory; `None` to leave the mode unchanged.
    pub(super) permissions: Option<u32>,
}

impl Export {
    /// Parses the volume context.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` with the key if a required value is missing, or a value is
    /// unsafe.
    pub(super) fn of(context: &Context) -> Result<Self, Failure> {
        let required = |key: &str| match value(context, key)? {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(invalid(key, "is required, but missing or empty")),
        };
        let (server, share) = (server(required("server")?)?, required("share")?);
        let mut directory = parts("share", share)?;
        let below = value(context, "subDir")?.unwrap_or_default();
        let below = filled(context, below)?;
        directory.extend(parts("subDir", &below)?);
        let host = match server.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{server}]"),
            Err(_) => server.clone(),
        };
        let source = format!("{host}:/{}", directory.join("/"));
        if source.len() > SOURCE_BYTES_MAX {
            let why = format!(
                "server, share and subDir have {} bytes in total; the kernel takes at most \
                 {SOURCE_BYTES_MAX}",
                source.len()
            );
            return Err(Failure::invalid(FIELD, why));
        }
        Ok(Export {
            server,
            source,
            options: value(context, "mountOptions")?.map(str::to_owned),
            permissions: permissions(context)?,
        })
    }
}

/// Returns the value of a key, ignoring the case of the key.
fn value<'a>(context: &'a Context, key: &str) -> Result<Option<&'a str>, Failure> {
    export::value(context, key).map_err(|why| invalid(key, why))
}

/// Returns the name or address of a host, in lower case and without brackets. Refuses characters
/// that would end the host part of a mount source.
fn server(text: &str) -> Result<String, Failure> {
    let server = without_brackets(text).to_ascii_lowercase();
    match server.parse::<Ipv6Addr>().is_ok() || is_host_name(&server) {
        true => Ok(server),
        false => Err(invalid("server", "is no host name and no IP address")),
    }
}

/// Splits a path into its components, ignoring slashes at both ends. Refuses `..`, because the
/// kernel resolves `..` in a mount source, and would mount a directory outside of the volume.
fn parts<'a>(key: &str, path: &'a str) -> Result<Vec<&'a str>, Failure> {
    if path.chars().any(char::is_control) {
        return Err(invalid(key, "contains a control character"));
    }
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<_> = path.split('/').collect();
    match parts.iter().find(|part| ["", ".", ".."].contains(*part)) {
        Some(part) => Err(invalid(key, &format!("has the part {part:?}"))),
        None => Ok(parts),
    }
}

/// Replaces the templates in the value of `subDir`, such as `${pvc.metadata.name}`, by their values
/// in the volume context.
fn filled(context: &Context, below: &str) -> Result<String, Failure> {
    let name = |template, key| {
        let name = value(context, key)?.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            invalid(
                "subDir",
                &format!("contains {template}, and {key} is missing"),
            )
        })?;
        match name.contains(['/', '$']) {
            true => Err(invalid(key, "is no name of an object")),
            false => Ok(name),
        }
    };
    let filled = export::filled(below, name)?;
    filled.ok_or_else(|| invalid("subDir", "contains an unknown template"))
}

/// Returns the mode to set on the root directory of the volume. Returns `None` if
/// `mountPermissions` is 0, empty or missing, to leave the mode unchanged.
fn permissions(context: &Context) -> Result<Option<u32>, Failure> {
    let key = "mountPermissions";
    let text = value(context, key)?.filter(|text| !text.is_empty());
    let mode = text.map(export::mode).transpose();
    let mode = mode.map_err(|why| invalid(key, &why))?;
    Ok(mode.filter(|mode| *mode != 0))
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::invalid(FIELD, format!("{key}: {why}"))
}

#[cfg(test)]
mod tests {
    use belay_server::call::Kind;
    use proptest::prelude::*;

    use super::*;

    fn export(entries: &[(&str, &str)]) -> Result<Export, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let context = Context::new(FIELD, entries.iter().map(owned)).unwrap();
        Export::of(&context).map_err(|failure| {
            assert_eq!(failure.kind, Kind::Invalid);
            failure.message
        })
    }

    fn source(server: &str, share: &str, below: &str) -> Result<String, String> {
        let found = export(&[("server", server), ("share", share), ("subDir", below)]);
        found.map(|export| export.source)
    }

    #[test]
    fn a_server_or_share_that_is_empty_is_missing() {
        for entries in [
            &[("server", ""), ("share", "/a")][..],
            &[("server", "filer"), ("share", "")],
            &[("server", "filer")],
        ] {
            let message = export(entries).err().unwrap();
            let why = "is required, but missing or empty";
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn the_source_is_that_of_csi_driver_nfs() {
        for (server, share, below, expected) in [
            (
                "10.0.0.5",
                "/exports/k8s",
                "ns1/data",
                "10.0.0.5:/exports/k8s/ns1/data",
            ),
            ("10.0.0.5", "/exports/k8s/", "", "10.0.0.5:/exports/k8s"),
            ("10.0.0.5", "exports", "/a/", "10.0.0.5:/exports/a"),
            ("Filer.example.com", "/", "", "filer.example.com:/"),
            ("fd00::1", "/vol 1", "", "[fd00::1]:/vol 1"),
            ("[FD00::1]", "/vol1", "\u{e9}", "[fd00::1]:/vol1/\u{e9}"),
        ] {
            assert_eq!(source(server, share, below), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn keys_have_any_case_and_their_values_must_agree() {
        let found = export(&[
            ("SERVER", "s"),
            ("Share", "/a"),
            ("subdir", "b"),
            ("subDir", "b"),
        ]);
        assert_eq!(found.unwrap().source, "s:/a/b");
        let refused = export(&[
            ("server", "s"),
            ("share", "/a"),
            ("subdir", "b"),
            ("subDir", "c"),
        ]);
        assert!(refused.err().unwrap().contains("subDir: is given twice"));
    }

    #[test]
    fn templates_are_filled_with_names_and_only_with_names() {
        let names = [
            ("server", "s"),
            ("share", "/a"),
            ("csi.storage.k8s.io/pvc/name", "claim"),
            ("csi.storage.k8s.io/pvc/namespace", "ns"),
            ("csi.storage.k8s.io/pv/name", "pv-1"),
        ];
        let below = |text| {
            let mut entries = names.to_vec();
            entries.push(("subDir", text));
            export(&entries).map(|export| export.source)
        };
        let all = "${pvc.metadata.namespace}/${pvc.metadata.name}-${pv.metadata.name}";
        assert_eq!(below(all), Ok("s:/a/ns/claim-pv-1".to_owned()));
        assert!(
            below("${pod.metadata.name}")
                .unwrap_err()
                .contains("unknown template")
        );
        let missing = source("s", "/a", "${pv.metadata.name}").unwrap_err();
        assert!(
            missing.contains("csi.storage.k8s.io/pv/name is missing"),
            "{missing}"
        );
        for name in ["..", "../b", "a/b", "${pvc.metadata.name}", ""] {
            let hostile = export(&[
                ("server", "s"),
                ("share", "/a"),
                ("subDir", "x/${pv.metadata.name}"),
                ("csi.storage.k8s.io/pv/name", name),
            ]);
            assert!(hostile.is_err(), "{name}");
        }
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused_by_its_key() {
        for hostile in [
            "..",
            "../b",
            "a/..",
            "a/../../b",
            "a//b",
            "./a",
            "a/.",
            "a\nb",
            "a\0b",
        ] {
            let refused = source("s", "/a", hostile).unwrap_err();
            assert!(refused.starts_with("volume_context: subDir: "), "{refused}");
            let refused = source("s", &format!("/{hostile}/c"), "").unwrap_err();
            assert!(refused.starts_with("volume_context: share: "), "{refused}");
        }
        // Names that contain dots and other characters, or that consist of three dots, are ordinary
        // path components.
        for name in ["..a", "a..", "...", ".a"] {
            assert_eq!(source("s", "/a", name), Ok(format!("s:/a/{name}")));
        }
    }

    #[test]
    fn a_server_is_a_host_and_nothing_more() {
        for hostile in [
            "",
            " ",
            "a:/b",
            "a b",
            "a/b",
            "-a",
            "a,addr=1.2.3.4",
            "a\n",
            "[a]b",
            "::1]",
            "a:b",
            "[::1",
        ] {
            let refused = source(hostile, "/a", "").unwrap_err();
            assert!(refused.contains("server: "), "{hostile}: {refused}");
        }
    }

    #[test]
    fn a_source_that_the_kernel_would_cut_is_refused() {
        let of_bytes = |bytes: usize| source("s", &"d".repeat(bytes - "s:/".len()), "");
        assert_eq!(of_bytes(255).unwrap().len(), 255);
        assert!(of_bytes(256).unwrap_err().contains("at most 255"));
    }

    #[test]
    fn permissions_are_octal_and_zero_changes_nothing() {
        let of = |text| {
            let found = export(&[("server", "s"), ("share", "/a"), ("mountPermissions", text)]);
            found.map(|export| export.permissions)
        };
        for (text, mode) in [
            ("", None),
            ("0", None),
            ("0777", Some(0o777)),
            ("1777", Some(0o1777)),
        ] {
            assert_eq!(of(text), Ok(mode));
        }
        for bad in ["778", "u+w", "-1", "+7", "10000", "0x1ff"] {
            assert!(of(bad).unwrap_err().contains("mountPermissions"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_value_makes_a_source_that_leads_out_of_the_share(below: String) {
            if let Ok(source) = source("s", "/share", &below) {
                prop_assert!(source == "s:/share" || source.starts_with("s:/share/"));
                let mut parts = source["s:/".len()..].split('/');
                prop_assert!(parts.all(|part| !["", ".", ".."].contains(&part)));
            }
        }
    }
}
