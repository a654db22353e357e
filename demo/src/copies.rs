//! A snapshot, a larger volume restored from it, and a clone, all in use at the same time as their
//! source: which data each of them must hold, and the check that it does.

use std::time::Instant;

use belay_bed::requests::{of_snapshot, of_volume};

use crate::calls::Source;
use crate::kind::{Kind, Scene};
use crate::life::{BYTES, Birth, Life, Lives};
use crate::proof;
use crate::report::Topic;
use crate::samples::{self, Step};
use crate::trouble::Trouble;
use crate::writer::{self, Writer};
use belay_ctl::size;

const STORY: [&str; 3] = [
    "A pattern is written, saved in a snapshot, and overwritten with a second pattern. The volume",
    "restored from the snapshot is twice as large and must hold the first; the clone must hold the",
    "second, and the volume itself too.",
];
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
        let (mut took, mut facts) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            let started = Instant::now();
            facts = self.copy(kind, round).await?;
            took.push(started.elapsed());
        }
        self.passed_all(Scene::Copies(kind), &took);
        for fact in facts {
            self.fact(Topic::Copies, fact);
        }
        Ok(())
    }

    /// Copies a volume to which a pod writes all the time. Returns what was proven of the copies.
    async fn copy(&mut self, kind: Kind, round: u32) -> Result<Vec<String>, Trouble> {
        let name = format!("{}-source", kind.name());
        let mut source = self
            .begin(birth(kind, round, &name, Step::Create, None))
            .await?;
        self.fill(&mut source).await?;
        let mut writer = Writer::start(kind, &source.target, source.seed())?;
        let before = proof::size(kind, &source.target)?;
        let (snapshot, records) = self.snapshot(&mut source, &writer).await?;

        self.step(&mut source, Step::Overwrite);
        let took = proof::write(kind, &source.target, source.seed() | SECOND)?;
        self.done(&source, took, "the second pattern replaces the first");

        let restored = self.restore(&source, &snapshot, before).await?;
        let of_restored = has_records("restored snapshot", &restored, &source, records)?;
        let (clone, records) = self.clone_of(&mut source, &writer).await?;
        let of_clone = has_records("clone", &clone, &source, records)?;
        writer.stop()?;
        // Neither copy has changed the other.
        proof::compare(kind, &source.target, source.seed() | SECOND)?;
        self.tear_down(restored, Step::DeleteRestored).await?;
        self.tear_down(clone, Step::DeleteClone).await?;
        let mut last = self.tear_down(source, Step::DeleteSource).await?;

        self.step(&mut last, Step::DeleteSnapshot);
        let ((), took) = self.calls.delete_snapshot(&snapshot).await?;
        self.done(&last, took, "");
        proof::nothing_is_left(self.demo_dir)?;
        Ok(vec![of_restored, of_clone])
    }

    /// Creates the snapshot while the volume is in use.
    async fn snapshot(
        &mut self,
        life: &mut Life,
        writer: &Writer,
    ) -> Result<(String, Records), Trouble> {
        let name = format!("demo-snapshot-{}", life.round);
        self.step(life, Step::Snapshot);
        let least = at_work(writer).await;
        let (id, took) = self.calls.snapshot(name, &life.volume).await?;
        let records = (least, writer.begun());
        self.done(life, took, &format!("{id}, while the volume is in use"));
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

    /// Clones the volume while it is in use.
    async fn clone_of(
        &mut self,
        source: &mut Life,
        writer: &Writer,
    ) -> Result<(Life, Records), Trouble> {
        let (kind, round) = (source.kind, source.round);
        let from = of_volume(&source.volume.id);
        let name = format!("{}-clone", kind.name());
        self.step(source, Step::Clone);
        let least = at_work(writer).await;
        let mut life = self
            .begin(birth(kind, round, &name, Step::Clone, Some(from)))
            .await?;
        let records = (least, writer.begun());
        self.stage(&mut life, Step::StageClone, kind.found())
            .await?;
        self.publish(&mut life).await?;
        self.step(&mut life, Step::ReadNew);
        let took = proof::compare(kind, &life.target, source.seed() | SECOND)?;
        self.done(&life, took, "the second pattern, every byte");
        Ok((life, records))
    }

    /// Tears a volume down in one line, with the time of each call.
    async fn tear_down(&mut self, mut life: Life, step: Step) -> Result<Life, Trouble> {
        self.step(&mut life, step);
        let ((), unpublish) = self.calls.unpublish(&life.volume, &life.target).await?;
        proof::is_gone(&life.target)?;
        let ((), unstage) = self.calls.unstage(&life.volume, &life.staging).await?;
        proof::is_unbound(self.demo_dir, &life.volume.id)?;
        let ((), detach) = self.calls.detach(&life.volume).await?;
        let ((), delete) = self.calls.delete(&life.volume).await?;
        let calls = [
            ("unpublish", unpublish),
            ("unstage", unstage),
            ("detach", detach),
            ("delete", delete),
        ];
        let each = calls
            .iter()
            .map(|(call, took)| format!("{call} {}", samples::show(*took)));
        let note = each.collect::<Vec<_>>().join(", ");
        self.done(&life, calls.iter().map(|(_, took)| took).sum(), &note);
        Ok(life)
    }
}

/// Waits until the writer writes. Returns how many records every later copy must have.
async fn at_work(writer: &Writer) -> u64 {
    writer.wait_for(RECORDS).await;
    writer.durable()
}

/// Proves that a copy has every record that was durable before it was made, and none that was begun
/// afterwards.
fn has_records(
    what: &str,
    copy: &Life,
    source: &Life,
    (least, most): Records,
) -> Result<String, Trouble> {
    let found = writer::count(copy.kind, &copy.target, source.seed())?;
    let kind = copy.kind.name();
    match (least..=most).contains(&found) {
        true => Ok(format!(
            "{kind} while written: {what}, {found} records, none missing"
        )),
        false => {
            let text = format!("{what}: {found} records, must be {least} to {most}");
            Err(Trouble::Untrue(text))
        }
    }
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
        round,
        step,
        source,
        ..Birth::of(Scene::Copies(kind), name)
    }
}
