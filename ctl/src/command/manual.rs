//! `belayctl completion` and `belayctl man`: both are made from the command line's definition, so
//! that they cannot differ from it.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::render::{self, Answer};

const INSTALL: &str = "\
Examples:
  belayctl completion bash >/etc/bash_completion.d/belayctl
  belayctl completion zsh >\"${fpath[1]}/_belayctl\"";

#[derive(Args)]
#[command(after_help = INSTALL)]
pub(crate) struct Completion {
    /// The shell
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct Man {
    /// An existing directory
    dir: PathBuf,
}

impl Completion {
    /// Prints the script.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(crate) fn run(self, mut command: Command) -> Result<Answer, Failure> {
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
    /// The directory cannot be written.
    pub(crate) fn run(self, command: Command) -> Result<Answer, Failure> {
        let written = clap_mangen::generate_to(command, &self.dir);
        let named = |error| Failure::Usage(format!("{}: {error}", self.dir.display()));
        written.map_err(named)?;
        Ok(Answer::Printed)
    }
}
