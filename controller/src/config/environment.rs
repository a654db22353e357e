//! The environment variables that the controller of a backend reads. The chart sets the same
//! variables for the controllers of all drivers, so a variable of a different backend is ignored.
//! A flag of a different backend is an error.

use std::ffi::{OsStr, OsString};

use belay_server::config::{parse_from, parse_where};
use clap::CommandFactory as _;

use super::Config;

/// The variables that select the backend, or that are required regardless of the backend.
const NEEDED: [&str; 3] = ["CSI_ENDPOINT", "BELAY_BACKEND", "BELAY_NODE_ID"];

/// Parses the flags, and the environment variables that affect the backend.
///
/// # Errors
/// Returns clap's error if a setting is invalid or help was requested.
pub(super) fn parse(arguments: Vec<OsString>) -> Result<Config, clap::Error> {
    let is_needed = |variable: &OsStr| NEEDED.into_iter().any(|name| variable == name);
    let config: Config = match parse_where(arguments.clone(), is_needed) {
        // The help lists all variables.
        Err(error) if !error.use_stderr() => return parse_from(arguments),
        config => config?,
    };
    let foreign = foreign(&config);
    let is_own = |variable: &OsStr| !foreign.iter().any(|name| variable == name.as_os_str());
    parse_where(arguments, is_own)
}

/// Returns the variables of settings that do not affect the backend.
fn foreign(config: &Config) -> Vec<OsString> {
    let driver = &config.common.driver;
    let topology = Some("--with-topology").filter(|_| !driver.kind.profile().may_report_topology());
    let flags: Vec<_> = config
        .flags_of_backends()
        .filter(|(_, _, kinds)| !kinds.contains(&driver.kind))
        .map(|(flag, _, _)| flag)
        .chain(topology)
        .collect();
    let is_foreign = |long: &str| {
        flags
            .iter()
            .any(|flag| flag.strip_prefix("--") == Some(long))
    };
    let command = Config::command();
    let settings = command.get_arguments();
    settings
        .filter(|setting| setting.get_long().is_some_and(is_foreign))
        .filter_map(|setting| setting.get_env().map(OsStr::to_owned))
        .collect()
}

impl Config {
    /// Returns the environment variables that are set, but do not affect this backend.
    pub(crate) fn ignored_variables(&self) -> Vec<String> {
        let is_set = |name: &OsString| std::env::var_os(name).is_some_and(|it| !it.is_empty());
        let names = foreign(self).into_iter().filter(is_set);
        names.map(|name| name.display().to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const ONLY: &str = "config::environment::tests::a_variable_of_a_different_backend_is_ignored";

    /// Runs this test again as a child process with these variables: a process cannot change its
    /// own environment safely.
    #[test]
    fn a_variable_of_a_different_backend_is_ignored() {
        if let Ok(backend) = std::env::var("BELAY_TEST_BACKEND") {
            return of(&backend);
        }
        for backend in ["local", "nfs", "openstack", "digitalocean"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", ONLY]);
            child.env("BELAY_TEST_BACKEND", backend).envs([
                ("BELAY_CLOUD_CONFIG", "/c/cloud.conf"),
                ("BELAY_CLOUD_NAME", "one"),
                ("BELAY_MARK_KEY_FILE", "/c/keys"),
                ("BELAY_WITH_TOPOLOGY", "true"),
                ("BELAY_NODE_ID", "node-1"),
                ("BELAY_TAG", "blue"),
                ("BELAY_NFS_MOUNT_PERMISSIONS", "0770"),
            ]);
            let output = child.output().unwrap();
            let report = String::from_utf8_lossy(&output.stdout);
            let has_passed = output.status.success() && report.contains("1 passed");
            assert!(has_passed, "{backend}: {report}");
        }
    }

    fn of(backend: &str) {
        let words = |more: &[&str]| {
            let backend = format!("--backend={backend}");
            let own = ["belay-controller", "--endpoint=/run/csi.sock", &backend];
            let words = own.iter().chain(more).map(OsString::from);
            Config::from_arguments(words).map_err(|error| error.to_string())
        };
        let (needed, ignored): (&[_], &[_]) = match backend {
            "local" => (&["--state-dir=/d"], &["BELAY_CLOUD_CONFIG", "BELAY_TAG"]),
            "nfs" => (&[], &["BELAY_WITH_TOPOLOGY", "BELAY_MARK_KEY_FILE"]),
            "openstack" => (&[], &["BELAY_TAG", "BELAY_NFS_MOUNT_PERMISSIONS"]),
            _ => (
                &["--token-file=/t", "--region=fra1"],
                &["BELAY_CLOUD_CONFIG", "BELAY_CLOUD_NAME"],
            ),
        };
        let config = words(needed).unwrap();
        let found = config.ignored_variables();
        for name in ignored {
            assert!(found.iter().any(|it| it == name), "{found:?}");
        }
        let is_cloud = matches!(backend, "openstack" | "digitalocean");
        assert_eq!(config.mark_key_file.is_some(), is_cloud);
        assert_eq!(config.cloud_name.is_empty(), backend != "openstack");
        assert_eq!(config.tag.is_some(), backend == "digitalocean");
        assert_eq!(config.common.driver.with_topology, backend != "nfs");
        let foreign = match backend {
            "digitalocean" => "--cloud-name=two",
            _ => "--tag=red",
        };
        let error = words(&[needed, &[foreign]].concat()).unwrap_err();
        assert!(error.contains("has no effect for --backend"), "{error}");
    }
}
