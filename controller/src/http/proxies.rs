//! Reads the environment variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` like the Go package
//! golang.org/x/net/http/httpproxy, which the drivers that Belay replaces use. `tests/wire/formats`
//! compares both. `REQUEST_METHOD` is ignored, since Belay is not a CGI program. Opens no
//! connection.

use super::unproxied::Unproxied;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use std::ffi::OsString;
use std::fmt;

/// Environment variables with the proxy for https URLs. The first variable that is not empty is
/// used.
const HTTPS: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
/// Environment variables with the proxy for http URLs. The first variable that is not empty is
/// used.
const HTTP: [&str; 2] = ["HTTP_PROXY", "http_proxy"];
/// Environment variables with the hosts that need no proxy. The first variable that is not empty is
/// used.
const NONE: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Schemes of proxies that are not supported. An error may quote only these schemes, since the text
/// before `://` in any other value may be a secret.
const OTHER_SCHEMES: [&str; 5] = ["https", "socks4", "socks4a", "socks5", "socks5h"];

/// The error for an environment variable that names no usable proxy, or whose list of excluded
/// hosts is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct BadProxy {
    variable: &'static str,
    why: String,
}

/// The proxies for https and http URLs, and the hosts that are reached without a proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies {
    https: Option<Proxy>,
    http: Option<Proxy>,
    unproxied: Unproxied,
}

/// A proxy. The `Display` output of a proxy omits the user and the password.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    /// The environment variable that names the proxy.
    pub(super) variable: &'static str,
    /// The URL of the proxy, without user and password.
    pub(super) uri: Uri,
    /// The header `Proxy-Authorization`, if the proxy has a user.
    pub(super) authorization: Option<HeaderValue>,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.uri.authority().map_or("", Authority::as_str);
        write!(f, "the proxy http://{address} of {}", self.variable)
    }
}

impl Proxies {
    /// Reads the proxies from the environment variables. Ignores `NO_PROXY` if no proxy is set.
    ///
    /// # Errors
    /// Returns an error that names the unusable variable and the reason.
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadProxy> {
        let first = |names: [&'static str; 2]| -> Result<_, BadProxy> {
            let found = names.map(|name| (name, variable(name).unwrap_or_default()));
            let Some((name, value)) = found.into_iter().find(|(_, value)| !value.is_empty()) else {
                return Ok(None);
            };
            let value = value.into_string();
            let value = value.map_err(|_| bad(name, "is not UTF-8".to_owned()))?;
            Ok(Some((name, value)))
        };
        let proxy = |names| -> Result<_, BadProxy> {
            let found = first(names)?.map(|(name, value)| Proxy::new(name, &value));
            found.transpose()
        };
        let (https, http) = (proxy(HTTPS)?, proxy(HTTP)?);
        if https.is_none() && http.is_none() {
            return Ok(Self::default());
        }
        let unproxied = match first(NONE)? {
            None => Unproxied::default(),
            Some((name, value)) => Unproxied::new(&value).map_err(|why| bad(name, why))?,
        };
        Ok(Self {
            https,
            http,
            unproxied,
        })
    }

    /// Returns the proxy for a URL; `None` if the host is reached without a proxy.
    pub(super) fn of(&self, uri: &Uri) -> Option<&Proxy> {
        let (proxy, port) = match uri.scheme_str()? {
            "https" => (self.https.as_ref()?, "443"),
            _ => (self.http.as_ref()?, "80"),
        };
        let own = uri.port();
        let port = own.as_ref().map_or(port, |port| port.as_str());
        let is_proxied = !self.unproxied.has(uri.host()?, port);
        is_proxied.then_some(proxy)
    }
}

impl Proxy {
    fn new(variable: &'static str, value: &str) -> Result<Self, BadProxy> {
        let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
        let scheme = scheme.to_ascii_lowercase();
        if OTHER_SCHEMES.contains(&scheme.as_str()) {
            let why = "proxies with this scheme are not supported; name one with http://";
            return Err(bad(variable, format!("{scheme}://: {why}")));
        }
        let proxy = (scheme == "http").then(|| Self::at(variable, rest));
        let why = "must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with %XX for \
                   special characters of user and password";
        proxy.flatten().ok_or_else(|| bad(variable, why.to_owned()))
    }

    /// Parses the address of a proxy, without the scheme; `None` if it is invalid.
    fn at(variable: &'static str, rest: &str) -> Option<Self> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (user, address) = match rest[..end].rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, &rest[..end]),
        };
        let authority: Authority = address.parse().ok()?;
        let is_whole = !authority.host().is_empty()
            && match address.strip_prefix(authority.host())? {
                "" => true,
                port => port.strip_prefix(':')?.parse::<u16>().is_ok(),
            };
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = is_whole.then_some(authority);
        uri.path_and_query = Some(PathAndQuery::from_static("/"));
        let authorization = match user {
            Some(user) => Some(basic(user)?),
            None => None,
        };
        Some(Self {
            variable,
            uri: Uri::from_parts(uri).ok()?,
            authorization,
        })
    }
}

/// Returns the header for `USER:PASSWORD`, in which special characters are percent-encoded; `None`
/// if an escape is invalid.
fn basic(user: &str) -> Option<HeaderValue> {
    let mut escapes = user.split('%').skip(1);
    let is_escape = |it: &str| {
        let digits = it.as_bytes().get(..2);
        digits.is_some_and(|it| it.iter().all(u8::is_ascii_hexdigit))
    };
    if !escapes.all(is_escape) {
        return None;
    }
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let plain = [decoded(user), decoded(password)].join(&b':');
    let header = format!("Basic {}", BASE64_STANDARD.encode(plain));
    let mut header = HeaderValue::from_str(&header).ok()?;
    header.set_sensitive(true);
    Some(header)
}

fn bad(variable: &'static str, why: String) -> BadProxy {
    BadProxy { variable, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The expected results are those of the Go package; `tests/wire/formats` compares the two.
    #[derive(serde::Deserialize)]
    struct Table {
        urls: Vec<String>,
        direct: BTreeMap<String, Vec<String>>,
        useless: Vec<String>,
        stricter: Vec<String>,
        proxies: BTreeMap<String, [String; 2]>,
    }

    fn table() -> Table {
        serde_json::from_str(include_str!("proxies.json")).unwrap()
    }

    fn read(variables: &[(&str, &str)]) -> Result<Proxies, BadProxy> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        };
        Proxies::read(value)
    }

    fn with(no_proxy: &str) -> Result<Proxies, BadProxy> {
        let proxy = "http://proxy:3128";
        read(&[
            ("HTTPS_PROXY", proxy),
            ("HTTP_PROXY", proxy),
            ("NO_PROXY", no_proxy),
        ])
    }

    #[test]
    fn no_proxy_excludes_the_services_that_it_excludes_in_go() {
        let table = table();
        assert!(table.urls.len() * table.direct.len() > 2000);
        for (no_proxy, expected) in &table.direct {
            let proxies = with(no_proxy).unwrap();
            let is_direct = |url: &&String| proxies.of(&url.parse().unwrap()).is_none();
            let direct: Vec<_> = table.urls.iter().filter(is_direct).collect();
            assert_eq!(direct, expected.iter().collect::<Vec<_>>(), "{no_proxy:?}");
        }
    }

    #[test]
    fn an_entry_that_excludes_nothing_is_refused_by_its_name_without_a_password() {
        let table = table();
        for entry in table.useless.iter().chain(&table.stricter) {
            let refused = with(entry).unwrap_err().to_string();
            let last = entry.rsplit(['@', ',']).next().unwrap();
            assert!(refused.starts_with("NO_PROXY: entry \""), "{refused}");
            assert!(
                refused.to_lowercase().contains(&last.to_lowercase()),
                "{entry}: {refused}"
            );
            assert!(!refused.contains("canary"), "{refused}");
            let among = with(&format!("cloud, {entry},example.org")).unwrap_err();
            assert_eq!(among.to_string(), refused);
        }
        // If no proxy is set, `NO_PROXY` has no effect.
        assert!(read(&[("NO_PROXY", "10.0.0.0/33")]).is_ok());
    }

    #[test]
    fn a_proxy_has_the_address_and_the_user_that_it_has_in_go() {
        for (value, [address, authorization]) in table().proxies {
            let proxy = Proxy::new("HTTP_PROXY", &value).unwrap();
            let found = proxy.authorization.as_ref().map(HeaderValue::as_bytes);
            assert_eq!(
                (
                    proxy.uri.authority().unwrap().as_str(),
                    found.unwrap_or_default()
                ),
                (address.as_str(), authorization.as_bytes()),
                "{value}"
            );
            assert!(
                !format!("{proxy} {proxy:?}").contains("secret"),
                "{proxy:?}"
            );
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_refused_and_not_quoted() {
        for (value, why) in [
            ("socks5://canary@proxy:1080", "https_proxy: socks5://: "),
            ("SOCKS5H://proxy:1080", "https_proxy: socks5h://: "),
            ("https://user:canary@proxy:3128", "https_proxy: https://: "),
            ("ftp://canary", "https_proxy: must be http://"),
            ("canary://proxy", "https_proxy: must be http://"),
            ("http://", "https_proxy: must be http://"),
            ("http://:3128", "https_proxy: must be http://"),
            ("http://user:canary@", "https_proxy: must be http://"),
            (
                "http://user:canary#x@proxy:3128",
                "https_proxy: must be http://",
            ),
            (
                "http://user:canary%zz@proxy",
                "https_proxy: must be http://",
            ),
            ("http://user:canary%1@proxy", "https_proxy: must be http://"),
            ("http://canary:99999", "https_proxy: must be http://"),
            ("http://canary:http", "https_proxy: must be http://"),
            ("http://canary:", "https_proxy: must be http://"),
            ("canary proxy", "https_proxy: must be http://"),
            ("http:canary:3128", "https_proxy: must be http://"),
        ] {
            let refused = read(&[("https_proxy", value)]).unwrap_err().to_string();
            assert!(refused.starts_with(why), "{value}: {refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
    }

    #[test]
    fn a_variable_in_capitals_comes_first_unless_it_is_empty_and_each_scheme_has_its_own() {
        let of = |variables: &[(&str, &str)], url: &str| {
            let proxies = read(variables).unwrap();
            let proxy = proxies.of(&url.parse().unwrap());
            proxy.map(ToString::to_string).unwrap_or_default()
        };
        let (http, https) = ("http://cloud/", "https://cloud/");
        let all = [
            ("HTTP_PROXY", "a"),
            ("http_proxy", "b"),
            ("HTTPS_PROXY", ""),
            ("https_proxy", "c:8080"),
            ("ALL_PROXY", "d"),
            ("NO_PROXY", ""),
            ("no_proxy", "other"),
        ];
        assert_eq!(of(&all, http), "the proxy http://a of HTTP_PROXY");
        assert_eq!(of(&all, https), "the proxy http://c:8080 of https_proxy");
        assert_eq!(of(&all, "http://other/"), "");
        assert_eq!(of(&all[..1], https), "");
        assert_eq!(of(&all[4..], https), "");
    }
}
