//! A volume for the benches: its file and its paths. Both sides get theirs formatted by the agent,
//! so that they are alike to the last feature flag.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use crate::agent::Agent;
use crate::ours::Ours;
use crate::place::Place;
use crate::side::{Call, Side};

/// The size of every volume: sparse, so that it costs what its filesystem writes.
pub const VOLUME_BYTES: u64 = 1 << 30;

/// A volume and where it goes.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its id, which is the name of its file.
    pub id: String,
    /// `ext4` or `xfs`.
    pub fs_type: &'static str,
    /// What the loop device is bound to.
    pub file: PathBuf,
    /// The staging path; the folder exists.
    pub staging: PathBuf,
    /// The target path; its parent exists.
    pub target: PathBuf,
}

impl Volume {
    /// A new volume, formatted and not staged.
    ///
    /// # Errors
    /// When the agent will not.
    pub fn formatted(
        place: &Place,
        agent: &Agent<'_>,
        id: &str,
        fs_type: &'static str,
    ) -> io::Result<Self> {
        let _turn = place.turn();
        let file = place.folder("volumes")?.join(id);
        File::create_new(&file)?.set_len(VOLUME_BYTES)?;
        let volume = Self {
            id: id.to_owned(),
            fs_type,
            file,
            staging: place.folder(&format!("staging/{id}"))?,
            target: place.folder(&format!("pods/{id}"))?.join("mount"),
        };
        let mut life = Ours::on_new(&agent.client, volume.clone());
        life.run(Call::Stage)?;
        life.run(Call::Unstage)?;
        Ok(volume)
    }
}
