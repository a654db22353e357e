//! What the kernel is given for a class's options, and what its refusals become.

use super::*;

fn mount(server: &str, options: &[(&str, &str)]) -> Mount {
    let owned = |(name, value): &(&str, &str)| {
        let value = (!value.is_empty()).then(|| (*value).to_owned());
        ((*name).to_owned(), value)
    };
    Mount {
        server: server.to_owned(),
        share: "a/b".to_owned(),
        options: options.iter().map(owned).collect(),
    }
}

fn shown(options: &[(&str, &str)]) -> Vec<String> {
    let mount = mount("fd00::1", options);
    let (rest, versions) = negotiable(&mount.options);
    let address = "fd00::1".parse().unwrap();
    let found = parameters(&mount, &rest, address, versions.last().copied());
    let text = |(name, value): Parameter| match value {
        Some(value) => format!("{name}={value}"),
        None => name,
    };
    found.into_iter().map(text).collect()
}

#[test]
fn a_mount_returns_errors_unless_the_class_says_otherwise_and_shares_no_cache() {
    let all = [
        "source=[fd00::1]:/a/b",
        "addr=fd00::1",
        "vers=3",
        "mountproto=tcp6",
        "nolock",
        "soft",
        "timeo=50",
        "retrans=2",
        "nosharecache",
        "lookupcache=pos",
    ];
    assert_eq!(shown(&[]), all);
    let chosen = [("nfsvers", "4.1"), ("hard", "")];
    let given = ["nosharecache", "lookupcache=pos", "nfsvers=4.1", "hard"];
    assert_eq!(shown(&chosen), [&all[..2], &given].concat());
    let four = shown(&[("vers", "4")]);
    assert_eq!(four[2], "vers=4.0");
    assert!(!four.contains(&"nolock".to_owned()));
}

#[test]
fn each_way_to_choose_a_version_is_kept_and_only_version_three_needs_more() {
    let of_three = |given: &[&str]| given.contains(&"nolock");
    for (options, version, is_three) in [
        (&[("vers", "4.2")][..], Some("vers=4.2"), false),
        (&[("nfsvers", "3")][..], Some("nfsvers=3"), true),
        (&[("vers", "3")][..], Some("vers=3"), true),
        (&[("v3", "")][..], Some("v3"), true),
        (&[("v4.1", "")][..], Some("v4.1"), false),
        (
            &[("vers", "4"), ("minorversion", "1")][..],
            Some("vers=4"),
            false,
        ),
        // Another option with that value, and one that begins like a version.
        (
            &[("vers", "4.0"), ("nconnect", "3")][..],
            Some("vers=4.0"),
            false,
        ),
        (
            &[("nfsvers", "4.0"), ("volume", "")][..],
            Some("nfsvers=4.0"),
            false,
        ),
        // Which version is tried last shows that all are.
        (&[("nconnect", "4")][..], Some("vers=3"), true),
        (
            &[("vers", "4"), ("nfsvers", "4")][..],
            Some("vers=4.0"),
            false,
        ),
    ] {
        let found = shown(options);
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        let versions = |word: &&&str| {
            ["vers=", "nfsvers=", "v3", "v4"]
                .iter()
                .any(|begin| word.starts_with(begin))
        };
        assert_eq!(found.iter().find(versions).copied(), version, "{found:?}");
        assert_eq!(of_three(&found), is_three, "{found:?}");
    }
}

#[test]
fn what_the_class_chooses_replaces_each_default() {
    let count = |options: &[(&str, &str)], begin: &str| {
        let found = shown(options);
        found.iter().filter(|word| word.starts_with(begin)).count()
    };
    for transport in ["mountproto", "proto"] {
        assert_eq!(count(&[(transport, "udp")], "mountproto=tcp6"), 0);
    }
    assert_eq!(count(&[("udp", "")], "mountproto"), 0);
    for lock in ["lock", "nolock"] {
        assert_eq!(
            count(&[(lock, "")], "nolock") + count(&[(lock, "")], "lock"),
            1
        );
    }
    for patience in PATIENCE_PARAMETERS {
        let defaults = ["soft", "timeo=50", "retrans=2"];
        let found = shown(&[(patience, "7")]);
        assert!(!found.iter().any(|word| defaults.contains(&word.as_str())));
    }
}

#[test]
fn a_server_has_its_address_or_a_few_that_its_name_has() {
    for (server, address) in [("192.0.2.7", "192.0.2.7"), ("[fd00::1]", "fd00::1")] {
        assert_eq!(
            addresses(server).unwrap(),
            [address.parse::<IpAddr>().unwrap()]
        );
    }
    let found = addresses("localhost").unwrap();
    assert!((1..=ADDRESSES_MAX).contains(&found.len()), "{found:?}");
    assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
    // The resolver returns each address once for each type of socket.
    let is_first = |(at, address): (usize, &IpAddr)| !found[..at].contains(address);
    assert!(found.iter().enumerate().all(is_first), "{found:?}");
    let failure = addresses("no..host").unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
    let begin = "server no..host: the controller cannot resolve its name: ";
    assert!(failure.message.starts_with(begin), "{failure}");
}

#[test]
fn each_refusal_has_its_kind_and_says_what_to_do() {
    for (errno, expected, advice) in [
        (
            Errno::INVAL,
            Kind::Invalid,
            "a mount option is not accepted",
        ),
        (
            Errno::PROTONOSUPPORT,
            Kind::Invalid,
            "does not have that version of NFS",
        ),
        (
            Errno::NOENT,
            Kind::Precondition,
            "the server does not have that share",
        ),
        (
            Errno::ACCESS,
            Kind::Precondition,
            "does not export the share to this host",
        ),
        (
            Errno::PERM,
            Kind::Precondition,
            "the controller needs CAP_SYS_ADMIN, or ",
        ),
        (
            Errno::NODEV,
            Kind::Precondition,
            "load the kernel module nfs on this host",
        ),
        (
            Errno::NOTDIR,
            Kind::Precondition,
            "the share is no directory on the server",
        ),
        (
            Errno::NOMEM,
            Kind::System,
            "the controller's host lacks memory",
        ),
        (
            Errno::TIMEDOUT,
            Kind::Unreachable,
            "the server does not answer",
        ),
    ] {
        let refused = |log: &str| Refused {
            call: "mount".to_owned(),
            errno,
            log: log.to_owned(),
            is_of_server: true,
        };
        let found = failure(&mount("filer", &[]), &refused(""));
        assert_eq!(found.kind, expected, "{found}");
        assert!(found.message.starts_with("filer:/a/b: mount: "), "{found}");
        assert!(
            found.message.contains(advice) && !found.message.contains("(the log)"),
            "{found}"
        );
        let found = failure(&mount("filer", &[]), &refused("the log"));
        assert!(found.message.contains(" (the log); "), "{found}");
    }
}

#[test]
fn an_error_has_the_source_the_errno_and_the_kernels_words() {
    let refused = Refused {
        call: "mount".to_owned(),
        errno: Errno::NOENT,
        log: "NFS4: Couldn't follow remote path".to_owned(),
        is_of_server: true,
    };
    let failure = failure(&mount("filer", &[]), &refused);
    assert_eq!(failure.kind, Kind::Precondition);
    for part in [
        "filer:/a/b: mount: ",
        "Couldn't follow",
        "does not have that share",
    ] {
        assert!(failure.message.contains(part), "{failure}");
    }
}

/// The server was not asked.
#[test]
fn a_refusal_of_the_hosts_own_kernel_is_not_blamed_on_the_server() {
    for (errno, expected, advice) in [
        (Errno::INVAL, Kind::Invalid, "option is not accepted"),
        (Errno::PERM, Kind::Precondition, "needs CAP_SYS_ADMIN"),
        (Errno::NODEV, Kind::Precondition, "kernel module nfs"),
        (Errno::NOMEM, Kind::System, "host lacks memory"),
        (Errno::NOENT, Kind::System, "the controller's host refuses"),
        (Errno::NOSYS, Kind::System, "the controller's host refuses"),
    ] {
        let refused = Refused {
            call: "fsopen nfs".to_owned(),
            errno,
            log: String::new(),
            is_of_server: true,
        };
        let found = failure(&mount("filer", &[]), &refused.locally());
        assert_eq!(found.kind, expected, "{found}");
        assert!(found.message.contains(advice), "{found}");
        assert!(!found.message.contains("server"), "{found}");
    }
}
