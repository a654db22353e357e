//! `belayctl umount`: unpublishes, unstages and detaches a volume, and deletes it on request.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::Driver;
use super::record::{self, Record};
use crate::failure::Failure;
use crate::machine::mounts::{self, Mount};
use crate::machine::users;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Umount {
    /// Directory or device where the volume is mounted
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
    /// Unpublishes, unstages and detaches the volume. The command may be repeated after a failure.
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
        // Read the mount table before the calls: a NodeUnstageVolume call that fails because of
        // mounts in other namespaces may already have unmounted the staging path.
        let mounts = mounts::all()?;
        let unpublished = driver.call("NodeUnpublishVolume", unpublish, "").await;
        unpublished.map_err(|failure| with_users(failure, &record.target, &mounts))?;
        if record.needs.1 {
            let staging = Record::staging(&state, &record.target);
            let unstage = json!({"volume_id": id, "staging_target_path": staging});
            let unstaged = driver.call("NodeUnstageVolume", unstage, "").await;
            unstaged.map_err(|failure| with_users(failure, &staging, &mounts))?;
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

/// If an error says that a mount is in use, adds the users of the mount, such as processes.
/// `mounts` is the mount table from before the call.
fn with_users(mut failure: Failure, path: &Path, mounts: &[Mount]) -> Failure {
    let text = failure.to_string().to_lowercase();
    let is_busy = ["busy", "in use", "still mounted"];
    if let Failure::Step { advice, .. } = &mut failure
        && is_busy.iter().any(|words| text.contains(words))
    {
        // Exclude this process, which may have inherited an open file in the mount from the user's
        // shell.
        let own = format!("{} (", std::process::id());
        let mut users = users::of(path, mounts);
        users.retain(|user| !user.starts_with(&own));
        if !users.is_empty() {
            let users = users.join(", ");
            *advice = format!("; used by {users}; end or unmount them, and repeat");
        }
    }
    failure
}
