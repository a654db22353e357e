//! `belayctl group`: snapshots of several volumes at one instant.

use belay_proto::csi::v1::group_controller_client::GroupControllerClient;
use belay_proto::csi::v1::group_controller_service_capability::Type;
use belay_proto::csi::v1::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest, GroupControllerGetCapabilitiesRequest, VolumeGroupSnapshot,
};
use clap::{Args, Subcommand};

use super::identity::named;
use crate::access::{Pair, map, pair};
use crate::failure::Failure;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::target::Target;

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// Snapshot several volumes at one instant (CreateVolumeGroupSnapshot)
    Create(Create),
    /// Delete a group and all its snapshots (DeleteVolumeGroupSnapshot)
    #[command(alias = "rm")]
    Delete(One),
    /// Show a group (GetVolumeGroupSnapshot)
    Get(One),
    /// List the capabilities of the group controller (GroupControllerGetCapabilities)
    Capabilities,
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the group
    name: String,
    /// Ids of the volumes
    #[arg(required = true, value_name = "VOLUME_ID")]
    volume_ids: Vec<String>,
    /// Group snapshot class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<Pair>,
    #[command(flatten)]
    secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct One {
    /// Id of the group
    group_id: String,
    /// Ids of its snapshots
    #[arg(required = true, value_name = "SNAPSHOT_ID")]
    snapshot_ids: Vec<String>,
    #[command(flatten)]
    secrets: Secrets,
}

impl GroupCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut client = GroupControllerClient::new(target.connect().await?);
        match self {
            Self::Create(flags) => {
                let call = client.create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest {
                    name: flags.name,
                    source_volume_ids: flags.volume_ids,
                    secrets: flags.secrets.load()?,
                    parameters: map(flags.parameters),
                });
                shown(target.wait_for(call).await?.group_snapshot)
            }
            Self::Delete(flags) => {
                let call = client.delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: flags.group_id,
                    snapshot_ids: flags.snapshot_ids,
                    secrets: flags.secrets.load()?,
                });
                target.wait_for(call).await?;
                Ok(Answer::Done)
            }
            Self::Get(flags) => {
                let call = client.get_volume_group_snapshot(GetVolumeGroupSnapshotRequest {
                    group_snapshot_id: flags.group_id,
                    snapshot_ids: flags.snapshot_ids,
                    secrets: flags.secrets.load()?,
                });
                shown(target.wait_for(call).await?.group_snapshot)
            }
            Self::Capabilities => {
                let request = GroupControllerGetCapabilitiesRequest {};
                let call = client.group_controller_get_capabilities(request);
                let answer = target.wait_for(call).await?;
                let names = answer.capabilities.iter().map(|it| match &it.r#type {
                    Some(Type::Rpc(rpc)) => rpc.r#type().as_str_name().to_owned(),
                    None => "UNKNOWN".to_owned(),
                });
                Ok(named(names))
            }
        }
    }
}

fn shown(group: Option<VolumeGroupSnapshot>) -> Result<Answer, Failure> {
    let group = group.ok_or(Failure::Answer("has no group_snapshot"))?;
    let created = group.creation_time.map(|time| time.to_string());
    let members = group.snapshots.into_iter().map(|member| member.snapshot_id);
    Ok(Answer::Record(vec![
        ("group_snapshot_id", Cell::Text(group.group_snapshot_id)),
        ("snapshots", Cell::List(members.collect())),
        ("creation_time", Cell::Text(created.unwrap_or_default())),
        ("ready_to_use", Cell::Flag(group.ready_to_use)),
    ]))
}
