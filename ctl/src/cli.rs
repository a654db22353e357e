//! The command line. The commands are in `command/`.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::command::bench::Bench;
use crate::command::chain::{Mount, Umount};
use crate::command::controller::ControllerCommand;
use crate::command::doctor::Doctor;
use crate::command::group::GroupCommand;
use crate::command::identity::IdentityCommand;
use crate::command::locate::Where;
use crate::command::ls::Search;
use crate::command::manual::{Completion, Man};
use crate::command::node::NodeGroup;
use crate::command::registration::RegistrationCommand;
use crate::command::rpc::Rpc;
use crate::command::snapshot::SnapshotCommand;
use crate::command::status::{Status, Top};
use crate::command::volume::VolumeCommand;
use crate::command::{check, ls};
use crate::failure::Failure;
use crate::target::Target;

const EXAMPLES: &str = "\
Examples:
  export CSI_ENDPOINT=unix:///run/belay/controller.sock
  belayctl identity probe
  belayctl ls                                      the sockets of this node
  belayctl mount data /mnt/data --size 10GiB       a volume in one go
  belayctl volume create data --size 10GiB --fs-type ext4
  belayctl volume list --output json
  belayctl --endpoint /run/belay/node.sock node info
  belayctl --endpoint /run/belay/node.sock node health VOLUME_ID || echo unhealthy

Exit codes:
   0  success
   1  the call failed: gRPC code and message are on standard error
   2  the answer is no: unhealthy, not ready, not confirmed, a check failed
  64  bad usage, or an unreadable file of a flag
  69  no driver on the socket, or no answer in time

Secrets are read from files, the environment or standard input, never from the command line:
see --secrets-from, --secret-env and --secret-file of each command.";

/// Command-line client for any CSI driver.
#[derive(Parser)]
#[command(name = "belayctl", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Volumes: create, attach, expand, list, health, ... (controller socket)
    #[command(subcommand, visible_alias = "vol")]
    Volume(Box<VolumeCommand>),
    /// Snapshots, and the blocks that a backup must read (controller socket)
    #[command(subcommand, visible_alias = "snap")]
    Snapshot(SnapshotCommand),
    /// Snapshots of several volumes at one instant (controller socket)
    #[command(subcommand)]
    Group(GroupCommand),
    /// Node service: stage, publish, stats, expand, ... (node socket)
    #[command(subcommand, alias = "n")]
    Node(NodeGroup),
    /// Identity service: name, capabilities and readiness of the driver
    #[command(subcommand, aliases = ["ident", "i"])]
    Identity(IdentityCommand),
    /// Registration with the kubelet (registration socket)
    #[command(subcommand)]
    Registration(RegistrationCommand),
    /// Create, attach, stage and publish a volume in one go
    Mount(Box<Mount>),
    /// Unpublish, unstage and detach what `mount` has mounted
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// List the sockets of drivers on this node, and what each serves
    Ls(Search),
    /// Show the PV, pods, mounts and device of a volume on this node; exits with 2 if there is none
    Where(Where),
    /// Show the drivers of this node; exits with 2 if one is unhealthy
    Status(Status),
    /// Show the drivers of this node, live
    Top(Top),
    /// Check a driver's conformance without changing anything; exits with 2 if it breaks a rule
    Check,
    /// Check what this node, or a switch from another driver, needs; exits with 2 if something is
    /// wrong
    Doctor(Doctor),
    /// Measure the latency of a call, and what it costs the driver
    Bench(Bench),
    /// Make any call, with messages as JSON
    Rpc(Rpc),
    /// Print a completion script
    Completion(Completion),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(Man),
    /// The verbs of `volume` and `snapshot`, also under the names that csc has for them
    #[command(subcommand, alias = "c")]
    Controller(ControllerCommand),
}

impl Cli {
    /// Runs the command and prints its answer.
    ///
    /// # Errors
    /// Bad usage, a socket that does not answer, or the driver's error.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let target = &self.target;
        let answer = match self.verb {
            Verb::Volume(command) => command.run(target).await?,
            Verb::Snapshot(command) => command.run(target).await?,
            Verb::Group(command) => command.run(target).await?,
            Verb::Node(command) => command.run(target).await?,
            Verb::Identity(command) => command.run(target).await?,
            Verb::Registration(command) => command.run(target).await?,
            Verb::Controller(command) => command.run(target).await?,
            Verb::Mount(command) => command.run(target).await?,
            Verb::Umount(command) => command.run(target).await?,
            Verb::Ls(search) => ls::run(&search).await?,
            Verb::Where(command) => command.run()?,
            Verb::Status(command) => command.run().await?,
            Verb::Top(command) => command.run(target).await?,
            Verb::Check => check::run(target).await?,
            Verb::Doctor(doctor) => doctor.run().await?,
            Verb::Bench(command) => command.run(target).await?,
            Verb::Rpc(command) => command.run(target).await?,
            Verb::Completion(command) => command.run(Self::command())?,
            Verb::Man(command) => command.run(Self::command())?,
        };
        target.print(&answer)?;
        Ok(answer.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::render::Output;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_taken_before_and_after_the_command() {
        for line in [
            "belayctl --endpoint /a.sock -o json node info",
            "belayctl node info --endpoint unix:///a.sock --output json",
            // The usual form of CSI_ENDPOINT, which the servers accept.
            "belayctl node info --endpoint unix://a.sock --output json",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(
                cli.target.endpoint,
                Some("/a.sock".parse().unwrap()),
                "{line}"
            );
            assert!(matches!(cli.target.output, Output::Json), "{line}");
        }
    }

    #[test]
    fn a_contradicting_or_incomplete_line_is_refused() {
        for line in [
            "belayctl",
            "belayctl node",
            "belayctl --endpoint relative.sock node info",
            "belayctl node stage v --staging /s --block --fs-type xfs",
            "belayctl node stage v --staging /s --mode ANYHOW",
            "belayctl controller create --size 1GiB",
            "belayctl controller create a --size 1Quux",
            "belayctl controller create a --parameter novalue",
            "belayctl controller create a --cap 1,block --fs-type ext4",
            "belayctl volume create a --secret key=value",
            "belayctl volume modify v",
            "belayctl --timeout 0 node info",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn the_verbs_of_csc_and_of_earlier_versions_mean_the_same() {
        for line in [
            "belayctl controller create-volume a --req-bytes 1073741824",
            "belayctl controller publish v --node-id n",
            "belayctl c list-volumes",
            "belayctl c snapshot-list --volume-id v",
            "belayctl c create-snapshot s v",
            "belayctl n publish v --staging-target-path /s --target-path /t",
            "belayctl c new a --cap 1,mount,xfs,ro --params a=b,c=d --source-volume v",
            "belayctl n stage v --staging-target-path /s --cap 1,block --pub-context a=b,c=d",
            "belayctl c sl --source-volume-id v",
            "belayctl i plugin-info",
            "belayctl volume rm v",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }

    /// Of csc 1.2.2.
    #[test]
    fn every_verb_of_csc_is_a_verb_here() {
        let command = Cli::command();
        for (groups, verbs) in [
            (
                "controller c",
                "create-snapshot s snap create-volume n c new create delete-snapshot ds delsnap \
                 delete-volume d rm del delete expand-volume exp expand get-capabilities \
                 capabilities get-capacity capacity list-snapshots sl snap-list snapshots \
                 list-volumes ls list volumes publish attach unpublish detach \
                 validate-volume-capabilities validate",
            ),
            (
                "identity i ident",
                "plugin-capabilities caps plugin-info info probe",
            ),
            (
                "node n",
                "expand-volume exp expand get-capabilities capabilities get-info info publish mnt \
                 mount stage stats unpublish umount unmount unstage",
            ),
        ] {
            for group in groups.split(' ') {
                let found = command.find_subcommand(group);
                for verb in verbs.split(' ') {
                    let found = found.and_then(|group| group.find_subcommand(verb));
                    assert!(found.is_some(), "{group} {verb}");
                }
            }
        }
    }

    /// The verbs below `command` that no line of the tests begins with, by any of their names.
    fn untested(command: &clap::Command, groups: &[String], tests: &str) -> Vec<String> {
        let names: Vec<_> = std::iter::once(command.get_name())
            .chain(command.get_all_aliases())
            .collect();
        let lines = groups.iter().flat_map(|group| {
            let names = names.iter();
            names.map(move |name| format!("{group}{name}"))
        });
        let lines: Vec<_> = lines.collect();
        if command.has_subcommands() {
            let groups: Vec<_> = lines.iter().map(|line| format!("{line} ")).collect();
            let verbs = command.get_subcommands();
            return verbs
                .flat_map(|verb| untested(verb, &groups, tests))
                .collect();
        }
        let begins = |line: &String| {
            let mut after = tests.split(line.as_str()).skip(1);
            after.any(|after| after.starts_with([' ', '"']))
        };
        match lines.iter().any(begins) {
            true => Vec::new(),
            false => lines[..1].to_vec(),
        }
    }

    #[test]
    fn every_verb_is_called_on_the_sockets_of_both_programs() {
        let tests = [
            include_str!("../tests/verbs.rs"),
            include_str!("../tests/tools.rs"),
        ];
        let command = Cli::command();
        let verbs = command.get_subcommands();
        // The verbs of `volume` and `snapshot` again, under other names.
        let verbs = verbs.filter(|verb| verb.get_name() != "controller");
        let missing = verbs.flat_map(|verb| untested(verb, &["\"".to_owned()], &tests.concat()));
        assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn a_typing_error_gets_a_suggestion() {
        for (line, meant) in [
            ("belayctl volme list", "volume"),
            ("belayctl node stge v", "stage"),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).err().unwrap();
            assert!(error.to_string().contains(meant), "{error}");
        }
    }
}
