//! `belayctl mount`: creates, attaches, stages and publishes a volume.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::place::Place;
use super::record::{self, Record};
use super::{Driver, Sockets, failed};
use crate::failure::Failure;
use crate::flags::{Access, Pair, map, pair};
use crate::machine::mounts;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::size;
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Mount {
    /// Name of the volume; the same name is the same volume
    name: String,
    /// Mount point: a directory that is empty or does not exist; with --block, a file that does
    /// not exist and becomes the device
    dir: PathBuf,
    /// Size, e.g. 1GiB [default: the driver's]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
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

impl Mount {
    /// Creates, attaches, stages and publishes the volume.
    ///
    /// # Errors
    /// Fails with [`Failure`], which names the failed step; `belayctl umount` undoes the steps
    /// before the failed one.
    pub(crate) async fn run(self, on: &Target) -> Result<Answer, Failure> {
        let target = record::target(&self.dir)?;
        let state = record::state(&self.sockets.state_dir)?;
        let sockets = self.sockets.paths(on).await?;
        let known = Record::of_same(&state, &target, &self.name, &sockets)?;
        let capability = self.access.capability();
        let place = inspect(&target, known.is_some(), self.access.block)?;
        let driver = Driver::connect(on, &sockets).await?;
        driver.refuse_two_drivers(&sockets).await?;
        let secrets = self.secrets.load()?;
        directory(&state)?;
        let needs = driver.needs().await?;
        let node = driver.call("NodeGetInfo", json!({}), "").await?;
        let mut create = json!({
            "name": self.name,
            "volume_capabilities": [&capability],
            "parameters": map(self.parameters),
            "secrets": &secrets,
        });
        if let Some(bytes) = self.size {
            create["capacity_range"] = json!({"required_bytes": bytes});
        }
        if let Some(here) = node.get("accessible_topology") {
            create["accessibility_requirements"] =
                json!({"requisite": [here], "preferred": [here]});
        }
        let made = driver.call("CreateVolume", create, "").await?;
        let volume = made.get("volume").ok_or(Failure::Answer("has no volume"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let record = Record {
            target,
            name: self.name,
            volume_id: text(&volume["volume_id"]),
            node_id: text(&node["node_id"]),
            sockets,
            needs,
            place,
        };
        // Write the record before the first call that must be undone.
        let record = match known {
            Some(known) => record.renew(known, &state)?,
            None => record.begin(&state)?,
        };
        let mut request = json!({
            "volume_id": record.volume_id,
            "volume_capability": capability,
            "secrets": secrets,
        });
        if let Some(context) = volume.get("volume_context") {
            request["volume_context"] = context.clone();
        }
        climb(&driver, &record, request, self.readonly, &state).await?;
        let bytes = volume["capacity_bytes"].as_i64().unwrap_or_default();
        Ok(Answer::Record(vec![
            ("target", Cell::Text(record.target.display().to_string())),
            ("volume_id", Cell::Text(record.volume_id)),
            ("capacity_bytes", Cell::Bytes(bytes)),
        ]))
    }
}

/// Attaches, stages and publishes the volume. `common` has the request fields that these calls
/// share.
async fn climb(
    driver: &Driver,
    record: &Record,
    common: Value,
    readonly: bool,
    state: &Path,
) -> Result<(), Failure> {
    let target = record.target.display();
    let advice = format!("; `belayctl umount {target}` undoes the rest");
    let mut node = common.clone();
    if record.needs.0 {
        let mut attach = common;
        attach["node_id"] = json!(record.node_id);
        let method = "ControllerPublishVolume";
        let mut attached = driver.call(method, attach, &advice).await?;
        if let context @ Value::Object(_) = attached["publish_context"].take() {
            node["publish_context"] = context;
        }
    }
    if record.needs.1 {
        let staging = Record::staging(state, &record.target);
        directory(&staging)?;
        node["staging_target_path"] = json!(staging);
        let stage = node.clone();
        driver.call("NodeStageVolume", stage, &advice).await?;
    }
    if let Some(parent) = record.target.parent() {
        directory(parent)?;
    }
    node["target_path"] = json!(record.target);
    node["readonly"] = json!(readonly);
    driver.call("NodePublishVolume", node, &advice).await?;
    Ok(())
}

/// Inspects the directory at the target, unless the volume is already mounted there.
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
