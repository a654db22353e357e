//! Tests that Belay refuses to format a disk that is not blank, and refuses a second writer. Tests
//! that killing the node agent during writes changes no data. Tests that a snapshot, a larger
//! volume restored from the snapshot, and a clone have the right data while their source is in use.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, Result, ensure};
use belay_bed::floor;
use belay_bed::requests::{self, of_snapshot, of_volume};
use belay_ctl::size;
use belay_proto::csi::v1 as csi;

use crate::data::{self, Writer};
use crate::demo_dir::{VOLUMES, has_no_volume_in_use};
use crate::inner::Agents;
use crate::life::BYTES;
use crate::report::{Kind, PUBLISH, STAGE_AGAIN, STAGE_FIRST};
use crate::steps::{Life, Steps};

/// A byte that is not zero, and its offset in the middle of the disk, where no filesystem has a
/// superblock.
const FOREIGN: ([u8; 1], u64) = ([0x2A], (512 << 20) + 12_345);
/// The number of records to write before a copy is created, and in each of three phases: before the
/// node agent is killed, while no agent runs, and after the agent was started again.
const RECORDS: u64 = 50;

/// The bit that distinguishes the seed of the second pattern from the seed of the first.
const SECOND: u64 = 1 << 40;
const READ_COPY: &str = "read, compare";

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
        // Close the file before NodeStageVolume, which refuses a file that a different process has
        // open.
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

    /// Proves that a second target of a SINGLE_NODE_WRITER volume is refused, without any change.
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
        let killed = format!("kill -9 of belay-node during writes to {names}:");
        self.fact("Killed", &killed);
        let mib = (kinds.len() * data::DATA_BYTES) >> 20;
        let equal = format!("{mib} MiB and {total} records are equal");
        let passed = format!(" {meanwhile} writes passed without it; {equal}");
        self.fact("Killed", &passed);
        Ok(())
    }

    /// Kills the node agent during writes to one volume, and starts it again. Returns the number of
    /// records that were written while no agent was running, and the number of all records.
    async fn kill(&mut self, kind: Kind, agents: &mut Agents) -> Result<(u64, u64)> {
        self.progress.heading(&format!("kill -9 ({})", kind.name()));
        let name = format!("{}-killed", kind.name());
        let life = self.new_life(kind, &name).await?;
        self.fill(&life).await?;
        let writer = Writer::start(kind, &life.target, life.seed())?;
        writer.wait_for(RECORDS).await;
        agents.node.kill()?;
        // The writer may have begun a further record before the agent was killed.
        let before = writer.durable() + 1;
        let meanwhile = writer.wait_for(RECORDS).await.saturating_sub(before);
        agents.node.start_again()?;
        // Repeat the same calls, as the kubelet does after a broken connection.
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

    /// Creates a volume that is not part of a measured round.
    async fn new_life(&mut self, kind: Kind, name: &str) -> Result<Life> {
        let mut life = Life::new(self.demo_dir, kind, name.to_owned(), 0);
        self.create(&mut life, "create", BYTES.0, None).await?;
        Ok(life)
    }
}

impl Steps<'_> {
    /// Runs the rounds of snapshot, restore and clone for one kind of volume.
    ///
    /// # Errors
    /// Fails with the first step that fails.
    pub(crate) async fn copies(&mut self, kind: Kind) -> Result<()> {
        self.progress
            .heading(&format!("snapshot, restore, clone ({})", kind.name()));
        let mut facts = [String::new(), String::new()];
        for round in 1..=self.report.rounds {
            facts = self.copy(kind, round).await?;
        }
        for fact in facts {
            self.fact("Copies", &fact);
        }
        Ok(())
    }

    /// Snapshots, restores and clones a volume while a pod writes to it. Returns one line about the
    /// restored volume, and one about the clone.
    async fn copy(&mut self, kind: Kind, round: u32) -> Result<[String; 2]> {
        let name = |what| format!("{}-{what}", kind.name());
        let mut source = Life::new(self.demo_dir, kind, name("source"), round);
        self.create(&mut source, "create", BYTES.0, None).await?;
        self.fill(&source).await?;
        let writer = Writer::start(kind, &source.target, source.seed())?;
        let second = source.seed() | SECOND;
        let before = floor::stats(kind.name(), &source.target)?;

        let least = writer.wait_for(RECORDS).await;
        let snapshot = self.snapshot(&source).await?;
        // The writer may already have begun a further record.
        let records = (least, writer.durable() + 1);
        let note = "the second pattern replaces the first";
        self.work(&source, "overwrite, fsync", note, data::write, second)?;

        let mut restored = Life::new(self.demo_dir, kind, name("restored"), round);
        let from = Some(of_snapshot(&snapshot));
        self.create(&mut restored, "restore, larger", BYTES.1, from)
            .await?;
        self.mount(&restored, "stage (restored)").await?;
        let after = floor::stats(kind.name(), &restored.target)?;
        let is_whole = data::has_grown(before, after) || data::cannot_grow(kind)?;
        let (before, after) = (size::show(before), size::show(after));
        let sizes = format!("{before} at the snapshot, {after} now");
        ensure!(is_whole, "restored larger, but has {sizes}");
        let note = format!("the first pattern, every byte; {sizes}");
        self.work(&restored, READ_COPY, &note, data::compare, source.seed())?;
        let of_restored = has_records("restored snapshot", &restored, &source, records)?;

        let mut clone = Life::new(self.demo_dir, kind, name("clone"), round);
        let least = writer.wait_for(RECORDS).await;
        let from = Some(of_volume(&source.id));
        self.create(&mut clone, "clone", BYTES.0, from).await?;
        let records = (least, writer.durable() + 1);
        self.mount(&clone, "stage (clone)").await?;
        let note = "the second pattern, every byte";
        self.work(&clone, READ_COPY, note, data::compare, second)?;
        let of_clone = has_records("clone", &clone, &source, records)?;

        writer.stop()?;
        // The copies have not changed each other or the source.
        data::compare(kind, &source.target, second)?;
        for life in [&restored, &clone, &source] {
            self.end(life).await?;
        }
        let request = requests::discard(&snapshot);
        let rpc = "Controller/DeleteSnapshot";
        let () = self.call(&source, "delete snapshot", rpc, request).await?;
        has_no_volume_in_use(self.demo_dir)?;
        Ok([of_restored, of_clone])
    }

    /// Creates a snapshot of the volume. The snapshot is ready at once, since it shares blocks with
    /// the volume.
    async fn snapshot(&mut self, source: &Life) -> Result<String> {
        let name = format!("demo-snapshot-{}", source.round);
        let request = requests::cut(&name, &source.id);
        let answer: csi::CreateSnapshotResponse = self
            .call(source, "snapshot", "Controller/CreateSnapshot", request)
            .await?;
        let snapshot = answer.snapshot.unwrap_or_default();
        ensure!(snapshot.ready_to_use, "the snapshot is not ready");
        Ok(snapshot.snapshot_id)
    }
}

/// Proves that a copy contains every record that was durable before the copy was created, and no
/// record that was begun afterwards.
fn has_records(what: &str, copy: &Life, source: &Life, range: (u64, u64)) -> Result<String> {
    let found = data::count(copy.kind, &copy.target, source.seed())?;
    let is_whole = (range.0..=range.1).contains(&found);
    ensure!(is_whole, "{what}: {found} records, must be in {range:?}");
    let written = format!("{} while written: {what}", copy.kind.name());
    Ok(format!("{written}, {found} records, none missing"))
}
