//! The complete lifecycle of a volume, as in a cluster: the CSI calls in order, each followed by a
//! check of the kernel's state. For comparison, the demo also makes the system calls of the node
//! calls directly, without Belay, and measures them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use belay_bed::{devices, floor, patience, requests};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use csi::volume_content_source::Type as Source;
use csi::volume_usage::Unit;

use crate::data;
use crate::demo_dir::{BARE, VOLUMES, has_no_volume_in_use, mkfs, none_is_bound};
use crate::report::{
    Kind, NODE_EXPAND, PROBE, PUBLISH, READ, READ_ONLY, Report, STAGE_AGAIN, STAGE_FIRST, Side,
    Step, UNPUBLISH, UNSTAGE, WRITE,
};
use crate::steps::{Life, Steps};

/// The size in bytes at creation, and after the online expansion.
pub(crate) const BYTES: (i64, i64) = (1 << 30, 2 << 30);

impl Steps<'_> {
    /// Runs all rounds for one kind of volume. After each round, makes the same system calls
    /// directly, without Belay.
    ///
    /// # Errors
    /// Fails with the first step that fails.
    pub(crate) async fn rounds(&mut self, kind: Kind) -> Result<()> {
        let name = kind.name();
        self.progress.heading(name);
        let rounds = self.report.rounds;
        for round in 1..=rounds {
            self.one(kind, round).await?;
            if self.report.kinds_with_bars().any(|with| with == kind) {
                bare(self.demo_dir, kind, &mut self.report).context("bare system calls")?;
            }
        }
        self.progress
            .passed(&format!("{name}: passed, rounds: {rounds}"));
        Ok(())
    }

    async fn one(&mut self, kind: Kind, round: u32) -> Result<()> {
        let mut life = Life::new(self.demo_dir, kind, kind.name().to_owned(), round);
        (life.is_counted, life.mode) = (true, Mode::SingleNodeMultiWriter);
        self.create(&mut life, "create", BYTES.0, None).await?;
        self.fill(&life).await?;
        self.stats(&life).await?;
        // Between the other calls, measure the cost of a call that does nothing, as described in
        // benches/BUDGET.md.
        let request = csi::ProbeRequest {};
        let _: csi::ProbeResponse = self.call(&life, PROBE, "Identity/Probe", request).await?;
        if !kind.is_block() {
            self.publish(&life, READ_ONLY, &life.second).await?;
            data::compare(kind, &life.second, life.seed())?;
            data::refuses_writes(&life.second)?;
        }
        self.grow(&life).await?;
        if !kind.is_block() {
            self.unpublish(&life, &life.second).await?;
        }
        self.unpublish(&life, &life.target).await?;
        self.unstage(&life).await?;
        self.resume(&life).await?;
        self.end(&life).await?;
        has_no_volume_in_use(self.demo_dir)
    }

    /// Creates the volume with a size of `bytes`.
    pub(crate) async fn create(
        &mut self,
        life: &mut Life,
        label: Step,
        bytes: i64,
        source: Option<Source>,
    ) -> Result<()> {
        // In CSI, the caller creates the staging directory and the parent directory of the target
        // path.
        fs::create_dir_all(&life.staging)?;
        let name = format!("demo-{}-{}", life.name, life.round);
        let request = csi::CreateVolumeRequest {
            capacity_range: requests::range(bytes, 0),
            ..requests::create(&name, life.capability(), source)
        };
        let rpc = "Controller/CreateVolume";
        let answer: csi::CreateVolumeResponse = self.call(life, label, rpc, request).await?;
        let volume = answer.volume.unwrap_or_default();
        let returned = volume.capacity_bytes;
        ensure!(returned == bytes, "{returned} bytes, requested {bytes}");
        life.id = volume.volume_id;
        Ok(())
    }

    /// Stages the blank volume, publishes it, and writes data.
    pub(crate) async fn fill(&mut self, life: &Life) -> Result<()> {
        self.mount(life, STAGE_FIRST).await?;
        self.report.blank_stages += u32::from(!life.kind.is_block());
        self.work(life, WRITE, "durable", data::write, life.seed())
    }

    /// Stages the volume again, which must not format it, and compares the data.
    pub(crate) async fn resume(&mut self, life: &Life) -> Result<()> {
        self.mount(life, STAGE_AGAIN).await?;
        let note = "every byte as written";
        self.work(life, READ, note, data::compare, life.seed())
    }

    /// Stages and publishes the volume.
    pub(crate) async fn mount(&mut self, life: &Life, label: Step) -> Result<()> {
        self.stage(life, label).await?;
        self.publish(life, PUBLISH, &life.target).await
    }

    /// Unpublishes, unstages and deletes the volume.
    pub(crate) async fn end(&mut self, life: &Life) -> Result<()> {
        self.unpublish(life, &life.target).await?;
        self.unstage(life).await?;
        self.delete(life).await
    }

    /// Expands the volume while it is in use, first in the controller, then on the node. Without
    /// CAP_SYS_RESOURCE, the node must refuse to expand ext4.
    async fn grow(&mut self, life: &Life) -> Result<()> {
        let before = floor::stats(life.kind.name(), &life.target)?;
        let request = requests::grow(&life.id, BYTES.1);
        let rpc = "Controller/ControllerExpandVolume";
        let answer: csi::ControllerExpandVolumeResponse =
            self.call(life, "expand, controller", rpc, request).await?;
        let bytes = answer.capacity_bytes;
        ensure!(bytes == BYTES.1, "grew to {bytes} bytes");

        let (path, staging) = (&life.target, &life.staging);
        let request = requests::expand(&life.id, path, staging, BYTES.1, life.capability());
        let rpc = "Node/NodeExpandVolume";
        let expanded = self.call(life, NODE_EXPAND, rpc, request).await;
        let expanded = expanded.map(|_: csi::NodeExpandVolumeResponse| ());
        if expanded.is_err() && data::cannot_grow(life.kind)? {
            self.report.cannot_grow_ext4 = true;
            return self.must_be_refused(life, expanded);
        }
        expanded?;
        let after = floor::stats(life.kind.name(), path)?;
        let has_grown = data::has_grown(before, after);
        ensure!(has_grown, "had {before} bytes, has {after}: did not grow");
        let shown = self.stats(life).await?;
        ensure!(shown == after, "has {after} bytes, stats report {shown}");
        Ok(())
    }

    pub(crate) async fn stage(&mut self, life: &Life, label: Step) -> Result<()> {
        let request = requests::stage(&life.id, HashMap::new(), &life.staging, life.capability());
        self.call(life, label, "Node/NodeStageVolume", request)
            .await
    }

    pub(crate) async fn publish(&mut self, life: &Life, label: Step, target: &Path) -> Result<()> {
        let (none, capability) = (HashMap::new(), life.capability());
        let request = csi::NodePublishVolumeRequest {
            readonly: label == READ_ONLY,
            ..requests::publish(&life.id, none, &life.staging, target, capability)
        };
        self.call(life, label, "Node/NodePublishVolume", request)
            .await
    }

    /// Returns the total size of the volume in bytes, as the kubelet reads it.
    async fn stats(&mut self, life: &Life) -> Result<u64> {
        let request = requests::stats(&life.id, &life.target, &life.staging);
        let rpc = "Node/NodeGetVolumeStats";
        let answer: csi::NodeGetVolumeStatsResponse =
            self.call(life, "stats", rpc, request).await?;
        let mut usage = answer.usage.iter();
        let bytes = usage.find(|usage| usage.unit() == Unit::Bytes);
        Ok(bytes
            .context("stats have no size in bytes")?
            .total
            .try_into()?)
    }

    pub(crate) async fn unpublish(&mut self, life: &Life, target: &Path) -> Result<()> {
        let request = requests::unpublish(&life.id, target);
        let rpc = "Node/NodeUnpublishVolume";
        let () = self.call(life, UNPUBLISH, rpc, request).await?;
        data::is_gone(target)
    }

    pub(crate) async fn unstage(&mut self, life: &Life) -> Result<()> {
        let request = requests::unstage(&life.id, &life.staging);
        let rpc = "Node/NodeUnstageVolume";
        let () = self.call(life, UNSTAGE, rpc, request).await?;
        let file = self.demo_dir.join(VOLUMES).join(&life.id);
        none_is_bound(&devices::bound_to(&devices::list()?, &file)?)
    }

    /// Deletes the volume.
    pub(crate) async fn delete(&mut self, life: &Life) -> Result<()> {
        let request = requests::delete(&life.id);
        let rpc = "Controller/DeleteVolume";
        self.call(life, "delete", rpc, request).await
    }
}

/// Measures the time that the kernel itself needs to stage, publish, unpublish and unstage a
/// formatted filesystem. For this, makes the system calls directly on a similar device, as
/// benches/BUDGET.md describes.
///
/// # Errors
/// Fails if a system call or a tool fails.
fn bare(demo_dir: &Path, kind: Kind, report: &mut Report) -> Result<()> {
    let [file, staging, target] =
        ["disk", "staging", "target"].map(|name| demo_dir.join(BARE).join(name));
    let mut time = |step, work: &dyn Fn() -> io::Result<()>| {
        let started = Instant::now();
        work()?;
        report.add(kind, step, Side::Kernel, started.elapsed());
        io::Result::Ok(())
    };
    File::create_new(&file)?.set_len(BYTES.0.cast_unsigned())?;
    fs::create_dir(&staging)?;
    for is_first in [true, false] {
        let device = devices::bind(&file, &["--nooverlap"], Stdio::null())?;
        let stage = || floor::stage(kind.name(), &device, &staging);
        if is_first {
            let options: &[&str] = match kind {
                Kind::Ext4 => &["-q", "-F", "-E", "nodiscard"],
                _ => &["-q", "-f", "-K"],
            };
            mkfs(kind.name(), options, &device)?;
            stage()?;
        } else {
            time(STAGE_AGAIN, &stage)?;
        }
        // The kernel defers the detach of a loop device until the last user closes the device.
        // Therefore the umount releases the device here, too, as in the node agent.
        devices::detach(&device)?;
        time(PUBLISH, &|| floor::publish(kind.name(), &staging, &target))?;
        // Write the same data as in Belay's rounds, since an umount flushes dirty pages.
        match is_first {
            true => data::write(kind, &target, 1)?,
            false => data::compare(kind, &target, 1)?,
        };
        time(UNPUBLISH, &|| floor::unpublish(kind.name(), &target))?;
        time(UNSTAGE, &|| floor::unstage(&staging))?;
        // Another process, such as udev, may have the device open.
        patience::until(&format!("{} is free", device.display()), || {
            let bound = devices::list().and_then(|all| devices::bound_to(&all, &file));
            bound.is_ok_and(|bound| bound.is_empty())
        });
    }
    fs::remove_dir(&staging)?;
    Ok(fs::remove_file(&file)?)
}
