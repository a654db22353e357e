//! The command line, and the completion scripts and manual pages that are generated from its
//! definition. The commands are in `command/`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::command::bench::Bench;
use crate::command::chain::{Mount, Umount};
use crate::command::doctor::{Doctor, UdevRules};
use crate::command::local::Local;
use crate::command::locate::Where;
use crate::command::luks::Luks;
use crate::command::rpc::Rpc;
use crate::command::status::Status;
use crate::command::typed::Typed;
use crate::drivers::{self, Search};
use crate::failure::Failure;
use crate::render::{self, Answer};
use crate::target::Target;

const EXAMPLES: &str = "\
Examples:
  belayctl ls                                   # the sockets of this node
  belayctl mount data /mnt/data --size 10GiB    # a volume in one go
  belayctl volume create data --size 10GiB --fs-type ext4
  belayctl volume list --output json
  belayctl node health VOLUME_ID || echo unhealthy
  belayctl --endpoint /run/belay/node.sock identity probe

Exit codes:
   0  success
   1  the call failed, with gRPC code and message on standard error, or there is
      no such object
   2  the answer is no: unhealthy, not ready, not confirmed, something is wrong
  64  bad usage, or an unreadable file of a flag
  69  no driver on the socket, or no answer in time

Secrets are read from files, the environment or standard input, never from the
command line: see --secrets-from, --secret-env and --secret-file of a command.";

/// Command-line client for any CSI driver.
#[derive(Parser)]
#[command(name = "belayctl", version, after_help = EXAMPLES, max_term_width = 80)]
pub(crate) struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    #[command(flatten)]
    Typed(Typed),
    /// Create, attach, stage and publish a volume in one go
    Mount(Box<Mount>),
    /// Unpublish, unstage and detach what `mount` has mounted
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// List the sockets of drivers on this node, and what each serves
    Ls(Search),
    /// Show the PV, pods, mounts and device of a volume on this node
    Where(Where),
    /// Show the LUKS header of a volume on this node, and how to open it by hand
    Luks(Luks),
    /// Show the drivers of this node; exits with 2 if one is unhealthy
    Status(Status),
    /// Check what this node, or a switch from another driver, needs; exits with 2 if something is
    /// wrong
    Doctor(Doctor),
    /// Show and repair the volumes and disks of `local` on all nodes
    Local(Box<Local>),
    /// Write the udev rules for this node into a directory
    UdevRules(UdevRules),
    /// Measure the latency of a call, and what it costs the driver
    Bench(Bench),
    /// Make any call, with messages as JSON
    Rpc(Rpc),
    /// Print a completion script
    Completion(Completion),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(Man),
}

impl Cli {
    /// Runs the command and prints the result.
    ///
    /// # Errors
    /// Fails on bad usage, if no driver responds, or if the driver returns an error.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let target = &self.target;
        let answer = match self.verb {
            Verb::Typed(command) => command.run(target).await,
            Verb::Mount(command) => command.run(target).await,
            Verb::Umount(command) => command.run(target).await,
            Verb::Ls(search) => drivers::ls(&search).await,
            Verb::Where(command) => command.run(target).await,
            Verb::Luks(command) => command.run(),
            Verb::Status(command) => command.run().await,
            Verb::Doctor(doctor) => doctor.run().await,
            Verb::Local(command) => command.run(target).await,
            Verb::UdevRules(command) => command.run(),
            Verb::Bench(command) => command.run(target).await,
            Verb::Rpc(command) => command.run(target).await,
            Verb::Completion(command) => command.run(Self::command()),
            Verb::Man(command) => command.run(Self::command()),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return Err(drivers::explain(failure).await),
        };
        target.print(&answer)?;
        Ok(answer.exit_code())
    }
}

const INSTALL: &str = "\
Examples:
  belayctl completion bash >/etc/bash_completion.d/belayctl
  belayctl completion zsh >\"${fpath[1]}/_belayctl\"";

#[derive(Args)]
#[command(after_help = INSTALL)]
struct Completion {
    /// The shell
    shell: Shell,
}

#[derive(Args)]
struct Man {
    /// An existing directory
    dir: PathBuf,
}

impl Completion {
    /// Prints the completion script.
    ///
    /// # Errors
    /// Fails if stdout cannot be written.
    fn run(self, mut command: Command) -> Result<Answer, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "belayctl", &mut script);
        render::write(&String::from_utf8_lossy(&script))?;
        Ok(Answer::Printed)
    }
}

impl Man {
    /// Writes one page per command.
    ///
    /// # Errors
    /// Fails if the directory cannot be written.
    fn run(self, command: Command) -> Result<Answer, Failure> {
        let written = clap_mangen::generate_to(command, &self.dir);
        let named = |error| Failure::Usage(format!("{}: {error}", self.dir.display()));
        written.map_err(named)?;
        Ok(Answer::Printed)
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
            // CSI drivers usually get their endpoint in this form, from the variable CSI_ENDPOINT.
            "belayctl node info --endpoint unix://a.sock --output json",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(cli.target.endpoint, Some("/a.sock".into()), "{line}");
            assert!(matches!(cli.target.output, Output::Json), "{line}");
        }
    }

    #[test]
    fn a_relative_socket_is_in_the_working_directory() {
        let here = std::env::current_dir().unwrap();
        for endpoint in ["d/a.sock", "unix:d/a.sock", "./d/a.sock"] {
            let line = ["belayctl", "--endpoint", endpoint, "node", "info"];
            let endpoint = Cli::try_parse_from(line).unwrap().target.endpoint;
            assert_eq!(endpoint, Some(here.join("d/a.sock")));
        }
    }

    #[test]
    fn a_contradicting_or_incomplete_line_is_refused() {
        for line in [
            "belayctl",
            "belayctl node",
            "belayctl --endpoint tcp://127.0.0.1:1 node info",
            "belayctl --endpoint directory/ node info",
            "belayctl node stage v --staging /s --block --fs-type xfs",
            "belayctl node stage v --staging /s --mode ANYHOW",
            "belayctl controller create --size 1GiB",
            "belayctl controller create a --size 1Quux",
            "belayctl controller create a --parameter novalue",
            "belayctl volume create a --from-volume v --from-snapshot s",
            "belayctl node publish v --staging /s",
            "belayctl volume list --max-entries -1",
            "belayctl volume create a --secret key=value",
            "belayctl volume modify v",
            "belayctl --timeout 0 node info",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    /// Returns the subcommands of `command`, at any depth, that no command line in `tests` calls by
    /// name or alias. `groups` are the spellings of the parent command, each with a trailing space.
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
            include_str!("../tests/local.rs"),
        ];
        let command = Cli::command();
        let verbs = command.get_subcommands();
        // Skip `controller`: its verbs are verbs of `volume` and `snapshot`, too.
        let verbs = verbs.filter(|verb| verb.get_name() != "controller");
        let missing = verbs.flat_map(|verb| untested(verb, &["\"".to_owned()], &tests.concat()));
        assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
    }

    /// Returns the commands of an example, with continued lines joined.
    fn examples(command: &Command) -> Vec<String> {
        let text = command.get_after_help().map(ToString::to_string);
        let text = text.unwrap_or_default();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let text = text.replace("\\\n", "");
        let lines = text.lines().filter(|line| line.starts_with("  belayctl "));
        let mut all: Vec<_> = lines.map(str::to_owned).collect();
        all.extend(command.get_subcommands().flat_map(examples));
        all
    }

    #[test]
    fn the_examples_can_be_pasted_into_a_terminal_of_80_columns() {
        let examples = examples(&Cli::command());
        assert!(examples.len() > 20, "{examples:?}");
        for line in examples {
            let line = line.split(" #").next().unwrap_or_default();
            let line = line.split(['>', '|', '\'']).next().unwrap_or_default();
            let parsed = Cli::try_parse_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{line}");
        }
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
