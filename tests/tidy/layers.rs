//! Checks that dependencies inside a crate point in one direction, and that some names are used
//! only in certain directories. Reads paths as text, so a name reached through a re-export is not
//! seen.

use crate::Finding;
use crate::mask::{is_word, line_of, places_of};
use crate::tree::RustFile;

/// The ranked directories of a crate: code may use its own rank and lower ranks.
struct Ranks {
    sources: &'static str,
    ranks: &'static [(&'static str, u8)],
}

const RANKS: &[Ranks] = &[
    Ranks {
        sources: "node-agent/src/",
        ranks: &[
            ("rpc", 4),
            ("operation", 3),
            ("mounts", 2),
            ("device", 1),
            ("filesystem", 1),
            ("kernel", 0),
            ("work", 0),
        ],
    },
    Ranks {
        sources: "controller/src/",
        ranks: &[
            ("rpc", 4),
            ("operation", 3),
            ("backend", 2),
            ("kubernetes", 1),
            ("http", 0),
        ],
    },
    Ranks {
        sources: "server/src/",
        ranks: &[
            ("kubelet", 2),
            ("transport", 1),
            ("request", 1),
            ("work", 1),
            ("grpc", 1),
            ("helper", 1),
            ("call", 0),
        ],
    },
];

/// A path that only a few files of a crate may use. Unit tests may use it anywhere.
struct Confined {
    sources: &'static str,
    path: &'static str,
    /// The directories and files, relative to `sources`, that may use the path.
    homes: &'static [&'static str],
    reason: &'static str,
}

/// The files that assemble the program, and so must name the services of `rpc`.
const WIRING: [&str; 4] = ["rpc", "agent.rs", "main.rs", "lib.rs"];
const CONFINED: &[Confined] = &[
    Confined {
        sources: "node-agent/src/",
        path: "tonic",
        homes: &WIRING,
        reason: "gRPC stops at rpc/: operations answer in their own words",
    },
    Confined {
        sources: "controller/src/",
        path: "tonic",
        homes: &WIRING,
        reason: "gRPC stops at rpc/: operations answer in their own words",
    },
    Confined {
        sources: "node-agent/src/",
        path: "belay_proto",
        homes: &WIRING,
        reason: "messages stop at rpc/: what lies below gets parsed requests",
    },
    Confined {
        sources: "controller/src/",
        path: "belay_proto",
        homes: &WIRING,
        reason: "messages stop at rpc/: what lies below gets parsed requests",
    },
    Confined {
        sources: "node-agent/src/",
        path: "io::Errno",
        homes: &["kernel"],
        reason: "errno stops at kernel/: what lies above sees the kernel's own error type",
    },
    Confined {
        sources: "node-agent/src/",
        path: "libc",
        homes: &["kernel"],
        reason: "system calls are made in kernel/, where the fake can replace them",
    },
    Confined {
        sources: "node-agent/src/",
        path: "process::Command",
        homes: &["kernel"],
        reason: "a process is started in kernel/ only: mkfs and fsck, and no other",
    },
    Confined {
        sources: "node-agent/src/",
        path: "Reason::new",
        homes: &[],
        reason: "contract/src/reason.rs lists the reasons, and how bad each is, for both programs",
    },
    Confined {
        sources: "controller/src/",
        path: "Reason::new",
        homes: &[],
        reason: "contract/src/reason.rs lists the reasons, and how bad each is, for both programs",
    },
    Confined {
        sources: "controller/src/",
        path: "process::Command",
        // The tests of archives compare with tar(1).
        homes: &[
            "backend/nfs/processes.rs",
            "backend/nfs/worker/tests/snapshots.rs",
        ],
        reason: "the controller starts no process but its own workers, which ask NFS servers",
    },
];

/// The files in which names may mention loop devices: the transport, the code that selects it, and
/// its flag. A directory is named by a `/` at its end.
const OF_LOOP_DEVICES: [&str; 10] = [
    "node-agent/src/device/loops/",
    "node-agent/src/device/open_device.rs",
    "node-agent/src/device/mod.rs",
    "node-agent/src/device/storage.rs",
    "node-agent/src/device/transport.rs",
    "node-agent/src/device/transport/",
    "node-agent/src/kernel/",
    "node-agent/src/config.rs",
    "node-agent/src/start.rs",
    "node-agent/src/start/open.rs",
];

/// Returns a finding for every upward use in a file, and for every confined name outside its home.
pub(crate) fn check(file: &RustFile) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RANKS.iter().flat_map(|ranks| upward(file, ranks)).collect();
    findings.extend(CONFINED.iter().flat_map(|confined| strayed(file, confined)));
    findings.extend(named_for_one_transport(file));
    findings
}

fn upward(file: &RustFile, Ranks { sources, ranks }: &Ranks) -> Vec<Finding> {
    let rank_of = |module: &str| ranks.iter().find(|(name, _)| *name == module);
    let Some((here, rank)) = file
        .path
        .strip_prefix(sources)
        .and_then(module_of)
        .and_then(rank_of)
    else {
        return Vec::new();
    };
    modules_named(&file.code)
        .into_iter()
        .filter_map(|(module, at)| Some((rank_of(&module)?, at)))
        .filter(|((_, other), _)| other > rank)
        .map(|((module, _), at)| {
            let rule = format!("{here}/ uses {module}/, which stands above it: turn it round");
            Finding::new(&file.path, line_of(&file.code, at), rule)
        })
        .collect()
}

/// Returns the top module of a file: `rpc` for both `rpc/node.rs` and `rpc.rs`.
fn module_of(path: &str) -> Option<&str> {
    path.split('/').next()?.split('.').next()
}

/// Returns the names that follow `crate::` or `super::`, also in a group, each with its position.
fn modules_named(code: &str) -> Vec<(String, usize)> {
    let roots = places_of(code, "crate").chain(places_of(code, "super"));
    roots
        .filter_map(|at| {
            let path = code[at + 5..].strip_prefix("::")?;
            let start = code.len() - path.len();
            Some(
                first_names(path)
                    .into_iter()
                    .map(move |(name, offset)| (name, start + offset)),
            )
        })
        .flatten()
        .collect()
}

/// Returns the first names of a path: `a` for `a::b`; `a` and `d` for `{a::{b, c}, d}`.
pub(crate) fn first_names(path: &str) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut expected = true;
    for (at, c) in path.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => expected = true,
            c if is_word(c) && expected && depth <= 1 => {
                names.push((path[at..].chars().take_while(|c| is_word(*c)).collect(), at));
                expected = false;
            }
            _ => {}
        }
        if depth == 0 && !c.is_whitespace() {
            break;
        }
    }
    names
}

fn strayed(file: &RustFile, confined: &Confined) -> Vec<Finding> {
    let Some(inside) = file.path.strip_prefix(confined.sources) else {
        return Vec::new();
    };
    let at_home = |home: &&str| module_of(inside) == Some(*home) || inside == *home;
    if confined.homes.iter().any(at_home) {
        return Vec::new();
    }
    let rule = format!("uses {}: {}", confined.path, confined.reason);
    places_of(&file.product, confined.path)
        .map(|at| Finding::new(&file.path, line_of(&file.product, at), rule.clone()))
        .collect()
}

/// Returns a finding for code that names loop devices where it must suit other transports as well.
/// Tests may name them anywhere.
fn named_for_one_transport(file: &RustFile) -> Vec<Finding> {
    let is_home = |home: &&str| file.path.starts_with(*home);
    let is_test = file
        .path
        .split('/')
        .any(|part| matches!(part, "tests" | "real"));
    if !file.path.starts_with("node-agent/src/") || is_test || OF_LOOP_DEVICES.iter().any(is_home) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, line) in file.product.lines().enumerate() {
        let words = line.split(|c| !is_word(c));
        // The keyword is not a name.
        for word in words.filter(|word| *word != "loop" && word.to_lowercase().contains("loop")) {
            let rule = format!("{word}: what a loop device is stays in device/loops/");
            findings.push(Finding::new(&file.path, at + 1, rule));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, content: &str) -> Vec<usize> {
        check(&RustFile::new(path, content))
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn an_upward_use_is_found_in_every_way_of_writing_it() {
        for upward in [
            "use crate::operation::stage;",
            "use crate::{kernel::Fd, operation::stage};",
            "use crate::{\n    kernel::{Fd, rpc},\n    rpc,\n};",
            "use super::super::rpc::node;",
            "fn f() { crate::rpc::node() }",
        ] {
            let content = format!("//! x\n{upward}\n");
            assert_eq!(
                lines("node-agent/src/device/loops/file.rs", &content).len(),
                1,
                "{upward}"
            );
        }
        for (path, upward) in [
            ("mounts/mod.rs", "use crate::operation::phase;"),
            ("device/loops/file.rs", "use crate::mounts::Mounts;"),
        ] {
            assert_eq!(lines(&format!("node-agent/src/{path}"), upward), [1]);
        }
        assert_eq!(
            lines(
                "controller/src/backend/local/mod.rs",
                "use crate::operation::x;"
            ),
            [1]
        );
    }

    #[test]
    fn downward_and_level_uses_pass() {
        let content = "use crate::{device::x, kernel::rpc, operation::{y, rpc}};\n// crate::rpc\n";
        assert_eq!(
            lines("node-agent/src/operation/stage.rs", content),
            [] as [usize; 0]
        );
        let sideways = "use crate::filesystem::probe;\nuse super::kernel_of;\n";
        assert_eq!(
            lines("node-agent/src/device/mod.rs", sideways),
            [] as [usize; 0]
        );
        assert_eq!(
            lines("node-agent/src/main.rs", "use crate::rpc::x;"),
            [] as [usize; 0]
        );
        assert_eq!(
            lines("server/src/kernel.rs", "use crate::rpc::x;"),
            [] as [usize; 0]
        );
    }

    #[test]
    fn a_confined_name_is_found_outside_its_home() {
        for (path, content) in [
            ("node-agent/src/operation/stage.rs", "use tonic::Status;"),
            ("node-agent/src/operation/stage.rs", "use belay_proto::csi;"),
            (
                "node-agent/src/device/loops/file.rs",
                "use rustix::io::Errno;",
            ),
            ("node-agent/src/work/pool.rs", "fn f() { libc::sync() }"),
            (
                "node-agent/src/operation/stage.rs",
                "use std::process::Command;",
            ),
            ("controller/src/operation/create.rs", "use tonic::Code;"),
            (
                "controller/src/backend/local/mod.rs",
                "std::process::Command::new(x)",
            ),
        ] {
            assert_eq!(lines(path, content), [1], "{path}: {content}");
        }
    }

    #[test]
    fn a_confined_name_passes_at_home_and_in_unit_tests() {
        for (path, content) in [
            ("node-agent/src/rpc/node.rs", "use tonic::Status;"),
            ("node-agent/src/main.rs", "use tonic::service::Routes;"),
            ("node-agent/src/kernel/mod.rs", "use rustix::io::Errno;"),
            (
                "node-agent/src/device/a.rs",
                "#[cfg(test)]\nmod tests {\n    use rustix::io::Errno;\n}",
            ),
            ("server/src/call.rs", "use tonic::Status;"),
        ] {
            assert_eq!(lines(path, content), [] as [usize; 0], "{path}: {content}");
        }
    }

    #[test]
    fn a_name_of_loop_devices_is_found_where_other_transports_shall_fit() {
        let naming = "fn f() { kernel.loop_dev(LoopDir) }\n";
        assert_eq!(lines("node-agent/src/operation/stage.rs", naming), [1, 1]);
        for home in [
            "device/loops/file.rs",
            "kernel/mod.rs",
            "operation/tests/a.rs",
        ] {
            let path = format!("node-agent/src/{home}");
            assert_eq!(lines(&path, naming), [] as [usize; 0], "{path}");
        }
        let keyword = "fn f() { loop {} } // LoopDir\n";
        assert_eq!(
            lines("node-agent/src/work/pool.rs", keyword),
            [] as [usize; 0]
        );
    }
}
