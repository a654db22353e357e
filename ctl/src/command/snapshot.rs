//! `belayctl snapshot`: snapshots, and the blocks that a backup of one must read.

use belay_proto::csi::v1::controller_client::ControllerClient;
use belay_proto::csi::v1::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest,
    Snapshot,
};
use clap::{Args, Subcommand};

use super::blocks::{Allocated, Delta};
use super::pages;
use super::volume::Pages;
use crate::access::{Pair, csc, map, pair};
use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};
use crate::secrets::Secrets;
use crate::target::Target;

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Create a snapshot, or find the one with this name (CreateSnapshot)
    #[command(alias = "new")]
    Create(Create),
    /// Delete a snapshot; volumes restored from it remain (DeleteSnapshot)
    #[command(alias = "rm")]
    Delete(One),
    /// List snapshots (ListSnapshots)
    #[command(visible_alias = "ls")]
    List(List),
    /// Show a snapshot (GetSnapshot)
    Get(One),
    /// Stream the blocks of a snapshot that were ever written (GetMetadataAllocated)
    Allocated(Allocated),
    /// Stream the blocks in which two snapshots of a volume differ (GetMetadataDelta)
    #[command(visible_alias = "changed-blocks")]
    Delta(Delta),
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the snapshot
    name: String,
    /// Id of the volume
    #[arg(value_name = "VOLUME_ID")]
    volume_id: String,
    /// Snapshot class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<Pair>,
    #[command(flatten)]
    csc: csc::Parameters,
    #[command(flatten)]
    secrets: Secrets,
}

/// One snapshot, and nothing else.
#[derive(Args)]
pub(crate) struct One {
    /// Id of the snapshot
    snapshot_id: String,
    #[command(flatten)]
    secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct List {
    /// Only snapshots of this volume
    #[arg(
        long,
        alias = "source-volume-id",
        default_value = "",
        hide_default_value = true
    )]
    volume_id: String,
    /// Only this snapshot
    #[arg(long, default_value = "", hide_default_value = true)]
    snapshot_id: String,
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    secrets: Secrets,
}

impl SnapshotCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        match self {
            Self::Create(flags) => create(target, flags).await,
            Self::Delete(flags) => delete(target, flags).await,
            Self::List(flags) => list(target, flags).await,
            Self::Get(flags) => get(target, flags).await,
            Self::Allocated(flags) => flags.run(target).await,
            Self::Delta(flags) => flags.run(target).await,
        }
    }
}

async fn create(target: &Target, flags: Create) -> Result<Answer, Failure> {
    let mut client = ControllerClient::new(target.connect().await?);
    let call = client.create_snapshot(CreateSnapshotRequest {
        source_volume_id: flags.volume_id,
        name: flags.name,
        secrets: flags.secrets.load()?,
        parameters: map(flags.csc.and(flags.parameters)),
        ..Default::default()
    });
    shown(target.wait_for(call).await?.snapshot)
}

async fn delete(target: &Target, flags: One) -> Result<Answer, Failure> {
    let mut client = ControllerClient::new(target.connect().await?);
    let call = client.delete_snapshot(DeleteSnapshotRequest {
        snapshot_id: flags.snapshot_id,
        secrets: flags.secrets.load()?,
    });
    target.wait_for(call).await?;
    Ok(Answer::Done)
}

async fn get(target: &Target, flags: One) -> Result<Answer, Failure> {
    let mut client = ControllerClient::new(target.connect().await?);
    let call = client.get_snapshot(GetSnapshotRequest {
        snapshot_id: flags.snapshot_id,
        secrets: flags.secrets.load()?,
    });
    shown(target.wait_for(call).await?.snapshot)
}

async fn list(target: &Target, flags: List) -> Result<Answer, Failure> {
    let mut client = ControllerClient::new(target.connect().await?);
    let (one, secrets) = (flags.pages.one(), flags.secrets.load()?);
    let mut page = async |starting_token| {
        let call = client.list_snapshots(ListSnapshotsRequest {
            max_entries: flags.pages.max_entries.unwrap_or(0),
            starting_token,
            source_volume_id: flags.volume_id.clone(),
            snapshot_id: flags.snapshot_id.clone(),
            secrets: secrets.clone(),
        });
        let page = target.wait_for(call).await?;
        Ok((page.entries, page.next_token))
    };
    let (entries, next_token) = match one {
        Some(token) => page(token).await?,
        None => (pages::all(page).await?, String::new()),
    };
    let rows = entries.into_iter().map(|entry| {
        let fields = cells(entry.snapshot.unwrap_or_default());
        fields.into_iter().map(|(_, cell)| cell).collect()
    });
    Ok(Answer::Rows(Rows {
        narrow: COLUMNS.len() - 1,
        next_token,
        ..Rows::new("snapshots", &COLUMNS, rows)
    }))
}

const COLUMNS: [&str; 6] = [
    "snapshot_id",
    "source_volume_id",
    "size_bytes",
    "creation_time",
    "ready_to_use",
    "group_snapshot_id",
];

fn shown(snapshot: Option<Snapshot>) -> Result<Answer, Failure> {
    let snapshot = snapshot.ok_or(Failure::Answer("has no snapshot"))?;
    Ok(Answer::Record(cells(snapshot)))
}

/// In the order of [`COLUMNS`].
pub(super) fn cells(snapshot: Snapshot) -> Vec<(&'static str, Cell)> {
    // RFC 3339, as in the type's JSON mapping.
    let created = snapshot.creation_time.map(|time| time.to_string());
    let cells = [
        Cell::Text(snapshot.snapshot_id),
        Cell::Text(snapshot.source_volume_id),
        Cell::Bytes(snapshot.size_bytes),
        Cell::Text(created.unwrap_or_default()),
        Cell::Flag(snapshot.ready_to_use),
        Cell::Text(snapshot.group_snapshot_id),
    ];
    COLUMNS.into_iter().zip(cells).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_time_of_a_snapshot_is_shown_in_rfc_3339() {
        let cut = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let fields = cells(Snapshot {
            creation_time: Some(cut.into()),
            ..Default::default()
        });
        let shown = Cell::Text("2001-09-09T01:46:40Z".to_owned());
        assert_eq!(fields[3], ("creation_time", shown));
    }
}
