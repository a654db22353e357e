//! A volume for the benches: its file and its paths. Both sides have theirs formatted by the agent,
//! so that they have the same feature flags.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use crate::bench_dir::BenchDir;
use crate::ours::Ours;
use crate::program::Program;
use crate::side::{Call, Side};

/// The size of every volume: sparse, so that it takes only the space that its filesystem writes.
pub const VOLUME_BYTES: u64 = 1 << 30;

/// A volume and its paths.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its id, which is its file's name.
    pub id: String,
    /// `ext4` or `xfs`.
    pub fs_type: &'static str,
    /// The file behind the loop device.
    pub file: PathBuf,
    /// The staging path; the directory exists.
    pub staging: PathBuf,
    /// The target path; its parent exists.
    pub target: PathBuf,
}

impl Volume {
    /// A new volume, formatted and not staged.
    ///
    /// # Errors
    /// If the agent fails.
    pub fn formatted(
        bench_dir: &BenchDir,
        agent: &Program<'_>,
        id: &str,
        fs_type: &'static str,
    ) -> io::Result<Self> {
        let _turn = bench_dir.turn();
        let file = bench_dir.directory("volumes")?.join(id);
        File::create_new(&file)?.set_len(VOLUME_BYTES)?;
        let volume = Self {
            id: id.to_owned(),
            fs_type,
            file,
            staging: bench_dir.directory(&format!("staging/{id}"))?,
            target: bench_dir.directory(&format!("pods/{id}"))?.join("mount"),
        };
        let mut life = Ours::on_new(&agent.client, volume.clone());
        life.run(Call::Stage)?;
        life.run(Call::Unstage)?;
        Ok(volume)
    }

    /// Its publish context, as the controller would return it with that word on its content.
    #[must_use]
    pub fn context(&self, content: &str) -> HashMap<String, String> {
        let bytes = VOLUME_BYTES.to_string();
        let context = [
            ("transport", "loop"),
            ("file", &self.id),
            ("bytes", &bytes),
            ("content", content),
        ];
        context
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }
}
