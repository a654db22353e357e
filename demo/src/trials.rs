//! Tests that Belay refuses to format a disk that is not blank, and a second writer; and that
//! killing the node agent during writes changes no data.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, Result, ensure};

use crate::agents::Agents;
use crate::data::{self, Writer};
use crate::demo_dir::{VOLUMES, has_no_volume_in_use};
use crate::life::BYTES;
use crate::report::{Kind, PUBLISH, STAGE_AGAIN, STAGE_FIRST};
use crate::steps::{Life, Steps};

/// A byte that is not zero, in the middle of the disk, where no filesystem has a superblock.
const FOREIGN: ([u8; 1], u64) = ([0x2A], (512 << 20) + 12_345);
/// The number of records to write in each of three phases: before the kill, without an agent, and
/// with the next agent.
const RECORDS: u64 = 50;

impl Steps<'_> {
    /// Proves that a disk with a single byte that is not zero is never formatted.
    ///
    /// # Errors
    /// Fails if the disk is staged or changed, or if another step fails.
    pub(crate) async fn foreign_byte_is_refused(&mut self) -> Result<()> {
        self.progress.heading("A disk with one foreign byte");
        let life = self.new_life(Kind::Ext4, "foreign-byte").await?;
        let path = self.demo_dir.join(VOLUMES).join(&life.id);
        let (byte, at) = FOREIGN;
        // The file is closed before the stage, which refuses a file that another process has open.
        let write = |disk: File| disk.write_all_at(&byte, at).and_then(|()| disk.sync_all());
        let disk = File::options().write(true).open(&path);
        let written = disk.and_then(write);
        written.with_context(|| path.display().to_string())?;
        let state = || -> Result<_> {
            let meta = path.metadata()?;
            Ok((meta.mtime(), meta.mtime_nsec(), meta.blocks()))
        };
        let before = state()?;

        let staged = self.stage(&life, STAGE_FIRST).await;
        self.must_be_refused(&life, staged)?;
        let mut found = [0];
        File::open(&path)?.read_exact_at(&mut found, at)?;
        let is_unchanged = found == byte && state()? == before;
        ensure!(is_unchanged, "{}: was changed", path.display());
        has_no_volume_in_use(self.demo_dir)?;
        self.delete(&life).await?;
        let text = "a disk with one foreign byte: FAILED_PRECONDITION, disk unchanged";
        self.fact("Refused", text);
        Ok(())
    }

    /// Proves that a second target of SINGLE_NODE_WRITER is refused, and changes nothing.
    ///
    /// # Errors
    /// Fails if the target is published, or if another step fails.
    pub(crate) async fn second_writer_is_refused(&mut self) -> Result<()> {
        self.progress.heading("SINGLE_NODE_WRITER");
        let life = self.new_life(Kind::Ext4, "single-writer").await?;
        self.fill(&life).await?;
        let published = self.publish(&life, PUBLISH, &life.second).await;
        self.must_be_refused(&life, published)?;
        data::is_gone(&life.second)?;
        data::compare(life.kind, &life.target, life.seed())?;
        self.end(&life).await?;
        let text = "a second writer: FAILED_PRECONDITION, nothing mounted";
        self.fact("Refused", text);
        Ok(())
    }

    /// Kills the node agent during writes to a volume, once for each kind, and proves that no write
    /// fails and no byte differs.
    ///
    /// # Errors
    /// Fails if a write fails, a byte differs, or a step fails.
    pub(crate) async fn killed(&mut self, agents: &mut Agents) -> Result<()> {
        let kinds = self.report.kinds.clone();
        let (mut meanwhile, mut total) = (0, 0);
        for &kind in &kinds {
            let (without_agent, all) = self.kill(kind, agents).await?;
            meanwhile += without_agent;
            total += all;
        }
        let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
        let names = names.join(", ");
        self.fact(
            "Killed",
            &format!("kill -9 of belay-node during writes to {names}:"),
        );
        let mib = (kinds.len() * data::DATA_BYTES) >> 20;
        let equal = format!("{mib} MiB and {total} records are equal");
        self.fact(
            "Killed",
            &format!(" {meanwhile} writes passed without it; {equal}"),
        );
        Ok(())
    }

    /// Returns the number of records written without an agent, and the number of all records.
    async fn kill(&mut self, kind: Kind, agents: &mut Agents) -> Result<(u64, u64)> {
        self.progress.heading(&format!("kill -9 ({})", kind.name()));
        let life = self
            .new_life(kind, &format!("{}-killed", kind.name()))
            .await?;
        self.fill(&life).await?;
        let writer = Writer::start(kind, &life.target, life.seed())?;
        writer.wait_for(RECORDS).await;
        agents.node.kill()?;
        // The writer may have begun a further record before the kill.
        let before = writer.durable() + 1;
        let meanwhile = writer.wait_for(RECORDS).await.saturating_sub(before);
        agents.node.start_again()?;
        // Repeat the same calls, as the kubelet does after its connection broke.
        self.mount(&life, STAGE_AGAIN).await?;
        writer.wait_for(RECORDS).await;
        let total = writer.stop()?;

        self.unpublish(&life, &life.target).await?;
        self.unstage(&life).await?;
        self.resume(&life).await?;
        let found = data::count(kind, &life.target, life.seed())?;
        ensure!(found == total, "{total} records written, {found} found");
        self.end(&life).await?;
        Ok((meanwhile, total))
    }

    /// Creates a volume outside the rounds.
    async fn new_life(&mut self, kind: Kind, name: &str) -> Result<Life> {
        let mut life = Life::new(self.demo_dir, kind, name.to_owned(), 0);
        self.create(&mut life, "create", BYTES.0, None).await?;
        Ok(life)
    }
}
