//! Checks that the drivers on this node respond and are ready. Also checks that Belay's programs
//! have the same version, and the Linux capabilities that they need.

use crate::drivers::DriverSocket;
use crate::machine::process;
use crate::report::{Report, Verdict};

/// The Linux capability that mount(2) requires (capabilities(7)), and its number.
const SYS_ADMIN: (&str, u32) = ("CAP_SYS_ADMIN", 21);
/// The Linux capability that growing a mounted ext4 filesystem requires, and its number.
const SYS_RESOURCE: (&str, u32) = ("CAP_SYS_RESOURCE", 24);

pub(super) fn check(report: &mut Report, found: &[DriverSocket]) {
    if found.is_empty() {
        let what = "no socket in the usual directories";
        let cure = "start a driver, or give its directory by --dir; `belayctl ls` lists sockets";
        return report.cure(Verdict::Warn, "drivers", what, cure);
    }
    for driver in found {
        let socket = driver.socket.display();
        if !driver.trouble.is_empty() {
            let cure = format!("start the driver, or remove {socket}");
            report.cure(
                Verdict::No,
                "socket",
                format!("{socket}: {}", driver.trouble),
                cure,
            );
            continue;
        }
        let is_belay = driver.driver.ends_with(".csi.belay.dev");
        if driver.ready == Some(false) {
            let what = format!("{} on {socket} is not ready", driver.driver);
            let cure = "read its log, or /readyz of its HTTP port, for the reason";
            report.cure(Verdict::No, "driver", what, cure);
        } else {
            let what = format!("{} {} on {socket}", driver.driver, driver.version);
            report.add(Verdict::Ok, "driver", what);
        }
        let own = env!("CARGO_PKG_VERSION");
        if is_belay && !driver.version.is_empty() && driver.version != own {
            let what = format!("{} is {}, belayctl is {own}", driver.driver, driver.version);
            report.cure(
                Verdict::Warn,
                "version",
                what,
                "use programs of one version",
            );
        }
        if is_belay && driver.serves.iter().any(|name| name == "node") {
            capabilities(report, driver);
        }
    }
}

fn capabilities(report: &mut Report, driver: &DriverSocket) {
    let name = "capabilities";
    let set = driver.pid.and_then(|pid| process::status(pid, "CapEff"));
    let Some(set) = set.and_then(|set| u64::from_str_radix(&set, 16).ok()) else {
        let what = format!("the process of {} is not visible here", driver.driver);
        return report.add(Verdict::Skip, name, what);
    };
    let has = |(_, number): (&str, u32)| set & (1 << number) != 0;
    let cure = |(name, _): (&str, u32)| {
        let capability = name.trim_start_matches("CAP_");
        format!("add {capability} to the container's securityContext, or to the unit")
    };
    if !has(SYS_ADMIN) {
        let what = "no CAP_SYS_ADMIN: the node agent cannot mount";
        report.cure(Verdict::No, name, what, cure(SYS_ADMIN));
    } else if !has(SYS_RESOURCE) {
        let what = "no CAP_SYS_RESOURCE: a mounted ext4 cannot be expanded";
        report.cure(Verdict::Warn, name, what, cure(SYS_RESOURCE));
    } else {
        report.add(Verdict::Ok, name, "CAP_SYS_ADMIN, CAP_SYS_RESOURCE");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(driver: &str, version: &str) -> DriverSocket {
        DriverSocket {
            socket: "/run/belay/node.sock".into(),
            driver: driver.to_owned(),
            version: version.to_owned(),
            ready: Some(true),
            ..DriverSocket::default()
        }
    }

    #[test]
    fn a_driver_that_is_not_ready_or_does_not_answer_is_wrong() {
        let mut report = Report::default();
        let not_ready = DriverSocket {
            ready: Some(false),
            ..found("d.example.com", "1")
        };
        let silent = DriverSocket {
            trouble: "connection refused".to_owned(),
            ..DriverSocket::default()
        };
        check(&mut report, &[not_ready, silent]);
        assert_eq!(report.names(), "driver\nsocket\n");
    }

    #[test]
    fn only_belays_versions_are_compared() {
        let own = env!("CARGO_PKG_VERSION");
        let mut report = Report::default();
        check(
            &mut report,
            &[
                found("d.example.com", "9"),
                found("local.csi.belay.dev", own),
            ],
        );
        assert!(!report.table().contains("one version"));
        check(&mut report, &[found("local.csi.belay.dev", "0.0.1")]);
        assert!(report.table().contains("one version") && report.is_good());
    }
}
