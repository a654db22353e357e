//! The credentials and settings for an account of Civo, in the forms that civo-csi uses: a Secret
//! that is mounted as a directory, and environment variables. Opens no connection.

use belay_server::call::Failure;
use belay_server::file;
use std::fmt;
use std::path::{Path, PathBuf};

/// The default URL of Civo's API.
const URL: &str = "https://api.civo.com";
/// The maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The API key. The `Debug` output of this type omits the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Creates a key from its text, without surrounding white space.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self(key.trim().to_owned())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// The sources of the settings. A file in the directory takes precedence over the corresponding
/// environment variable.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The directory at which the Secret `civo-api-access` is mounted, with the files `api-key`,
    /// `api-url`, `region`, `cluster-id` and `namespace`.
    pub dir: Option<PathBuf>,
    /// The value of `CIVO_API_KEY`.
    pub key: Option<ApiKey>,
    /// The value of `CIVO_API_URL`.
    pub url: Option<String>,
    /// The value of `CIVO_REGION`.
    pub region: Option<String>,
    /// The value of `CIVO_CLUSTER_ID`.
    pub cluster: Option<String>,
    /// The value of `CIVO_NAMESPACE`.
    pub namespace: Option<String>,
}

/// The settings, without surrounding white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) key: ApiKey,
    /// The URL of the API, without a trailing slash.
    pub(super) url: String,
    pub(super) region: String,
    pub(super) cluster: String,
    pub(super) namespace: String,
}

impl Sources {
    /// Reads all settings. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns `Precondition`, naming the setting that is missing or invalid, or the file that
    /// cannot be read.
    pub(super) fn read(&self) -> Result<Access, Failure> {
        let url = self.value("api-url", self.url.as_deref())?;
        let url = url.unwrap_or_else(|| URL.to_owned());
        let (_, after) = url.split_once("://").unwrap_or(("", &url));
        if after
            .split(['/', '?'])
            .next()
            .is_some_and(|host| host.contains('@'))
        {
            return Err(Failure::precondition(
                "CIVO_API_URL: has a user or a password, which Civo does not use; leave them out",
            ));
        }
        let key = self.key();
        let region = self.needed("region", "CIVO_REGION", self.region.as_deref());
        let cluster = self.needed("cluster-id", "CIVO_CLUSTER_ID", self.cluster.as_deref());
        let reasons = [
            key.as_ref().err(),
            region.as_ref().err(),
            cluster.as_ref().err(),
        ];
        let reasons: Vec<_> = reasons
            .into_iter()
            .flatten()
            .map(|it| &*it.message)
            .collect();
        let (Ok(key), Ok(region), Ok(cluster)) = (&key, &region, &cluster) else {
            return Err(Failure::precondition(reasons.join("; ")));
        };
        Ok(Access {
            key: key.clone(),
            url: url.trim_end_matches('/').to_owned(),
            region: region.clone(),
            cluster: cluster.clone(),
            namespace: self
                .value("namespace", self.namespace.as_deref())?
                .unwrap_or_default(),
        })
    }

    /// Reads only the API key. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub(super) fn key(&self) -> Result<ApiKey, Failure> {
        let key = self.key.as_ref().map(ApiKey::expose);
        Ok(ApiKey::new(&self.needed("api-key", "CIVO_API_KEY", key)?))
    }

    fn value(&self, file: &str, given: Option<&str>) -> Result<Option<String>, Failure> {
        let read = match &self.dir {
            Some(dir) => read(&dir.join(file))?,
            None => None,
        };
        let value = read.or(given.map(str::to_owned));
        let value = value.map(|text| text.trim().to_owned());
        Ok(value.filter(|text| !text.is_empty()))
    }

    fn needed(&self, file: &str, variable: &str, given: Option<&str>) -> Result<String, Failure> {
        let missing = || {
            let flag = match file {
                "api-key" => String::new(),
                _ => format!(", --civo-{file}"),
            };
            let path = match &self.dir {
                Some(dir) => dir.join(file).display().to_string(),
                None => format!("the file {file} in --civo-access"),
            };
            Failure::precondition(format!(
                "{variable}: is missing or empty; set it{flag} or {path}"
            ))
        };
        self.value(file, given)?.ok_or_else(missing)
    }
}

/// Returns the text of a file; `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    match file::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let path = path.display();
            Err(Failure::precondition(format!("{path}: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Sources {
        Sources {
            dir: None,
            key: Some(ApiKey::new("  canary-key\n")),
            url: Some(" http://127.0.0.1:1/ \n".to_owned()),
            region: Some("LON1 ".to_owned()),
            cluster: Some(" cluster-1".to_owned()),
            namespace: None,
        }
    }

    #[test]
    fn values_are_trimmed_and_a_file_takes_precedence() {
        let access = given().read().unwrap();
        assert_eq!(access.key.expose(), "canary-key");
        assert_eq!(access.url, "http://127.0.0.1:1");
        assert_eq!((&*access.region, &*access.cluster), ("LON1", "cluster-1"));
        assert_eq!(access.namespace, "");

        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("api-key"), "other-canary\n").unwrap();
        std::fs::write(dir.path().join("region"), " \n").unwrap();
        let sources = Sources {
            dir: Some(dir.path().to_owned()),
            ..given()
        };
        let refused = sources.read().unwrap_err().message;
        let begin = "CIVO_REGION: is missing or empty; set it, --civo-region or /";
        assert!(refused.starts_with(begin), "{refused}");
        std::fs::write(dir.path().join("region"), "FRA1\n").unwrap();
        let access = sources.read().unwrap();
        assert_eq!(
            (access.key.expose(), &*access.region),
            ("other-canary", "FRA1")
        );
        assert_eq!(access.cluster, "cluster-1");
        // The key is read even if the Secret is only partly written.
        std::fs::write(dir.path().join("region"), "").unwrap();
        assert_eq!(sources.key().unwrap().expose(), "other-canary");
        assert!(!format!("{access:?} {sources:?}").contains("canary"));
    }

    #[test]
    fn a_url_with_a_password_is_refused_and_not_quoted() {
        for (url, is_refused) in [
            ("https://user:canary@api.civo.com", true),
            ("user:canary@api.civo.com/", true),
            ("https://api.civo.com/a@b", false),
        ] {
            let sources = Sources {
                url: Some(url.to_owned()),
                ..given()
            };
            let read = sources.read();
            assert_eq!(read.is_err(), is_refused, "{url}");
            if let Err(refused) = read {
                assert!(refused.message.starts_with("CIVO_API_URL: "), "{refused}");
                assert!(!refused.message.contains("canary"), "{refused}");
            }
        }
    }

    #[test]
    fn all_missing_values_are_named_at_once() {
        let refused = Sources::default().read().unwrap_err().message;
        let expected = "CIVO_API_KEY: is missing or empty; set it or the file api-key in \
                        --civo-access; CIVO_REGION: is missing or empty; set it, --civo-region or \
                        the file region in --civo-access; CIVO_CLUSTER_ID: is missing or empty; \
                        set it, --civo-cluster-id or the file cluster-id in --civo-access";
        assert_eq!(refused, expected);
    }

    #[test]
    fn a_missing_value_is_named_by_its_variable() {
        for (sources, variable) in [
            (
                Sources {
                    key: None,
                    ..given()
                },
                "CIVO_API_KEY: ",
            ),
            (
                Sources {
                    region: None,
                    ..given()
                },
                "CIVO_REGION: ",
            ),
            (
                Sources {
                    cluster: Some(" ".to_owned()),
                    ..given()
                },
                "CIVO_CLUSTER_ID: ",
            ),
        ] {
            let refused = sources.read().unwrap_err().message;
            assert!(refused.starts_with(variable), "{refused}");
        }
        let default = Sources {
            url: None,
            ..given()
        }
        .read()
        .unwrap();
        assert_eq!(default.url, "https://api.civo.com");
    }
}
