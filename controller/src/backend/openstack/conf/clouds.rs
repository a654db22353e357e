//! `clouds.yaml`, the file with the accounts of OpenStack's own clients. If `cloud.conf` contains
//! `use-clouds`, `clouds.yaml` provides the values that `cloud.conf` lacks, as in
//! cinder-csi-plugin. A file `secure.yaml` in the same directory may contain the secrets.

use super::yaml::{self, Node};
use belay_server::file::{SECRET_BYTES_MAX, read_text};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The supported keys, each with the key of `cloud.conf` that has the same meaning. If two keys
/// have the same meaning, the value of the first key is used.
const KEYS: [(&str, &str); 23] = [
    ("auth.auth_url", "auth-url"),
    ("auth.username", "username"),
    ("auth.user_id", "user-id"),
    ("auth.password", "password"),
    ("auth.project_id", "tenant-id"),
    ("auth.project_name", "tenant-name"),
    ("auth.trust_id", "trust-id"),
    ("auth.domain_id", "domain-id"),
    ("auth.domain_name", "domain-name"),
    ("auth.user_domain_id", "user-domain-id"),
    ("auth.user_domain_name", "user-domain-name"),
    ("auth.project_domain_id", "tenant-domain-id"),
    ("auth.project_domain_name", "tenant-domain-name"),
    (
        "auth.application_credential_id",
        "application-credential-id",
    ),
    (
        "auth.application_credential_name",
        "application-credential-name",
    ),
    (
        "auth.application_credential_secret",
        "application-credential-secret",
    ),
    ("auth.token", "token"),
    ("region_name", "region"),
    ("endpoint_type", "os-endpoint-type"),
    ("interface", "os-endpoint-type"),
    ("cacert", "ca-file"),
    ("cert", "cert-file"),
    ("key", "key-file"),
];

/// Whether `clouds.yaml` may contain this key of `cloud.conf`.
pub(super) fn has(key: &str) -> bool {
    KEYS.iter().any(|(_, known)| *known == key)
}

/// The names of the supported login methods.
const AUTH_TYPES: [&str; 5] = [
    "password",
    "v3password",
    "token",
    "v3token",
    "v3applicationcredential",
];

/// The path of the file, unless `clouds-file` or an environment variable contains a different path.
const FILE: &str = "/etc/openstack/clouds.yaml";
const FILE_VARIABLE: &str = "OS_CLIENT_CONFIG_FILE";
const CLOUD_VARIABLE: &str = "OS_CLOUD";

/// The account of a cloud, from an entry of `clouds.yaml`.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The file and the entry, for errors.
    place: String,
    /// The values, by the names of their keys in `cloud.conf`.
    values: Vec<(&'static str, String)>,
}

impl Account {
    /// Reads an entry of the file that `cloud.conf` or the environment names. If the file has only
    /// one entry, the name may be omitted. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns a message with the file, the entry or key, and the reason.
    pub(super) fn read(
        file: Option<&str>,
        cloud: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let named = file.map(str::to_owned).or_else(|| variable(FILE_VARIABLE));
        let file = PathBuf::from(named.unwrap_or_else(|| FILE.to_owned()));
        let name = cloud
            .map(str::to_owned)
            .or_else(|| variable(CLOUD_VARIABLE));
        let text = read_text(&file, SECRET_BYTES_MAX).map_err(|error| {
            let known = "name the file with clouds-file";
            format!("{}: {error}; {known}", file.display())
        })?;
        let secure = secure(&file)?;
        let account = Self::of(&text, secure.as_deref(), name.as_deref());
        account
            .map_err(|why| format!("{}: {why}", file.display()))
            .map(|account| Self {
                place: format!("{} of {}", account.place, file.display()),
                ..account
            })
    }

    /// Reads the account from the texts of both files.
    fn of(text: &str, secure: Option<&str>, name: Option<&str>) -> Result<Self, String> {
        let all = yaml::parse(text)?;
        let secure = secure.map(yaml::parse).transpose();
        let secure = secure.map_err(|why| format!("secure.yaml next to it: {why}"))?;
        let clouds = all.get("clouds").map(Node::keys).unwrap_or_default();
        let name = match (name, &clouds[..]) {
            (Some(name), _) => name,
            (None, [single]) => single,
            (None, _) => {
                let why = "name one with the key cloud";
                return Err(format!("clouds: {why}; there are: {}", clouds.join(", ")));
            }
        };
        let entry = |file: &Node| file.get("clouds").and_then(|it| it.get(name)).is_some();
        if !entry(&all) {
            let known = clouds.join(", ");
            return Err(format!("clouds: has no {name:?}; there are: {known}"));
        }
        let files: Vec<&Rc<Node>> = secure.iter().chain([&all]).collect();
        let value = |path: &str| value(&files, name, path);
        if value("profile")?.is_some() {
            let why = "is not supported; write auth_url and the other keys of it here";
            return Err(format!("clouds.{name}.profile: {why}"));
        }
        let auth_type = value("auth_type")?;
        if let Some(other) = auth_type.filter(|it| !AUTH_TYPES.contains(&it.as_str())) {
            let known = AUTH_TYPES.join(", ");
            let why = format!("{other:?} is not supported; use one of {known}");
            return Err(format!("clouds.{name}.auth_type: {why}"));
        }
        let mut values = Vec::new();
        for (path, key) in KEYS {
            if let Some(value) = value(path)? {
                values.push((key, value));
            }
        }
        let place = format!("clouds.{name}");
        Ok(Self { place, values })
    }

    /// Returns the value of a key of `cloud.conf`.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let found = self.values.iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns an addition to errors about keys of `cloud.conf`, with the equivalent keys of
    /// `clouds.yaml`.
    pub(super) fn names(&self, keys: &str) -> String {
        let asked = keys.split([' ', ',']);
        let own = |key: &str| {
            let found = KEYS.iter().find(|(_, known)| *known == key);
            found.map(|(path, _)| *path)
        };
        let own: Vec<_> = asked.filter_map(own).collect();
        match own.is_empty() {
            true => format!(" (with {})", self.place),
            false => format!(" (in {}: {})", self.place, own.join(" or ")),
        }
    }
}

/// Returns the text of the file `secure.yaml` in the directory of `clouds.yaml`, if `secure.yaml`
/// exists.
fn secure(file: &Path) -> Result<Option<String>, String> {
    let file = file.with_file_name("secure.yaml");
    match read_text(&file, SECRET_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

/// Returns the text at a path in the entry, from the first file that contains it. An empty text is
/// treated as missing.
fn value(files: &[&Rc<Node>], name: &str, path: &str) -> Result<Option<String>, String> {
    for file in files {
        let entry = file.get("clouds").and_then(|it| it.get(name));
        let found = path
            .split('.')
            .try_fold(entry, |node, key| Some(node?.get(key)));
        match found.flatten() {
            None | Some(Node::Text(None)) => {}
            Some(Node::Text(Some(text))) if text.is_empty() => {}
            Some(Node::Text(Some(text))) => return Ok(Some(text.clone())),
            Some(Node::Map(_) | Node::List(_)) => {
                return Err(format!("clouds.{name}.{path}: is no text"));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "clouds:\n  one:\n    auth:\n      auth_url: http://one:5000\n      \
                       username: csi\n      project_name: k8s\n      password: 0042\n    \
                       region_name: r1\n    interface: internal\n    verify: false\n  two:\n    \
                       auth_type: v3applicationcredential\n    auth: {auth_url: http://two}\n";

    fn of(text: &str, secure: Option<&str>, name: Option<&str>) -> Result<Account, String> {
        Account::of(text, secure, name)
    }

    #[test]
    fn an_entry_has_the_keys_of_cloud_conf_and_secure_yaml_comes_first() {
        let account = of(TWO, None, Some("one")).unwrap();
        for (key, value) in [
            ("auth-url", Some("http://one:5000")),
            ("username", Some("csi")),
            ("tenant-name", Some("k8s")),
            ("password", Some("0042")),
            ("region", Some("r1")),
            ("os-endpoint-type", Some("internal")),
            ("tenant-id", None),
        ] {
            assert_eq!(account.get(key), value, "{key}");
        }
        let secure = "clouds:\n  one:\n    auth: {password: other, username: ''}\n";
        let account = of(TWO, Some(secure), Some("one")).unwrap();
        assert_eq!(account.get("password"), Some("other"));
        assert_eq!(account.get("username"), Some("csi"), "an empty one is none");
        // The key `endpoint_type` is the older name of `interface`.
        let both = "clouds: {a: {interface: admin, endpoint_type: internal}}";
        let both = of(both, None, None).unwrap();
        assert_eq!(both.get("os-endpoint-type"), Some("internal"));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_key_and_no_value_of_it() {
        for (text, name, why) in [
            (
                TWO,
                None,
                "name one with the key cloud; there are: one, two",
            ),
            (
                TWO,
                Some("three"),
                "clouds: has no \"three\"; there are: one, two",
            ),
            ("", Some("a"), "clouds: has no \"a\""),
            ("clouds: [", Some("a"), "line "),
            (
                "clouds: {a: {profile: canary}}",
                None,
                "clouds.a.profile: is not",
            ),
            (
                "clouds: {a: {auth_type: v3totp}}",
                None,
                "clouds.a.auth_type: \"v3totp\"",
            ),
            (
                "clouds: {a: {auth: {password: [canary]}}}",
                None,
                "clouds.a.auth.password: is no",
            ),
        ] {
            let refused = of(text, None, name).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
        let refused = of(TWO, Some("clouds: ["), Some("one")).unwrap_err();
        assert!(
            refused.starts_with("secure.yaml next to it: line"),
            "{refused}"
        );
    }

    #[test]
    fn files_and_entry_are_those_of_cloud_conf_then_those_of_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clouds.yaml");
        std::fs::write(&file, TWO).unwrap();
        let path = file.to_str().unwrap().to_owned();
        let none = |_: &str| None;
        let read = |file, cloud, variable: &dyn Fn(&str) -> Option<String>| {
            Account::read(file, cloud, variable)
        };
        let region = |account: Account| account.get("region").map(str::to_owned);
        let account = read(Some(&path), Some("one"), &none).unwrap();
        let place = format!("(in clouds.one of {path}: auth.auth_url)");
        assert!(account.names("auth-url").ends_with(&place));
        assert_eq!(region(account).as_deref(), Some("r1"));
        let environment = |name: &str| match name {
            "OS_CLIENT_CONFIG_FILE" => Some(path.clone()),
            "OS_CLOUD" => Some("one".to_owned()),
            other => panic!("{other}"),
        };
        let account = read(None, None, &environment).unwrap();
        assert_eq!(region(account).as_deref(), Some("r1"));
        let account = read(None, Some("two"), &environment).unwrap();
        assert_eq!(region(account), None);
        let gone = dir.path().join("gone.yaml");
        let refused = read(gone.to_str(), None, &none).unwrap_err();
        assert!(refused.contains("gone.yaml: "), "{refused}");
        std::fs::write(
            dir.path().join("secure.yaml"),
            "clouds: {one: {region_name: r2}}",
        )
        .unwrap();
        let account = read(Some(&path), Some("one"), &none).unwrap();
        assert_eq!(region(account).as_deref(), Some("r2"));
        std::fs::remove_file(dir.path().join("secure.yaml")).unwrap();
        std::fs::create_dir(dir.path().join("secure.yaml")).unwrap();
        let refused = read(Some(&path), Some("one"), &none).unwrap_err();
        assert!(refused.contains("secure.yaml: "), "{refused}");
    }
}
