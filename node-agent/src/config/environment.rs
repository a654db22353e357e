//! The environment variables that each driver reads. A variable of the process must not stop a
//! driver that does not have the setting, because the environment is the same for all drivers.

use std::ffi::{OsStr, OsString};

use belay_contract::drivers::Kind;
use belay_server::config::parse_where;
use clap::Parser;

use super::Driver;

/// Variables with values that two drivers cannot share. Only the first driver reads them.
const FIRST_ONLY: [&str; 4] = [
    "CSI_ENDPOINT",
    "BELAY_DRIVER_KIND",
    "BELAY_DRIVER_NAME",
    "BELAY_KUBELET_REGISTRATION_PATH",
];

/// A variable, and the drivers that have the setting.
type Setting = (&'static str, fn(&Driver) -> bool);

/// The directories of the volumes' files.
const FOLDER: &str = "BELAY_LOOP_DIR";

/// The variables of settings that only some drivers have.
const SETTINGS: [Setting; 9] = [
    (FOLDER, Driver::has_files),
    ("BELAY_WITH_TOPOLOGY", |driver| {
        driver.common.kind.profile().may_report_topology()
    }),
    ("BELAY_ADDITIONAL_TOPOLOGY", |driver| {
        driver.common.kind == Kind::Openstack && driver.common.with_topology
    }),
    ("BELAY_NODE_ZONE", |driver| {
        let profile = driver.common.kind.profile();
        let has_zone = profile.metadata.is_some() || profile.instance_file.is_some();
        has_zone && driver.common.with_topology
    }),
    ("BELAY_METADATA_SEARCH_ORDER", has_metadata),
    ("BELAY_METADATA_ADDRESS", has_metadata),
    ("BELAY_INSTANCE_FILE", |driver| {
        driver.common.kind.profile().instance_file.is_some()
    }),
    ("BELAY_UNKNOWN_CONTENT", Driver::has_disks),
    ("BELAY_UNCLEARED", Driver::has_disks),
];

fn has_metadata(driver: &Driver) -> bool {
    driver.common.kind.profile().metadata.is_some()
}

/// Whether a driver reads the variable. `None` stands for a driver of an unknown kind, which reads
/// only those variables that determine the kind or that are required.
fn reads(driver: Option<&Driver>, variable: &OsStr) -> bool {
    let mut settings = SETTINGS.iter();
    let setting = settings.find(|(name, _)| variable == *name);
    setting.is_none_or(|(name, has)| driver.map_or(*name == FOLDER, has))
}

/// Parses the arguments of a driver, and the environment variables of the settings that the driver
/// has. `driver` returns the driver that was parsed.
///
/// # Errors
/// Returns clap's error if a setting is invalid or help was requested.
pub(super) fn parse<A: Parser>(
    arguments: impl Iterator<Item = OsString> + Clone,
    is_first: bool,
    driver: fn(&A) -> &Driver,
) -> Result<A, clap::Error> {
    let is_shared =
        |variable: &OsStr| is_first || !FIRST_ONLY.into_iter().any(|name| variable == name);
    let parsed = |known: Option<&A>| {
        let known = known.map(driver);
        parse_where(arguments.clone(), |variable| {
            is_shared(variable) && reads(known, variable)
        })
    };
    let mut found = match parsed(None) {
        // The help lists all variables.
        Err(error) if !error.use_stderr() => return parse_where(arguments, is_shared),
        found => found?,
    };
    // The settings of the second round depend on `--with-topology`, a setting of the first round.
    for _ in 0..2 {
        found = parsed(Some(&found))?;
    }
    Ok(found)
}

/// Returns the variables that are set, but that none of these drivers reads.
pub(super) fn ignored(drivers: &[&Driver]) -> Vec<&'static str> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let unread = SETTINGS
        .iter()
        .filter(|(_, has)| !drivers.iter().any(|driver| has(driver)));
    unread
        .map(|(name, _)| *name)
        .filter(|name| is_set(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::config::Config;

    const CASE: &str = "BELAY_TEST_CASE";
    const ONLY: &str = "config::environment::tests::a_variable_applies_to_the_drivers_that_have_it";

    const LOCAL: [&str; 2] = ["--endpoint=/csi/local.sock", "--loop-dir=/volumes"];
    const OPENSTACK: [&str; 2] = ["--endpoint=/csi/cinder.sock", "--driver-kind=openstack"];
    const CIVO: [&str; 2] = ["--endpoint=/csi/civo.sock", "--driver-kind=civo"];
    const NFS: [&str; 2] = ["--endpoint=/csi/nfs.sock", "--driver-kind=nfs"];

    /// Runs this test again as a child process for each case: a process cannot change its own
    /// environment safely.
    #[test]
    fn a_variable_applies_to_the_drivers_that_have_it() {
        if let Ok(case) = std::env::var(CASE) {
            return run(&case);
        }
        for case in ["local first", "local last", "untouched", "first", "invalid"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", ONLY]).env(CASE, case);
            child.envs([
                ("BELAY_NODE_NAME", "node-1"),
                ("BELAY_ADDITIONAL_TOPOLOGY", "rack=r1"),
                ("BELAY_METADATA_ADDRESS", "127.0.0.1:1"),
                ("BELAY_INSTANCE_FILE", "/instance"),
                ("BELAY_NODE_ZONE", "z1"),
                ("BELAY_UNCLEARED", "accept"),
                ("BELAY_MAX_VOLUMES", "5"),
            ]);
            match case {
                "untouched" => child.env_remove("BELAY_INSTANCE_FILE"),
                "first" => child.envs([("CSI_ENDPOINT", "/first"), ("BELAY_LOOP_DIR", "/loop")]),
                "invalid" => child.env("BELAY_METADATA_ADDRESS", "nowhere"),
                _ => child.env("BELAY_WITH_TOPOLOGY", "true"),
            };
            let output = child.output().unwrap();
            let report = String::from_utf8_lossy(&output.stdout);
            let has_passed = output.status.success() && report.contains("1 passed");
            assert!(has_passed, "{case}: {report}");
        }
    }

    fn parsed(drivers: &[&[&str]]) -> Result<Config, String> {
        let words = drivers.join(&"--next-driver");
        let words = ["belay-node"].into_iter().chain(words);
        let config = Config::from_arguments(words.map(OsString::from));
        config.map_err(|error| error.to_string())
    }

    fn run(case: &str) {
        let mut drivers: Vec<&[&str]> = vec![&LOCAL, &OPENSTACK, &CIVO, &NFS];
        match case {
            "local first" => expect_all(&parsed(&drivers).unwrap()),
            "local last" => {
                drivers.reverse();
                expect_all(&parsed(&drivers).unwrap());
            }
            "untouched" => {
                let config = parsed(&drivers[..2]).unwrap();
                let ignored = ["BELAY_ADDITIONAL_TOPOLOGY", "BELAY_NODE_ZONE"];
                assert_eq!(config.ignored_variables(), ignored);
                let flag = [&OPENSTACK[..], &["--additional-topology=a=b"]].concat();
                let error = parsed(&[&LOCAL, &flag]).unwrap_err();
                assert!(error.contains("requires --with-topology"), "{error}");
            }
            "first" => {
                let config = parsed(&[&OPENSTACK[1..], &LOCAL[..1]]).unwrap();
                let ends: Vec<_> = config
                    .drivers()
                    .map(|it| &it.common.endpoint.path)
                    .collect();
                assert_eq!(
                    ends,
                    ["/first", "/csi/local.sock"].map(std::path::Path::new)
                );
                let dirs: Vec<_> = config.drivers().map(|it| it.disk_dirs.len()).collect();
                assert_eq!(dirs, [0, 1]);
                let error = parsed(&[&LOCAL, &OPENSTACK[1..]]).unwrap_err();
                assert!(error.contains("--endpoint <SOCKET>"), "{error}");
            }
            _ => {
                assert!(parsed(&[&LOCAL, &NFS]).is_ok());
                let error = parsed(&[&LOCAL, &OPENSTACK]).unwrap_err();
                let begin = "error: options of driver 2 of 2: ";
                let is_named = error.starts_with(begin) && error.contains("--metadata-address");
                assert!(is_named, "{error}");
            }
        }
    }

    fn expect_all(config: &Config) {
        let mut kinds = 0;
        for driver in config.drivers() {
            let kind = driver.common.kind;
            let (is_openstack, is_civo) = (kind == Kind::Openstack, kind == Kind::Civo);
            assert_eq!(driver.common.max_volumes, 5);
            assert_eq!(driver.common.with_topology, kind != Kind::Nfs);
            assert_eq!(!driver.additional_topology.is_empty(), is_openstack);
            assert_eq!(driver.metadata_address.is_some(), is_openstack);
            assert_eq!(driver.instance_file.is_some(), is_civo);
            assert_eq!(driver.node_zone.is_some(), is_openstack || is_civo);
            assert_eq!(driver.uncleared.is_some(), is_openstack || is_civo);
            kinds += 1;
        }
        assert_eq!(kinds, 4);
        assert!(config.ignored_variables().is_empty());
    }
}
