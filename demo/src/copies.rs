//! A snapshot, a larger volume restored from it, and a clone, all in use at the same time as their
//! source: which data each of them must hold, and the check that it does.

use std::time::{Duration, Instant};

use belay_bed::requests::{of_snapshot, of_volume};
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::calls::Source;
use crate::kind::{Kind, Scene};
use crate::life::{BYTES, Birth, Life, Lives};
use crate::report::Topic;
use crate::samples::{self, Step};
use crate::trouble::Trouble;
use crate::writer::{self, Writer};
use crate::{bare, proof};
use belay_ctl::size;

const STORY: [&str; 3] = [
    "A pattern is written, saved in a snapshot, and overwritten with a second pattern. The volume",
    "restored from the snapshot is twice as large and must hold the first; the clone must hold the",
    "second, and the volume itself too.",
];
/// Added where blocks cannot be shared.
const SHARES_NO_BLOCKS: &str =
    "The state directory's filesystem cannot share blocks, so only detached volumes are copied.";

/// Records that are written before a copy is made.
const RECORDS: u64 = 20;

/// The least and the most records that a copy can have.
type Records = (u64, u64);

/// Set in the seed of the second pattern.
const SECOND: u64 = 1 << 40;

impl Lives<'_> {
    /// Every round of one kind.
    ///
    /// # Errors
    /// The first step that fails.
    pub(crate) async fn copies(&mut self, kind: Kind) -> Result<(), Trouble> {
        let heading = format!("snapshot, restore, clone ({})", kind.name());
        self.progress.heading(&heading);
        for line in STORY {
            self.progress.detail(&format!("  {line}"));
        }
        if self.shares_no_blocks {
            self.progress.detail(&format!("  {SHARES_NO_BLOCKS}"));
        }
        let mut took = Vec::new();
        for round in 1..=self.rounds {
            let started = Instant::now();
            self.copy(kind, round).await?;
            took.push(started.elapsed());
            bare::copies(self.demo_dir, kind, BYTES, &mut self.report.samples)?;
        }
        self.passed_all(Scene::Copies(kind), &took);
        // Not measured: the writer would be in the times.
        self.copy(kind, 0).await
    }

    /// In round 0, a pod writes to the source all the time.
    async fn copy(&mut self, kind: Kind, round: u32) -> Result<(), Trouble> {
        let name = format!("{}-source", kind.name());
        let mut source = self
            .begin(birth(kind, round, &name, Step::Create, None))
            .await?;
        self.fill(&mut source).await?;
        let mut writer = match round {
            0 => Some(Writer::start(kind, &source.target, source.seed())?),
            _ => None,
        };
        let before = proof::size(kind, &source.target)?;
        let (snapshot, records) = self.snapshot(&mut source, &mut writer).await?;

        self.step(&mut source, Step::Overwrite);
        let took = proof::write(kind, &source.target, source.seed() | SECOND)?;
        self.done(&source, took, "the second pattern replaces the first");

        let restored = self.restore(&source, &snapshot, before).await?;
        if let Some(records) = records {
            self.has_records("restored snapshot", &restored, &source, records)?;
        }
        let (clone, is_source_up, records) = self.clone_of(&mut source, &mut writer).await?;
        if let Some(records) = records {
            self.has_records("clone", &clone, &source, records)?;
        }
        if let Some(mut writer) = writer {
            writer.stop()?;
        }
        if is_source_up {
            // Neither copy has changed the other.
            proof::compare(kind, &source.target, source.seed() | SECOND)?;
        }
        self.tear_down(restored, Step::DeleteRestored, true).await?;
        self.tear_down(clone, Step::DeleteClone, true).await?;
        let end = Step::DeleteSource;
        let mut last = self.tear_down(source, end, is_source_up).await?;

        self.step(&mut last, Step::DeleteSnapshot);
        let ((), took) = self.calls.delete_snapshot(&snapshot).await?;
        self.done(&last, took, "");
        proof::nothing_is_left(self.demo_dir)
    }

    /// Proves that a copy has every record that was durable before it was made, and none that was
    /// begun afterwards.
    fn has_records(
        &mut self,
        what: &str,
        copy: &Life,
        source: &Life,
        (least, most): (u64, u64),
    ) -> Result<(), Trouble> {
        let found = writer::count(copy.kind, &copy.target, source.seed())?;
        if !(least..=most).contains(&found) {
            let text = format!("{what}: {found} records, must be {least} to {most}");
            return Err(Trouble::Untrue(text));
        }
        let when = match self.shares_no_blocks {
            true => "when detached",
            false => "while written",
        };
        let kind = copy.kind.name();
        let text = format!("{kind} {when}: {what}, {found} records, none missing");
        self.fact(Topic::Copies, text);
        Ok(())
    }

    /// Creates the snapshot while the volume is in use; if blocks cannot be shared, after detaching
    /// it.
    async fn snapshot(
        &mut self,
        life: &mut Life,
        writer: &mut Option<Writer>,
    ) -> Result<(String, Option<Records>), Trouble> {
        let name = format!("demo-snapshot-{}", life.round);
        self.step(life, Step::Snapshot);
        let least = at_work(writer).await;
        match self.calls.snapshot(name.clone(), &life.volume).await {
            Ok((id, took)) => {
                let records = least.zip(writer.as_ref().map(Writer::begun));
                self.done(life, took, &format!("{id}, while the volume is in use"));
                return Ok((id, records));
            }
            Err(trouble) => self.is_refused(life, trouble)?,
        }
        let records = stopped(writer)?;
        self.down(life).await?;
        self.step(life, Step::Snapshot);
        let (id, took) = self.calls.snapshot(name, &life.volume).await?;
        self.done(life, took, &format!("{id}, of the detached volume"));
        self.attach(life).await?;
        self.stage(life, Step::StageAgain, life.kind.found())
            .await?;
        self.publish(life).await?;
        Ok((id, records))
    }

    /// A volume of twice the size must hold the first pattern, and have that size.
    async fn restore(
        &mut self,
        source: &Life,
        snapshot: &str,
        before: u64,
    ) -> Result<Life, Trouble> {
        let (kind, round) = (source.kind, source.round);
        let from = of_snapshot(snapshot);
        let name = format!("{}-restored", kind.name());
        let mut birth = birth(kind, round, &name, Step::Restore, Some(from));
        birth.bytes = BYTES.1;
        let mut life = self.begin(birth).await?;

        self.step(&mut life, Step::StageRestored);
        let ((), took) = self.calls.stage(&life.volume, &life.staging).await?;
        let note = grown(&life, before)?;
        self.done(&life, took, &note);
        self.publish(&mut life).await?;

        self.step(&mut life, Step::ReadOld);
        let took = proof::compare(kind, &life.target, source.seed())?;
        self.done(&life, took, "the first pattern, every byte");
        Ok(life)
    }

    /// Clones the volume while it is in use, or detached; returns whether it is in use afterwards.
    async fn clone_of(
        &mut self,
        source: &mut Life,
        writer: &mut Option<Writer>,
    ) -> Result<(Life, bool, Option<Records>), Trouble> {
        let (kind, round) = (source.kind, source.round);
        let from = of_volume(&source.volume.id);
        let name = format!("{}-clone", kind.name());
        let birth = || birth(kind, round, &name, Step::Clone, Some(from.clone()));
        self.step(source, Step::Clone);
        let least = at_work(writer).await;
        let (mut life, is_source_up, records) = match self.begin(birth()).await {
            Ok(life) => (life, true, least.zip(writer.as_ref().map(Writer::begun))),
            Err(trouble) => {
                self.is_refused(source, trouble)?;
                let records = stopped(writer)?;
                self.down(source).await?;
                (self.begin(birth()).await?, false, records)
            }
        };
        self.stage(&mut life, Step::StageClone, kind.found())
            .await?;
        self.publish(&mut life).await?;
        self.step(&mut life, Step::ReadNew);
        let took = proof::compare(kind, &life.target, source.seed() | SECOND)?;
        self.done(&life, took, "the second pattern, every byte");
        Ok((life, is_source_up, records))
    }

    /// Accepts the refusal of a filesystem that cannot share blocks.
    fn is_refused(&mut self, life: &Life, trouble: Trouble) -> Result<(), Trouble> {
        match trouble {
            Trouble::Call { status, .. }
                if status.code() == Code::FailedPrecondition && self.shares_no_blocks =>
            {
                let what = "refused while the volume is attached, as it must be";
                self.refused(life, life.step.label(life.kind), what, status.message());
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Unpublish, unstage, detach.
    async fn down(&mut self, life: &mut Life) -> Result<(), Trouble> {
        let target = life.target.clone();
        self.unpublish(life, &target, "").await?;
        self.unstage(life).await?;
        self.detach(life).await
    }

    /// Tears a volume down in one line, with the time of each call.
    async fn tear_down(
        &mut self,
        mut life: Life,
        step: Step,
        is_up: bool,
    ) -> Result<Life, Trouble> {
        self.step(&mut life, step);
        let mut calls: Vec<(&str, Duration)> = Vec::new();
        if is_up {
            let ((), took) = self.calls.unpublish(&life.volume, &life.target).await?;
            proof::is_gone(&life.target)?;
            calls.push(("unpublish", took));
            let ((), took) = self.calls.unstage(&life.volume, &life.staging).await?;
            proof::is_unbound(self.demo_dir, &life.volume.id)?;
            calls.push(("unstage", took));
            let ((), took) = self.calls.detach(&life.volume).await?;
            calls.push(("detach", took));
        }
        let ((), took) = self.calls.delete(&life.volume).await?;
        calls.push(("delete", took));
        let each = calls
            .iter()
            .map(|(call, took)| format!("{call} {}", samples::show(*took)));
        let note = each.collect::<Vec<_>>().join(", ");
        self.done(&life, calls.iter().map(|(_, took)| took).sum(), &note);
        Ok(life)
    }
}

/// Waits until the writer writes. Returns how many records every later copy must have.
async fn at_work(writer: &Option<Writer>) -> Option<u64> {
    let writer = writer.as_ref()?;
    writer.wait_for(RECORDS).await;
    Some(writer.durable())
}

/// Stops the writer, so that the volume can be detached: a copy has all its records.
fn stopped(writer: &mut Option<Writer>) -> Result<Option<Records>, Trouble> {
    let total = writer.as_mut().map(Writer::stop).transpose()?;
    Ok(total.map(|total| (total, total)))
}

/// Proves that the staged volume is larger than the snapshot, as far as this process may grow it.
fn grown(life: &Life, before: u64) -> Result<String, Trouble> {
    let staged = if life.kind.is_block() {
        life.staging.join("device")
    } else {
        life.staging.clone()
    };
    let after = proof::size(life.kind, &staged)?;
    let (was, is) = (size::show(before), size::show(after));
    // A filesystem uses some of the device itself, so "twice" is not exact.
    if after >= before / 2 * 3 {
        return Ok(format!(
            "{}; {was} at the snapshot, {is} now",
            life.kind.found()
        ));
    }
    if life.kind == Kind::Ext4 && proof::lacks_sys_resource()? {
        let why = "growing a mounted ext4 needs CAP_SYS_RESOURCE";
        return Ok(format!("{}; still {is}: {why}", life.kind.found()));
    }
    let text = format!("restored larger, but has {is}, and had {was} at the snapshot");
    Err(Trouble::Untrue(text))
}

fn birth<'a>(
    kind: Kind,
    round: u32,
    name: &'a str,
    step: Step,
    source: Option<Source>,
) -> Birth<'a> {
    Birth {
        scene: Scene::Copies(kind),
        round,
        name,
        mode: Mode::SingleNodeWriter,
        step,
        bytes: BYTES.0,
        source,
    }
}
