//! `belayctl controller`: the verbs of `volume` and `snapshot` in one group, as earlier versions of
//! belayctl and csc have them.

use clap::Subcommand;

use super::snapshot::{self, SnapshotCommand};
use super::volume::VolumeCommand;
use crate::failure::Failure;
use crate::render::Answer;
use crate::target::Target;

#[derive(Subcommand)]
pub(crate) enum ControllerCommand {
    #[command(flatten)]
    Volume(Box<VolumeCommand>),
    /// As `snapshot create`
    #[command(aliases = ["create-snapshot", "snap", "s"])]
    SnapshotCreate(snapshot::Create),
    /// As `snapshot delete`
    #[command(aliases = ["delete-snapshot", "delsnap", "ds"])]
    SnapshotDelete(snapshot::One),
    /// As `snapshot list`
    #[command(aliases = ["list-snapshots", "snapshots", "snap-list", "sl"])]
    SnapshotList(snapshot::List),
    /// As `snapshot get`
    #[command(alias = "get-snapshot")]
    SnapshotGet(snapshot::One),
}

impl ControllerCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let snapshot = match self {
            Self::Volume(command) => return command.run(target).await,
            Self::SnapshotCreate(flags) => SnapshotCommand::Create(flags),
            Self::SnapshotDelete(flags) => SnapshotCommand::Delete(flags),
            Self::SnapshotList(flags) => SnapshotCommand::List(flags),
            Self::SnapshotGet(flags) => SnapshotCommand::Get(flags),
        };
        snapshot.run(target).await
    }
}
