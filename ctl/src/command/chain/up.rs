//! `belayctl mount`: create, attach, stage, publish.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use belay_proto::csi::v1::volume_capability::AccessType;
use belay_proto::csi::v1::{
    CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, NodeGetInfoRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, TopologyRequirement, Volume,
    VolumeCapability,
};
use clap::Args;

use super::place::Place;
use super::record::{self, Record};
use super::{Driver, Sockets, advised, failed, step};
use crate::access::{Access, Pair, map, pair};
use crate::failure::Failure;
use crate::machine::mounts;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::size;
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Mount {
    /// Name of the volume; the same name is the same volume
    name: String,
    /// Where to mount it: a directory that is empty or does not exist; with --block, a file that
    /// does not exist and becomes the device
    dir: PathBuf,
    /// Size, e.g. 1GiB [default: the driver's]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<i64>,
    #[command(flatten)]
    access: Access,
    /// Mount read-only
    #[arg(long)]
    readonly: bool,
    /// Storage class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<Pair>,
    #[command(flatten)]
    secrets: Secrets,
    #[command(flatten)]
    sockets: Sockets,
}

/// What all steps need.
struct Ascent<'a> {
    driver: Driver<'a>,
    capability: VolumeCapability,
    secrets: HashMap<String, String>,
    readonly: bool,
}

impl Mount {
    /// Makes the calls.
    ///
    /// # Errors
    /// See [`Failure`]; the step that failed is named, and `umount` undoes those before it.
    pub(crate) async fn run(self, on: &Target) -> Result<Answer, Failure> {
        let target = record::target(&self.dir)?;
        let state = record::state(&self.sockets.state_dir)?;
        let sockets = self.sockets.paths(on);
        let known = Record::of_same(&state, &target, &self.name, &sockets)?;
        let capability = self.access.capability();
        let place = inspect(&target, known.is_some(), is_block(&capability))?;
        let mut ascent = Ascent {
            driver: Driver::connect(on, &sockets).await?,
            capability,
            secrets: self.secrets.load()?,
            readonly: self.readonly,
        };
        directory(&state)?;
        let needs = ascent.driver.needs().await?;
        let call = ascent.driver.node.node_get_info(NodeGetInfoRequest {});
        let node = step("NodeGetInfo", on.wait_for(call).await)?;
        let here = node.accessible_topology.map(|here| TopologyRequirement {
            requisite: vec![here.clone()],
            preferred: vec![here],
        });
        let call = ascent.driver.controller.create_volume(CreateVolumeRequest {
            name: self.name.clone(),
            capacity_range: self.size.map(|required_bytes| CapacityRange {
                required_bytes,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![ascent.capability.clone()],
            parameters: map(self.parameters),
            secrets: ascent.secrets.clone(),
            accessibility_requirements: here,
            ..Default::default()
        });
        let made = step("CreateVolume", on.wait_for(call).await)?.volume;
        let volume = made.ok_or(Failure::Answer("has no volume"))?;
        let record = Record {
            target,
            name: self.name,
            volume_id: volume.volume_id.clone(),
            node_id: node.node_id,
            sockets,
            needs,
            place,
        };
        // Before the first call that leaves something to undo.
        let record = match known {
            Some(known) => record.renew(known, &state)?,
            None => record.begin(&state)?,
        };
        ascent.climb(&record, &volume, &state).await?;
        Ok(Answer::Record(vec![
            ("target", Cell::Text(record.target.display().to_string())),
            ("volume_id", Cell::Text(volume.volume_id)),
            ("capacity_bytes", Cell::Bytes(volume.capacity_bytes)),
        ]))
    }
}

impl Ascent<'_> {
    async fn climb(
        &mut self,
        record: &Record,
        volume: &Volume,
        state: &Path,
    ) -> Result<(), Failure> {
        let advice = || {
            format!(
                "; `belayctl umount {}` undoes the rest",
                record.target.display()
            )
        };
        let mut context = HashMap::new();
        if record.needs.0 {
            let call =
                self.driver
                    .controller
                    .controller_publish_volume(ControllerPublishVolumeRequest {
                        volume_id: volume.volume_id.clone(),
                        node_id: record.node_id.clone(),
                        volume_capability: Some(self.capability.clone()),
                        readonly: false,
                        secrets: self.secrets.clone(),
                        volume_context: volume.volume_context.clone(),
                    });
            let attached = self.driver.target.wait_for(call).await;
            context = advised("ControllerPublishVolume", attached, advice)?.publish_context;
        }
        let mut staging = String::new();
        if record.needs.1 {
            let path = Record::staging(state, &record.target);
            directory(&path)?;
            staging = path.display().to_string();
            let call = self.driver.node.node_stage_volume(NodeStageVolumeRequest {
                volume_id: volume.volume_id.clone(),
                publish_context: context.clone(),
                staging_target_path: staging.clone(),
                volume_capability: Some(self.capability.clone()),
                secrets: self.secrets.clone(),
                volume_context: volume.volume_context.clone(),
            });
            advised(
                "NodeStageVolume",
                self.driver.target.wait_for(call).await,
                advice,
            )?;
        }
        if let Some(parent) = record.target.parent() {
            directory(parent)?;
        }
        let call = self
            .driver
            .node
            .node_publish_volume(NodePublishVolumeRequest {
                volume_id: volume.volume_id.clone(),
                publish_context: context,
                staging_target_path: staging,
                target_path: record.target.display().to_string(),
                volume_capability: Some(self.capability.clone()),
                readonly: self.readonly,
                secrets: self.secrets.clone(),
                volume_context: volume.volume_context.clone(),
            });
        advised(
            "NodePublishVolume",
            self.driver.target.wait_for(call).await,
            advice,
        )?;
        Ok(())
    }
}

fn is_block(capability: &VolumeCapability) -> bool {
    matches!(capability.access_type, Some(AccessType::Block(_)))
}

/// What is there, unless it is the volume itself.
fn inspect(target: &Path, is_known: bool, block: bool) -> Result<Option<Place>, Failure> {
    if !is_known {
        return Place::inspect(target, block);
    }
    if mounts::all()?.iter().any(|mount| mount.point == target) {
        return Ok(None);
    }
    Place::inspect(target, block).map_err(|refused| {
        Failure::Usage(format!(
            "{refused}. The volume was mounted there, and is no longer: move away what is there \
             now, and repeat"
        ))
    })
}

fn directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| failed(path, &error))
}
