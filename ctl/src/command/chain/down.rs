//! `belayctl umount`: unpublishes, unstages and detaches a volume, and deletes it on request.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Driver;
use super::record::{self, Record};
use crate::failure::Failure;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Umount {
    /// Where it is mounted
    dir: PathBuf,
    /// Delete the volume and its data as well
    #[arg(long)]
    delete: bool,
    /// The state directory of `mount`
    #[arg(long, value_name = "DIR", default_value = "/run/belayctl")]
    state_dir: PathBuf,
    #[command(flatten)]
    secrets: Secrets,
}

impl Umount {
    /// Makes the calls, which may be repeated after a failure.
    ///
    /// # Errors
    /// Fails with [`Failure`], which names the failed step.
    pub(crate) async fn run(self, on: &Target) -> Result<Answer, Failure> {
        let state = record::state(&self.state_dir)?;
        let record = Record::load(&state, &record::target(&self.dir)?)?;
        let secrets = self.secrets.load()?;
        let driver = Driver::connect(on, &record.sockets).await?;
        let id = &record.volume_id;
        let unpublish = json!({"volume_id": id, "target_path": record.target});
        driver.call("NodeUnpublishVolume", unpublish, "").await?;
        if record.needs.1 {
            let staging = Record::staging(&state, &record.target);
            let unstage = json!({"volume_id": id, "staging_target_path": staging});
            driver.call("NodeUnstageVolume", unstage, "").await?;
        }
        if record.needs.0 {
            let detach = json!({"volume_id": id, "node_id": record.node_id, "secrets": secrets});
            driver.call("ControllerUnpublishVolume", detach, "").await?;
        }
        if self.delete {
            let delete = json!({"volume_id": id, "secrets": secrets});
            driver.call("DeleteVolume", delete, "").await?;
        }
        if let Some(place) = &record.place {
            place.restore(&record.target)?;
        }
        record.remove(&state)?;
        let volume = match self.delete {
            true => "deleted",
            false => "kept",
        };
        Ok(Answer::Record(vec![
            ("volume_id", Cell::Text(record.volume_id.clone())),
            ("volume", Cell::Text(volume.to_owned())),
        ]))
    }
}
