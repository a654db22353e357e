//! The privileges of a running agent: the ones in docs/configuration.md, whatever it was started
//! with.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use crate::rig::{Launch, Rig, TestDir, access, least_bytes, run, until};

const DOCUMENTATION: &str = include_str!("../../docs/configuration.md");

/// The numbers of capabilities in include/uapi/linux/capability.h.
const NUMBERS: [(&str, u32); 3] = [
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_RESOURCE", 24),
];
const SETPCAP: u64 = 1 << 8;

/// Returns the capabilities of the documented table, as a set.
fn documented() -> u64 {
    let rows = DOCUMENTATION.lines();
    let names = rows.filter_map(|row| row.strip_prefix("| `CAP_")?.split_once("` | "));
    let bits = names.map(|(name, _)| {
        let is_it = |(known, _): &&(&str, u32)| *known == format!("CAP_{name}");
        let known = NUMBERS.iter().find(is_it);
        1 << known.unwrap_or_else(|| panic!("CAP_{name}")).1
    });
    bits.fold(0, |all, bit: u64| all | bit)
}

/// The privileges of a thread, from proc_pid_status(5).
#[derive(Debug, PartialEq, Eq)]
struct Status {
    inheritable: u64,
    permitted: u64,
    effective: u64,
    bounding: u64,
    ambient: u64,
    no_new_privs: bool,
    seccomp: String,
}

impl Status {
    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).expect("a status");
        let value = |name: &str| -> String {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.expect(name).trim().to_owned()
        };
        let set = |name: &str| u64::from_str_radix(&value(name), 16).expect(name);
        Status {
            inheritable: set("CapInh:"),
            permitted: set("CapPrm:"),
            effective: set("CapEff:"),
            bounding: set("CapBnd:"),
            ambient: set("CapAmb:"),
            no_new_privs: value("NoNewPrivs:") == "1",
            seccomp: value("Seccomp:"),
        }
    }
}

/// Fails unless every thread of the agent has exactly those privileges of the table that its parent
/// had.
#[track_caller]
fn expect_kept(rig: &Rig, parent: u64) {
    let kept = documented() & parent;
    let expected = Status {
        inheritable: 0,
        permitted: kept,
        effective: kept,
        bounding: if parent & SETPCAP == 0 { parent } else { kept },
        ambient: 0,
        no_new_privs: true,
        // The value 2 means filters.
        seccomp: "2".to_owned(),
    };
    let tasks = fs::read_dir(format!("/proc/{}/task", rig.agent().pid())).expect("threads");
    let tasks: Vec<_> = tasks.flatten().map(|task| task.path()).collect();
    assert!(
        tasks.len() > 1,
        "a volume was staged on the pool: {tasks:?}"
    );
    for task in tasks {
        assert_eq!(Status::read(&task.join("status")), expected);
    }
}

/// Runs a lifecycle that needs all granted capabilities, with an unfriendly root directory: its
/// user has removed all permissions, grows the volume, and leaves it frozen.
fn live(rig: &Rig) {
    let node = rig.node();
    for kind in ["xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        let target = volume.target("a");
        node.stage(volume.stage(access(kind))).expect("stage");
        node.publish(volume.publish(&target, access(kind)))
            .expect("publish");
        chown(&target, Some(1000), Some(1000)).expect("chown");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o700)).expect("chmod");
        volume.grow(2 * least_bytes(kind));
        node.expand(volume.expand(&target, access(kind)))
            .expect("expand");
        node.stats(volume.stats(&target)).expect("stats");
        run("fsfreeze", &["--freeze", target.to_str().expect("UTF-8")]);
        volume.down(&node, &[&target]);
    }
}

/// An ext4 that cannot be expanded to its device is published anyway, and the log states why it is
/// smaller.
fn stay_small(rig: &Rig) {
    let (node, bytes) = (rig.node(), least_bytes("ext4"));
    let volume = rig.volume(bytes);
    node.stage(volume.stage(access("ext4"))).expect("stage");
    volume.down(&node, &[]);
    volume.grow(2 * bytes);
    node.stage(volume.stage(access("ext4")))
        .expect("stage again");
    volume.down(&node, &[]);
    let has = [
        format!("volume={}", volume.id),
        format!("has_bytes={bytes}"),
        format!("device_bytes={}", 2 * bytes),
        "needs CAP_SYS_RESOURCE".to_owned(),
    ];
    let is_reported = |line: &str| has.iter().all(|word| line.contains(word.as_str()));
    until("the log has the reason", || {
        let log = rig.agent().log();
        let mut warnings = log.lines().filter(|line| line.contains(" WARN "));
        warnings.any(is_reported)
    });
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_keeps_what_the_documentation_says_and_lives_with_it() {
    let rig = Rig::new();
    live(&rig);
    expect_kept(&rig, Status::read(Path::new("/proc/self/status")).permitted);
}

#[test]
#[ignore = "needs root: make test"]
fn what_an_agent_was_not_given_it_names_and_does_without() {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let without = "-sys_resource,-setpcap,-dac_override,-fowner";
    let command = ["setpriv", "--bounding-set", without, "--inh-caps", "-all"];
    let launch = Launch {
        command: command.map(str::to_owned).into(),
        flags: Vec::new(),
    };
    let rig = Rig::launched(test_dir, volumes, launch);
    live(&rig);
    let own = Status::read(Path::new("/proc/self/status")).permitted;
    let (dac_override, fowner, sys_resource) = (1 << 1, 1 << 3, 1 << 24);
    let missing = sys_resource | SETPCAP | dac_override | fowner;
    expect_kept(&rig, own & !missing);
    stay_small(&rig);
    let warning = "without CAP_SYS_RESOURCE this agent cannot grow a mounted ext4";
    until("the log has the warning", || {
        rig.agent().log().contains(warning)
    });
}
