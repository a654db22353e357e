//! A volume's whole lifecycle, step by step, as a cluster would run it: the calls in order, and
//! after each a check of the kernel's state.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_proto::csi::v1::volume_capability::access_mode::Mode;

use crate::bare;
use crate::calls::{Calls, Source, Volume};
use crate::demo_dir::DemoDir;
use crate::kind::{Kind, Scene};
use crate::progress::Progress;
use crate::proof;
use crate::report::{Cell, Report, Topic};
use crate::samples::{self, Step, Who, median};
use crate::trouble::Trouble;
use belay_ctl::size;

/// Size at creation, and after the online expansion.
pub(crate) const BYTES: (i64, i64) = (1 << 30, 2 << 30);

/// All lifecycles of one run.
pub(crate) struct Lives<'a> {
    pub(crate) demo_dir: &'a DemoDir,
    pub(crate) calls: &'a mut Calls,
    pub(crate) report: &'a mut Report,
    pub(crate) progress: &'a mut Progress,
    pub(crate) kinds: &'a [Kind],
    /// The kinds for which snapshots and clones are shown.
    pub(crate) copied: &'a [Kind],
    pub(crate) rounds: u32,
    /// The current step, for a failure report.
    pub(crate) now: &'a mut String,
}

/// The start of a lifecycle.
pub(crate) struct Birth<'a> {
    pub(crate) scene: Scene,
    /// From 1; 0 is shown but not counted.
    pub(crate) round: u32,
    /// Names the volume and its pod; differs between simultaneous lifecycles.
    pub(crate) name: &'a str,
    pub(crate) mode: Mode,
    /// The step that creates it.
    pub(crate) step: Step,
    pub(crate) bytes: i64,
    pub(crate) source: Option<Source>,
}

impl<'a> Birth<'a> {
    /// A new volume for one pod, outside the rounds.
    pub(crate) fn of(scene: Scene, name: &'a str) -> Self {
        Self {
            scene,
            round: 0,
            name,
            mode: Mode::SingleNodeWriter,
            step: Step::Create,
            bytes: BYTES.0,
            source: None,
        }
    }
}

/// One lifecycle, and its paths, like a kubelet's.
pub(crate) struct Life {
    pub(crate) scene: Scene,
    pub(crate) kind: Kind,
    pub(crate) round: u32,
    pub(crate) step: Step,
    pub(crate) volume: Volume,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) second: PathBuf,
}

impl Lives<'_> {
    /// Every kind, every round; then copies and refusals.
    ///
    /// # Errors
    /// The first step that fails.
    pub(crate) async fn all(&mut self) -> Result<(), Trouble> {
        for &kind in self.kinds {
            self.progress.heading(kind.name());
            let mut took = Vec::new();
            for round in 1..=self.rounds {
                let started = Instant::now();
                self.one(kind, round).await?;
                took.push(started.elapsed());
                bare::live(self.demo_dir, kind, BYTES.0, &mut self.report.samples)?;
            }
            self.passed_all(Scene::Life(kind), &took);
        }
        for &kind in self.copied {
            self.copies(kind).await?;
        }
        if self.kinds.is_empty() {
            return Ok(());
        }
        self.foreign_byte_is_refused().await?;
        self.second_writer_is_refused().await
    }

    /// The median time of all rounds of a scene.
    pub(crate) fn passed_all(&mut self, scene: Scene, took: &[Duration]) {
        if let Some(p50) = median(took) {
            let (name, rounds, p50) = (scene.name(), self.rounds, samples::show(p50));
            self.progress
                .passed(&format!("{name}: passed, rounds: {rounds}, median {p50}"));
        }
    }

    /// Records a fact for the screen.
    pub(crate) fn fact(&mut self, topic: Topic, text: String) {
        self.progress.passed(&format!("{}: {text}", topic.label()));
        self.report.fact(topic, text);
    }

    async fn one(&mut self, kind: Kind, round: u32) -> Result<(), Trouble> {
        let birth = Birth {
            round,
            mode: Mode::SingleNodeMultiWriter,
            ..Birth::of(Scene::Life(kind), kind.name())
        };
        let mut life = self.begin(birth).await?;
        self.first_use(&mut life).await?;
        if !kind.is_block() {
            self.share(&mut life).await?;
        }
        self.grow(&mut life).await?;
        self.pause(&mut life).await?;
        self.resume(&mut life).await?;
        self.end(life).await
    }

    /// Create and attach.
    pub(crate) async fn begin(&mut self, birth: Birth<'_>) -> Result<Life, Trouble> {
        let Birth { scene, round, .. } = birth;
        let kind = scene.kind();
        let pod = self.demo_dir.pod(birth.name);
        let staging = pod.join("staging");
        // In CSI, the caller creates the staging directory and the parent of a target.
        std::fs::create_dir_all(&staging).map_err(|e| Trouble::own(staging.display(), e))?;
        self.at(scene, round, birth.step);
        let name = format!("demo-{}-{round}-{}", birth.name, birth.mode.as_str_name());
        let capability = kind.capability(birth.mode);
        let (volume, took) = self
            .calls
            .create(name, birth.bytes, capability, birth.source)
            .await?;
        let (target, second) = (pod.join("target"), pod.join("second-target"));
        let mut life = Life {
            scene,
            kind,
            round,
            step: birth.step,
            volume,
            staging,
            target,
            second,
        };
        let size = size::show(birth.bytes.cast_unsigned());
        self.done(&life, took, &format!("{}, {size}", life.volume.id));
        self.attach(&mut life).await?;
        Ok(life)
    }

    pub(crate) async fn attach(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Attach);
        let (content, took) = self.calls.attach(&mut life.volume).await?;
        self.done(life, took, &format!("content={content}"));
        Ok(())
    }

    /// Stages the blank volume, publishes, writes, reads its size.
    async fn first_use(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.fill(life).await?;

        self.step(life, Step::Stats);
        let (total, took) = self.stats(life).await?;
        self.done(life, took, &format!("{} in total", size::show(total)));

        // Among other calls, as in benches/BUDGET.md.
        let (_, empty) = self.calls.probe().await?;
        self.report.samples.add_empty_call(empty);
        Ok(())
    }

    /// Stages the blank volume, publishes, writes.
    pub(crate) async fn fill(&mut self, life: &mut Life) -> Result<(), Trouble> {
        let made = if life.kind.is_block() {
            "device bound"
        } else {
            "formatted and mounted"
        };
        self.stage(life, Step::StageBlank, made).await?;
        self.report.blank_stages += u32::from(!life.kind.is_block());
        self.publish(life).await?;

        self.step(life, Step::Write);
        let took = proof::write(life.kind, &life.target, life.seed())?;
        self.done(life, took, "durable");
        Ok(())
    }

    pub(crate) async fn stage(
        &mut self,
        life: &mut Life,
        step: Step,
        note: &str,
    ) -> Result<(), Trouble> {
        self.step(life, step);
        let ((), took) = self.calls.stage(&life.volume, &life.staging).await?;
        self.done(life, took, note);
        Ok(())
    }

    /// A second target, read-only.
    async fn share(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::PublishReadOnly);
        let ((), took) = self
            .calls
            .publish(&life.volume, &life.staging, &life.second, true)
            .await?;
        proof::compare(life.kind, &life.second, life.seed())?;
        proof::refuses_writes(&life.second)?;
        self.done(
            life,
            took,
            "same data in a second target; writes fail with EROFS",
        );
        Ok(())
    }

    /// Unpublishes both targets and unstages; the volume stays attached.
    async fn pause(&mut self, life: &mut Life) -> Result<(), Trouble> {
        if !life.kind.is_block() {
            let second = life.second.clone();
            self.unpublish(life, &second, "the read-only target")
                .await?;
        }
        let target = life.target.clone();
        self.unpublish(life, &target, "").await?;
        self.unstage(life).await
    }

    /// Stages again, which must not format, and compares the data.
    pub(crate) async fn resume(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.stage(life, Step::StageAgain, life.kind.found())
            .await?;
        self.publish(life).await?;

        self.step(life, Step::Read);
        let took = proof::compare(life.kind, &life.target, life.seed())?;
        self.done(life, took, "every byte as written");
        Ok(())
    }

    /// Tear down, detach, delete.
    pub(crate) async fn end(&mut self, mut life: Life) -> Result<(), Trouble> {
        let target = life.target.clone();
        self.unpublish(&mut life, &target, "").await?;
        self.unstage(&mut life).await?;
        proof::nothing_is_left(self.demo_dir)?;

        self.detach(&mut life).await?;
        self.delete(&mut life).await
    }

    pub(crate) async fn delete(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Delete);
        let ((), took) = self.calls.delete(&life.volume).await?;
        self.done(life, took, "");
        Ok(())
    }

    pub(crate) async fn publish(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Publish);
        let call = self
            .calls
            .publish(&life.volume, &life.staging, &life.target, false);
        let ((), took) = call.await?;
        self.done(life, took, "");
        Ok(())
    }

    pub(crate) async fn unpublish(
        &mut self,
        life: &mut Life,
        target: &Path,
        note: &str,
    ) -> Result<(), Trouble> {
        self.step(life, Step::Unpublish);
        let ((), took) = self.calls.unpublish(&life.volume, target).await?;
        proof::is_gone(target)?;
        self.done(life, took, note);
        Ok(())
    }

    pub(crate) async fn detach(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Detach);
        let ((), took) = self.calls.detach(&life.volume).await?;
        self.done(life, took, "");
        Ok(())
    }

    pub(crate) async fn unstage(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Unstage);
        let ((), took) = self.calls.unstage(&life.volume, &life.staging).await?;
        proof::is_unbound(self.demo_dir, &life.volume.id)?;
        self.done(life, took, "");
        Ok(())
    }

    pub(crate) async fn stats(&self, life: &Life) -> Result<(u64, Duration), Trouble> {
        let call = self.calls.stats(&life.volume, &life.target, &life.staging);
        let (total, took) = call.await?;
        let negative = |_| Trouble::Untrue(format!("stats say {total} bytes"));
        Ok((u64::try_from(total).map_err(negative)?, took))
    }

    pub(crate) fn step(&mut self, life: &mut Life, step: Step) {
        life.step = step;
        self.at(life.scene, life.round, step);
    }

    fn at(&mut self, scene: Scene, round: u32, step: Step) {
        let (name, label) = (scene.name(), step.label(scene.kind()));
        *self.now = match round {
            0 => format!("{name}, {label}"),
            _ => format!("{name}, round {round} of {}, {label}", self.rounds),
        };
        self.progress.draw(self.report, self.now, round <= 1);
    }

    /// Only the first round is shown step by step.
    pub(crate) fn done(&mut self, life: &Life, took: Duration, note: &str) {
        if life.round > 0 {
            let (scene, step) = (life.scene, life.step);
            self.report.samples.add(scene, step, Who::Belay, took);
            self.report.set(scene, step, Cell::Done);
        }
        if life.round <= 1 {
            self.progress.step(life.step.label(life.kind), took, note);
        }
    }

    /// A step that was rightly refused: the meaning, and the driver's message.
    pub(crate) fn refused(&mut self, life: &Life, label: &str, what: &str, words: &str) {
        if life.round <= 1 {
            let line = format!("  {label:<20}{:>11}   {what}:", "-");
            self.progress.detail(&line);
            self.progress.detail(&format!("    {words}"));
        }
    }
}

impl Life {
    /// Different data for every lifecycle.
    pub(crate) fn seed(&self) -> u64 {
        u64::from(self.round) << 8 | self.kind as u64
    }
}
