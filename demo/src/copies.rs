//! Tests a snapshot, a larger volume restored from it, and a clone, all in use at the same time as
//! their source, and checks the data of each of them.

use anyhow::{Result, ensure};
use belay_bed::requests::{self, of_snapshot, of_volume};
use belay_ctl::size;
use belay_proto::csi::v1 as csi;

use crate::data::{self, Writer};
use crate::demo_dir::has_no_volume_in_use;
use crate::life::BYTES;
use crate::report::Kind;
use crate::steps::{Life, Steps};

const STORY: &str = "  \
  A pattern is written, saved in a snapshot, and overwritten with a second pattern. The volume
  restored from the snapshot is twice as large and must hold the first; the clone must hold the
  second, and the volume itself too.";
/// The number of records written before a copy is created.
const RECORDS: u64 = 20;
/// The bit that the seed of the second pattern has set.
const SECOND: u64 = 1 << 40;
const READ_COPY: &str = "read, compare";

impl Steps<'_> {
    /// Runs every round of one kind.
    ///
    /// # Errors
    /// Fails with the first step that fails.
    pub(crate) async fn copies(&mut self, kind: Kind) -> Result<()> {
        let name = kind.name();
        self.progress
            .heading(&format!("snapshot, restore, clone ({name})"));
        self.progress.detail(STORY);
        let mut facts = [String::new(), String::new()];
        for round in 1..=self.report.rounds {
            facts = self.copy(kind, round).await?;
        }
        for fact in facts {
            self.fact("Copies", &fact);
        }
        Ok(())
    }

    /// Copies a volume to which a pod writes all the time. Returns what was proven about the
    /// copies.
    async fn copy(&mut self, kind: Kind, round: u32) -> Result<[String; 2]> {
        let name = |what| format!("{}-{what}", kind.name());
        let mut source = Life::new(self.demo_dir, kind, name("source"), round);
        self.create(&mut source, "create", BYTES.0, None).await?;
        self.fill(&source).await?;
        let writer = Writer::start(kind, &source.target, source.seed())?;
        let second = source.seed() | SECOND;
        let before = data::size(kind, &source.target)?;

        let least = writer.wait_for(RECORDS).await;
        let snapshot = self.snapshot(&source).await?;
        // The writer may already have begun a further record.
        let records = (least, writer.durable() + 1);
        let note = "the second pattern replaces the first";
        self.work(&source, "overwrite, fsync", note, || {
            data::write(kind, &source.target, second)
        })?;

        let mut restored = Life::new(self.demo_dir, kind, name("restored"), round);
        let from = Some(of_snapshot(&snapshot));
        self.create(&mut restored, "restore, larger", BYTES.1, from)
            .await?;
        self.mount(&restored, "stage (restored)").await?;
        let after = data::size(kind, &restored.target)?;
        let is_whole = data::has_grown(before, after) || data::cannot_grow(kind)?;
        let sizes = format!(
            "{} at the snapshot, {} now",
            size::show(before),
            size::show(after)
        );
        ensure!(is_whole, "restored larger, but has {sizes}");
        let note = format!("the first pattern, every byte; {sizes}");
        self.work(&restored, READ_COPY, &note, || {
            data::compare(kind, &restored.target, source.seed())
        })?;
        let of_restored = has_records("restored snapshot", &restored, &source, records)?;

        let mut clone = Life::new(self.demo_dir, kind, name("clone"), round);
        let least = writer.wait_for(RECORDS).await;
        let from = Some(of_volume(&source.id));
        self.create(&mut clone, "clone", BYTES.0, from).await?;
        let records = (least, writer.durable() + 1);
        self.mount(&clone, "stage (clone)").await?;
        self.work(&clone, READ_COPY, "the second pattern, every byte", || {
            data::compare(kind, &clone.target, second)
        })?;
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

    /// Creates a snapshot of the volume, which shares blocks with it and so is ready at once.
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
fn has_records(
    what: &str,
    copy: &Life,
    source: &Life,
    (least, most): (u64, u64),
) -> Result<String> {
    let found = data::count(copy.kind, &copy.target, source.seed())?;
    let is_whole = (least..=most).contains(&found);
    ensure!(
        is_whole,
        "{what}: {found} records, must be {least} to {most}"
    );
    let kind = copy.kind.name();
    Ok(format!(
        "{kind} while written: {what}, {found} records, none missing"
    ))
}
