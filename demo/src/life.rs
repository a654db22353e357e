//! A volume's whole lifecycle, step by step, as a cluster would run it: the calls in order, and
//! after each a check of the kernel's state.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::calls::{Calls, Source, Volume};
use crate::demo_dir::DemoDir;
use crate::kind::{Kind, Scene};
use crate::progress::Progress;
use crate::proof;
use crate::samples::{self, Samples, Step, Who};
use crate::trouble::Trouble;
use crate::{bare, samples::median};
use belay_ctl::size;

/// Size at creation, and after the online expansion.
pub(crate) const BYTES: (i64, i64) = (1 << 30, 2 << 30);

/// All lifecycles of one run.
pub(crate) struct Lives<'a> {
    pub(crate) demo_dir: &'a DemoDir,
    pub(crate) calls: &'a mut Calls,
    pub(crate) samples: &'a mut Samples,
    pub(crate) progress: &'a Progress,
    pub(crate) kinds: &'a [Kind],
    /// The kinds for which snapshots and clones are shown.
    pub(crate) copied: &'a [Kind],
    /// Whether the state filesystem needs a detached volume for snapshots and clones.
    pub(crate) shares_no_blocks: bool,
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
    /// Every kind, every round; then the refusal for single writers.
    ///
    /// # Errors
    /// The first step that fails.
    pub(crate) async fn all(&mut self) -> Result<(), Trouble> {
        for &kind in self.kinds {
            self.progress.heading(&match kind {
                Kind::Block => "raw block".to_owned(),
                Kind::Ext4 | Kind::Xfs | Kind::Btrfs => kind.name().to_owned(),
            });
            let mut took = Vec::new();
            for round in 1..=self.rounds {
                let started = Instant::now();
                self.one(kind, round).await?;
                took.push(started.elapsed());
                bare::live(self.demo_dir, kind, BYTES, self.samples)?;
                let (_, empty) = self.calls.probe().await?;
                self.samples.add_empty_call(empty);
            }
            if let (Some(p50), 2..) = (median(&took), self.rounds) {
                let all = format!("{} rounds, whole lifecycle", self.rounds);
                self.progress
                    .line(&format!("  {all:<28}{:>11} (p50)", samples::show(p50)));
            }
        }
        for &kind in self.copied {
            self.copies(kind).await?;
        }
        if self.kinds.is_empty() {
            return Ok(());
        }
        self.progress.heading("SINGLE_NODE_WRITER");
        self.second_target_is_refused().await
    }

    async fn one(&mut self, kind: Kind, round: u32) -> Result<(), Trouble> {
        let birth = Birth {
            scene: Scene::Life(kind),
            round,
            name: kind.name(),
            mode: Mode::SingleNodeMultiWriter,
            step: Step::Create,
            bytes: BYTES.0,
            source: None,
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

    /// Online expansion, first in the controller, then on the node.
    async fn grow(&mut self, life: &mut Life) -> Result<(), Trouble> {
        let before = proof::size(life.kind, &life.target)?;
        self.step(life, Step::ControllerExpand);
        let (bytes, took) = self.calls.controller_expand(&life.volume, BYTES.1).await?;
        if bytes != BYTES.1 {
            return Err(Trouble::Untrue(format!(
                "grew to {bytes} bytes, requested {}",
                BYTES.1
            )));
        }
        self.done(life, took, "2GiB");

        self.step(life, Step::NodeExpand);
        let grown = self
            .calls
            .node_expand(&life.volume, &life.target, &life.staging, BYTES.1)
            .await;
        match grown {
            Err(Trouble::Call { status, .. })
                if life.kind == Kind::Ext4
                    && status.code() == Code::FailedPrecondition
                    && proof::lacks_sys_resource()? =>
            {
                let label = life.step.label(life.kind);
                self.refused(life, label, "not supported here", status.message());
                Ok(())
            }
            Err(other) => Err(other),
            Ok((_bytes, took)) => {
                let after = proof::size(life.kind, &life.target)?;
                let (reported, _) = self.stats(life).await?;
                // A filesystem uses some of the device itself, so "twice" is not exact.
                if after < before / 2 * 3 || reported != after {
                    let text =
                        format!("{before} bytes before, {after} after, stats report {reported}");
                    return Err(Trouble::Untrue(format!("did not grow: {text}")));
                }
                let (before, after) = (size::show(before), size::show(after));
                self.done(
                    life,
                    took,
                    &format!("{before} before, {after} now, while in use"),
                );
                Ok(())
            }
        }
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
    async fn resume(&mut self, life: &mut Life) -> Result<(), Trouble> {
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

        self.step(&mut life, Step::Delete);
        let ((), took) = self.calls.delete(&life.volume).await?;
        self.done(&life, took, "");
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

    async fn stats(&self, life: &Life) -> Result<(u64, Duration), Trouble> {
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
            0 => format!("{name}, single writer, {label}"),
            _ => format!("{name}, round {round} of {}, {label}", self.rounds),
        };
        self.progress.now(self.now);
    }

    /// Only the first round is shown step by step.
    pub(crate) fn done(&mut self, life: &Life, took: Duration, note: &str) {
        if life.round > 0 {
            self.samples.add(life.scene, life.step, Who::Belay, took);
        }
        if life.round <= 1 {
            self.progress.step(life.step.label(life.kind), took, note);
        }
    }

    /// A step that was rightly refused: the meaning, and the driver's message.
    pub(crate) fn refused(&self, life: &Life, label: &str, what: &str, words: &str) {
        if life.round <= 1 {
            let line = format!("  {label:<20}{:>11}   {what}:", "-");
            self.progress.line(&line);
            self.progress.line(&format!("    {words}"));
        }
    }
}

impl Life {
    /// Different data for every lifecycle.
    pub(crate) fn seed(&self) -> u64 {
        u64::from(self.round) << 8 | self.kind as u64
    }
}
