//! `cloud.conf`, the file with credentials that all OpenStack drivers for Kubernetes share. The
//! file has a section `[Global]`, and a section `[Global "name"]` for each further cloud. Sections
//! and keys of other programs are ignored.

mod clouds;
mod sections;
mod yaml;

use crate::http::TlsFiles;
use belay_server::call::Failure;
use belay_server::file::{self, SECRET_BYTES_MAX};
use clouds::Account;
use sections::Entry;
use std::fmt;
use std::path::PathBuf;

/// A text that must not appear in logs.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The credentials and settings for a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloudConf {
    /// The URL of Keystone without a trailing slash, and with `/v3`.
    pub(super) auth_url: String,
    pub(super) login: Login,
    pub(super) region: Option<String>,
    /// The interface of endpoints: `public`, `internal` or `admin`.
    pub(super) interface: String,
    /// The files `ca-file`, `cert-file` and `key-file`.
    pub(super) tls: TlsFiles,
    /// Whether the zones of volumes are ignored, because Nova's zones have different names.
    pub(super) ignores_zones: bool,
    /// The value of `node-volume-attach-limit`. The only effect of the value is a warning if it
    /// differs from `--max-volumes`.
    pub(super) attach_limit: Option<String>,
}

/// A method to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Password {
        user: User,
        password: Secret,
        scope: Scope,
    },
    /// An application credential, by its ID, or by its name and user.
    ApplicationCredential {
        id: Option<String>,
        name: Option<(String, User)>,
        secret: Secret,
    },
    /// A token from an earlier login. A new token from this token has the same expiry time.
    Token { token: Secret, scope: Scope },
}

/// The scope of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Project(Project),
    /// The project of another user, by the ID of a trust. The trust defines the roles.
    Trust(String),
}

/// A user, by ID, or by name and domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) domain: Domain,
}

/// A project, by ID, or by name and domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Project {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) domain: Domain,
}

/// A domain, by ID or by name; `default` if neither is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
}

impl CloudConf {
    /// Reads the settings of a cloud from the files. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns `Precondition`, with the name of the file, and the line or key.
    pub(super) fn read(source: &Source) -> Result<Self, Failure> {
        let mut keys = Vec::new();
        for path in &source.files {
            let text = file::read_text(path, SECRET_BYTES_MAX);
            let read = text.map_err(|error| format!("{error}; correct the file or --cloud-config"));
            let read = read.and_then(|text| parse(&text));
            let named = |why| Failure::precondition(format!("{}: {why}", path.display()));
            keys.extend(read.map_err(named)?);
        }
        let files: Vec<_> = source
            .files
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        let conf = Self::of(&keys, &source.cloud, |name| std::env::var(name).ok());
        conf.map_err(|why| Failure::precondition(format!("{}: {why}", files.join(", "))))
    }

    #[cfg(test)]
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::of(&parse(text)?, "", |_| None)
    }

    /// Returns the settings of one cloud. May read `clouds.yaml`.
    fn of(
        keys: &[Entry],
        cloud: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut global = Section::of(keys, "global", cloud);
        let storage = Section::of(keys, "blockstorage", "");
        if global.keys.is_empty() && !cloud.is_empty() {
            return Err(format!("there is no section {}", global.title));
        }
        if global.is("use-clouds") {
            let (file, entry) = (global.get("clouds-file"), global.get("cloud"));
            let account = Account::read(file, entry, variable);
            let bad = |why: String| global.bad("use-clouds", &why);
            global.clouds = Some(account.map_err(bad)?);
        }
        if global
            .get("tls-insecure")
            .is_some_and(|value| !OFF.contains(&value.to_ascii_lowercase().as_str()))
        {
            return Err(global.bad(
                "tls-insecure",
                "is not supported; name the authority with ca-file",
            ));
        }
        let auth_url = global.required("auth-url")?.trim_end_matches('/');
        let auth_url = match auth_url.ends_with("/v3") {
            true => auth_url.to_owned(),
            false => format!("{}/v3", auth_url.trim_end_matches("/v2.0")),
        };
        let interface = global.get("os-endpoint-type").unwrap_or("public");
        Ok(Self {
            auth_url,
            login: global.login()?,
            region: global.text("region"),
            interface: interface.trim_end_matches("URL").to_owned(),
            tls: global.tls()?,
            ignores_zones: storage.is("ignore-volume-az"),
            attach_limit: storage.text("node-volume-attach-limit"),
        })
    }
}

const OFF: [&str; 4] = ["false", "no", "off", "0"];
/// Keys with a Boolean value.
const SWITCHES: [&str; 2] = ["use-clouds", "ignore-volume-az"];
/// Keys whose value is a text, in addition to the keys of `clouds.yaml`.
const TEXTS: [&str; 6] = [
    "trustee-id",
    "trustee-password",
    "clouds-file",
    "cloud",
    "tls-insecure",
    "node-volume-attach-limit",
];

/// Returns all keys of a file. Checks the values of the keys that Belay uses.
///
/// # Errors
/// Returns a message with the line or key, and the reason.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let keys = sections::parse(text)?;
    let is_read = |it: &&Entry| match it.section.as_str() {
        "global" => true,
        "blockstorage" => it.sub.is_empty(),
        _ => false,
    };
    for it in keys.iter().filter(is_read) {
        let key = it.key.as_str();
        let why = if SWITCHES.contains(&key) {
            switch(it).is_none().then_some("is neither true nor false")
        } else {
            let is_text = TEXTS.contains(&key) || clouds::has(key);
            let why = "has no value; write KEY = VALUE";
            (is_text && it.value.is_none()).then_some(why)
        };
        if let Some(why) = why {
            let title = title(&it.section, &it.sub);
            return Err(format!("line {}: {title} {key}: {why}", it.line));
        }
    }
    Ok(keys)
}

/// Returns the value of a Boolean key, with gcfg's rules; `None` for an unknown word.
fn switch(entry: &Entry) -> Option<bool> {
    let value = entry.value.as_deref().unwrap_or("true");
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Returns the title of a section for error messages.
fn title(name: &str, sub: &str) -> String {
    match (name, sub) {
        ("global", "") => "[Global]".to_owned(),
        ("global", sub) => format!("[Global {sub:?}]"),
        _ => "[BlockStorage]".to_owned(),
    }
}

/// The files, and the section in them that describes the account of a cloud.
#[derive(Clone, Debug)]
pub(super) struct Source {
    files: Vec<PathBuf>,
    /// The name of the section; empty for the section without a name.
    cloud: String,
}

impl Source {
    pub(super) fn new(files: Vec<PathBuf>, cloud: &str) -> Self {
        let cloud = cloud.to_owned();
        Self { files, cloud }
    }
}

/// The keys of a section. If a key occurs twice, the last value is used.
struct Section<'a> {
    /// The title of the section in errors.
    title: String,
    keys: Vec<&'a Entry>,
    /// The account in `clouds.yaml`, which completes the section. `None` without `use-clouds`.
    clouds: Option<Account>,
}

impl<'a> Section<'a> {
    fn of(keys: &'a [Entry], name: &str, sub: &str) -> Self {
        let title = title(name, sub);
        let keys = keys.iter().filter(|it| it.section == name && it.sub == sub);
        let keys = keys.collect();
        let clouds = None;
        Self {
            title,
            keys,
            clouds,
        }
    }

    fn bad(&self, key: &str, why: &str) -> String {
        let clouds = self.clouds.as_ref().map(|it| it.names(key));
        format!("{} {key}: {why}{}", self.title, clouds.unwrap_or_default())
    }

    /// Returns the value of a key; an empty value is treated as missing.
    fn get(&self, key: &str) -> Option<&str> {
        let own = self.last(key).and_then(|it| it.value.as_deref());
        let own = own.filter(|value| !value.is_empty());
        own.or_else(|| self.clouds.as_ref()?.get(key))
    }

    /// Returns the value of a Boolean key. Returns false if the key is missing.
    fn is(&self, key: &str) -> bool {
        self.last(key).and_then(switch).unwrap_or_default()
    }

    fn last(&self, key: &str) -> Option<&'a Entry> {
        self.keys.iter().rev().copied().find(|it| it.key == key)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(str::to_owned)
    }

    fn required(&self, key: &str) -> Result<&str, String> {
        let missing = || self.bad(key, "is missing; add it");
        self.get(key).ok_or_else(missing)
    }

    fn secret(&self, key: &str) -> Result<Secret, String> {
        self.required(key).map(|secret| Secret(secret.to_owned()))
    }

    fn domain(&self, of: &str) -> Domain {
        let key = |part: &str| format!("{of}-domain-{part}");
        let (own, all) = (
            [self.text(&key("id")), self.text(&key("name"))],
            [self.text("domain-id"), self.text("domain-name")],
        );
        let [id, name] = match own {
            [None, None] => all,
            own => own,
        };
        Domain { id, name }
    }

    fn tls(&self) -> Result<TlsFiles, String> {
        let path = |key| self.get(key).map(PathBuf::from);
        let identity = match (path("cert-file"), path("key-file")) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            (Some(_), None) => return Err(self.bad("key-file", "required with cert-file")),
            (None, Some(_)) => return Err(self.bad("cert-file", "required with key-file")),
        };
        let authorities = path("ca-file");
        Ok(TlsFiles {
            authorities,
            identity,
        })
    }

    fn user(&self) -> User {
        User {
            id: self.text("user-id"),
            name: self.text("username"),
            domain: self.domain("user"),
        }
    }

    fn login(&self) -> Result<Login, String> {
        let id = self.text("application-credential-id");
        let name = self.text("application-credential-name");
        if id.is_some() || name.is_some() {
            return Ok(Login::ApplicationCredential {
                id,
                name: name.map(|name| (name, self.user())),
                secret: self.secret("application-credential-secret")?,
            });
        }
        let trust = self.text("trust-id");
        let mut user = self.user();
        let mut password = "password";
        if trust.is_some() {
            // `trustee-id` takes precedence for the user of a trust, as in cinder-csi-plugin.
            user.id = self.text("trustee-id").or(user.id);
            if self.get("trustee-password").is_some() {
                password = "trustee-password";
            }
        }
        // A password takes precedence over a token, as in cinder-csi-plugin.
        if self.get(password).is_none()
            && let Some(token) = self.get("token")
        {
            return Ok(Login::Token {
                token: Secret(token.to_owned()),
                scope: self.scope(trust)?,
            });
        }
        if user.id.is_none() && user.name.is_none() {
            let keys = "username, user-id, token or application-credential-id";
            return Err(self.bad(keys, "is missing; add one"));
        }
        Ok(Login::Password {
            user,
            scope: self.scope(trust)?,
            password: self.secret(password)?,
        })
    }

    fn scope(&self, trust: Option<String>) -> Result<Scope, String> {
        match trust {
            Some(trust) => Ok(Scope::Trust(trust)),
            None => self.project().map(Scope::Project),
        }
    }

    fn project(&self) -> Result<Project, String> {
        let project = Project {
            id: self.text("tenant-id"),
            name: self.text("tenant-name"),
            domain: self.domain("tenant"),
        };
        if project.id.is_none() && project.name.is_none() {
            return Err(self.bad("tenant-id or tenant-name", "is missing; add one"));
        }
        Ok(project)
    }
}

#[cfg(test)]
mod tests;
