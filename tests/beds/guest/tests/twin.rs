//! Belay whole, without a cloud: its controller asks the twin of DigitalOcean, which plugs volumes
//! into two guests as SCSI disks, and an agent in each uses them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belay_bed::programs::{Running, binary, server};
use belay_twins::digitalocean::{DigitalOcean, MODEL, TOKEN};
use belay_twins::{Hypervisor, Server};
use serde_json::Value;
use tempfile::TempDir;

use crate::belay::SETUP;
use crate::cloud::Cloud;
use crate::digitalocean::START;
use crate::rig::{seen, seen_programs};

const NAME: &str = "pvc-7f8b1c2d-1111-4222-8333-444455556666";
/// The guests, and their droplets.
const NODES: [(&str, u64); 2] = [("first", 101), ("second", 102)];

struct Bed {
    guests: Cloud,
    twin: Server<DigitalOcean>,
    _controller: Running,
    socket: PathBuf,
    directory: TempDir,
}

impl Bed {
    fn start() -> Self {
        let names = NODES.map(|(name, _)| name);
        let guests = Cloud::start("0+3", &names);
        let directory = tempfile::tempdir().expect("a directory");
        let disks = directory.path().join("disks");
        fs::create_dir(&disks).expect("a directory");
        let hypervisor = Hypervisor::new(guests.socket.clone(), disks, MODEL);
        let droplets = NODES.map(|(_, droplet)| droplet);
        let twin = DigitalOcean::new(&["nyc1"], &droplets).with_disks(hypervisor);
        NODES
            .iter()
            .for_each(|(name, droplet)| twin.rename(*droplet, name));
        twin.settings().delay = Duration::from_millis(100);
        let twin = Server::start(twin).expect("a port");
        let socket = directory.path().join("controller.sock");
        let program = binary("belay-controller").expect("a program");
        let mut controller = server(&[], &program, &socket);
        controller
            .args(["--backend=digitalocean", "--region=nyc1"])
            .arg(format!("--api-url={}", twin.url()))
            .env("DIGITALOCEAN_ACCESS_TOKEN", TOKEN);
        let controller = Running::serving(&mut controller, &socket).expect("the controller");
        let bed = Bed {
            guests,
            twin,
            _controller: controller,
            socket,
            directory,
        };
        for (name, droplet) in NODES {
            assert_eq!(bed.guests.operate(&["boot", name], "").0, Some(0));
            let programs = seen_programs();
            let start = START.replace("101", &droplet.to_string());
            bed.run(
                name,
                &format!("mkdir -p /belay && mount --bind {programs} /belay\n{start}"),
            );
        }
        bed
    }

    /// Runs a script that may use `node`.
    #[track_caller]
    fn run(&self, name: &str, script: &str) -> String {
        self.guests.run(name, &format!("{SETUP}set -e\n{script}"))
    }

    /// A call of the controller; its answer is written to that file.
    #[track_caller]
    fn call(&self, file: &str, words: &[&str]) -> Value {
        let mut belayctl = Command::new(binary("belayctl").expect("a program"));
        belayctl
            .args(["--timeout", "100", "--output", "json", "--endpoint"])
            .arg(&self.socket)
            .args(words);
        let output = belayctl.output().expect("belayctl");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        fs::write(self.file(file), &output.stdout).expect("a file");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Attaches it, stages it, and publishes it at `/pods/ID`.
    #[track_caller]
    fn up(&self, node: (&str, u64), id: &str, filesystem: &str, created: &str) {
        let (name, droplet) = node;
        let droplet = droplet.to_string();
        let words = ["volume", "attach", id, "--node-id", &droplet];
        let more = ["--fs-type", filesystem, "--show-secrets"];
        self.call("attached.json", &[&words[..], &more].concat());
        let context = |file: &str| format!("--context-from {}", seen(&self.file(file)));
        let contexts = format!("{} {}", context(created), context("attached.json"));
        self.run(
            name,
            &format!(
                "mkdir -p /pods/{id}.staging
                 flags=\"--staging /pods/{id}.staging --fs-type {filesystem} {contexts}\"
                 node stage {id} $flags
                 node publish {id} --target /pods/{id} $flags"
            ),
        );
    }

    #[track_caller]
    fn down(&self, node: (&str, u64), id: &str) {
        let (name, droplet) = node;
        self.run(
            name,
            &format!(
                "node unpublish {id} --target /pods/{id}
                 node unstage {id} --staging /pods/{id}.staging"
            ),
        );
        let droplet = droplet.to_string();
        self.call(
            "detached.json",
            &["volume", "detach", id, "--node-id", &droplet],
        );
    }
}

/// The text of a member.
#[track_caller]
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("a member")
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).expect("a directory").count()
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_is_created_grown_copied_and_moved_by_controller_twin_and_agents() {
    let bed = Bed::start();
    let [first, second] = NODES;
    for filesystem in ["ext4", "xfs"] {
        let create = ["volume", "create", NAME, "--fs-type", filesystem];
        let created = bed.call("created.json", &[&create[..], &["--size", "1GiB"]].concat());
        let id = text(&created, "volume_id");
        bed.up(first, id, filesystem, "created.json");
        bed.run(
            first.0,
            &format!(
                "[ -b /dev/disk/by-id/scsi-0DO_Volume_{NAME} ]
                 cp /bin/bash /pods/{id}/kept && sync --file-system /pods/{id}"
            ),
        );
        // Where it is in use.
        bed.call("grown.json", &["volume", "expand", id, "--size", "2GiB"]);
        bed.run(
            first.0,
            &format!(
                "node expand {id} --path /pods/{id} --staging /pods/{id}.staging --size 2GiB
                 [ $(($(stat --file-system --format '%b * %S >> 20' /pods/{id}))) -gt 1800 ]"
            ),
        );
        let cut = bed.call("cut.json", &["snapshot", "create", "snapshot-1", id]);
        let snapshot = text(&cut, "snapshot_id");
        bed.run(first.0, &format!("cp /bin/cat /pods/{id}/later"));
        bed.down(first, id);
        bed.up(second, id, filesystem, "created.json");

        // Next to its source, with the same UUID.
        let restore = ["--size", "2GiB", "--from-snapshot", snapshot];
        let copy = ["volume", "create", "pvc-copy", "--fs-type", filesystem];
        let copy = bed.call("copy.json", &[&copy[..], &restore].concat());
        let copy = text(&copy, "volume_id");
        bed.up(second, copy, filesystem, "copy.json");
        bed.run(
            second.0,
            &format!(
                "cmp /bin/bash /pods/{id}/kept && cmp /bin/cat /pods/{id}/later
                 cmp /bin/bash /pods/{copy}/kept && [ ! -e /pods/{copy}/later ]"
            ),
        );
        let attached = bed.twin.service().attached();
        assert!(
            attached.values().all(|on| *on == Some(second.1)),
            "{attached:?}"
        );
        for id in [id, copy] {
            bed.down(second, id);
            bed.call("deleted.json", &["volume", "delete", id]);
        }
        bed.call("discarded.json", &["snapshot", "delete", snapshot]);
        assert_eq!(files(&bed.file("disks")), 0);
        let sizes = bed.twin.service().volumes();
        assert!(sizes.is_empty(), "{sizes:?}");
    }
}
