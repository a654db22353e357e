//! Belay whole, without a cloud: its controller asks the twin of one, which plugs volumes into two
//! guests as SCSI disks, and an agent in each uses them.

mod civo;
mod digitalocean;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use belay_bed::programs::{Running, binary, server};
use belay_twins::{Hypervisor, Model, Server, Service};
use serde_json::Value;
use tempfile::TempDir;

use crate::belay::SETUP;
use crate::cloud::Cloud;
use crate::rig::{seen, seen_programs};

/// The guests.
const NAMES: [&str; 2] = ["first", "second"];

/// A twin, and what Belay needs to use its cloud.
trait Twin: Service + Sized {
    const MODEL: Model;

    /// With servers of the guests' names.
    fn plugging(disks: Hypervisor) -> Self;

    /// The controller's flags and variables.
    fn connect(controller: &mut Command, url: &str);

    /// Starts the agent of a guest.
    fn agent(name: &str) -> String;

    /// The ID of the node that a guest is.
    fn node(name: &str) -> &str;
}

struct Bed<T: Twin> {
    guests: Cloud,
    twin: Server<T>,
    _controller: Running,
    socket: PathBuf,
    directory: TempDir,
}

impl<T: Twin> Bed<T> {
    fn start() -> Self {
        let guests = Cloud::start("0+3", &NAMES);
        let directory = tempfile::tempdir().expect("a directory");
        let disks = directory.path().join("disks");
        fs::create_dir(&disks).expect("a directory");
        let hypervisor = Hypervisor::new(guests.socket.clone(), disks, T::MODEL);
        let twin = Server::start(T::plugging(hypervisor)).expect("a port");
        let socket = directory.path().join("controller.sock");
        let program = binary("belay-controller").expect("a program");
        let mut controller = server(&[], &program, &socket);
        T::connect(&mut controller, &twin.url());
        let controller = Running::serving(&mut controller, &socket).expect("the controller");
        let bed = Bed {
            guests,
            twin,
            _controller: controller,
            socket,
            directory,
        };
        for name in NAMES {
            assert_eq!(bed.guests.operate(&["boot", name], "").0, Some(0));
            let programs = seen_programs();
            let start = T::agent(name);
            bed.run(
                name,
                &format!("mkdir -p /belay /pods && mount --bind {programs} /belay\n{start}"),
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
        let output = self.belayctl(words).output().expect("belayctl");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        fs::write(self.file(file), &output.stdout).expect("a file");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// A call that fails; what it prints.
    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        let output = self.belayctl(words).output().expect("belayctl");
        assert!(!output.status.success(), "{words:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn belayctl(&self, words: &[&str]) -> Command {
        let mut belayctl = Command::new(binary("belayctl").expect("a program"));
        belayctl
            .args(["--timeout", "100", "--output", "json", "--endpoint"])
            .arg(&self.socket)
            .args(words);
        belayctl
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Attaches it, stages it, and publishes it at `/pods/ID`.
    #[track_caller]
    fn up(&self, name: &str, id: &str, kind: Kind, created: &str) {
        let words = ["volume", "attach", id, "--node-id", T::node(name)];
        let more = ["--show-secrets"];
        self.call(
            "attached.json",
            &[&words[..], &kind.words(), &more[..]].concat(),
        );
        let context = |file: &str| format!("--context-from {}", seen(&self.file(file)));
        let contexts = format!("{} {}", context(created), context("attached.json"));
        let kind = kind.words().join(" ");
        self.run(
            name,
            &format!(
                "mkdir -p /pods/{id}.staging
                 flags=\"--staging /pods/{id}.staging {kind} {contexts}\"
                 node stage {id} $flags
                 node publish {id} --target /pods/{id} $flags"
            ),
        );
    }

    /// A volume of 2 GiB from a snapshot, whose answer is in `copy.json`; returns its ID.
    #[track_caller]
    fn restored(&self, snapshot: &str, kind: Kind) -> String {
        let create = ["volume", "create", "pvc-copy", "--size", "2GiB"];
        let from = ["--from-snapshot", snapshot];
        let copy = self.call("copy.json", &[&create[..], &from, &kind.words()].concat());
        text(&copy, "volume_id").to_owned()
    }

    #[track_caller]
    fn down(&self, name: &str, id: &str) {
        self.run(
            name,
            &format!(
                "node unpublish {id} --target /pods/{id}
                 node unstage {id} --staging /pods/{id}.staging"
            ),
        );
        let words = ["volume", "detach", id, "--node-id", T::node(name)];
        self.call("detached.json", &words);
    }
}

/// How a volume is used.
#[derive(Clone, Copy)]
enum Kind {
    /// With that filesystem.
    Mounted(&'static str),
    Raw,
}

impl Kind {
    /// Returns the flags of belayctl for this kind.
    fn words(self) -> Vec<&'static str> {
        match self {
            Kind::Mounted(filesystem) => vec!["--fs-type", filesystem],
            Kind::Raw => vec!["--block"],
        }
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
