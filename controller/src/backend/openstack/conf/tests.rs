//! Tests the accepted and the refused contents of `cloud.conf`.

use super::*;
use std::collections::BTreeMap;

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
            attach_limit: None,
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
fn a_token_needs_no_user_and_a_password_or_an_application_credential_comes_first() {
    let text = "[Global]\nauth-url = http://k/v3\ntenant-id = p\ntoken = canary\n";
    let login = |more: &str| CloudConf::parse(&format!("{text}{more}")).unwrap().login;
    let token = Login::Token {
        token: Secret("canary".to_owned()),
        scope: Scope::Project(Project {
            id: Some("p".to_owned()),
            name: None,
            domain: Domain::default(),
        }),
    };
    assert_eq!(login(""), token);
    assert_eq!(login("username = csi\n"), token);
    assert!(!format!("{token:?}").contains("canary"));
    let trust = login("trust-id = t\n");
    assert!(matches!(trust, Login::Token { scope: Scope::Trust(id), .. } if id == "t"));
    let password = login("username = csi\npassword = first\n");
    assert!(matches!(password, Login::Password { .. }));
    let credential = "application-credential-id = a\napplication-credential-secret = b\n";
    assert!(matches!(
        login(credential),
        Login::ApplicationCredential { .. }
    ));
}

#[test]
fn what_is_missing_or_not_supported_is_named() {
    let url = "[Global]\nauth-url = http://k\n";
    let credential = "application-credential-id = a\napplication-credential-secret = b\n";
    for (text, why) in [
        ("", "[Global] auth-url: is missing"),
        ("[Global", "line 1: neither [SECTION]"),
        ("[Global]\nauth-url = \"http", "line 2: a quote"),
        (url, "username, user-id, token or application-credential-id"),
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
            &format!("{url}use-clouds = maybe"),
            "line 3: [Global] use-clouds: is neither true nor false",
        ),
        (&format!("{url}token = a"), "tenant-id or tenant-name"),
        (
            &format!("{url}tls-insecure = true"),
            "tls-insecure: is not supported",
        ),
        (
            &format!("{url}[Global \"b\"]\nusername # a"),
            "line 4: [Global \"b\"] username: has no value",
        ),
        (
            &format!("{url}{credential}\ncert-file = a"),
            "[Global] key-file: required with",
        ),
        (
            &format!("{url}{credential}\nkey-file = a"),
            "[Global] cert-file: required with",
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

/// Contents of `cloud.conf` with the results of gcfg, from `tests/wire/formats`.
#[derive(serde::Deserialize)]
struct Gcfg {
    same: Vec<Answered>,
    stricter: Vec<Answered>,
}

#[derive(serde::Deserialize)]
struct Answered {
    text: String,
    /// The values by section and key; `None` if gcfg refuses the text.
    values: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

#[test]
fn a_file_has_the_values_that_gcfg_reads_or_is_refused_as_by_gcfg() {
    let table: Gcfg = serde_json::from_str(include_str!("gcfg.json")).unwrap();
    assert!(table.same.len() > 100);
    for Answered { text, values } in table.same {
        let ours = parse(&text).map(|keys| found(&keys));
        assert_eq!(ours.as_ref().ok(), values.as_ref(), "{text:?}: {ours:?}");
    }
    for Answered { text, .. } in table.stricter {
        let refused = parse(&text).unwrap_err();
        assert!(refused.contains("names have ASCII letters"), "{refused}");
    }
}

/// Returns the values of the keys that the table covers, without empty values.
fn found(keys: &[Entry]) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for Entry { section, sub, .. } in keys {
        let read = Section::of(keys, section, sub);
        let texts: &[&str] = match (section.as_str(), sub.as_str()) {
            ("global", _) => &["auth-url", "username", "password", "region"],
            _ => &[],
        };
        let switches: &[&str] = match (section.as_str(), sub.as_str()) {
            ("global", _) => &["use-clouds"],
            ("blockstorage", "") => &["ignore-volume-az"],
            _ => &[],
        };
        let texts = texts.iter().filter_map(|key| Some((key, read.text(key)?)));
        let switches = switches.iter().filter(|key| read.is(key));
        let switches = switches.map(|key| (key, "true".to_owned()));
        let values = texts.chain(switches);
        let values: BTreeMap<_, _> = values
            .map(|(key, text)| ((*key).to_owned(), text))
            .collect();
        if !values.is_empty() {
            all.insert(format!("{section}:{sub}"), values);
        }
    }
    all
}

#[test]
fn each_cloud_has_its_section_and_a_later_file_counts_more() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one.conf"), dir.path().join("two.conf"));
    let first = "[BlockStorage]\nignore-volume-az\n[Global]\nauth-url = http://d\n\
                 [Global \"a\"]\nauth-url = http://a\napplication-credential-id = 1\n\
                 application-credential-secret = x\n[Global \"b\"]\nregion = b\n";
    std::fs::write(&one, first).unwrap();
    std::fs::write(&two, "[global \"a\"]\nauth-url = http://a2\nregion = r\n").unwrap();
    let read = |files: &[&PathBuf], cloud: &str| {
        let files = files.iter().copied().cloned().collect();
        CloudConf::read(&Source::new(files, cloud)).map_err(|failure| failure.message)
    };
    let a = read(&[&one], "a").unwrap();
    assert_eq!((&*a.auth_url, a.region), ("http://a/v3", None));
    assert!(a.ignores_zones, "of all clouds");
    let a = read(&[&one, &two], "a").unwrap();
    assert_eq!(
        (&*a.auth_url, a.region.as_deref()),
        ("http://a2/v3", Some("r"))
    );
    for (cloud, why) in [
        ("", "[Global] username, user-id, token or"),
        ("b", "[Global \"b\"] auth-url: is missing"),
        ("A", "there is no section [Global \"A\"]"),
    ] {
        let refused = read(&[&one, &two], cloud).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert!(
            refused.starts_with(&format!("{}, ", one.display())),
            "{refused}"
        );
    }
    std::fs::write(&two, "[a]\n[").unwrap();
    let refused = read(&[&one, &two], "a").unwrap_err();
    assert!(
        refused.starts_with(&format!("{}: line 2: ", two.display())),
        "{refused}"
    );
    std::fs::remove_file(&two).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &two).unwrap();
    let refused = read(&[&one, &two], "a").unwrap_err();
    let why = "two.conf: is a character device, not a regular file of at most 1 MiB";
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn with_use_clouds_the_account_is_that_of_clouds_yaml_and_keys_of_cloud_conf_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let (conf, file) = (
        dir.path().join("cloud.conf"),
        dir.path().join("clouds.yaml"),
    );
    let yaml = "clouds:\n  prod:\n    auth:\n      auth_url: http://k:5000/v3\n      \
                application_credential_id: id\n      \
                application_credential_secret: canary\n    region_name: one\n";
    std::fs::write(&file, yaml).unwrap();
    let read = |more: &str| {
        let first = "[Global]\nuse-clouds\nusername =\ncloud = prod\n";
        let text = format!("{first}clouds-file = {}\n{more}", file.display());
        std::fs::write(&conf, text).unwrap();
        CloudConf::read(&Source::new(vec![conf.clone()], "")).map_err(|failure| failure.message)
    };
    let plain = read("").unwrap();
    assert_eq!(plain.auth_url, "http://k:5000/v3");
    assert_eq!(plain.region.as_deref(), Some("one"));
    assert_eq!(
        plain.login,
        Login::ApplicationCredential {
            id: Some("id".to_owned()),
            name: None,
            secret: Secret("canary".to_owned()),
        }
    );
    assert_eq!(read("region = two").unwrap().region.as_deref(), Some("two"));
    let refused = read("cloud = other").unwrap_err();
    for part in [
        "cloud.conf: [Global] use-clouds: ",
        "clouds.yaml: clouds: has no \"other\"",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    std::fs::write(
        &file,
        yaml.replace("application_credential_secret", "unknown"),
    )
    .unwrap();
    let refused = read("").unwrap_err();
    for part in [
        "[Global] application-credential-secret: is missing",
        "clouds.prod of ",
        "auth.application_credential_secret)",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // If the file is changed, the account is changed, too.
    std::fs::write(&file, yaml.replace("canary", "other")).unwrap();
    assert_ne!(read("").unwrap(), plain);
    std::fs::write(&file, yaml.replace("region_name", "token")).unwrap();
    assert_eq!(read("").unwrap().region, None, "only in auth");
}
