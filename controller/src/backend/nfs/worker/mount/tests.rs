//! Tests the parameters that the kernel receives for the mount options of a class, and the failures
//! if the kernel refuses them.

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

fn shown(version: Option<&'static str>, options: &[(&str, &str)]) -> Vec<String> {
    let mount = mount("fd00::1", options);
    let address = "fd00::1".parse().unwrap();
    let attempt = Attempt::again(&mount.options, Way { address, version });
    let text = |(name, value): Parameter| match value {
        Some(value) => format!("{name}={value}"),
        None => name,
    };
    parameters(&mount, &attempt).into_iter().map(text).collect()
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
    assert_eq!(shown(Some("3"), &[]), all);
    let chosen = [("nfsvers", "4.1"), ("hard", "")];
    let given = ["nosharecache", "lookupcache=pos", "nfsvers=4.1", "hard"];
    assert_eq!(shown(None, &chosen), [&all[..2], &given].concat());
    let four = shown(Some("4.0"), &[]);
    assert!(!four.contains(&"nolock".to_owned()), "{four:?}");
}

#[test]
fn what_the_class_chooses_replaces_each_default() {
    let count = |options: &[(&str, &str)], begin: &str| {
        let found = shown(Some("3"), options);
        found.iter().filter(|word| word.starts_with(begin)).count()
    };
    for lock in ["lock", "nolock"] {
        assert_eq!(
            count(&[(lock, "")], "nolock") + count(&[(lock, "")], "lock"),
            1
        );
    }
    for patience in PATIENCE_PARAMETERS {
        let defaults = ["soft", "timeo=50", "retrans=2"];
        let found = shown(Some("3"), &[(patience, "7")]);
        assert!(!found.iter().any(|word| defaults.contains(&word.as_str())));
    }
}

#[test]
fn a_server_without_an_address_is_named() {
    let failure = share(&mount("no..host", &[])).unwrap_err();
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

/// The error occurs before the server is contacted.
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
