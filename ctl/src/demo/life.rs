//! A volume's whole life, step by step, as a cluster would drive it: the order of the calls, and
//! after each the look at the kernel that shows whether the answer was true.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::demo::calls::{Calls, Volume};
use crate::demo::kind::Kind;
use crate::demo::place::Place;
use crate::demo::progress::Progress;
use crate::demo::proof;
use crate::demo::samples::{self, Samples, Step, Who};
use crate::demo::trouble::Trouble;
use crate::demo::{bare, samples::median};
use crate::size;

/// Size at creation, and after the online expansion.
const BYTES: (i64, i64) = (1 << 30, 2 << 30);

/// All lives of one run.
pub(super) struct Lives<'a> {
    pub(super) place: &'a Place,
    pub(super) calls: &'a mut Calls,
    pub(super) samples: &'a mut Samples,
    pub(super) progress: &'a Progress,
    pub(super) kinds: &'a [Kind],
    pub(super) rounds: u32,
    /// Where we are, for a failure report.
    pub(super) now: &'a mut String,
}

/// One life, and its paths as a kubelet would choose them.
struct Life {
    kind: Kind,
    /// From 1; 0 is a life that is told but not counted.
    round: u32,
    step: Step,
    volume: Volume,
    staging: PathBuf,
    target: PathBuf,
    second: PathBuf,
}

impl Lives<'_> {
    /// Every kind, every round; then the refusal that belongs to single writers.
    ///
    /// # Errors
    /// The first step that fails.
    pub(super) async fn all(&mut self) -> Result<(), Trouble> {
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
                bare::live(self.place, kind, BYTES, self.samples)?;
                let (_, empty) = self.calls.probe().await?;
                self.samples.add_empty_call(empty);
            }
            if let (Some(p50), 2..) = (median(&took), self.rounds) {
                let all = format!("{} rounds, one whole life", self.rounds);
                self.progress
                    .line(&format!("  {all:<28}{:>11} (p50)", samples::show(p50)));
            }
        }
        self.progress.heading("SINGLE_NODE_WRITER");
        self.second_target_is_refused().await
    }

    async fn one(&mut self, kind: Kind, round: u32) -> Result<(), Trouble> {
        let mut life = self.begin(kind, round, Mode::SingleNodeMultiWriter).await?;
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
    async fn begin(&mut self, kind: Kind, round: u32, mode: Mode) -> Result<Life, Trouble> {
        let pod = self.place.pod(kind);
        let staging = pod.join("staging");
        // Making the staging directory and the parent of a target is the caller's part in CSI.
        std::fs::create_dir_all(&staging).map_err(|e| Trouble::own(staging.display(), e))?;
        self.at(kind, round, Step::Create);
        let name = format!("demo-{}-{round}-{}", kind.name(), mode.as_str_name());
        let (volume, took) = self
            .calls
            .create(name, BYTES.0, kind.capability(mode))
            .await?;
        let (target, second) = (pod.join("target"), pod.join("second-target"));
        let mut life = Life {
            kind,
            round,
            step: Step::Create,
            volume,
            staging,
            target,
            second,
        };
        self.done(&life, took, &format!("{}, 1GiB", life.volume.id));

        self.step(&mut life, Step::Attach);
        let (content, took) = self.calls.attach(&mut life.volume).await?;
        self.done(&life, took, &format!("content={content}"));
        Ok(life)
    }

    /// Stage the blank volume, publish, write, look at its size.
    async fn first_use(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::StageBlank);
        let ((), took) = self.calls.stage(&life.volume, &life.staging).await?;
        let made = if life.kind.is_block() {
            "device bound"
        } else {
            "formatted and mounted"
        };
        self.done(life, took, made);

        self.publish(life).await?;

        self.step(life, Step::Write);
        let took = proof::write(life.kind, &life.target, life.seed())?;
        self.done(life, took, "durable");

        self.step(life, Step::Stats);
        let (total, took) = self.stats(life).await?;
        self.done(life, took, &format!("{} in all", size::show(total)));
        Ok(())
    }

    /// A second target, read-only, beside the first.
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
            "same data in a second target; writing there fails with EROFS",
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
                "grew to {bytes} bytes, asked {}",
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
                self.not_here(life, status.message());
                Ok(())
            }
            Err(other) => Err(other),
            Ok((_bytes, took)) => {
                let after = proof::size(life.kind, &life.target)?;
                let (told, _) = self.stats(life).await?;
                // A filesystem keeps some of the device for itself, so "twice" is not exact.
                if after < before / 2 * 3 || told != after {
                    let text = format!("{before} bytes before, {after} after, stats say {told}");
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

    /// Both targets and staging go away; the volume stays attached.
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

    /// Stage again, which must not format, and read back what was written.
    async fn resume(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::StageAgain);
        let ((), took) = self.calls.stage(&life.volume, &life.staging).await?;
        let how = if life.kind.is_block() {
            "device bound"
        } else {
            "not formatted, mounted"
        };
        self.done(life, took, how);
        self.publish(life).await?;

        self.step(life, Step::Read);
        let took = proof::compare(life.kind, &life.target, life.seed())?;
        self.done(life, took, "every byte as written");
        Ok(())
    }

    /// Tear down, detach, delete.
    async fn end(&mut self, mut life: Life) -> Result<(), Trouble> {
        let target = life.target.clone();
        self.unpublish(&mut life, &target, "").await?;
        self.unstage(&mut life).await?;
        proof::nothing_is_left(self.place)?;

        self.step(&mut life, Step::Detach);
        let ((), took) = self.calls.detach(&life.volume).await?;
        self.done(&life, took, "");

        self.step(&mut life, Step::Delete);
        let ((), took) = self.calls.delete(&life.volume).await?;
        self.done(&life, took, "");
        Ok(())
    }

    /// SINGLE_NODE_WRITER means one target: the second must be refused, and change nothing.
    async fn second_target_is_refused(&mut self) -> Result<(), Trouble> {
        let mut life = self.begin(Kind::Ext4, 0, Mode::SingleNodeWriter).await?;
        self.step(&mut life, Step::StageBlank);
        let ((), took) = self.calls.stage(&life.volume, &life.staging).await?;
        self.done(&life, took, "formatted and mounted");
        self.publish(&mut life).await?;

        self.step(&mut life, Step::Publish);
        let second = self
            .calls
            .publish(&life.volume, &life.staging, &life.second, false)
            .await;
        match second {
            Err(Trouble::Call { status, .. }) if status.code() == Code::FailedPrecondition => {
                let text = "refused with FAILED_PRECONDITION, as it must be:";
                self.progress
                    .line(&format!("  {:<20}{:>11}   {text}", "second target", "-"));
                self.progress.line(&format!("    {}", status.message()));
            }
            Err(other) => return Err(other),
            Ok(_) => {
                let text = "a second target was published under SINGLE_NODE_WRITER";
                return Err(Trouble::Untrue(text.to_owned()));
            }
        }
        proof::is_gone(&life.second)?;
        self.end(life).await
    }

    async fn publish(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Publish);
        let call = self
            .calls
            .publish(&life.volume, &life.staging, &life.target, false);
        let ((), took) = call.await?;
        self.done(life, took, "");
        Ok(())
    }

    async fn unpublish(
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

    async fn unstage(&mut self, life: &mut Life) -> Result<(), Trouble> {
        self.step(life, Step::Unstage);
        let ((), took) = self.calls.unstage(&life.volume, &life.staging).await?;
        proof::is_unbound(self.place, &life.volume.id)?;
        self.done(life, took, "");
        Ok(())
    }

    async fn stats(&self, life: &Life) -> Result<(u64, Duration), Trouble> {
        let call = self.calls.stats(&life.volume, &life.target, &life.staging);
        let (total, took) = call.await?;
        let negative = |_| Trouble::Untrue(format!("stats say {total} bytes"));
        Ok((u64::try_from(total).map_err(negative)?, took))
    }

    fn step(&mut self, life: &mut Life, step: Step) {
        life.step = step;
        self.at(life.kind, life.round, step);
    }

    fn at(&mut self, kind: Kind, round: u32, step: Step) {
        let (name, label) = (kind.name(), step.label(kind));
        *self.now = match round {
            0 => format!("{name}, single writer, {label}"),
            _ => format!("{name}, round {round} of {}, {label}", self.rounds),
        };
        self.progress.now(self.now);
    }

    /// Only the first round is told step by step.
    fn done(&mut self, life: &Life, took: Duration, note: &str) {
        if life.round > 0 {
            self.samples.add(life.kind, life.step, Who::Belay, took);
        }
        if life.round <= 1 {
            self.progress.step(life.step.label(life.kind), took, note);
        }
    }

    fn not_here(&self, life: &Life, reason: &str) {
        if life.round <= 1 {
            let label = life.step.label(life.kind);
            self.progress
                .line(&format!("  {label:<20}{:>11}   not here:", "-"));
            self.progress.line(&format!("    {}", reason));
        }
    }
}

impl Life {
    /// Other data for every life.
    fn seed(&self) -> u64 {
        u64::from(self.round) << 8 | self.kind as u64
    }
}
