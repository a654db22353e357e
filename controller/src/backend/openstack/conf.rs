//! `cloud.conf`, the file of credentials that all drivers of OpenStack for Kubernetes share: the
//! syntax of git-config(1), read as gcfg does. What others have in it is passed over.

use crate::http::TlsFiles;
use belay_server::call::Failure;
use std::fmt;
use std::path::{Path, PathBuf};

/// A text that no log shows.
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

/// How to log in, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloudConf {
    /// Without a slash at its end, and with `/v3`.
    pub(super) auth_url: String,
    pub(super) login: Login,
    pub(super) region: Option<String>,
    /// `public`, `internal` or `admin`.
    pub(super) interface: String,
    /// `ca-file`, `cert-file` and `key-file`.
    pub(super) tls: TlsFiles,
    /// The zones of volumes say nothing about servers.
    pub(super) ignores_zones: bool,
}

/// One of the ways to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Password {
        user: User,
        password: Secret,
        scope: Scope,
    },
    /// By its id, or by its name and user.
    ApplicationCredential {
        id: Option<String>,
        name: Option<(String, User)>,
        secret: Secret,
    },
}

/// What a user logs in to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Project(Project),
    /// The project of a trust, by its id: another user's, whose roles the trust names.
    Trust(String),
}

/// A user, by id or by name and domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) domain: Domain,
}

/// A project, by id or by name and domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Project {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) domain: Domain,
}

/// A domain, by id or by name; with neither it is `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
}

impl CloudConf {
    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// `Precondition`, naming the file, and the line or key.
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| error.to_string());
        let conf = text.and_then(|text| Self::parse(&text));
        conf.map_err(|why| Failure::precondition(format!("{}: {why}", file.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let global = Section(section(text, "global")?);
        let storage = Section(section(text, "blockstorage")?);
        for refused in ["use-clouds", "token"] {
            if global.get(refused).is_some_and(|value| value != "false") {
                return Err(format!(
                    "[Global] {refused}: is not supported; use a password or an application \
                     credential"
                ));
            }
        }
        if global
            .get("tls-insecure")
            .is_some_and(|value| value != "false")
        {
            return Err(
                "[Global] tls-insecure: is not supported; name the authority with \
                        ca-file"
                    .to_owned(),
            );
        }
        let auth_url = global.required("auth-url")?;
        let auth_url = auth_url.trim_end_matches('/');
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
            ignores_zones: storage
                .is("ignore-volume-az")
                .ok_or("[BlockStorage] ignore-volume-az: is neither true nor false")?,
        })
    }
}

/// The keys of a section; of a repeated one the last counts.
struct Section(Vec<(String, String)>);

impl Section {
    /// An empty value is none.
    fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(known, _)| known == key);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// A switch, as gcfg reads it; off without the key. None for any other word.
    fn is(&self, key: &str) -> Option<bool> {
        let value = self.get(key).unwrap_or("false").to_ascii_lowercase();
        match value.as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(str::to_owned)
    }

    fn required(&self, key: &str) -> Result<&str, String> {
        self.get(key)
            .ok_or_else(|| format!("[Global] {key}: is missing"))
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
            (Some(_), None) => return Err("[Global] key-file: is missing, of cert-file".to_owned()),
            (None, Some(_)) => return Err("[Global] cert-file: is missing, of key-file".to_owned()),
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
            // The other names of a trust's user come first, as in cinder-csi-plugin.
            user.id = self.text("trustee-id").or(user.id);
            if self.get("trustee-password").is_some() {
                password = "trustee-password";
            }
        }
        if user.id.is_none() && user.name.is_none() {
            return Err(
                "[Global] username, user-id or application-credential-id: is missing".to_owned(),
            );
        }
        let scope = match trust {
            Some(trust) => Scope::Trust(trust),
            None => Scope::Project(self.project()?),
        };
        Ok(Login::Password {
            user,
            password: self.secret(password)?,
            scope,
        })
    }

    fn project(&self) -> Result<Project, String> {
        let project = Project {
            id: self.text("tenant-id"),
            name: self.text("tenant-name"),
            domain: self.domain("tenant"),
        };
        if project.id.is_none() && project.name.is_none() {
            return Err("[Global] tenant-id or tenant-name: is missing".to_owned());
        }
        Ok(project)
    }
}

/// Keys and values of that section without a name. Keys and sections have no case.
fn section(text: &str, name: &str) -> Result<Vec<(String, String)>, String> {
    let mut keys = Vec::new();
    let mut is_meant = false;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let bad = |why: &str| format!("line {}: {why}", number + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            let (section, _) = section
                .split_once(']')
                .ok_or_else(|| bad("no ] at its end"))?;
            is_meant = section.trim().eq_ignore_ascii_case(name);
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "true"));
        let mut value = value.trim().to_owned();
        while value.ends_with('\\') && !value.ends_with("\\\\") {
            value.pop();
            let next = lines.next().map_or("", |(_, line)| line);
            value.push_str(next.trim_end());
        }
        let value = unquoted(&value).ok_or_else(|| bad("a quote without an end, or a bad \\"))?;
        if is_meant {
            keys.push((key.trim().to_ascii_lowercase(), value));
        }
    }
    Ok(keys)
}

/// A value without its quotes, escapes and comment; none if it is not whole.
fn unquoted(value: &str) -> Option<String> {
    let (mut plain, mut kept, mut is_quoted) = (String::new(), 0, false);
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' => is_quoted = !is_quoted,
            '\\' => plain.push(match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'b' => '\u{8}',
                escaped @ ('"' | '\\') => escaped,
                _ => return None,
            }),
            ';' | '#' if !is_quoted => break,
            char => plain.push(char),
        }
        // Spaces at the end of what is not quoted are not kept.
        if is_quoted || !char.is_whitespace() {
            kept = plain.len();
        }
    }
    plain.truncate(kept);
    (!is_quoted).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = r#"
        ; shared with the cloud controller manager
        [LoadBalancer]
        username = other
        [Global]
        Auth-URL = https://keystone.example.org:5000/
        username="csi"   # a comment
        password="p;a#s\"s\\ " ; one more
        tenant-name = k8s
        domain-name = Default
        region=
        ca-file = /etc/ca.pem
        os-endpoint-type=internalURL
        unknown-key
        [blockstorage]
        Ignore-Volume-AZ
        [Global "second"]
        password = other
    "#;

    fn domain() -> Domain {
        Domain {
            name: Some("Default".to_owned()),
            id: None,
        }
    }

    #[test]
    fn a_file_is_read_as_gcfg_reads_it_and_what_is_not_known_is_passed_over() {
        let conf = CloudConf::parse(PASSWORD).unwrap();
        let user = User {
            id: None,
            name: Some("csi".to_owned()),
            domain: domain(),
        };
        let project = Project {
            id: None,
            name: Some("k8s".to_owned()),
            domain: domain(),
        };
        assert_eq!(
            conf,
            CloudConf {
                auth_url: "https://keystone.example.org:5000/v3".to_owned(),
                login: Login::Password {
                    user,
                    password: Secret("p;a#s\"s\\ ".to_owned()),
                    scope: Scope::Project(project),
                },
                region: None,
                interface: "internal".to_owned(),
                tls: TlsFiles {
                    authorities: Some("/etc/ca.pem".into()),
                    identity: None,
                },
                ignores_zones: true,
            }
        );
        assert!(!format!("{conf:?}").contains("p;a#s"));
    }

    #[test]
    fn an_application_credential_needs_no_user_and_no_project() {
        let text = "[global]\nauth-url = http://k/v3\napplication-credential-id = 1a\n\
                    application-credential-secret = se\\\ncret\n";
        let conf = CloudConf::parse(text).unwrap();
        assert_eq!(conf.auth_url, "http://k/v3");
        assert_eq!(conf.tls, TlsFiles::default());
        let identity = format!("{text}cert-file = /c\nkey-file = /k\n");
        let identity = CloudConf::parse(&identity).unwrap().tls.identity;
        assert_eq!(identity, Some(("/c".into(), "/k".into())));
        assert_eq!(
            conf.login,
            Login::ApplicationCredential {
                id: Some("1a".to_owned()),
                name: None,
                secret: Secret("secret".to_owned()),
            }
        );
    }

    #[test]
    fn a_trust_needs_no_project_and_its_own_user_and_password_come_first() {
        let text = "[Global]\nauth-url = http://k/v3\ntrust-id = t\nusername = csi\n\
                    password = first\n";
        let login = |more: &str| CloudConf::parse(&format!("{text}{more}")).unwrap().login;
        let own = "trustee-id = u\ntrustee-password = second\n";
        for (more, id, expected) in [("", None, "first"), (own, Some("u"), "second")] {
            let Login::Password {
                user,
                password,
                scope,
            } = login(more)
            else {
                panic!("{more}");
            };
            assert_eq!(
                (user.id.as_deref(), user.name.as_deref()),
                (id, Some("csi"))
            );
            assert_eq!(password.expose(), expected);
            assert_eq!(scope, Scope::Trust("t".to_owned()));
        }
    }

    #[test]
    fn what_is_missing_or_not_supported_is_named() {
        let url = "[Global]\nauth-url = http://k\n";
        let credential = "application-credential-id = a\napplication-credential-secret = b\n";
        for (text, why) in [
            ("", "[Global] auth-url: is missing"),
            ("[Global", "line 1: no ]"),
            ("[Global]\nauth-url = \"http", "line 2: a quote"),
            (url, "username, user-id or application-credential-id"),
            (&format!("{url}username = a"), "tenant-id or tenant-name"),
            (
                &format!("{url}username = a\ntenant-id = b"),
                "password: is missing",
            ),
            (
                &format!("{url}application-credential-id = a"),
                "application-credential-secret",
            ),
            (
                &format!("{url}use-clouds = true"),
                "use-clouds: is not supported",
            ),
            (
                &format!("{url}tls-insecure"),
                "tls-insecure: is not supported",
            ),
            (
                &format!("{url}{credential}\ncert-file = a"),
                "[Global] key-file: is missing",
            ),
            (
                &format!("{url}{credential}\nkey-file = a"),
                "[Global] cert-file: is missing",
            ),
            (
                &format!("{url}{credential}[BlockStorage]\nignore-volume-az = maybe"),
                "[BlockStorage] ignore-volume-az: is neither true nor false",
            ),
        ] {
            let refused = CloudConf::parse(text).unwrap_err();
            assert!(refused.contains(why), "{text:?}: {refused}");
        }
    }
    #[test]
    fn a_value_ends_at_a_comment_and_has_the_escapes_of_gcfg() {
        for (value, expected) in [
            (r#"a b ; c"#, Some("a b")),
            (r#"a # c"#, Some("a")),
            (r#""a # c" "#, Some("a # c")),
            (r#""a " b "#, Some("a  b")),
            (r#""a" "" "#, Some("a ")),
            (r#"\\ \" \n\t\b"#, Some("\\ \" \n\t\u{8}")),
            (r#""a"#, None),
            (r#"a\x"#, None),
            (r#"a\"#, None),
            ("", Some("")),
        ] {
            assert_eq!(unquoted(value).as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn a_line_that_ends_in_a_backslash_continues_unless_that_is_escaped() {
        for (text, expected) in [
            ("a = b\\\n c\\\nd\ne = f", &[("a", "b cd"), ("e", "f")][..]),
            ("a = b\\\\\ne = f", &[("a", "b\\"), ("e", "f")][..]),
            ("a = b\\", &[("a", "b")][..]),
            (
                "[other]\na = b\n[ MEANT \"x\" ]\n[Meant]\nc",
                &[("c", "true")][..],
            ),
        ] {
            let text = match text.starts_with('[') {
                true => text.to_owned(),
                false => format!("[meant]\n{text}"),
            };
            let found = section(&text, "meant").unwrap();
            let found: Vec<_> = found
                .iter()
                .map(|(key, value)| (&**key, &**value))
                .collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_switch_has_the_words_of_gcfg_and_the_last_of_a_key_counts() {
        let is = |value: &str| Section(vec![("a".to_owned(), value.to_owned())]).is("a");
        for word in ["true", "Yes", "ON", "1"] {
            assert_eq!(is(word), Some(true), "{word}");
        }
        for word in ["false", "No", "OFF", "0", ""] {
            assert_eq!(is(word), Some(false), "{word}");
        }
        assert_eq!(is("maybe"), None);
        let twice = [("a", "1"), ("a", "2"), ("b", "3")];
        let twice = Section(twice.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec());
        assert_eq!(twice.get("a"), Some("2"));
        assert_eq!(twice.get("c"), None);
        assert_eq!(twice.required("b"), Ok("3"));
    }
}
